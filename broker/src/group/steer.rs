//! Steering: seek, pause, and what the log's expiry takes away.

use stentor_core::{Offset, OffsetRange};

use super::GroupState;

impl GroupState {
    /// Everything below `to` is done, everything from there on is owed afresh, and what was delivered before says
    /// `redelivered`. Leases are taken back, retries forgotten, `to` is held inside `log`. Redriven messages below `to`
    /// stay; one from there on is dropped, since the log owes it again. New messages are leased once a flush is durable.
    pub(crate) fn seek(&mut self, to: Offset, log: OffsetRange) {
        let to = to.0.clamp(log.start.0, log.end.0);
        let again: Vec<u64> = self.redriven.range(to..).copied().collect();
        for offset in again {
            self.redriven.remove(&offset);
            self.unflushed.redriven.insert(offset);
            // Without its mark it goes with the messages of the log.
            self.leases.take_all(offset, offset + 1, |terms| terms.redriven);
        }
        self.drop_log(0, u64::MAX);

        // Nothing that was delivered until now may be acknowledged by whoever got it: it must be held again first.
        let reach = &mut self.reach;
        reach.redelivered_from = reach.begun;
        reach.redelivered_below = reach.redelivered_below.max(reach.delivered);
        reach.begun = reach.begun.min(to);
        reach.ackable_below = 0;
        // Nothing is leased before the seek is durable: a crash must not forget that delivery began at `to`.
        reach.durable = 0;
        reach.written = 0;
        self.floor = to;
        self.next = to;
        self.done.clear();
        self.taken.clear();
        self.unflushed.restart();
    }

    /// While paused the group is offered nothing; what is leased may be settled.
    pub(crate) fn pause(&mut self, paused: bool) {
        self.unflushed.cursor |= self.paused != paused;
        self.paused = paused;
    }

    /// The log now starts at `start`: what lay below is done with. Returns how many messages were owed there.
    pub(crate) fn trimmed(&mut self, start: Offset) -> u64 {
        let (from, to) = (self.floor, start.0);
        if to <= from {
            return 0;
        }
        let owed = (to - from) - self.done.count_within(from, to);
        self.drop_log(from, to);
        self.taken.remove(from, to);
        self.mark_done(from, to);
        self.next = self.next.max(to);
        owed
    }

    /// The messages of the log in `start..end` leave whatever state they are in; redriven ones stay.
    fn drop_log(&mut self, start: u64, end: u64) {
        self.leases.take_all(start, end, |terms| !terms.redriven);
        let waiting: Vec<u64> = self.waiting.within(start, end).map(|(offset, _)| offset).collect();
        for offset in waiting.into_iter().filter(|offset| !self.redriven.contains(offset)) {
            self.waiting.remove(offset);
        }
        let dying: Vec<u64> = self.dying.range(start..end).map(|(offset, _)| *offset).collect();
        for offset in dying.into_iter().filter(|offset| !self.redriven.contains(offset)) {
            self.dying.remove(&offset);
        }
        // The held ones first, so that none of them comes up when the current one goes.
        let held: Vec<u64> = self.order.held_within(start, end).collect();
        for offset in held.into_iter().filter(|offset| !self.redriven.contains(offset)) {
            self.order.unhold(offset);
        }
        let current: Vec<u64> =
            self.order.current_within(start, end).filter(|offset| !self.redriven.contains(offset)).collect();
        for offset in current {
            self.pass_on(offset, offset + 1);
        }
        let mut at = start;
        let kept: Vec<u64> = self.redriven.range(start..end).copied().collect();
        for offset in kept.into_iter().chain([end]) {
            self.unflushed.forget(at, offset);
            at = offset.saturating_add(1);
        }
    }
}
