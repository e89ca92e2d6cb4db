//! Order by key: of the messages of one key, one is under way and the later ones are held.
//!
//! Keys are known by their hash. Two keys of the same hash are kept in one order, which takes a little speed and breaks
//! nothing.
//!
//! Invariants: every key here has exactly one **current** message (leased, waiting or dying); held ones have none of these
//! states.

use std::collections::{BTreeMap, BTreeSet};

use super::waiting::Waiting;

#[derive(Debug, Default)]
pub(super) struct Order {
    /// The current message of each key → the key.
    current: BTreeMap<u64, u64>,
    /// Each key that has a current message → its held ones, ascending.
    queues: BTreeMap<u64, BTreeSet<u64>>,
    /// Held message → its key, and what it waits as once it is its turn.
    held: BTreeMap<u64, (u64, Waiting)>,
}

impl Order {
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_empty()
    }

    pub(super) fn held(&self) -> u64 {
        self.held.len() as u64
    }

    /// What a held message waits as once it is its turn.
    pub(super) fn held_as(&self, offset: u64) -> Option<Waiting> {
        self.held.get(&offset).map(|(_, waiting)| *waiting)
    }

    /// The key of a current message.
    pub(super) fn key_of(&self, offset: u64) -> Option<u64> {
        self.current.get(&offset).copied()
    }

    /// Makes `offset` the current message of its key, or holds it if there is one.
    pub(super) fn admit(&mut self, offset: u64, key: u64, as_waiting: Waiting) -> bool {
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.insert(offset);
            self.held.insert(offset, (key, as_waiting));
            return false;
        }
        self.queues.insert(key, BTreeSet::new());
        self.current.insert(offset, key);
        true
    }

    /// The held messages inside `start..end`.
    pub(super) fn held_within(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        self.held.range(start..end.max(start)).map(|(offset, _)| *offset)
    }

    /// A held message is done with.
    pub(super) fn unhold(&mut self, offset: u64) {
        if let Some((key, _)) = self.held.remove(&offset)
            && let Some(queue) = self.queues.get_mut(&key)
        {
            queue.remove(&offset);
        }
    }

    /// The current messages inside `start..end`.
    pub(super) fn current_within(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        self.current.range(start..end.max(start)).map(|(offset, _)| *offset)
    }

    /// The current message `offset` is done with: gives the next one of its key, which is current now.
    pub(super) fn finish(&mut self, offset: u64) -> Option<(u64, Waiting)> {
        let key = self.current.remove(&offset)?;
        let next = self.queues.get_mut(&key).and_then(BTreeSet::pop_first);
        let Some(next) = next else {
            self.queues.remove(&key);
            return None;
        };
        self.current.insert(next, key);
        let (_, waiting) = self.held.remove(&next)?;
        Some((next, waiting))
    }

    /// Order no longer counts: gives all that was held.
    pub(super) fn dissolve(&mut self) -> impl Iterator<Item = (u64, Waiting)> + use<> {
        self.current.clear();
        self.queues.clear();
        std::mem::take(&mut self.held).into_iter().map(|(offset, (_, waiting))| (offset, waiting))
    }
}
