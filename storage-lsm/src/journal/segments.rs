//! Which segments there are, what is owed in each, and which can be used again.
//!
//! Invariants: whoever reads from a segment, or commits a reference into it, holds its [`Arc`], and all of those come
//! from [`Segments::get`]; a segment is released only when the table holds the one last `Arc`, nothing in it is owed, and
//! the index has flushed a state that says so.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile};
use crate::format::row::{Marker, Owed};
use crate::format::segment::{SegmentHeader, segment_name, spare_name};
use crate::journal::sparse::{Candidate, Choice, Limits, choose};

/// How many segments wait to be used again; more are deleted.
const SPARES_MAX: usize = 4;

/// A segment file.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) generation: u64,
    pub(crate) file: Arc<dyn DiskFile>,
    /// How long the file is.
    pub(crate) capacity: u64,
}

#[derive(Debug)]
struct Entry {
    segment: Arc<Segment>,
    /// The last sequence in it; none while it is being written.
    last_sequence: Option<u64>,
    /// What of it some row still points to, as the index has it.
    owed: Owed,
    /// Whether the index reflects all of it, and recovery begins behind it.
    passed: bool,
    /// The batch of the index since which nothing is owed.
    free_since: Option<u64>,
    keep: Keep,
}

/// Why a segment is not rewritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Keep {
    #[default]
    No,
    /// It was tried, and this much stayed: not again until that changes.
    While(Owed),
    /// Something in it is damaged. It stays as it is, so that whoever reads there is told.
    Damaged,
}

impl Entry {
    fn eligible(&self) -> bool {
        let kept = match self.keep {
            Keep::No => false,
            Keep::While(owed) => owed == self.owed,
            Keep::Damaged => true,
        };
        self.passed && !kept
    }
}

/// A file that waits to become a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spare {
    /// What it is named by.
    pub(crate) generation: u64,
    pub(crate) bytes: u64,
}

/// All segments of a journal.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    /// A leaf: nothing else is locked inside, and no I/O is done under it.
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<u64, Entry>,
    spares: Vec<Spare>,
}

impl Segments {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The segment of this generation, held against its release.
    pub(crate) fn get(&self, generation: u64) -> Option<Arc<Segment>> {
        self.table().entries.get(&generation).map(|entry| entry.segment.clone())
    }

    /// All segments, held against their release.
    pub(crate) fn all(&self) -> BTreeMap<u64, Arc<Segment>> {
        self.table().entries.iter().map(|(generation, entry)| (*generation, entry.segment.clone())).collect()
    }

    /// Takes in a segment. `last_sequence` is none for the one that is being written.
    pub(crate) fn insert(&self, segment: Arc<Segment>, last_sequence: Option<u64>, owed: Owed) {
        // The batches of one log lie scattered among those of all others: whoever reads a log says what comes next.
        segment.file.reads_are_scattered();
        let entry = Entry { last_sequence, owed, passed: false, free_since: None, keep: Keep::No, segment };
        self.table().entries.insert(entry.segment.generation, entry);
    }

    /// Says that a segment is complete.
    pub(crate) fn sealed(&self, generation: u64, last_sequence: u64) {
        if let Some(entry) = self.table().entries.get_mut(&generation) {
            entry.last_sequence = Some(last_sequence);
        }
    }

    /// Takes over what the index says is owed, after it has applied the batch that wrote `marker`. The segment that the
    /// marker points to stays: recovery begins there.
    pub(crate) fn account(&self, owed: impl IntoIterator<Item = (u64, Owed)>, marker: &Marker) {
        let mut table = self.table();
        for (generation, owed) in owed {
            if let Some(entry) = table.entries.get_mut(&generation) {
                entry.owed = owed;
            }
        }
        for entry in table.entries.values_mut() {
            entry.passed = entry.segment.generation < marker.segment
                && entry.last_sequence.is_some_and(|last| last <= marker.sequence);
            let free = entry.owed.is_none() && entry.passed;
            entry.free_since = free.then(|| entry.free_since.unwrap_or(marker.batch));
        }
    }

    /// Which segments are to be rewritten now.
    pub(crate) fn sparse(&self, limits: Limits) -> Choice {
        let table = self.table();
        let candidates = table.entries.values().map(|entry| Candidate {
            generation: entry.segment.generation,
            capacity: entry.segment.capacity,
            owed: entry.owed,
            eligible: entry.eligible(),
        });
        choose(candidates, limits)
    }

