//! The payload of a frame: the epoch and the end that it expects, then parts.
//!
//! Payload: epoch u64, expected end u64, parts. Part: kind u8 and three zero bytes, length u32, partition u64, then
//! `length` bytes:
//!
//! | kind | |
//! |---|---|
//! | 1 batch | a record batch as it is delivered |
//! | 2 stored | a reference to a batch in the journal: segment u64, position u64, length u32, count u32, checksum u32, its partition u64, its first offset u64, stored at u64 |
//! | 3 put | length of the key u16, key, value |
//! | 4 delete | length of the first key u16, key, 0 or 1 u8, then the first key behind |
//! | 5 trim | the new start u64 |
//! | 6 open | the new epoch u64, 1 if the partition is created u8, its first offset u64 |
//! | 7 end | the new end u64 (truncation) |
//! | 8 moved | what was moved: segment u64, position u64, incarnation u64, 0 = log or 1 = table u8, then the last offset u64 or the key. The next batch or value is where it lies now |
//! | 9 value | a value, moved |
//!
//! A part carries its partition so that a reader who fetches a batch by its place sees whose it is. A place is that of
//! the bytes behind the part's header.

use bytes::{BufMut, Bytes, BytesMut};
use stentor_core::batch::HEADER_BYTES;
use stentor_core::storage::{Key, KeyRange};
use stentor_core::{Epoch, Offset, PartitionId, RecordBatch, Timestamp};

use super::group::FrameKind;
use super::{ByteReader, Malformed};

/// What comes before the parts.
pub(crate) const PAYLOAD_HEADER_BYTES: usize = 16;

/// What comes before the bytes of a part.
pub(crate) const PART_HEADER_BYTES: usize = 16;

/// The code of a batch, for a reader that checks the header in front of one.
const BATCH: u8 = 1;

/// Batches at least this large are written from where they lie; smaller ones are copied next to their headers, since a
/// slice of a vectored write costs more than such a copy.
const BY_REFERENCE_BYTES: usize = 4 << 10;

/// What a frame does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) partition: PartitionId,
    pub(crate) epoch: Epoch,
    /// Where the log ends before the frame; the first batch begins there.
    pub(crate) base: Offset,
    pub(crate) parts: Vec<Part>,
}

/// One thing that a frame does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Batch(BatchPart),
    Stored(StoredPart),
    /// `at` is where the value begins in the payload.
    Put {
        key: Key,
        value: Bytes,
        at: u32,
    },
    Delete(KeyRange),
    Trim(Offset),
    Open {
        epoch: Epoch,
        created_at: Option<Offset>,
    },
    End(Offset),
    Moved(Moved),
    Value {
        value: Bytes,
        at: u32,
    },
}

/// A batch in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchPart {
    /// Where it begins in the payload.
    pub(crate) at: u32,
    pub(crate) length: u32,
    pub(crate) count: u32,
    pub(crate) checksum: u32,
    pub(crate) stored_at: Timestamp,
    /// The batch itself, when it is at hand anyhow.
    pub(crate) batch: Option<RecordBatch>,
}

/// A batch elsewhere in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredPart {
    pub(crate) segment: u64,
    pub(crate) position: u64,
    pub(crate) length: u32,
    pub(crate) count: u32,
    pub(crate) checksum: u32,
    pub(crate) origin: Origin,
    pub(crate) stored_at: Timestamp,
}

/// The log that a batch was written for: what its bytes in the journal say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) partition: PartitionId,
    pub(crate) base: Offset,
}

/// What a relocation moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// The place that the row must still hold.
    pub(crate) segment: u64,
    pub(crate) position: u64,
    pub(crate) incarnation: u64,
    pub(crate) row: MovedRow,
}

/// Which row it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MovedRow {
    Log { last: Offset },
    Table { key: Key },
}

/// A payload, ready to be written.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    /// Its bytes, one behind the other.
    pub(crate) chunks: Vec<Bytes>,
    pub(crate) length: u64,
    pub(crate) checksum: u32,
    pub(crate) frame: Frame,
}

/// Builds a payload part by part.
pub(crate) struct Encoder {
    frame: Frame,
    chunks: Vec<Bytes>,
    open: BytesMut,
    /// The bytes in `chunks`.
    closed: u64,
    checksum: u32,
}

impl Encoder {
    pub(crate) fn new(kind: FrameKind, partition: PartitionId, epoch: Epoch, base: Offset) -> Self {
        let mut open = BytesMut::with_capacity(PAYLOAD_HEADER_BYTES + PART_HEADER_BYTES + HEADER_BYTES);
        open.put_u64_le(epoch.0);
        open.put_u64_le(base.0);
        let frame = Frame { kind, partition, epoch, base, parts: Vec::new() };
        Self { frame, chunks: Vec::new(), open, closed: 0, checksum: 0 }
    }

    /// Where the next byte goes. Payloads are checked to stay below 4 GiB before they are used.
    fn at(&self) -> u32 {
        u32::try_from(self.closed + self.open.len() as u64).unwrap_or(u32::MAX)
    }

