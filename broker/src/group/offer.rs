//! Serving: what the group wants next, and leasing it.
//!
//! What is due comes before what is new. New messages are taken in order from the cursor; what the filter excludes is
//! marked done as the cursor passes it, in ranges.

use stentor_core::{Monotonic, Offset, Timestamp};

use super::leases::Terms;
use super::waiting::Waiting;
use super::{Batch, ConsumerId, Credit, GroupState, IN_FLIGHT_MAX, Leased, Now, UNFLUSHED_FAILURES_MAX, Want};

/// What may still be leased in one offer.
#[derive(Clone, Copy, Debug)]
struct Room {
    messages: u64,
    bytes: u64,
    /// What a message takes, on average, at least 1.
    each: u64,
}

impl Room {
    /// Takes room for up to `wanted` messages; the last one may overdraw the bytes.
    fn take(&mut self, wanted: u64) -> u64 {
        let taken = wanted.min(self.messages).min(self.bytes.div_ceil(self.each));
        self.messages -= taken;
        self.bytes = self.bytes.saturating_sub(taken.saturating_mul(self.each));
        taken
    }

    fn is_empty(&self) -> bool {
        self.messages == 0 || self.bytes == 0
    }
}

/// What an offer has picked and not yet leased.
#[derive(Debug, Default)]
struct Picked(Vec<Leased>);

impl Picked {
    fn push(&mut self, start: u64, end: u64, attempts: u32, redelivered: bool) {
        let (offsets, attempt) = (range(start, end), attempts.saturating_add(1));
        match self.0.last_mut() {
            Some(last) if last.offsets.end.0 == start && last.attempt == attempt && last.redelivered == redelivered => {
                last.offsets.end = Offset(end);
            }
            _ => self.0.push(Leased { offsets, attempt, redelivered }),
        }
    }
}

fn range(start: u64, end: u64) -> stentor_core::OffsetRange {
    stentor_core::OffsetRange::new(Offset(start), Offset(end))
}

impl GroupState {
    /// What the group would take next, given credit. What is due comes first. `end` is the end of the readable log.
    pub(crate) fn wants(&self, now: Now, end: Offset) -> Want {
        if !self.leases_anything() {
            return Want::Nothing;
        }
        if let Some((due, offset)) = self.waiting.first_due()
            && due <= now.wall
        {
            let redriven = self.redriven.contains(&offset);
            return if redriven { Want::Redriven(Offset(offset)) } else { Want::Due(Offset(offset)) };
        }
        let from = self.first_untouched();
        if self.takes_new() && from < end.0.min(self.reach.durable) { Want::Log(Offset(from)) } else { Want::Nothing }
    }