    /// Says that what is owed in a segment could not be moved: it is left alone until that changes.
    pub(crate) fn keep(&self, generation: u64) {
        if let Some(entry) = self.table().entries.get_mut(&generation)
            && entry.keep != Keep::Damaged
        {
            entry.keep = Keep::While(entry.owed);
        }
    }

    /// Says that something in a segment is damaged: it stays.
    pub(crate) fn keep_damaged(&self, generation: u64) {
        if let Some(entry) = self.table().entries.get_mut(&generation) {
            entry.keep = Keep::Damaged;
        }
    }

    /// Whether something is still owed in a segment.
    pub(crate) fn is_owed(&self, generation: u64) -> bool {
        self.table().entries.get(&generation).is_some_and(|entry| !entry.owed.is_none())
    }

    /// How many segments wait for nothing but a flush of the index beyond `flushed`.
    pub(crate) fn waiting_for_flush(&self, flushed: u64) -> usize {
        self.table().entries.values().filter(|entry| entry.free_since.is_some_and(|since| since > flushed)).count()
    }

    /// Whether a segment could be released but for readers, or after a flush.
    pub(crate) fn any_free(&self) -> bool {
        self.table().entries.values().any(|entry| entry.free_since.is_some())
    }

    /// Takes out the segments that nobody needs any more, given that the index has flushed through `flushed`.
    fn take_free(&self, flushed: u64) -> Vec<Arc<Segment>> {
        let mut table = self.table();
        let free: Vec<u64> = table
            .entries
            .iter()
            .filter(|(_, entry)| {
                // New holders come only out of this table, which is locked: a count of one stays one.
                entry.free_since.is_some_and(|since| since <= flushed) && Arc::strong_count(&entry.segment) == 1
            })
            .map(|(generation, _)| *generation)
            .collect();
        free.iter().filter_map(|generation| table.entries.remove(generation)).map(|entry| entry.segment).collect()
    }

    /// Releases the segments that nobody needs any more: those of the right size become spares, unless there are enough
    /// or `keep_spares` says that room is wanted. Returns how many were released.
    pub(crate) fn release(
        &self,
        disk: &dyn Disk,
        flushed: u64,
        bytes_wanted: u64,
        keep_spares: bool,
    ) -> io::Result<usize> {
        let free = self.take_free(flushed);
        if free.is_empty() {
            return Ok(0);
        }
        let released = free.len();
        let mut spares = Vec::new();
        for segment in free {
            let Segment { generation, capacity, .. } = *segment;
            drop(segment);
            let keep = keep_spares && capacity == bytes_wanted && self.spares().0 + spares.len() < SPARES_MAX;
            tracing::debug!(generation, keep, "segment released");
            if keep {
                disk.rename(&segment_name(generation), &spare_name(generation))?;
                spares.push(Spare { generation, bytes: capacity });
            } else {
                disk.delete(&segment_name(generation))?;
            }
        }
        // Before anything is written over what a spare held: a power cut must not bring back the old name with it.
        disk.sync_folder()?;
        self.table().spares.extend(spares);
        Ok(released)
    }

    /// Takes a spare of at least `bytes`.
    pub(crate) fn take_spare(&self, bytes: u64) -> Option<Spare> {
        let mut table = self.table();
        let at = table.spares.iter().position(|spare| spare.bytes >= bytes)?;
        Some(table.spares.swap_remove(at))
    }

    /// Adds a spare.
    pub(crate) fn add_spare(&self, spare: Spare) {
        self.table().spares.push(spare);
    }

    /// How many spares there are, and the size of the largest.
    pub(crate) fn spares(&self) -> (usize, u64) {
        let table = self.table();
        (table.spares.len(), table.spares.iter().map(|spare| spare.bytes).max().unwrap_or(0))
    }

    /// What all files take, and how much of it is owed.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let table = self.table();
        let taken = table.entries.values().map(|entry| entry.segment.capacity).sum::<u64>()
            + table.spares.iter().map(|spare| spare.bytes).sum::<u64>();
        (taken, table.entries.values().map(|entry| entry.owed.bytes).sum())
    }
}