    fn part(&mut self, code: u8, length: usize) {
        self.open.put_u32_le(u32::from(code));
        self.open.put_u32_le(u32::try_from(length).unwrap_or(u32::MAX));
        self.open.put_u64_le(self.frame.partition.0);
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            let chunk = self.open.split().freeze();
            self.chunk(chunk);
        }
    }

    fn chunk(&mut self, chunk: Bytes) {
        self.checksum = crc32c::crc32c_append(self.checksum, &chunk);
        self.closed += chunk.len() as u64;
        self.chunks.push(chunk);
    }

    /// A batch; its base offset and its time of storing are set.
    pub(crate) fn batch(&mut self, batch: RecordBatch) {
        self.part(BATCH, batch.len());
        let header = batch.header_bytes();
        let part = BatchPart {
            at: self.at(),
            length: u32::try_from(batch.len()).unwrap_or(u32::MAX),
            count: batch.count(),
            checksum: batch_checksum(&header),
            stored_at: batch.stored_at(),
            batch: Some(batch.clone()),
        };
        self.open.extend_from_slice(&header);
        if batch.payload().len() < BY_REFERENCE_BYTES {
            self.open.extend_from_slice(batch.payload());
        } else {
            self.close();
            self.chunk(batch.payload().clone());
        }
        self.frame.parts.push(Part::Batch(part));
    }

    pub(crate) fn stored(&mut self, part: StoredPart) {
        self.part(2, 52);
        self.open.put_u64_le(part.segment);
        self.open.put_u64_le(part.position);
        self.open.put_u32_le(part.length);
        self.open.put_u32_le(part.count);
        self.open.put_u32_le(part.checksum);
        self.open.put_u64_le(part.origin.partition.0);
        self.open.put_u64_le(part.origin.base.0);
        self.open.put_u64_le(part.stored_at.0);
        self.frame.parts.push(Part::Stored(part));
    }

    pub(crate) fn put(&mut self, key: Key, value: Bytes) {
        self.part(3, 2 + key.0.len() + value.len());
        self.key(&key);
        let at = self.at();
        self.value(&value);
        self.frame.parts.push(Part::Put { key, value, at });
    }

    pub(crate) fn delete(&mut self, range: KeyRange) {
        let behind = range.end.as_ref().map_or(0, |end| end.0.len());
        self.part(4, 2 + range.start.0.len() + 1 + behind);
        self.key(&range.start);
        self.open.put_u8(u8::from(range.end.is_some()));
        if let Some(end) = &range.end {
            self.open.extend_from_slice(&end.0);
        }
        self.frame.parts.push(Part::Delete(range));
    }

    pub(crate) fn trim(&mut self, start: Offset) {
        self.part(5, 8);
        self.open.put_u64_le(start.0);
        self.frame.parts.push(Part::Trim(start));
    }

    pub(crate) fn open(&mut self, epoch: Epoch, created_at: Option<Offset>) {
        self.part(6, 17);
        self.open.put_u64_le(epoch.0);
        self.open.put_u8(u8::from(created_at.is_some()));
        self.open.put_u64_le(created_at.unwrap_or_default().0);
        self.frame.parts.push(Part::Open { epoch, created_at });
    }

    pub(crate) fn end(&mut self, end: Offset) {
        self.part(7, 8);
        self.open.put_u64_le(end.0);
        self.frame.parts.push(Part::End(end));
    }

    /// What moves: call before the batch or value that shows where to.
    pub(crate) fn moved(&mut self, moved: Moved) {
        let row = match &moved.row {
            MovedRow::Log { .. } => 8,
            MovedRow::Table { key } => key.0.len(),
        };
        self.part(8, 25 + row);
        self.open.put_u64_le(moved.segment);
        self.open.put_u64_le(moved.position);
        self.open.put_u64_le(moved.incarnation);
        match &moved.row {
            MovedRow::Log { last } => {
                self.open.put_u8(0);
                self.open.put_u64_le(last.0);
            }
            MovedRow::Table { key } => {
                self.open.put_u8(1);
                self.open.extend_from_slice(&key.0);
            }
        }
        self.frame.parts.push(Part::Moved(moved));
    }

    pub(crate) fn moved_value(&mut self, value: Bytes) {
        self.part(9, value.len());
        let at = self.at();
        self.value(&value);
        self.frame.parts.push(Part::Value { value, at });
    }

    fn key(&mut self, key: &Key) {
        // Keys are checked against `TABLE_KEY_BYTES_MAX` before they come here.
        self.open.put_u16_le(u16::try_from(key.0.len()).unwrap_or(u16::MAX));
        self.open.extend_from_slice(&key.0);
    }

    fn value(&mut self, value: &Bytes) {
        if value.len() < BY_REFERENCE_BYTES {
            self.open.extend_from_slice(value);
        } else {
            self.close();
            self.chunk(value.clone());
        }
    }

    pub(crate) fn finish(mut self) -> Encoded {
        self.close();
        Encoded { chunks: self.chunks, length: self.closed, checksum: self.checksum, frame: self.frame }
    }
}

