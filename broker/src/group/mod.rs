//! The state of one group on one partition: what it owes, to whom it is leased, what waits to be tried again.
//!
//! Pure logic: no I/O, no clock, no tasks. The partition's task owns it, tells it the time, fetches the batches that it
//! [wants](GroupState::wants), hands them in by [`offer`](GroupState::offer), and writes the rows of
//! [`flush`](GroupState::flush).
//!
//! Every offset of the log is in exactly one state:
//!
//! | state | where |
//! |---|---|
//! | done: acknowledged, filtered out, dead-lettered, skipped | below `floor`, or in the done ranges above it |
//! | leased | a piece of a grant of one consumer |
//! | waiting: to be tried again, given back, or next of its key | the waiting table, by offset and by due time |
//! | held behind an earlier message of its key (ordered groups) | the queue of its key |
//! | dying: out of attempts or rejected, not yet in the dead letters | the deaths |
//! | untouched | `next` and above |
//!
//! A *redriven* message comes from the table instead of the log. Its offset is done as far as the log goes, so that an
//! offset never means two messages; apart from where its bytes come from it is like any waiting or leased one.
//!
//! Invariants:
//! - `floor ≤ next`, `floor ≤ end of the log`; `floor` itself is owed or untouched; nothing at or above the *durable*
//!   horizon is leased;
//! - at most one consumer holds a message; of an ordered group, at most one message of a key is leased, waiting or dying,
//!   and it is the oldest one owed;
//! - memory is bounded by [`IN_FLIGHT_MAX`], `retrying_max` and [`UNFLUSHED_FAILURES_MAX`], never by the backlog:
//!   between `floor` and `next` there are at most so many holes, and done is kept as ranges;
//! - what was flushed as done never returns; everything else does, whatever crashes.

use std::collections::{BTreeMap, BTreeSet};

use stentor_core::{GroupName, Offset};

mod flush;
mod keys;
mod leases;
mod letters;
mod load;
mod offer;
mod order;
mod ranges;
mod rows;
mod settle;
mod steer;
mod types;
mod waiting;

pub(crate) use keys::{
    dead_letter_key, dead_letter_offset, dead_letters_range, failures_range, group_range, redriven_key, state_ranges,
};
pub(crate) use letters::{Burial, DeadLetter, Moves, Purge, Reason, Redrive};
pub(crate) use load::Loading;
pub(crate) use rows::RowError;
pub(crate) use types::{Batch, ConsumerId, Credit, Death, LeaseLost, Leased, Now, Refusal, Rules, Want, Whereabouts};

use flush::Unflushed;
use leases::Leases;
use letters::Dying;
use order::Order;
use ranges::RangeSet;
use waiting::WaitingTable;

/// The most messages of one group and partition that consumers may hold together. Beyond it nothing new is leased.
pub(crate) const IN_FLIGHT_MAX: u64 = 1 << 18;

/// How many failures may wait to be written. Beyond it the group is offered nothing until a flush has caught up: a
/// group that refuses everything slows itself down, and its memory stays bounded.
pub(crate) const UNFLUSHED_FAILURES_MAX: usize = 1 << 16;

/// How far ahead of the cursor the horizon is written.
pub(crate) const HORIZON_STEP: u64 = 1 << 16;

/// The longest reason that is kept, in bytes of UTF-8; longer ones are cut.
pub(crate) const REASON_BYTES_MAX: usize = 256;

/// How many reasons of one message are kept: the latest ones.
pub(crate) const REASONS_MAX: u32 = 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct GroupState {
    name: GroupName,
    rules: Rules,
    paused: bool,
    /// Set before an orderly shutdown: nothing is leased any more.
    sealed: bool,

    /// Everything below is done, this one is not.
    floor: u64,
    /// New messages are taken from here on.
    next: u64,
    /// What is done above the floor; above `next` too, after a restart.
    done: RangeSet,
    /// What is waiting or dying at `next` and above: retries that a restart found. The cursor skips them.
    taken: RangeSet,

    leases: Leases,
    waiting: WaitingTable,
    order: Order,
    dying: BTreeMap<u64, Dying>,
    /// The offsets whose messages come from the table; waiting, held, leased or dying like any other.
    redriven: BTreeSet<u64>,
    dead_letters: u64,

    reach: Reach,
    unflushed: Unflushed,
}

/// How far delivery has come, to say of a message whether it may have been delivered before.
#[derive(Clone, Copy, Debug, Default)]
struct Reach {
    /// The lowest offset that delivery ever began at.
    begun: u64,
    /// Messages of `redelivered_from..redelivered_below` that come from the log may have been delivered before.
    redelivered_from: u64,
    redelivered_below: u64,
    /// Nothing of the log at or above it was delivered since the start.
    delivered: u64,
    /// Owed messages below it may be acknowledged without a lease although the cursor has not come to them: consumers
    /// may have got them before a restart.
    ackable_below: u64,
    /// Nothing at or above it may be leased.
    durable: u64,
    /// The horizon in the cursor row as it was last committed, durable or not yet.
    written: u64,
}

impl GroupState {
    /// A new group that begins at `at`. It exists once its first flush is durable.
    pub(crate) fn new(name: GroupName, rules: Rules, at: Offset) -> Self {
        let mut state = Self::empty(name, rules);
        state.floor = at.0;
        state.next = at.0;
        state.reach.begun = at.0;
        state.unflushed.cursor = true;
        state
    }