    /// When the next waiting message comes due, if that lies ahead or has come.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.waiting.first_due().map(|(due, _)| due)
    }

    /// When the next lease runs out.
    pub(crate) fn next_deadline(&self) -> Option<Monotonic> {
        self.leases.next_deadline()
    }

    /// Leases to `consumer` what is due in `batch` and then what is new in it, as far as `credit` goes; appends what was
    /// leased to `leased`, in the order of the offsets. Messages that the filter excludes are done with as the cursor
    /// passes them. Nothing happens when the batch is not (or no longer) wanted.
    pub(crate) fn offer(
        &mut self,
        batch: Batch<'_>,
        consumer: ConsumerId,
        credit: Credit,
        now: Now,
        leased: &mut Vec<Leased>,
    ) {
        if !self.leases_anything() || batch.offsets.is_empty() {
            return;
        }
        let mut room = Room {
            messages: u64::from(credit.messages).min(IN_FLIGHT_MAX - self.leases.outstanding()),
            bytes: credit.bytes,
            each: u64::from(batch.bytes).div_ceil(batch.offsets.len()).max(1),
        };
        let mut picked = Picked::default();
        self.pick_due(batch, now, &mut room, &mut picked);
        self.pick_new(batch, &mut room, &mut picked);
        let mut picked = picked.0;
        // Due ones lie behind new ones only after a restart.
        picked.sort_by_key(|leased| leased.offsets.start);
        self.lease(&picked, consumer, now, false);
        leased.append(&mut picked);
    }

    /// Leases the redriven message at `offset` to `consumer`, if it is still due.
    pub(crate) fn offer_redriven(&mut self, offset: Offset, consumer: ConsumerId, now: Now) -> Option<Leased> {
        if !self.leases_anything() || !self.redriven.contains(&offset.0) {
            return None;
        }
        self.waiting.get(offset.0).filter(|waiting| waiting.due <= now.wall)?;
        let waiting = self.waiting.remove(offset.0)?;
        let leased = Leased {
            offsets: range(offset.0, offset.0 + 1),
            attempt: waiting.attempts.saturating_add(1),
            redelivered: waiting.redelivered,
        };
        self.lease(&[leased], consumer, now, true);
        Some(leased)
    }

    fn leases_anything(&self) -> bool {
        !self.paused
            && !self.sealed
            && self.unflushed.failures() < UNFLUSHED_FAILURES_MAX
            && self.leases.outstanding() < IN_FLIGHT_MAX
    }

    fn takes_new(&self) -> bool {
        self.troubled() < u64::from(self.rules.retrying_max)
    }

    fn pick_due(&mut self, batch: Batch<'_>, now: Now, room: &mut Room, picked: &mut Picked) {
        if self.waiting.first_due().is_none_or(|(due, _)| due > now.wall) {
            return;
        }
        let due: Vec<(u64, Waiting)> = self
            .waiting
            .within(batch.offsets.start.0, batch.offsets.end.0)
            .filter(|(offset, waiting)| waiting.due <= now.wall && !self.redriven.contains(offset))
            .take_while(|_| room.take(1) == 1)
            .collect();
        for (offset, waiting) in due {
            self.waiting.remove(offset);
            picked.push(offset, offset + 1, waiting.attempts, waiting.redelivered);
        }
    }

    fn pick_new(&mut self, batch: Batch<'_>, room: &mut Room, picked: &mut Picked) {
        let base = batch.offsets.start.0;
        let (from, to) = (self.first_untouched(), batch.offsets.end.0.min(self.reach.durable));
        if from < base || from >= to || room.is_empty() || !self.takes_new() {
            return;
        }
        // After a restart parts of the batch may be done or taken already; mostly nothing is.
        let free: Vec<(u64, u64)> =
            self.done.gaps(from, to).flat_map(|(start, end)| self.taken.gaps(start, end)).collect();
        let mut reached = to;
        'gaps: for (start, end) in free {
            let mut at = start;
            let through: Vec<std::ops::Range<u64>> = match batch.matching {
                None => std::iter::once(start..end).collect(),
                Some(mask) => mask.within(start - base, end - base).map(|r| base + r.start..base + r.end).collect(),
            };
            for range in through {
                self.mark_done(at, range.start);
                let stop = match batch.keys {
                    Some(keys) if self.rules.ordered => self.pick_ordered(range.clone(), base, keys, room, picked),
                    _ => {
                        let stop = range.start + room.take(range.end - range.start);
                        self.pick_range(range.start, stop, picked);
                        stop
                    }
                };
                at = stop;
                if stop < range.end {
                    reached = stop;
                    break 'gaps;
                }
            }
            self.mark_done(at, end);
        }
        self.next = self.next.max(reached);
        self.reach.delivered = self.reach.delivered.max(reached);
        self.taken.remove(0, self.next);
    }

    /// Picks new messages, split where some may have been delivered before and some not.
    fn pick_range(&self, start: u64, end: u64, picked: &mut Picked) {
        let clamp = |at: u64| at.clamp(start, end);
        let (from, below) = (clamp(self.reach.redelivered_from), clamp(self.reach.redelivered_below));
        for (start, end) in [(start, from), (from, below.max(from)), (below.max(from), end)] {
            if start < end {
                picked.push(start, end, 0, self.may_be_redelivered(start));
            }
        }
    }

    /// Picks those whose key is free and holds the others; returns where it stopped.
    fn pick_ordered(
        &mut self,
        range: std::ops::Range<u64>,
        base: u64,
        keys: &[Option<u64>],
        room: &mut Room,
        picked: &mut Picked,
    ) -> u64 {
        for offset in range.clone() {
            if room.is_empty() || !self.takes_new() {
                return offset;
            }
            let key = usize::try_from(offset - base).ok().and_then(|index| keys.get(index).copied().flatten());
            let redelivered = self.may_be_redelivered(offset);
            let as_waiting = Waiting { attempts: 0, due: Waiting::AT_ONCE, redelivered };
            if key.is_none_or(|key| self.order.admit(offset, key, as_waiting)) {
                room.take(1);
                picked.push(offset, offset + 1, 0, redelivered);
            }
        }
        range.end
    }

    /// Leases what was picked: a grant for each run of the same attempt.
    fn lease(&mut self, picked: &[Leased], consumer: ConsumerId, now: Now, redriven: bool) {
        let deadline = now.monotonic.after(self.rules.lease);
        for run in picked.chunk_by(|a, b| a.attempt == b.attempt && a.redelivered == b.redelivered) {
            let ranges: Vec<(u64, u64)> = run.iter().map(|l| (l.offsets.start.0, l.offsets.end.0)).collect();
            let Some(first) = run.first() else { continue };
            let attempts = first.attempt - 1;
            self.leases
                .grant(&ranges, Terms { consumer, deadline, attempts, redelivered: first.redelivered, redriven });
        }
    }
}
