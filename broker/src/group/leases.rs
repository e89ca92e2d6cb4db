//! Who holds what, and until when.
//!
//! What one offer leases to one consumer is a **grant**: one deadline, one count of attempts. What is outstanding of it is
//! kept as **pieces**, ranges of offsets in one map for all consumers, so that acknowledging a whole batch costs the same
//! as acknowledging one message.
//!
//! Invariants: pieces do not overlap, and lie inside their grant's range; a grant lives exactly as long as something of it
//! is outstanding.

use std::collections::{BTreeMap, BTreeSet};

use stentor_core::Monotonic;

use super::ConsumerId;

/// What all messages of a grant have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) consumer: ConsumerId,
    pub(super) deadline: Monotonic,
    /// Failed attempts before this one.
    pub(super) attempts: u32,
    pub(super) redelivered: bool,
    pub(super) redriven: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct GrantId(u64);

#[derive(Clone, Copy, Debug)]
struct Grant {
    terms: Terms,
    start: u64,
    end: u64,
    outstanding: u64,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    grant: GrantId,
}

/// A range that was outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) terms: Terms,
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    pieces: BTreeMap<u64, Piece>,
    grants: BTreeMap<GrantId, Grant>,
    deadlines: BTreeSet<(Monotonic, GrantId)>,
    consumers: BTreeMap<ConsumerId, BTreeSet<GrantId>>,
    last_grant: u64,
    outstanding: u64,
    /// Of it, what failed before.
    outstanding_failed: u64,
}

impl Leases {
    pub(super) const fn outstanding(&self) -> u64 {
        self.outstanding
    }

    pub(super) const fn outstanding_failed(&self) -> u64 {
        self.outstanding_failed
    }

    pub(super) fn next_deadline(&self) -> Option<Monotonic> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Leases `ranges`: ascending, not empty, apart from each other and from everything that is leased already.
    pub(super) fn grant(&mut self, ranges: &[(u64, u64)], terms: Terms) {
        let (Some((start, _)), Some((_, end))) = (ranges.first(), ranges.last()) else { return };
        self.last_grant += 1;
        let id = GrantId(self.last_grant);
        let mut outstanding = 0;
        for (start, end) in ranges {
            debug_assert!(start < end);
            self.pieces.insert(*start, Piece { end: *end, grant: id });
            outstanding += end - start;
        }
        self.count(&terms, outstanding);
        self.grants.insert(id, Grant { terms, start: *start, end: *end, outstanding });
        self.deadlines.insert((terms.deadline, id));
        self.consumers.entry(terms.consumer).or_default().insert(id);
    }

    /// What is outstanding inside `start..end`, ascending, cut to it.
    pub(super) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Held> + '_ {
        let from = self.pieces.range(..=start).next_back().map_or(start, |(before, _)| *before);
        let (from, until) = if start < end { (from, end) } else { (start, start) };
        self.pieces.range(from..until).filter_map(move |(at, piece)| {
            let (start, end) = ((*at).max(start), piece.end.min(end));
            let terms = self.grants.get(&piece.grant)?.terms;
            (start < end).then_some(Held { start, end, terms })
        })
    }

    /// Who holds `offset`.
    pub(super) fn at(&self, offset: u64) -> Option<Held> {
        // Whatever a peer asks about: nothing is held at the very last offset.
        self.within(offset, offset.saturating_add(1)).next()
    }

    /// Takes back `start..end`, all of which lies in one piece.
    pub(super) fn take(&mut self, start: u64, end: u64) {
        let Some((&at, &piece)) = self.pieces.range(..=start).next_back() else { return };
        debug_assert!(start < end && end <= piece.end);
        if at < start {
            self.pieces.insert(at, Piece { end: start, grant: piece.grant });
        } else {
            self.pieces.remove(&at);
        }
        if end < piece.end {
            self.pieces.insert(end, piece);
        }
        self.returned(piece.grant, end - start);
    }

    /// Takes back whatever of `start..end` is outstanding under terms that `which` picks.
    pub(super) fn take_all(&mut self, start: u64, end: u64, which: impl Fn(&Terms) -> bool) -> Vec<Held> {
        let held: Vec<Held> = self.within(start, end).filter(|held| which(&held.terms)).collect();
        for part in &held {
            self.take(part.start, part.end);
        }
        held
    }

    /// Takes back all that `consumer` holds.
    pub(super) fn take_consumer(&mut self, consumer: ConsumerId) -> Vec<Held> {
        let grants = self.consumers.get(&consumer).cloned().unwrap_or_default();
        let mut held: Vec<Held> = grants.into_iter().flat_map(|grant| self.take_grant(grant)).collect();
        held.sort_unstable_by_key(|held| held.start);
        held
    }

    /// Takes back one grant whose deadline has come.
    pub(super) fn take_expired(&mut self, now: Monotonic) -> Option<Vec<Held>> {
        let (_, grant) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now)?;
        Some(self.take_grant(grant))
    }

    fn take_grant(&mut self, id: GrantId) -> Vec<Held> {
        let Some(grant) = self.grants.get(&id).copied() else { return Vec::new() };
        let held: Vec<Held> = self
            .pieces
            .range(grant.start..grant.end)
            .filter(|(_, piece)| piece.grant == id)
            .map(|(start, piece)| Held { start: *start, end: piece.end, terms: grant.terms })
            .collect();
        for part in &held {
            self.take(part.start, part.end);
        }
        held
    }

    fn returned(&mut self, id: GrantId, count: u64) {
        let Some(grant) = self.grants.get_mut(&id) else { return };
        grant.outstanding -= count;
        let (terms, ended) = (grant.terms, grant.outstanding == 0);
        self.outstanding -= count;
        if terms.attempts > 0 {
            self.outstanding_failed -= count;
        }
        if ended {
            self.grants.remove(&id);
            self.deadlines.remove(&(terms.deadline, id));
            if let Some(grants) = self.consumers.get_mut(&terms.consumer) {
                grants.remove(&id);
                if grants.is_empty() {
                    self.consumers.remove(&terms.consumer);
                }
            }
        }
    }

    fn count(&mut self, terms: &Terms, count: u64) {
        self.outstanding += count;
        if terms.attempts > 0 {
            self.outstanding_failed += count;
        }
    }
}
