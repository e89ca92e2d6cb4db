//! What the index has already, kept in memory a while longer for readers close behind the end.
//!
//! Invariants: what a partition keeps is contiguous up to where its tail begins; all partitions together keep at most
//! [`NODE_BYTES_MAX`], and a batch more for a moment; the oldest goes first, whosever it is, and no partition pushes out what
//! others keep by more than [`PARTITION_BYTES_MAX`].

use std::collections::VecDeque;
use std::sync::Arc;

use stentor_core::Offset;

use crate::partition::{Partition, TailEntry};

/// What one partition keeps. A reader asks for 1 MiB at a time.
const PARTITION_BYTES_MAX: u64 = 4 << 20;

/// What all of them keep together.
const NODE_BYTES_MAX: u64 = 64 << 20;

/// How many times a partition's growth is remembered, to know which is the oldest.
const GROWTHS_MAX: usize = 64 << 10;

/// What one partition keeps.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    entries: VecDeque<TailEntry>,
    bytes: u64,
    /// What of it the node counts.
    counted: u64,
}

impl Recent {
    /// Where it begins; none if it keeps nothing.
    pub(crate) fn start(&self) -> Option<Offset> {
        self.entries.front().map(|entry| entry.base)
    }

    /// The batches from the one that holds `from` on.
    pub(crate) fn from(&self, from: Offset) -> impl Iterator<Item = &TailEntry> {
        let first = self.entries.partition_point(|entry| entry.end() <= from);
        self.entries.range(first..)
    }

    /// Keeps a batch that the index has now.
    pub(crate) fn push(&mut self, entry: TailEntry) {
        self.bytes += u64::from(entry.row.place.length);
        self.entries.push_back(entry);
        while self.bytes > PARTITION_BYTES_MAX {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) -> bool {
        let popped = self.entries.pop_front();
        self.bytes -= popped.as_ref().map_or(0, |entry| u64::from(entry.row.place.length));
        popped.is_some()
    }

    /// Forgets what lies below the log's start.
    pub(crate) fn trim(&mut self, start: Offset) {
        while self.entries.front().is_some_and(|entry| entry.end() <= start) {
            self.pop_front();
        }
    }

    /// Forgets what lies beyond the log's end.
    pub(crate) fn truncate(&mut self, end: Offset) {
        while self.entries.back().is_some_and(|entry| entry.base >= end) {
            let popped = self.entries.pop_back();
            self.bytes -= popped.map_or(0, |entry| u64::from(entry.row.place.length));
        }
    }

    /// Forgets what the change of this sequence and those before brought.
    pub(crate) fn forget_through(&mut self, sequence: u64) {
        while self.entries.front().is_some_and(|entry| entry.sequence <= sequence) {
            self.pop_front();
        }
    }

    /// By how much `node` differs from what is counted, with this one's present bytes counted in.
    fn count(&mut self, node: &mut u64) -> bool {
        let grown = self.bytes > self.counted;
        *node = *node - self.counted + self.bytes;
        self.counted = self.bytes;
        grown
    }
}

/// What all partitions keep together.
#[derive(Debug, Default)]
pub(crate) struct RecentTails {
    bytes: u64,
    /// Who grew, and through which change, the oldest first.
    growths: VecDeque<(Arc<Partition>, u64)>,
}

impl RecentTails {
    /// Counts what a partition keeps after the index came to `sequence`, and forgets the oldest if that is too much.
    pub(crate) fn indexed(&mut self, partition: &Arc<Partition>, sequence: u64) {
        if partition.state().recent.count(&mut self.bytes) {
            self.growths.push_back((partition.clone(), sequence));
        }
        while self.bytes > NODE_BYTES_MAX || self.growths.len() > GROWTHS_MAX {
            let Some((oldest, through)) = self.growths.pop_front() else {
                break;
            };
            let mut state = oldest.state();
            state.recent.forget_through(through);
            state.recent.count(&mut self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use stentor_core::storage::Place;
    use stentor_core::{PartitionId, Timestamp};

    use super::*;
    use crate::format::row::LogRow;

    const BATCH_BYTES: u32 = 1 << 20;

    fn entry(base: u64) -> TailEntry {
        let place = Place { segment: 1, position: 0, length: BATCH_BYTES, count: 1 };
        let row = LogRow { place, checksum: 0, stored_at: Timestamp(0), stored_max: Timestamp(0), origin: None };
        TailEntry { sequence: base + 1, base: Offset(base), row, batch: None }
    }

    fn partition(id: u64) -> Arc<Partition> {
        Arc::new(Partition::new(PartitionId(id)))
    }

    fn kept(partition: &Partition) -> Vec<u64> {
        partition.state().recent.from(Offset::ZERO).map(|entry| entry.base.0).collect()
    }

    #[test]
    fn a_partition_keeps_its_newest_and_no_more_than_its_share() {
        let (busy, quiet) = (partition(1), partition(2));
        let mut tails = RecentTails::default();
        quiet.state().recent.push(entry(0));
        tails.indexed(&quiet, 1);
        for base in 0..1_000 {
            busy.state().recent.push(entry(base));
            tails.indexed(&busy, base + 1);
        }
        assert_eq!(kept(&busy), [996, 997, 998, 999]);
        assert_eq!(kept(&quiet), [0], "the busy one pushed the quiet one out");
    }

    #[test]
    fn beyond_the_nodes_share_the_oldest_goes() {
        let mut tails = RecentTails::default();
        let partitions: Vec<_> = (0..NODE_BYTES_MAX / u64::from(BATCH_BYTES) + 3).map(partition).collect();
        for (at, partition) in partitions.iter().enumerate() {
            partition.state().recent.push(entry(at as u64));
            tails.indexed(partition, at as u64 + 1);
        }
        let empty = partitions.iter().take_while(|partition| kept(partition).is_empty()).count();
        assert_eq!(empty, 3);
        assert!(partitions[3..].iter().all(|partition| kept(partition).len() == 1));
    }

    #[test]
    fn what_is_trimmed_or_truncated_is_forgotten_and_no_longer_counted() {
        let partition = partition(1);
        let mut tails = RecentTails::default();
        (0..4).for_each(|base| partition.state().recent.push(entry(base)));
        tails.indexed(&partition, 4);
        assert_eq!(tails.bytes, 4 << 20);
        partition.state().recent.trim(Offset(1));
        partition.state().recent.truncate(Offset(3));
        tails.indexed(&partition, 4);
        assert_eq!((kept(&partition), tails.bytes), (vec![1, 2], 2 << 20));
    }
}
