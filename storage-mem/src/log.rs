//! The log of a partition: where each batch begins, and what it holds.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;

use stentor_core::storage::{Place, StorageError, StoredBatch};
use stentor_core::{Offset, OffsetRange, Timestamp};

use crate::held::Held;

/// What an entry takes in the log, beside the batch itself.
pub(crate) const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;

/// A deque that is filled to less than this fraction gives memory back.
const SHRINK_BELOW: usize = 4;

/// A batch in a log.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Ascends within the log. Of a batch that entered this log first it is the position of its place.
    number: u64,
    base: Offset,
    stored_at: Timestamp,
    /// The greatest time of storing up to here: ascends, though the wall clock may step back.
    stored_up_to: Timestamp,
    held: Arc<Held>,
}

impl Entry {
    fn offsets(&self) -> OffsetRange {
        OffsetRange::new(self.base, self.base.advance(self.held.batch().count().into()))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.held.bytes() + ENTRY_BYTES
    }

    fn read(&self) -> StoredBatch {
        StoredBatch { batch: self.held.batch().clone().stored(self.base, self.stored_at), place: self.held.place() }
    }
}

/// Invariants: the offsets of the entries are contiguous and end at `end`; the first entry holds `start`, or there is
/// none and `start` is `end`; `bytes` is the sum over the entries.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    start: Offset,
    end: Offset,
    entries: VecDeque<Entry>,
    bytes: u64,
}

impl Log {
    pub(crate) const fn new(first: Offset) -> Self {
        Self { start: first, end: first, entries: VecDeque::new(), bytes: 0 }
    }

    pub(crate) const fn bounds(&self) -> OffsetRange {
        OffsetRange::new(self.start, self.end)
    }

    /// What the batches take, each in full, whoever else holds it.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What the entries take without the batches.
    pub(crate) fn entry_bytes(&self) -> u64 {
        self.entries.len() as u64 * ENTRY_BYTES
    }

    /// What [`push`](Self::push) will add for a batch.
    pub(crate) fn bytes_of(held: &Held) -> u64 {
        held.bytes() + ENTRY_BYTES
    }

    /// Appends a batch. `number` must be greater than any before, and the offsets must not overflow.
    pub(crate) fn push(&mut self, number: u64, held: Arc<Held>, stored_at: Timestamp) {
        let stored_up_to = self.entries.back().map_or(stored_at, |last| last.stored_up_to.max(stored_at));
        let entry = Entry { number, base: self.end, stored_at, stored_up_to, held };
        self.end = entry.offsets().end;
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
    }

    /// How many whole batches lie below `to`.
    fn below(&self, to: Offset) -> usize {
        self.entries.partition_point(|entry| entry.offsets().end <= to)
    }

    /// What trimming to `to` frees: whole batches only.
    pub(crate) fn bytes_below(&self, to: Offset) -> u64 {
        self.entries.range(..self.below(to)).map(Entry::bytes).sum()
    }

    /// Moves the start to `to`, which must not lie beyond the end. The batches that are gone are handed back, so that
    /// they are freed outside the lock.
    pub(crate) fn trim(&mut self, to: Offset) -> Vec<Entry> {
        if to <= self.start {
            return Vec::new();
        }
        self.start = to;
        let gone: Vec<Entry> = self.entries.drain(..self.below(to)).collect();
        self.freed(&gone);
        gone
    }

    /// Where the log must start for its batches to take `bytes` less; its end, if even that is not enough.
    pub(crate) fn start_to_free(&self, bytes: u64) -> Offset {
        let mut freed = 0;
        for entry in &self.entries {
            if freed >= bytes {
                return entry.base.max(self.start);
            }
            freed += entry.bytes();
        }
        self.end
    }

    /// Drops what lies at `end` and above. What is gone is handed back; none if `end` lies in the middle of a batch.
    pub(crate) fn truncate(&mut self, end: Offset) -> Option<Vec<Entry>> {
        let keep = self.below(end);
        if self.entries.get(keep).is_some_and(|entry| entry.base < end) {
            return None;
        }
        let gone: Vec<Entry> = self.entries.drain(keep..).collect();
        self.freed(&gone);
        self.end = self.end.min(end);
        Some(gone)
    }

    fn freed(&mut self, gone: &[Entry]) {
        self.bytes -= gone.iter().map(Entry::bytes).sum::<u64>();
        if self.entries.len() < self.entries.capacity() / SHRINK_BELOW {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// As the contract of a reader says.
    pub(crate) fn read(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Vec<StoredBatch>, StorageError> {
        if from < self.start {
            return Err(StorageError::Trimmed { start: self.start });
        }
        let mut room = bytes_max.get() as usize;
        let mut batches = Vec::new();
        for entry in self.entries.range(self.below(from)..) {
            let bytes = entry.held.batch().len();
            if bytes > room && !batches.is_empty() {
                break;
            }
            room = room.saturating_sub(bytes);
            batches.push(entry.read());
        }
        Ok(batches)
    }

    /// As the contract of a reader says.
    pub(crate) fn offset_at(&self, at: Timestamp) -> Offset {
        // No entry before this one is late enough; it may itself stand for a later one that is gone, if the clock has
        // stepped back, so look on from here.
        let first = self.entries.partition_point(|entry| entry.stored_up_to < at);
        let found = self.entries.range(first..).find(|entry| entry.stored_at >= at);
        found.map_or(self.end, |entry| entry.base.max(self.start))
    }

    /// The batch that entered this log at `place`, if it is still here.
    pub(crate) fn find(&self, place: Place) -> Option<Arc<Held>> {
        let at = self.entries.binary_search_by_key(&place.position, |entry| entry.number).ok()?;
        Some(&self.entries[at].held).filter(|held| held.place() == place).cloned()
    }
}
