//! Record batches: the unit that producers build, that the broker stores and delivers as it is, and that is
//! checksummed.
//!
//! A batch is a header of [`HEADER_BYTES`] and its records, which may be compressed as one block. All integers are
//! little-endian.
//!
//! | at | field | set by |
//! |---|---|---|
//! | 0 | base offset, u64 | broker |
//! | 8 | stored at, microseconds, u64 | broker |
//! | 16 | format version, u8, and three zero bytes | producer |
//! | 20 | crc32c of everything that follows, u32 | producer |
//! | 24 | attributes, u16 (low three bits: compression), and two zero bytes | producer |
//! | 28 | count of records, u32 | producer |
//! | 32 | bytes of the records as they lie here, u32 | producer |
//! | 36 | bytes of the records uncompressed, u32 | producer |
//! | 40 | first timestamp, u64 | producer |
//! | 48 | last timestamp, u64 | producer |
//! | 56 | producer id, u64; 0 is nobody, and then nothing is deduplicated | producer |
//! | 64 | producer epoch, u32, and four zero bytes | producer |
//! | 72 | sequence of the batch, u64 | producer |
//! | 80 | the records | producer |
//!
//! What the broker sets lies in front and outside the checksum, so that storing a batch neither copies it nor sums it
//! anew; on disk the journal's own checksum covers it. The time of storing is the broker's so that retention and seeking
//! by time never depend on the clock of a producer.
//!
//! Sequences count batches: contiguous per (producer id, epoch, partition), from 0.
//!
//! Invariants: a [`RecordBatch`] that exists has a header that makes sense and a checksum that holds; decoding never
//! panics, and takes no more memory than the header's claim, which is checked against the bytes that came and against
//! the limit of the caller first.

use std::fmt;

use bytes::{Bytes, BytesMut};

use crate::{Offset, OffsetRange, ProducerId, Timestamp};

mod builder;
mod compression;
mod error;
mod header;
mod record;
mod text;

pub use builder::BatchBuilder;
pub use compression::{Compression, ParseCompressionError};
pub use error::BatchError;
pub use header::HEADER_BYTES;
pub use record::{Record, RecordHeader, Records};
pub use text::Text;

use header::Header;

/// Who made a batch, and as which in the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequenced {
    /// The producer.
    pub producer: ProducerId,
    /// Its epoch: a producer that starts its sequences over begins a new one.
    pub epoch: u32,
    /// The number of the batch, from 0, in this partition.
    pub sequence: u64,
}

/// A batch of records, checked. Cloning shares the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct RecordBatch {
    header: Header,
    payload: Bytes,
}

impl RecordBatch {
    /// Takes a batch that lies in one piece; nothing may follow it.
    ///
    /// # Errors
    /// When the bytes are no batch, or not one whose checksum holds.
    pub fn decode(bytes: Bytes) -> Result<Self, BatchError> {
        let (header, _) = bytes.split_first_chunk().ok_or(BatchError::Truncated)?;
        let header = *header;
        Self::from_parts(&header, bytes.slice(HEADER_BYTES..))
    }

    /// Takes a batch whose header and records lie apart, without copying the records.
    ///
    /// # Errors
    /// When they are no batch, or not one whose checksum holds.
    pub fn from_parts(header: &[u8; HEADER_BYTES], payload: Bytes) -> Result<Self, BatchError> {
        let header = Header::decode(header)?;
        if header.payload_bytes as usize != payload.len() {
            return Err(BatchError::Length { stated: header.payload_bytes, found: payload.len() });
        }
        let found = header.checksum_with(&payload);
        if found != header.checksum {
            return Err(BatchError::Checksum { stated: header.checksum, found });
        }
        Ok(Self { header, payload })
    }

    /// How many bytes the batch whose header this is takes in all, for a reader that has only the header yet.
    ///
    /// # Errors
    /// When the header makes no sense.
    pub fn encoded_bytes(header: &[u8; HEADER_BYTES]) -> Result<usize, BatchError> {
        Ok(HEADER_BYTES + Header::decode(header)?.payload_bytes as usize)
    }

