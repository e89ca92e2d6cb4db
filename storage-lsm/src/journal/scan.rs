//! Reads the groups of a segment one behind the other, and decides what a bad one means.
//!
//! Torn or corrupt: a bad group is what a power cut leaves, unless something says that it had been synced. Everything
//! that can say so says it as a position in the segment ([`Evidence`]): the seal in the next segment's header, the index's
//! marker, and `synced_through` of any valid group, also of one behind the bad one.

use std::io;
use std::ops::ControlFlow;

use bytes::Bytes;
use stentor_core::PartitionId;

use crate::disk::DiskFile;
use crate::format::group::{FRAME_HEADER_BYTES, FrameHeader, GROUP_HEADER_BYTES, GroupHeader};
use crate::format::segment::FIRST_GROUP;

/// How much is looked at in one piece when groups behind a bad one are searched.
const SEARCH_BYTES: usize = 1 << 20;

/// A group that was read.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) header: GroupHeader,
    /// Where the next one begins.
    pub(crate) end: u64,
    pub(crate) frames: Vec<ReadFrame>,
    /// What is wrong with its frames, if anything is; they are not all there then.
    pub(crate) bad: Option<BadFrame>,
}

/// A frame whose checksums hold.
#[derive(Clone, Debug)]
pub(crate) struct ReadFrame {
    pub(crate) header: FrameHeader,
    /// Where its payload begins in the segment.
    pub(crate) payload_position: u64,
    pub(crate) payload: Bytes,
}

/// A frame that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadFrame {
    pub(crate) position: u64,
    /// Whose it is, if that much can be read.
    pub(crate) partition: Option<PartitionId>,
    pub(crate) detail: String,
}

/// Reads the group at `position`; `end` is where the segment's groups can reach at most. `Ok(Err(_))` says why there is
/// none.
pub(crate) fn read_group(
    file: &dyn DiskFile,
    generation: u64,
    position: u64,
    end: u64,
) -> io::Result<Result<Group, &'static str>> {
    let mut header = [0; GROUP_HEADER_BYTES];
    if position + GROUP_HEADER_BYTES as u64 > end || file.read_at(position, &mut header)? < GROUP_HEADER_BYTES {
        return Ok(Err("the segment ends"));
    }
    let header = match GroupHeader::decode(&header, generation) {
        Ok(header) => header,
        Err(malformed) => return Ok(Err(malformed.0)),
    };
    let frames_at = position + GROUP_HEADER_BYTES as u64;
    let group_end = frames_at + u64::from(header.length);
    if group_end > end {
        return Ok(Err("the group reaches beyond its segment"));
    }
    let mut bytes = vec![0; header.length as usize];
    if file.read_at(frames_at, &mut bytes)? < bytes.len() {
        return Ok(Err("the segment ends within the group"));
    }
    let (frames, bad) = read_frames(&header, frames_at, bytes.into());
    Ok(Ok(Group { header, end: group_end, frames, bad }))
}

fn read_frames(group: &GroupHeader, frames_at: u64, bytes: Bytes) -> (Vec<ReadFrame>, Option<BadFrame>) {
    let mut frames = Vec::new();
    let mut bad = None;
    let mut at = 0;
    for number in 0..group.frames {
        let position = frames_at + at as u64;
        let header = bytes
            .get(at..)
            .and_then(|rest| rest.first_chunk::<FRAME_HEADER_BYTES>())
            .map_or(Err("the group ends within a frame"), |header| {
                FrameHeader::decode(header, group.generation).map_err(|malformed| malformed.0)
            });
        let header = match header {
            Ok(header) => header,
            Err(detail) => {
                // Without its length nothing behind it can be read.
                bad.get_or_insert(BadFrame { position, partition: None, detail: detail.to_owned() });
                return (frames, bad);
            }
        };
        at += FRAME_HEADER_BYTES;
        let payload_end = at + header.length as usize;
        if payload_end > bytes.len() || header.sequence != group.first_sequence + u64::from(number) {
            let detail = "the frame does not fit into its group".to_owned();
            bad.get_or_insert(BadFrame { position, partition: Some(header.partition), detail });
            return (frames, bad);
        }
        let payload = bytes.slice(at..payload_end);
        if crc32c::crc32c(&payload) == header.payload_checksum {
            frames.push(ReadFrame { header, payload_position: frames_at + at as u64, payload });
        } else {
            let detail = "the checksum of the frame's payload does not hold".to_owned();
            bad.get_or_insert(BadFrame { position, partition: Some(header.partition), detail });
        }
        at = payload_end;
    }
    if at != bytes.len() && bad.is_none() {
        let detail = "the group has bytes too many".to_owned();
        bad = Some(BadFrame { position: frames_at + at as u64, partition: None, detail });
    }
    (frames, bad)
}

