//! Headers of groups and frames.
//!
//! Group header, 40 bytes: crc32c u32, magic u32, generation u64, first sequence u64, synced through u64, bytes of frames
//! u32, count of frames u32. Frame header, 32 bytes: crc32c u32, crc32c of the payload u32, length of the payload u32,
//! kind u8 and three zero bytes, partition u64, sequence u64.
//!
//! The first field of each is the sum over the segment's generation and the rest of the header, so that neither can be
//! taken for one of another generation; what a frame carries is bound to it by the payload's sum in the header. The
//! payload is summed by whoever brings it, in parallel; the committer sums headers only.

use stentor_core::PartitionId;

use super::Malformed;

pub(crate) const GROUP_HEADER_BYTES: usize = 40;
pub(crate) const FRAME_HEADER_BYTES: usize = 32;

const MAGIC: u32 = u32::from_le_bytes(*b"sGrp");

/// The header of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupHeader {
    pub(crate) generation: u64,
    /// The sequence of its first frame; of the next frame to come if it is empty.
    pub(crate) first_sequence: u64,
    /// Up to which position of the segment everything had been synced when the group was written.
    pub(crate) synced_through: u64,
    /// The frames with their headers, in bytes.
    pub(crate) length: u32,
    pub(crate) frames: u32,
}

impl GroupHeader {
    pub(crate) fn encode(&self) -> [u8; GROUP_HEADER_BYTES] {
        let mut bytes = [0; GROUP_HEADER_BYTES];
        bytes[4..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first_sequence.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.synced_through.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.length.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.frames.to_le_bytes());
        let checksum = header_checksum(self.generation, &bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the header of a group in the segment of this generation.
    pub(crate) fn decode(bytes: &[u8; GROUP_HEADER_BYTES], generation: u64) -> Result<Self, Malformed> {
        if bytes[4..8] != MAGIC.to_le_bytes() {
            return Err(Malformed("it is no group"));
        }
        if header_checksum(generation, &bytes[4..]) != u32_at(bytes, 0) {
            return Err(Malformed("the checksum of the group header does not hold"));
        }
        let header = Self {
            generation: u64_at(bytes, 8),
            first_sequence: u64_at(bytes, 16),
            synced_through: u64_at(bytes, 24),
            length: u32_at(bytes, 32),
            frames: u32_at(bytes, 36),
        };
        if header.generation != generation {
            return Err(Malformed("the group is of another generation"));
        }
        if u64::from(header.frames) * FRAME_HEADER_BYTES as u64 > u64::from(header.length) {
            return Err(Malformed("the frames of the group cannot fit into it"));
        }
        Ok(header)
    }

    /// Where the next `bytes` may hold a group header of this generation: the positions of its magic, cheap to look for.
    pub(crate) fn candidates(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
        let magic = MAGIC.to_le_bytes();
        let mut at = 0;
        std::iter::from_fn(move || {
            loop {
                let found = bytes.get(at..)?.iter().position(|byte| *byte == magic[0])? + at;
                at = found + 1;
                if bytes.get(found..found + 4).is_some_and(|four| four == magic) {
                    // The header begins four bytes before its magic.
                    if let Some(start) = found.checked_sub(4) {
                        return Some(start);
                    }
                }
            }
        })
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// A change of a partition, or its opening.
    Change,
    /// Parts moved here from a segment that is to be freed.
    Relocation,
    /// The log's end moves back.
    Truncation,
    /// The partition is gone.
    Deletion,
}

impl FrameKind {
    const fn code(self) -> u8 {
        match self {
            Self::Change => 1,
            Self::Relocation => 2,
            Self::Truncation => 3,
            Self::Deletion => 4,
        }
    }

    fn from_code(code: u8) -> Result<Self, Malformed> {
        [Self::Change, Self::Relocation, Self::Truncation, Self::Deletion]
            .into_iter()
            .find(|kind| kind.code() == code)
            .ok_or(Malformed("the kind of the frame is unknown"))
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) payload_checksum: u32,
    pub(crate) length: u32,
    pub(crate) kind: FrameKind,
    pub(crate) partition: PartitionId,
    pub(crate) sequence: u64,
}

impl FrameHeader {
    pub(crate) fn encode(&self, generation: u64) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[4..8].copy_from_slice(&self.payload_checksum.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12] = self.kind.code();
        bytes[16..24].copy_from_slice(&self.partition.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        let checksum = header_checksum(generation, &bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads the header of a frame in the segment of this generation.
    pub(crate) fn decode(bytes: &[u8; FRAME_HEADER_BYTES], generation: u64) -> Result<Self, Malformed> {
        if header_checksum(generation, &bytes[4..]) != u32_at(bytes, 0) {
            return Err(Malformed("the checksum of the frame header does not hold"));
        }
        Ok(Self {
            payload_checksum: u32_at(bytes, 4),
            length: u32_at(bytes, 8),
            kind: FrameKind::from_code(bytes[12])?,
            partition: PartitionId(u64_at(bytes, 16)),
            sequence: u64_at(bytes, 24),
        })
    }
}

fn header_checksum(generation: u64, rest: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&generation.to_le_bytes()), rest)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> GroupHeader {
        GroupHeader { generation: 5, first_sequence: 10, synced_through: 9, length: 200, frames: 3 }
    }

    fn frame() -> FrameHeader {
        FrameHeader {
            payload_checksum: 0xdead_beef,
            length: 60,
            kind: FrameKind::Relocation,
            partition: PartitionId(7),
            sequence: 11,
        }
    }

    #[test]
    fn headers_round_trip_and_every_flipped_bit_is_found() {
        let (group_bytes, frame_bytes) = (group().encode(), frame().encode(5));
        assert_eq!(GroupHeader::decode(&group_bytes, 5), Ok(group()));
        assert_eq!(FrameHeader::decode(&frame_bytes, 5), Ok(frame()));
        for bit in 0..GROUP_HEADER_BYTES * 8 {
            let mut flipped = group_bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(GroupHeader::decode(&flipped, 5).is_err(), "bit {bit}");
        }
        for bit in 0..FRAME_HEADER_BYTES * 8 {
            let mut flipped = frame_bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&flipped, 5).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn headers_of_another_generation_are_never_taken() {
        assert!(GroupHeader::decode(&group().encode(), 6).is_err());
        assert!(FrameHeader::decode(&frame().encode(5), 6).is_err());
    }

    #[test]
    fn a_group_is_found_wherever_it_begins() {
        let mut bytes = vec![b's'; 1_000];
        bytes[333..333 + GROUP_HEADER_BYTES].copy_from_slice(&group().encode());
        assert_eq!(GroupHeader::candidates(&bytes).collect::<Vec<_>>(), [333]);
    }
}
