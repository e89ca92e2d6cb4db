//! Whether there is room for new data: decided before a change gets its offsets.
//!
//! Segments are taken in whole, so what is written into one costs the file system nothing more. Three levels follow:
//! with *plenty* of room another segment can be made without passing the watermark; when it is *tight*, new data may
//! still go into the segments that are there, as long as enough of them is kept for bookkeeping; when it is *full*, only
//! bookkeeping goes on, from what is left in the segments and from the reserve.

use stentor_core::storage::StorageError;

use crate::disk::Space;

/// What bookkeeping always finds in the segment at hand when there is no plenty.
const KEPT_BACK_BYTES: u64 = 256 << 10;

/// How much room the file system has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Level {
    #[default]
    Plenty,
    Tight,
    Full,
}

/// What the levels go by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// In percent of the file system.
    pub(crate) watermark: u8,
    pub(crate) segment_bytes: u64,
}

/// Judges the room on the file system. The reserve is whole unless it had to be given up; it counts as used.
pub(crate) fn level(space: Space, limits: Limits, spare_bytes: u64, reserve_whole: bool) -> Level {
    let used = space.total.saturating_sub(space.free);
    let watermark = u128::from(space.total) * u128::from(limits.watermark) / 100;
    if u128::from(used) >= watermark || !reserve_whole {
        return Level::Full;
    }
    // Two segments ahead: one may be begun while the next is being made.
    let wanted = (2 * limits.segment_bytes).saturating_sub(spare_bytes);
    if u128::from(used + wanted) > watermark { Level::Tight } else { Level::Plenty }
}

/// Admission of changes that need room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) level: Level,
    /// Bytes that were admitted and are not written yet.
    pub(crate) admitted: u64,
    /// What is left in the segment that is being written.
    pub(crate) active_left: u64,
    /// What the largest spare holds.
    pub(crate) spare: u64,
}

impl Room {
    /// Admits `bytes` of new data, or says why not.
    pub(crate) fn admit(&mut self, bytes: u64) -> Result<(), StorageError> {
        let wanted = self.admitted + bytes;
        let fits = match self.level {
            Level::Plenty => true,
            Level::Tight => wanted + KEPT_BACK_BYTES <= self.active_left.max(self.spare),
            Level::Full => false,
        };
        if !fits {
            let why = "the disk watermark is reached; acknowledgements go on, and publishing once there is room";
            return Err(StorageError::StorageFull(why.to_owned()));
        }
        self.admitted = wanted;
        Ok(())
    }

    /// What rewriting may write when there is no plenty of room: at most half of what is left in the segments there are,
    /// so that it takes nothing of the disk and bookkeeping finds its part there. It comes back as whole segments, so what
    /// is kept back for bookkeeping counts too: nothing else might ever make room. None means that it may go on.
    pub(crate) fn for_rewriting(&self) -> Option<u64> {
        let left = self.active_left.max(self.spare).saturating_sub(self.admitted) / 2;
        (self.level != Level::Plenty).then_some(left)
    }

    /// Admits `bytes` that are moved out of a sparse segment, or says why not.
    pub(crate) fn admit_rewriting(&mut self, bytes: u64) -> Result<(), StorageError> {
        if self.for_rewriting().is_some_and(|left| bytes > left) {
            return Err(StorageError::StorageFull("rewriting waits for room".to_owned()));
        }
        self.admitted += bytes;
        Ok(())
    }

    /// Whether even little new data is refused.
    pub(crate) fn is_full(&self) -> bool {
        match self.level {
            Level::Plenty => false,
            Level::Tight => self.active_left.max(self.spare) <= KEPT_BACK_BYTES,
            Level::Full => true,
        }
    }

    /// `bytes` of what was admitted are written.
    pub(crate) const fn written(&mut self, bytes: u64) {
        self.admitted = self.admitted.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LIMITS: Limits = Limits { watermark: 95, segment_bytes: 8 * MIB };

    #[test]
    fn the_level_follows_the_watermark_the_next_segments_and_the_reserve() {
        let space = |free| Space { total: 1_000 * MIB, free: free * MIB };
        assert_eq!(level(space(500), LIMITS, 0, true), Level::Plenty);
        assert_eq!(level(space(66), LIMITS, 0, true), Level::Plenty);
        assert_eq!(level(space(65), LIMITS, 0, true), Level::Tight);
        assert_eq!(level(space(65), LIMITS, 8 * MIB, true), Level::Plenty);
        assert_eq!(level(space(50), LIMITS, 8 * MIB, true), Level::Full);
        assert_eq!(level(space(500), LIMITS, 0, false), Level::Full);
    }

    #[test]
    fn when_it_is_tight_new_data_stays_within_the_segments_there_are() {
        let mut room = Room { level: Level::Tight, active_left: MIB, ..Room::default() };
        assert!(room.admit(MIB / 2).is_ok());
        assert!(matches!(room.admit(MIB / 2), Err(StorageError::StorageFull(_))));
        room.written(MIB / 2);
        assert!(room.admit(MIB / 2).is_ok());
        // A spare takes what the active segment cannot.
        room.spare = 8 * MIB;
        assert!(room.admit(4 * MIB).is_ok());
        assert!(room.admit(4 * MIB).is_err());
    }

    #[test]
    fn when_it_is_full_nothing_new_is_admitted() {
        let mut room = Room { level: Level::Full, active_left: MIB, spare: MIB, admitted: 0 };
        assert!(room.admit(1).is_err());
        assert!(room.is_full());
    }

    #[test]
    fn rewriting_takes_no_more_than_half_of_a_segment_that_is_there_unless_there_is_plenty() {
        for level in [Level::Tight, Level::Full] {
            let mut room = Room { level, active_left: 2 * MIB, spare: 0, admitted: 0 };
            assert!(room.admit_rewriting(MIB + 1).is_err());
            // What fits as a whole fits in pieces too.
            for _ in 0..4 {
                assert!(room.admit_rewriting(MIB / 4).is_ok());
            }
            assert!(room.admit_rewriting(MIB).is_err());
            room.spare = 8 * MIB;
            assert!(room.admit_rewriting(MIB).is_ok());
        }
        assert!(Room::default().admit_rewriting(100 * MIB).is_ok());
    }
}