/// Where reading a segment came to its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// Where the first group that is none would begin.
    pub(crate) position: u64,
    /// The sequence that it should begin with.
    pub(crate) next_sequence: u64,
    /// Up to where the groups that were read say that all was synced.
    pub(crate) synced_through: u64,
    /// Why it is none.
    pub(crate) bad: BadFrame,
}

/// Reads the groups of a segment from `from` on, where sequence `next_sequence` is expected, up to `end`, and shows each
/// to `visit`. A group with a bad frame is not shown.
pub(crate) fn read_groups<E: From<io::Error>>(
    file: &dyn DiskFile,
    generation: u64,
    (from, end): (u64, u64),
    mut next_sequence: u64,
    mut visit: impl FnMut(Group) -> Result<(), E>,
) -> Result<Stop, E> {
    let mut position = from;
    let mut synced_through = FIRST_GROUP;
    let stop = |position, next_sequence, synced_through, bad| Stop { position, next_sequence, synced_through, bad };
    loop {
        let group = match read_group(file, generation, position, end)? {
            Ok(group) => group,
            Err(detail) => {
                let bad = BadFrame { position, partition: None, detail: detail.to_owned() };
                return Ok(stop(position, next_sequence, synced_through, bad));
            }
        };
        if let Some(bad) = group.bad {
            return Ok(stop(position, next_sequence, synced_through, bad));
        }
        if group.header.first_sequence != next_sequence {
            let detail = "the group's sequence is not the next one".to_owned();
            return Ok(stop(position, next_sequence, synced_through, BadFrame { position, partition: None, detail }));
        }
        next_sequence += u64::from(group.header.frames);
        synced_through = synced_through.max(group.header.synced_through);
        position = group.end;
        visit(group)?;
    }
}

/// What says up to where a segment had been synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// The seal in the next segment's header.
    pub(crate) seal: Option<u64>,
    /// The index's marker, if it lies in this segment.
    pub(crate) marker: Option<u64>,
    /// The greatest `synced_through` of any valid group.
    pub(crate) groups: u64,
}

impl Evidence {
    /// Up to here all had been synced.
    pub(crate) fn synced(&self) -> u64 {
        self.seal.unwrap_or(0).max(self.marker.unwrap_or(0)).max(self.groups)
    }

    /// Whether a bad group at `position` is damage and not the end of what a power cut left.
    pub(crate) fn condemns(&self, position: u64) -> bool {
        position < self.synced()
    }
}

/// The greatest `synced_through` of the valid group headers from `from` up to `end`, wherever they begin.
pub(crate) fn search_synced_through(file: &dyn DiskFile, generation: u64, from: u64, end: u64) -> io::Result<u64> {
    let mut greatest = 0;
    search(file, generation, from, end, |_, header| {
        greatest = greatest.max(header.synced_through);
        ControlFlow::Continue(())
    })?;
    Ok(greatest)
}

/// Where the first valid group header lies from `from` up to `end`.
pub(crate) fn find_group(file: &dyn DiskFile, generation: u64, from: u64, end: u64) -> io::Result<Option<u64>> {
    let mut first = None;
    search(file, generation, from, end, |position, _| {
        first = Some(position);
        ControlFlow::Break(())
    })?;
    Ok(first)
}

fn search(
    file: &dyn DiskFile,
    generation: u64,
    from: u64,
    end: u64,
    mut visit: impl FnMut(u64, GroupHeader) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut position = from;
    let mut buffer = vec![0; SEARCH_BYTES];
    while position < end {
        let wanted = SEARCH_BYTES.min(usize::try_from(end - position).unwrap_or(SEARCH_BYTES));
        let read = file.read_at(position, &mut buffer[..wanted])?;
        let bytes = &buffer[..read];
        for at in GroupHeader::candidates(bytes) {
            if let Some(header) = bytes[at..].first_chunk()
                && let Ok(header) = GroupHeader::decode(header, generation)
                && visit(position + at as u64, header).is_break()
            {
                return Ok(());
            }
        }
        if read < GROUP_HEADER_BYTES || position + read as u64 >= end {
            break;
        }
        // A header that straddles two pieces is whole in the second.
        position += (read - GROUP_HEADER_BYTES + 1) as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_group_is_damage_only_below_what_is_known_to_have_been_synced() {
        let none = Evidence::default();
        assert!(!none.condemns(FIRST_GROUP));
        for evidence in [
            Evidence { seal: Some(5_000), ..none },
            Evidence { marker: Some(5_000), ..none },
            Evidence { groups: 5_000, ..none },
        ] {
            assert!(evidence.condemns(4_999), "{evidence:?}");
            assert!(!evidence.condemns(5_000), "{evidence:?}");
        }
    }
}
