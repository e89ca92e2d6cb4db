//! Messages that wait: for their due time after a failure, for any consumer after they were given back, or because the
//! message before them in their key is done.
//!
//! Invariant: both indexes hold the same messages.

use std::collections::{BTreeMap, BTreeSet};

use stentor_core::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Failed attempts so far.
    pub(super) attempts: u32,
    pub(super) due: Timestamp,
    pub(super) redelivered: bool,
}

impl Waiting {
    /// Due at once, whatever the wall clock says.
    pub(super) const AT_ONCE: Timestamp = Timestamp(0);
}

#[derive(Debug, Default)]
pub(super) struct WaitingTable {
    by_offset: BTreeMap<u64, Waiting>,
    by_due: BTreeSet<(Timestamp, u64)>,
    /// How many have failed before.
    failed: u64,
}

impl WaitingTable {
    pub(super) fn len(&self) -> u64 {
        self.by_offset.len() as u64
    }

    pub(super) const fn failed(&self) -> u64 {
        self.failed
    }

    pub(super) fn get(&self, offset: u64) -> Option<Waiting> {
        self.by_offset.get(&offset).copied()
    }

    pub(super) fn insert(&mut self, offset: u64, waiting: Waiting) {
        self.remove(offset);
        self.by_offset.insert(offset, waiting);
        self.by_due.insert((waiting.due, offset));
        self.failed += u64::from(waiting.attempts > 0);
    }

    pub(super) fn remove(&mut self, offset: u64) -> Option<Waiting> {
        let waiting = self.by_offset.remove(&offset)?;
        self.by_due.remove(&(waiting.due, offset));
        self.failed -= u64::from(waiting.attempts > 0);
        Some(waiting)
    }

    /// The one that is due first.
    pub(super) fn first_due(&self) -> Option<(Timestamp, u64)> {
        self.by_due.first().copied()
    }

    /// Those inside `start..end`, ascending.
    pub(super) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, Waiting)> + '_ {
        self.by_offset.range(start..end.max(start)).map(|(offset, waiting)| (*offset, *waiting))
    }
}
