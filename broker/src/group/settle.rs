//! Settling: what becomes of leased messages.

use std::sync::Arc;
use std::time::Duration;

use stentor_core::{Monotonic, Offset, OffsetRange, Timestamp};

use super::leases::{Held, Terms};
use super::letters::Dying;
use super::ranges::RangeSet;
use super::rows::Failure;
use super::waiting::Waiting;
use super::{ConsumerId, GroupState, LeaseLost, Now, REASON_BYTES_MAX, Refusal, Rules};

/// Delays are shortened by up to this many parts in a hundred, so that what failed together does not come back together.
const JITTER_PERCENT: u64 = 20;

impl Rules {
    /// The pause after the failed attempt number `attempts` (from 1): `retry_delay` doubled with each, up to
    /// `retry_delay_max`, less the jitter.
    pub(crate) fn delay(&self, attempts: u32, rng: &mut fastrand::Rng) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        let full = self.retry_delay.saturating_mul(1 << doublings).min(self.retry_delay_max);
        let micros = u64::try_from(full.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(micros - rng.u64(0..=micros / 100 * JITTER_PERCENT))
    }
}

impl GroupState {
    /// `consumer` is done with the messages of `span`. Also taken for what is owed and held by nobody (its lease has run
    /// out, the broker was restarted). The parts that another consumer holds, that are done already, dying or were never
    /// delivered are appended to `lost`. Returns how many are newly done.
    pub(crate) fn ack(&mut self, consumer: ConsumerId, span: OffsetRange, lost: &mut Vec<OffsetRange>) -> u64 {
        let (start, end) = (span.start.0, span.end.0);
        // Mostly the span is one range that the consumer holds.
        let held = self.leases.within(start, end).next();
        if let Some(held) = held
            && (held.start, held.end) == (start, end)
            && held.terms.consumer == consumer
        {
            self.finish_held(held);
            return end - start;
        }
        let mut accepted = RangeSet::default();
        let pieces: Vec<Held> = self.leases.within(start, end).collect();
        let mut at = start;
        for held in pieces {
            self.ack_unheld(at, held.start, &mut accepted);
            if held.terms.consumer == consumer {
                self.finish_held(held);
                accepted.insert(held.start, held.end);
            }
            at = held.end;
        }
        self.ack_unheld(at, end, &mut accepted);
        lost.extend(accepted.gaps(start, end).map(|(a, b)| OffsetRange::new(Offset(a), Offset(b))));
        accepted.count_within(start, end)
    }

    fn finish_held(&mut self, held: Held) {
        self.leases.take(held.start, held.end);
        if held.terms.redriven {
            (held.start..held.end).for_each(|offset| self.finish_redriven(offset));
        } else {
            self.finish(held.start, held.end, held.terms.attempts > 0);
        }
    }

    /// Takes an acknowledgement of `start..end`, of which nothing is leased.
    fn ack_unheld(&mut self, start: u64, end: u64, accepted: &mut RangeSet) {
        if start >= end {
            return;
        }
        let redriven = self.redriven.range(start..end).filter(|offset| !self.dying.contains_key(offset));
        for offset in redriven.copied().collect::<Vec<_>>() {
            self.waiting.remove(offset);
            self.order.unhold(offset);
            self.finish_redriven(offset);
            accepted.insert(offset, offset + 1);
        }
        // What the cursor has not passed can have been delivered only before a restart.
        let below = end.min(self.next.max(self.reach.ackable_below));
        let owed: Vec<(u64, u64)> = self.done.gaps(start.max(self.floor), below).collect();
        for (start, end) in owed {
            let dying: Vec<u64> = self.dying.range(start..end).map(|(offset, _)| *offset).collect();
            let mut at = start;
            for offset in dying.into_iter().chain([end]) {
                self.ack_owed(at, offset);
                accepted.insert(at, offset);
                at = offset + 1;
            }
        }
    }

    /// `start..end` is owed, and neither leased nor dying.
    fn ack_owed(&mut self, start: u64, end: u64) {
        let waiting: Vec<(u64, Waiting)> = self.waiting.within(start, end).collect();
        for (offset, waiting) in waiting {
            self.waiting.remove(offset);
            if waiting.attempts > 0 {
                self.unflushed.forget(offset, offset + 1);
            }
        }
        let held: Vec<u64> = self.order.held_within(start, end).collect();
        for offset in held {
            // It may have failed before the group was made ordered.
            self.unflushed.forget(offset, offset + 1);
            self.order.unhold(offset);
        }
        if start < end {
            self.finish(start, end, false);
        }
    }

