//! The header block of a segment, and the names of the files.
//!
//! | at | field |
//! |---|---|
//! | 0 | magic, 8 bytes |
//! | 8 | version, u32, and four zero bytes |
//! | 16 | store id, u64 |
//! | 24 | generation, u64 |
//! | 32 | first sequence, u64 |
//! | 40 | generation of the segment before, u64; 0 if this is the first |
//! | 48 | where that one ends, u64: its seal |
//! | 56 | crc32c of all other bytes of the block, u32 |
//! | 60 | zeros up to 4 KiB |

use super::{Malformed, PAGE_BYTES};

const MAGIC: [u8; 8] = *b"stentorJ";
const VERSION: u32 = 1;

/// Where the first group of a segment lies.
pub(crate) const FIRST_GROUP: u64 = PAGE_BYTES;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) store: u64,
    pub(crate) generation: u64,
    pub(crate) first_sequence: u64,
    /// The segment before, and where it ends.
    pub(crate) previous: Seal,
}

/// What a segment says of the one before it: all up to here is synced, and nothing follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seal {
    pub(crate) generation: u64,
    pub(crate) end: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(PAGE_BYTES as usize);
        block.extend_from_slice(&MAGIC);
        block.extend_from_slice(&u64::from(VERSION).to_le_bytes());
        for field in [self.store, self.generation, self.first_sequence, self.previous.generation, self.previous.end] {
            block.extend_from_slice(&field.to_le_bytes());
        }
        block.resize(PAGE_BYTES as usize, 0);
        let checksum = checksum(&block);
        block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    /// Reads the header of the segment that is to have this generation.
    pub(crate) fn decode(block: &[u8], generation: u64) -> Result<Self, Malformed> {
        if block.len() != PAGE_BYTES as usize || block[..8] != MAGIC {
            return Err(Malformed("it has no segment header"));
        }
        if checksum(block).to_le_bytes() != block[CHECKSUM_AT..CHECKSUM_AT + 4] {
            return Err(Malformed("the checksum of the segment header does not hold"));
        }
        let field = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&block[at..at + 8]);
            u64::from_le_bytes(field)
        };
        if field(8) != u64::from(VERSION) {
            return Err(Malformed("the segment is of a version that this version does not read"));
        }
        let header = Self {
            store: field(16),
            generation: field(24),
            first_sequence: field(32),
            previous: Seal { generation: field(40), end: field(48) },
        };
        if header.generation != generation {
            return Err(Malformed("the segment header is of another segment"));
        }
        Ok(header)
    }
}

const CHECKSUM_AT: usize = 56;

fn checksum(block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&block[..CHECKSUM_AT]), &block[CHECKSUM_AT + 4..])
}

/// The file of the segment of this generation.
pub(crate) fn segment_name(generation: u64) -> String {
    format!("segment-{generation:016x}.journal")
}

/// The file of a segment that is done with and waits to be used again.
pub(crate) fn spare_name(generation: u64) -> String {
    format!("spare-{generation:016x}.journal")
}

/// What a file of the folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Segment(u64),
    Spare(u64),
    Reserve,
    Other,
}

/// The file that keeps room for bookkeeping on a full disk.
pub(crate) const RESERVE_NAME: &str = "reserve";

/// Says what the file of this name is.
pub(crate) fn file_kind(name: &str) -> FileKind {
    let generation = |prefix: &str| {
        let hex = name.strip_prefix(prefix)?.strip_suffix(".journal")?;
        // Only the one spelling that is written.
        let written = hex.len() == 16 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        u64::from_str_radix(hex, 16).ok().filter(|_| written)
    };
    if let Some(generation) = generation("segment-") {
        FileKind::Segment(generation)
    } else if let Some(generation) = generation("spare-") {
        FileKind::Spare(generation)
    } else if name == RESERVE_NAME {
        FileKind::Reserve
    } else {
        FileKind::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader { store: 9, generation: 3, first_sequence: 77, previous: Seal { generation: 2, end: 123_456 } }
    }

    #[test]
    fn a_segment_header_round_trips_and_every_flipped_bit_is_found() {
        let block = header().encode();
        assert_eq!(SegmentHeader::decode(&block, 3), Ok(header()));
        for bit in 0..block.len() * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&flipped, 3).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_header_of_another_generation_is_not_taken() {
        assert!(SegmentHeader::decode(&header().encode(), 4).is_err());
    }

    #[test]
    fn names_tell_what_a_file_is() {
        assert_eq!(file_kind(&segment_name(0xabc)), FileKind::Segment(0xabc));
        assert_eq!(file_kind(&spare_name(u64::MAX)), FileKind::Spare(u64::MAX));
        assert_eq!(file_kind(RESERVE_NAME), FileKind::Reserve);
        for other in ["lock", "segment-1.journal", "segment-+000000000000001.journal", "client.toml"] {
            assert_eq!(file_kind(other), FileKind::Other, "{other}");
        }
    }
}