/// Makes a segment out of the file `from`: its header is written and synced before it gets its name, so that a file of
/// that name always has a header, and the folder is synced before anything goes into it.
pub(crate) fn begin_segment(
    disk: &dyn Disk,
    file: Arc<dyn DiskFile>,
    from: &str,
    header: &SegmentHeader,
    capacity: u64,
) -> io::Result<Arc<Segment>> {
    // A recycled file may still bear, on disk, the name of the segment that it was: its old header must stay until that
    // name is gone for good, or a power cut would leave that segment with this header, which looks like damage.
    disk.sync_folder()?;
    file.write_at(0, &[&header.encode()])?;
    file.sync()?;
    disk.rename(from, &segment_name(header.generation))?;
    disk.sync_folder()?;
    Ok(Arc::new(Segment { generation: header.generation, file, capacity }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::FileDisk;

    const BYTES: u64 = 8_192;

    fn journal(disk: &FileDisk, generations: std::ops::Range<u64>) -> Segments {
        let segments = Segments::default();
        for generation in generations {
            let file = disk.create(&segment_name(generation)).unwrap();
            file.reserve(BYTES).unwrap();
            let segment = Arc::new(Segment { generation, file, capacity: BYTES });
            segments.insert(segment, Some(generation * 10), owed(100));
        }
        segments
    }

    fn owed(bytes: u64) -> Owed {
        Owed { bytes, rows: 1 }
    }

    fn marker(segment: u64, sequence: u64, batch: u64) -> Marker {
        Marker { segment, sequence, batch, ..Marker::default() }
    }

    #[test]
    fn a_segment_is_released_only_when_nothing_is_owed_it_is_flushed_and_nobody_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FileDisk::open(folder.path()).unwrap();
        let segments = journal(&disk, 1..3);
        let release = |flushed| segments.release(&disk, flushed, BYTES, true).unwrap();
        segments.account([(1, owed(50))], &marker(9, 30, 4));
        assert_eq!(release(9), 0, "something is owed");
        segments.account([(1, owed(0))], &marker(9, 9, 5));
        assert_eq!(release(9), 0, "the index does not reflect its last sequence");
        segments.account([], &marker(1, 30, 5));
        assert_eq!(release(9), 0, "recovery begins in it");
        segments.account([], &marker(9, 30, 6));
        assert_eq!(release(5), 0, "the index has not flushed that nothing is owed");
        assert_eq!(segments.waiting_for_flush(5), 1);
        let held = segments.get(1);
        assert_eq!(release(6), 0, "a reader holds it");
        drop(held);
        assert_eq!(release(6), 1);
        assert!(segments.get(1).is_none() && segments.get(2).is_some());
        assert_eq!(segments.take_spare(BYTES), Some(Spare { generation: 1, bytes: BYTES }));
    }

    #[test]
    fn a_segment_that_is_owed_again_is_not_released() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FileDisk::open(folder.path()).unwrap();
        let segments = journal(&disk, 1..2);
        segments.account([(1, owed(0))], &marker(9, 30, 4));
        segments.account([(1, owed(10))], &marker(9, 30, 5));
        assert_eq!(segments.release(&disk, 9, BYTES, true).unwrap(), 0);
    }

    #[test]
    fn without_room_for_spares_a_released_segment_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FileDisk::open(folder.path()).unwrap();
        let segments = journal(&disk, 1..5);
        segments.account((1..5).map(|generation| (generation, owed(0))), &marker(9, 99, 1));
        assert_eq!(segments.release(&disk, 1, BYTES, false).unwrap(), 4);
        assert!(disk.list().unwrap().is_empty());
    }

    #[test]
    fn a_segment_that_was_tried_in_vain_is_left_alone_until_what_is_owed_changes() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FileDisk::open(folder.path()).unwrap();
        let segments = journal(&disk, 1..2);
        let chosen = || segments.sparse(Limits { slack: 0, room: None }).generations;
        assert!(chosen().is_empty(), "the index does not reflect it yet");
        segments.account([], &marker(9, 30, 4));
        assert_eq!(chosen(), [1]);
        segments.keep(1);
        assert!(chosen().is_empty());
        segments.account([(1, owed(50))], &marker(9, 30, 5));
        assert_eq!(chosen(), [1]);
        segments.keep_damaged(1);
        segments.account([(1, owed(40))], &marker(9, 30, 6));
        assert!(chosen().is_empty());
    }
}