/// The checksum in a batch's header.
pub(crate) fn batch_checksum(header: &[u8; HEADER_BYTES]) -> u32 {
    u32::from_le_bytes([header[20], header[21], header[22], header[23]])
}

impl Frame {
    /// Reads a payload whose checksum holds.
    pub(crate) fn decode(kind: FrameKind, partition: PartitionId, payload: Bytes) -> Result<Self, Malformed> {
        let mut reader = ByteReader::new(payload);
        let (epoch, base) = (Epoch(reader.u64()?), Offset(reader.u64()?));
        let mut parts = Vec::new();
        while !reader.is_empty() {
            let code = reader.u8()?;
            reader.zeros::<3>()?;
            let length = reader.u32()? as usize;
            if reader.u64()? != partition.0 {
                return Err(Malformed("a part is of another partition than its frame"));
            }
            let at = u32::try_from(reader.at()).map_err(|_| Malformed("the payload is too long"))?;
            parts.push(Part::decode(code, at, reader.take(length)?)?);
        }
        Ok(Self { kind, partition, epoch, base, parts })
    }
}

impl Part {
    fn decode(code: u8, at: u32, bytes: Bytes) -> Result<Self, Malformed> {
        let length = u32::try_from(bytes.len()).map_err(|_| Malformed("a part is too long"))?;
        let mut reader = ByteReader::new(bytes.clone());
        // What the key and its length take in front of a value is below 64 KiB.
        let value_at = |reader: &ByteReader| at + u32::try_from(reader.at()).unwrap_or(u32::MAX);
        let part = match code {
            BATCH => {
                let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(Malformed("a batch ends too soon"))?;
                let checksum = batch_checksum(header);
                // The payload's checksum covers the batch, so its own is only checked when it is read.
                let stored_at = Timestamp(u64::from_le_bytes([
                    header[8], header[9], header[10], header[11], header[12], header[13], header[14], header[15],
                ]));
                let count = u32::from_le_bytes([header[28], header[29], header[30], header[31]]);
                reader.rest();
                Self::Batch(BatchPart { at, length, count, checksum, stored_at, batch: None })
            }
            2 => Self::Stored(StoredPart {
                segment: reader.u64()?,
                position: reader.u64()?,
                length: reader.u32()?,
                count: reader.u32()?,
                checksum: reader.u32()?,
                origin: Origin { partition: PartitionId(reader.u64()?), base: Offset(reader.u64()?) },
                stored_at: Timestamp(reader.u64()?),
            }),
            3 => {
                let key = key(&mut reader)?;
                let at = value_at(&reader);
                Self::Put { key, value: reader.rest(), at }
            }
            4 => {
                let start = key(&mut reader)?;
                let end = match reader.u8()? {
                    0 => None,
                    1 => Some(Key(reader.rest())),
                    _ => return Err(Malformed("a range makes no sense")),
                };
                Self::Delete(KeyRange { start, end })
            }
            5 => Self::Trim(Offset(reader.u64()?)),
            6 => {
                let epoch = Epoch(reader.u64()?);
                let created = reader.u8()?;
                let first = Offset(reader.u64()?);
                Self::Open { epoch, created_at: (created == 1).then_some(first) }
            }
            7 => Self::End(Offset(reader.u64()?)),
            8 => Self::Moved(Moved {
                segment: reader.u64()?,
                position: reader.u64()?,
                incarnation: reader.u64()?,
                row: match reader.u8()? {
                    0 => MovedRow::Log { last: Offset(reader.u64()?) },
                    1 => MovedRow::Table { key: Key(reader.rest()) },
                    _ => return Err(Malformed("a moved row makes no sense")),
                },
            }),
            9 => Self::Value { value: reader.rest(), at },
            _ => return Err(Malformed("the kind of a part is unknown")),
        };
        if reader.is_empty() { Ok(part) } else { Err(Malformed("a part has bytes too many")) }
    }
}

fn key(reader: &mut ByteReader) -> Result<Key, Malformed> {
    let length = reader.u16()?;
    Ok(Key(reader.take(length.into())?))
}

/// Checks what lies in front of a batch in the journal.
pub(crate) fn check_batch_part(
    header: &[u8; PART_HEADER_BYTES],
    partition: PartitionId,
    length: u32,
) -> Result<(), Malformed> {
    let mut expected = [0; PART_HEADER_BYTES];
    expected[0] = BATCH;
    expected[4..8].copy_from_slice(&length.to_le_bytes());
    if header[..8] != expected[..8] {
        return Err(Malformed("no batch of that length lies at its place"));
    }
    expected[8..].copy_from_slice(&partition.0.to_le_bytes());
    if header[8..] != expected[8..] {
        return Err(Malformed("the batch at its place is of another partition"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
