//! The fixed header of a batch. Its layout is in the module above.

use super::{BatchError, Compression, Sequenced};
use crate::limits::BATCH_RECORDS_MAX;
use crate::{Offset, ProducerId, Timestamp};

/// How many bytes the header takes.
pub const HEADER_BYTES: usize = 80;

/// The format that this version writes, and the only one that it reads.
const VERSION: u8 = 1;

/// What the checksum covers starts here.
const COVERED_FROM: usize = 24;

/// The fewest bytes that a record takes: its length, flags, timestamp, the length of an id and one byte of it, the
/// number of headers and the length of the body.
const RECORD_BYTES_MIN: u32 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) base_offset: Offset,
    pub(super) stored_at: Timestamp,
    pub(super) checksum: u32,
    pub(super) compression: Compression,
    pub(super) count: u32,
    pub(super) payload_bytes: u32,
    pub(super) raw_bytes: u32,
    pub(super) first_timestamp: Timestamp,
    pub(super) last_timestamp: Timestamp,
    pub(super) producer: Sequenced,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &self.base_offset.0.to_le_bytes());
        put(8, &self.stored_at.0.to_le_bytes());
        put(16, &[VERSION]);
        put(20, &self.checksum.to_le_bytes());
        put(24, &self.compression.bits().to_le_bytes());
        put(28, &self.count.to_le_bytes());
        put(32, &self.payload_bytes.to_le_bytes());
        put(36, &self.raw_bytes.to_le_bytes());
        put(40, &self.first_timestamp.0.to_le_bytes());
        put(48, &self.last_timestamp.0.to_le_bytes());
        put(56, &self.producer.producer.0.to_le_bytes());
        put(64, &self.producer.epoch.to_le_bytes());
        put(72, &self.producer.sequence.to_le_bytes());
        bytes
    }

    /// Reads a header and checks whatever can be checked without the records.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, BatchError> {
        if bytes[16] != VERSION {
            return Err(BatchError::Version(bytes[16]));
        }
        // Spare bytes must be zero: so a flipped bit in one is found, and a later version can give them a meaning.
        let spare = [&bytes[17..20], &bytes[26..28], &bytes[68..72]];
        if spare.iter().any(|spare| spare.iter().any(|byte| *byte != 0)) {
            return Err(BatchError::Header("a spare byte is set"));
        }
        let header = Self {
            base_offset: Offset(u64_at(bytes, 0)),
            stored_at: Timestamp(u64_at(bytes, 8)),
            checksum: u32_at(bytes, 20),
            compression: Compression::from_bits(u16::from_le_bytes([bytes[24], bytes[25]]))
                .ok_or(BatchError::Header("the compression is unknown"))?,
            count: u32_at(bytes, 28),
            payload_bytes: u32_at(bytes, 32),
            raw_bytes: u32_at(bytes, 36),
            first_timestamp: Timestamp(u64_at(bytes, 40)),
            last_timestamp: Timestamp(u64_at(bytes, 48)),
            producer: Sequenced {
                producer: ProducerId(u64_at(bytes, 56)),
                epoch: u32_at(bytes, 64),
                sequence: u64_at(bytes, 72),
            },
        };
        if header.count == 0 || header.count > BATCH_RECORDS_MAX {
            return Err(BatchError::Header("the count of records is out of bounds"));
        }
        if header.raw_bytes / RECORD_BYTES_MIN < header.count {
            return Err(BatchError::Header("the records cannot fit into their bytes"));
        }
        if header.compression == Compression::None && header.raw_bytes != header.payload_bytes {
            return Err(BatchError::Header("the lengths of uncompressed records differ"));
        }
        if header.base_offset.0.checked_add(u64::from(header.count)).is_none() {
            return Err(BatchError::Header("the offsets overflow"));
        }
        Ok(header)
    }

    /// The checksum that belongs to this header over these records.
    pub(super) fn checksum_with(&self, payload: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.encode()[COVERED_FROM..]), payload)
    }
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}