    /// The same batch at its place in a log. Bytes are shared, the checksum stays.
    #[must_use]
    pub fn stored(mut self, base: Offset, at: Timestamp) -> Self {
        self.header.base_offset = base;
        self.header.stored_at = at;
        self
    }

    /// The same records under another sequence; what a producer does when a batch moves to another partition. The
    /// checksum is made anew.
    #[must_use]
    pub fn sequenced(mut self, sequenced: Sequenced) -> Self {
        self.header.producer = sequenced;
        self.header.checksum = self.header.checksum_with(&self.payload);
        self
    }

    /// The same batch with its records in an allocation of their own: a copy. For whoever keeps a batch in memory for
    /// long, since records that were read from the wire keep the whole receive buffer alive.
    #[must_use]
    pub fn detached(mut self) -> Self {
        self.payload = Bytes::copy_from_slice(&self.payload);
        self
    }

    /// The header as it is written.
    #[must_use]
    pub fn header_bytes(&self) -> [u8; HEADER_BYTES] {
        self.header.encode()
    }

    /// The records as they lie, compressed or not.
    #[must_use]
    pub const fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The batch in one piece: a copy.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.len());
        bytes.extend_from_slice(&self.header_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes.freeze()
    }

    /// Header and records together, in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a batch always has its header")]
    pub const fn len(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }

    /// How many records it says it holds; at least one.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.header.count
    }

    /// The offset of the first record; 0 until the batch is stored.
    #[must_use]
    pub const fn base_offset(&self) -> Offset {
        self.header.base_offset
    }

    /// The offsets of its records.
    #[must_use]
    pub const fn offsets(&self) -> OffsetRange {
        OffsetRange::new(self.header.base_offset, self.header.base_offset.advance(self.header.count as u64))
    }

    /// When the broker stored it; 0 until it did.
    #[must_use]
    pub const fn stored_at(&self) -> Timestamp {
        self.header.stored_at
    }

    /// The timestamp of the first record, by the producer's clock.
    #[must_use]
    pub const fn first_timestamp(&self) -> Timestamp {
        self.header.first_timestamp
    }

    /// The greatest timestamp of a record, by the producer's clock.
    #[must_use]
    pub const fn last_timestamp(&self) -> Timestamp {
        self.header.last_timestamp
    }

    /// How the records are compressed.
    #[must_use]
    pub const fn compression(&self) -> Compression {
        self.header.compression
    }

    /// What the records take uncompressed, by the header's word.
    #[must_use]
    pub const fn raw_bytes(&self) -> u32 {
        self.header.raw_bytes
    }

    /// Who made it and as which in the row; none for a batch that is not to be deduplicated.
    #[must_use]
    pub fn producer(&self) -> Option<Sequenced> {
        (self.header.producer.producer.0 != 0).then_some(self.header.producer)
    }

    /// The records, one by one, sharing the batch's bytes (or those of one block, if it was compressed). At most
    /// `raw_bytes_max` bytes are taken for uncompressing.
    ///
    /// # Errors
    /// When the block cannot be uncompressed within the limit; the iterator says the rest.
    pub fn records(&self, raw_bytes_max: u32) -> Result<Records, BatchError> {
        let raw = self.header.compression.decompress(&self.payload, self.header.raw_bytes, raw_bytes_max)?;
        Ok(Records::new(raw, self.header.count, self.header.first_timestamp))
    }

    /// Looks at every record, as a broker does before it stores a batch: each must decode, be within the limits, and
    /// there must be as many as the header says and nothing behind them.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate(&self, message_bytes_max: u32) -> Result<(), BatchError> {
        let raw_bytes_max = message_bytes_max.saturating_add(crate::limits::BATCH_BYTES_SLACK);
        let raw = self.header.compression.decompress(&self.payload, self.header.raw_bytes, raw_bytes_max)?;
        record::look_at_all(&raw, self.header.count, message_bytes_max)
    }
}

impl fmt::Debug for RecordBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordBatch")
            .field("offsets", &format_args!("{}", self.offsets()))
            .field("bytes", &self.len())
            .field("producer", &self.producer())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