    /// `consumer` refuses a message that it holds. The reason is cut to [`REASON_BYTES_MAX`].
    pub(crate) fn refuse(
        &mut self,
        consumer: ConsumerId,
        offset: Offset,
        refusal: &Refusal,
        reason: &str,
        now: Now,
        rng: &mut fastrand::Rng,
    ) -> Result<(), LeaseLost> {
        let held = self.leases.at(offset.0).filter(|held| held.terms.consumer == consumer).ok_or(LeaseLost)?;
        self.leases.take(offset.0, offset.0 + 1);
        let (due, rejected) = match refusal {
            Refusal::Release => {
                self.give_back(offset.0, held.terms);
                return Ok(());
            }
            Refusal::Reject => (now.wall, true),
            Refusal::Retry { delay: Some(delay) } => (now.wall.after(*delay), false),
            Refusal::Retry { delay: None } => {
                let attempts = held.terms.attempts.saturating_add(1);
                (now.wall.after(self.rules.delay(attempts, rng)), false)
            }
        };
        self.fail(offset.0, held.terms, due, rejected, &cut(reason), now);
        Ok(())
    }

    /// `consumer` keeps what it holds of `span` until `until`; the rest is appended to `lost`.
    pub(crate) fn extend(
        &mut self,
        consumer: ConsumerId,
        span: OffsetRange,
        until: Monotonic,
        lost: &mut Vec<OffsetRange>,
    ) {
        let mut kept = RangeSet::default();
        let held = self.leases.take_all(span.start.0, span.end.0, |terms| terms.consumer == consumer);
        for run in held.chunk_by(|a, b| a.terms == b.terms) {
            let ranges: Vec<(u64, u64)> = run.iter().map(|held| (held.start, held.end)).collect();
            ranges.iter().for_each(|(start, end)| kept.insert(*start, *end));
            if let Some(first) = run.first() {
                self.leases.grant(&ranges, Terms { deadline: until, ..first.terms });
            }
        }
        lost.extend(kept.gaps(span.start.0, span.end.0).map(|(a, b)| OffsetRange::new(Offset(a), Offset(b))));
    }

    /// The consumer is gone: what it holds returns at once, and the attempt counts. Returns how many messages.
    pub(crate) fn remove_consumer(&mut self, consumer: ConsumerId, reason: &str, now: Now) -> u64 {
        let held = self.leases.take_consumer(consumer);
        self.fail_all(&held, &cut(reason), now)
    }

    /// The consumer gives back all that it holds: it returns at once, and the attempt does not count, but since the
    /// consumer may have looked at it, it says `redelivered`. Returns how many.
    pub(crate) fn release_consumer(&mut self, consumer: ConsumerId) -> u64 {
        let held = self.leases.take_consumer(consumer);
        for part in &held {
            let terms = Terms { redelivered: true, ..part.terms };
            (part.start..part.end).for_each(|offset| self.give_back(offset, terms));
        }
        held.iter().map(|part| part.end - part.start).sum()
    }

    /// Leases that have run out return at once, and the attempt counts. Returns how many messages.
    pub(crate) fn expire(&mut self, now: Now) -> u64 {
        let mut count = 0;
        while let Some(held) = self.leases.take_expired(now.monotonic) {
            count += self.fail_all(&held, &cut("the lease ran out"), now);
        }
        count
    }

    fn fail_all(&mut self, held: &[Held], reason: &Arc<str>, now: Now) -> u64 {
        for part in held {
            (part.start..part.end).for_each(|offset| self.fail(offset, part.terms, now.wall, false, reason, now));
        }
        held.iter().map(|part| part.end - part.start).sum()
    }

    /// A message that is not leased any more comes back at once, as if it had not been delivered.
    fn give_back(&mut self, offset: u64, terms: Terms) {
        let Terms { attempts, redelivered, .. } = terms;
        self.waiting.insert(offset, Waiting { attempts, due: Waiting::AT_ONCE, redelivered });
    }

    /// An attempt at a message that is not leased any more has failed.
    fn fail(&mut self, offset: u64, terms: Terms, due: Timestamp, rejected: bool, reason: &Arc<str>, now: Now) {
        let attempts = terms.attempts.saturating_add(1);
        let key = self.order.key_of(offset);
        let failure = Failure { due, at: now.wall, key, rejected, redriven: terms.redriven, reason: reason.clone() };
        self.unflushed.fail(offset, attempts, failure);
        if rejected || attempts >= self.rules.max_attempts {
            self.dying.insert(offset, Dying { attempts, at: now.wall });
        } else {
            self.waiting.insert(offset, Waiting { attempts, due, redelivered: true });
        }
    }
}

/// The reason, at most [`REASON_BYTES_MAX`] long, not cut inside a character.
fn cut(reason: &str) -> Arc<str> {
    let ends = reason.char_indices().map(|(at, c)| at + c.len_utf8());
    let end = ends.take_while(|end| *end <= REASON_BYTES_MAX).last().unwrap_or(0);
    reason[..end].into()
}