    fn empty(name: GroupName, rules: Rules) -> Self {
        Self {
            name,
            rules,
            paused: false,
            sealed: false,
            floor: 0,
            next: 0,
            done: RangeSet::default(),
            taken: RangeSet::default(),
            leases: Leases::default(),
            waiting: WaitingTable::default(),
            order: Order::default(),
            dying: BTreeMap::new(),
            redriven: BTreeSet::new(),
            dead_letters: 0,
            reach: Reach::default(),
            unflushed: Unflushed::default(),
        }
    }

    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Other settings, from now on. Turning `ordered` on counts for messages that are not yet taken from the log; turning
    /// it off frees those that are held.
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
        if !rules.ordered {
            for (offset, waiting) in self.order.dissolve() {
                self.waiting.insert(offset, waiting);
            }
        }
    }

    /// The first offset that is not done: nothing below is needed in the log.
    pub(crate) const fn floor(&self) -> Offset {
        Offset(self.floor)
    }

    /// Where new messages are taken from next; for read-ahead.
    pub(crate) fn next(&self) -> Offset {
        Offset(self.first_untouched())
    }

    /// Messages not done with, in a log that ends at `end`, and the redriven ones; in flight and retrying included.
    pub(crate) fn backlog(&self, end: Offset) -> u64 {
        let owed = end.0.saturating_sub(self.floor) - self.done.count_within(self.floor, end.0);
        owed + self.redriven.len() as u64
    }

    /// Messages held by consumers.
    pub(crate) const fn in_flight(&self) -> u64 {
        self.leases.outstanding()
    }

    /// Messages that wait for another try after a failure.
    pub(crate) const fn retrying(&self) -> u64 {
        self.waiting.failed()
    }

    /// The oldest message of the log that is owed (the age of the group goes by its batch's time of storing).
    pub(crate) fn oldest_owed(&self, end: Offset) -> Option<Offset> {
        (self.floor < end.0).then_some(Offset(self.floor))
    }

    /// What has become of the message at `offset`.
    pub(crate) fn whereabouts(&self, offset: Offset) -> Whereabouts {
        let at = offset.0;
        if let Some(held) = self.leases.at(at) {
            let terms = held.terms;
            return Whereabouts::Leased {
                consumer: terms.consumer,
                until: terms.deadline,
                attempt: terms.attempts.saturating_add(1),
            };
        }
        if let Some(waiting) = self.waiting.get(at) {
            return Whereabouts::Waiting { due: waiting.due, attempts: waiting.attempts };
        }
        if let Some(dying) = self.dying.get(&at) {
            return Whereabouts::Dying { attempts: dying.attempts };
        }
        if self.order.held_as(at).is_some() {
            Whereabouts::Held
        } else if at < self.floor || self.done.contains(at) {
            Whereabouts::Done
        } else {
            Whereabouts::Untouched
        }
    }

    /// The first offset at `next` or above that is in no state yet.
    fn first_untouched(&self) -> u64 {
        let mut at = self.next;
        while let Some(end) = self.done.end_of(at).or_else(|| self.taken.end_of(at)) {
            at = end;
        }
        at
    }

    /// Whether the message at `offset` is no longer (or never was) owed by the log.
    fn is_done(&self, offset: u64) -> bool {
        offset < self.floor || self.done.contains(offset)
    }

    /// How many messages hold memory of their own because they failed or must wait: what `retrying_max` bounds.
    fn troubled(&self) -> u64 {
        self.waiting.len() + self.order.held() + self.dying.len() as u64 + self.leases.outstanding_failed()
    }

    /// Whether a message of the log may have been delivered before.
    const fn may_be_redelivered(&self, offset: u64) -> bool {
        self.reach.redelivered_from <= offset && offset < self.reach.redelivered_below
    }

    /// The messages `start..end` of the log are done. They are in no other state any more.
    fn mark_done(&mut self, start: u64, end: u64) {
        if end <= self.floor || start >= end {
            return;
        }
        if start <= self.floor {
            self.floor = end;
            while let Some((first, until)) = self.done.first()
                && first <= self.floor
            {
                self.floor = self.floor.max(until);
                self.done.pop_first();
            }
            self.next = self.next.max(self.floor);
            self.unflushed.cursor = true;
        } else {
            self.done.insert(start, end);
            self.unflushed.touch(start, end);
        }
    }

    /// The messages `start..end` of the log were acknowledged, buried or given up. They are in no other state any more,
    /// but may be the current ones of their keys. `failed` says whether attempts at them have rows.
    fn finish(&mut self, start: u64, end: u64, failed: bool) {
        if failed {
            self.unflushed.forget(start, end);
        }
        self.pass_on(start, end);
        self.mark_done(start, end);
    }

    /// The redriven message at `offset` is done with.
    fn finish_redriven(&mut self, offset: u64) {
        self.unflushed.forget(offset, offset + 1);
        self.unflushed.redriven.insert(offset);
        self.redriven.remove(&offset);
        self.pass_on(offset, offset + 1);
    }

    /// Where one of `start..end` is the current message of its key, the next one's turn has come.
    fn pass_on(&mut self, start: u64, end: u64) {
        if self.order.is_empty() {
            return;
        }
        let current: Vec<u64> = self.order.current_within(start, end).collect();
        for offset in current {
            if let Some((next, waiting)) = self.order.finish(offset) {
                self.waiting.insert(next, waiting);
            }
        }
    }
}

#[cfg(test)]
mod tests;
