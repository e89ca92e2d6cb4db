//! Reads integers and slices out of bytes, one behind the other.

use bytes::Bytes;

use super::Malformed;

/// The rest of some bytes.
pub(crate) struct ByteReader {
    bytes: Bytes,
    at: usize,
}

impl ByteReader {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes, at: 0 }
    }

    /// How far it has read.
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<Bytes, Malformed> {
        if self.bytes.len() - self.at < length {
            return Err(Malformed("the bytes end too soon"));
        }
        let taken = self.bytes.slice(self.at..self.at + length);
        self.at += length;
        Ok(taken)
    }

    pub(crate) fn rest(&mut self) -> Bytes {
        let rest = self.bytes.slice(self.at..);
        self.at = self.bytes.len();
        rest
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let found = self.bytes[self.at..].first_chunk().copied().ok_or(Malformed("the bytes end too soon"))?;
        self.at += N;
        Ok(found)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Bytes that must be zero: so a flipped bit in one is found, and a later version can give them a meaning.
    pub(crate) fn zeros<const N: usize>(&mut self) -> Result<(), Malformed> {
        if self.array::<N>()? == [0; N] { Ok(()) } else { Err(Malformed("a spare byte is set")) }
    }
}
