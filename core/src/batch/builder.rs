//! Builds batches.

use bytes::BytesMut;

use super::header::{HEADER_BYTES, Header};
use super::{BatchError, Compression, Record, RecordBatch, Sequenced};
use crate::limits::BATCH_RECORDS_MAX;
use crate::{Offset, ProducerId, Timestamp};

/// Collects records and makes a [`RecordBatch`] of them.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    compression: Compression,
    raw: BytesMut,
    count: u32,
    first_timestamp: Timestamp,
    last_timestamp: Timestamp,
}

impl BatchBuilder {
    /// A builder of batches with this compression.
    #[must_use]
    pub fn new(compression: Compression) -> Self {
        Self { compression, ..Self::default() }
    }

    /// Adds a record at the end. On an error the builder is as it was.
    ///
    /// # Errors
    /// When the record is beyond a ceiling of the format, or the batch is full.
    pub fn push(&mut self, record: &Record) -> Result<(), BatchError> {
        record.check()?;
        if self.count == BATCH_RECORDS_MAX {
            return Err(BatchError::Limit {
                what: "a number of records",
                found: self.count as usize + 1,
                limit: BATCH_RECORDS_MAX as usize,
            });
        }
        if self.count == 0 {
            self.first_timestamp = record.timestamp;
        }
        let before = self.raw.len();
        record.encode(self.first_timestamp, &mut self.raw);
        if u32::try_from(self.raw.len() + HEADER_BYTES).is_err() {
            let found = self.raw.len();
            self.raw.truncate(before);
            return Err(BatchError::Limit { what: "a batch", found, limit: u32::MAX as usize - HEADER_BYTES });
        }
        self.count += 1;
        self.last_timestamp = self.last_timestamp.max(record.timestamp);
        Ok(())
    }

    /// Takes memory for `bytes` of records in all, uncompressed, so that it need not grow step by step.
    pub fn reserve(&mut self, bytes: usize) {
        self.raw.reserve(bytes.saturating_sub(self.raw.len()));
    }

    /// How many records are in it.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// How many bytes they take, uncompressed.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.raw.len()
    }

    /// Whether nothing is in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Makes the batch, and leaves the builder empty; none when nothing was in it. With `sequenced` it is deduplicated
    /// by the broker. A batch that compression would not make smaller is left as it is.
    #[must_use]
    pub fn finish(&mut self, sequenced: Option<Sequenced>) -> Option<RecordBatch> {
        if self.is_empty() {
            return None;
        }
        let Self { compression, raw, count, first_timestamp, last_timestamp } =
            std::mem::replace(self, Self::new(self.compression));
        let raw = raw.freeze();
        let (compression, payload) = match compression.compress(&raw) {
            Some(compressed) => (compression, compressed),
            None => (Compression::None, raw.clone()),
        };
        // `push` keeps both below u32::MAX.
        let bytes = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let mut header = Header {
            base_offset: Offset::ZERO,
            stored_at: Timestamp::default(),
            checksum: 0,
            compression,
            count,
            payload_bytes: bytes(payload.len()),
            raw_bytes: bytes(raw.len()),
            first_timestamp,
            last_timestamp,
            producer: sequenced.unwrap_or(Sequenced { producer: ProducerId(0), epoch: 0, sequence: 0 }),
        };
        header.checksum = header.checksum_with(&payload);
        Some(RecordBatch { header, payload })
    }
}
