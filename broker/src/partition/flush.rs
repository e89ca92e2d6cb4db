//! Writing progress: what the groups have done, in one change for all of them.
//!
//! One commit of progress is under way at a time. What is settled meanwhile shares the next one, so a thousand consumers
//! that want durable acknowledgements cost no more syncs than one.

use bytes::Bytes;
use stentor_core::storage::{Key, KeyRange};
use stentor_core::{GroupName, Monotonic, Offset};
use stentor_protocol::wire;

use super::commit::{Afterwards, Pending};
use super::groups::{DurableWaiter, Slot};
use super::retention::{Facts, trim_to};
use super::task::Task;
use crate::error::refused_by_storage;
use crate::group::Moves;

/// How many bytes of progress go into one change: well below what counts as new data, so that it is taken from the
/// reserve when the storage is full.
const PROGRESS_BYTES_MAX: usize = 128 << 10;

/// How far the log is to be trimmed.
#[derive(Clone, Copy)]
pub(super) struct Trim {
    pub(super) to: Offset,
    /// What lies below expires even if it is owed.
    pub(super) owed_from: Option<Offset>,
}

/// A group whose progress is in a change.
struct Flushed {
    group: GroupName,
    waiters: Vec<DurableWaiter>,
    /// Whether all of its progress is.
    complete: bool,
}

impl Task {
    /// Whether there is progress to write.
    pub(super) fn anything_to_flush(&self) -> bool {
        let groups =
            self.groups.values().any(|slot| !slot.moving && (slot.state.is_dirty() || !slot.waiters.is_empty()));
        groups || self.dedup.is_dirty() || !self.after_flush.is_empty() || self.trim.is_some()
    }

    /// Writes progress if somebody waits for it or its time has come.
    pub(super) async fn flush_if_due(&mut self) {
        if self.progress_pending > 0 {
            return;
        }
        let due = self.flush_at.is_some_and(|at| at <= self.node.clock.monotonic());
        if due || self.flush_is_urgent() {
            let with_dedup = self.dedup_is_behind() || self.trim.is_some();
            self.flush(with_dedup).await;
        } else if self.flush_at.is_none() && self.groups.values().any(|slot| slot.state.is_dirty()) {
            self.flush_at = Some(self.next_flush());
        }
    }

    /// Whether somebody waits for progress to be written.
    pub(super) fn flush_is_urgent(&self) -> bool {
        let end = self.durable_end();
        let urgent = |slot: &Slot| !slot.moving && (!slot.waiters.is_empty() || slot.state.must_flush(end));
        let waiting = |(group, _): &(GroupName, _)| self.groups.get(group).is_none_or(|slot| !slot.moving);
        !self.flush_refused
            && (self.groups.values().any(urgent) || self.after_flush.iter().any(waiting) || self.dedup_is_behind())
    }

    fn next_flush(&self) -> Monotonic {
        self.node.clock.monotonic().after(self.node.config.node.ack_flush)
    }

    /// Writes as much progress as one change takes. Says whether the change was taken.
    pub(super) async fn flush(&mut self, with_dedup: bool) -> bool {
        let (now, end) = (self.now(), self.durable_end());
        self.flush_refused = false;
        // Else something settled may be on its way in an earlier commit, and nobody is to hear before that is durable.
        let alone = self.progress_pending == 0;
        let mut change = self.change();
        let mut pending = Pending { progress: true, ..Pending::default() };
        let mut room = PROGRESS_BYTES_MAX;
        let mut flushed: Vec<Flushed> = Vec::new();
        let mut left_out = false;
        for group in self.flush_order() {
            let Some(slot) = self.groups.get_mut(&group) else { continue };
            if room == 0 {
                left_out = true;
                break;
            }
            let rows = slot.state.flush(room, Moves::default(), now);
            room = room.saturating_sub(bytes_of(&rows.puts));
            change.puts.extend(rows.puts);
            change.deletes.extend(rows.deletes);
            pending.horizons.push((group.clone(), slot.generation, rows.horizon));
            let waiters = if rows.complete && alone { std::mem::take(&mut slot.waiters) } else { Vec::new() };
            left_out |= !rows.complete;
            self.flushed_last = Some(group.clone());
            flushed.push(Flushed { group, waiters, complete: rows.complete });
        }
        let mut dedup_rows = None;
        if with_dedup && (self.dedup.is_dirty() || self.trim.is_some()) {
            // Trimming takes away batches that recovery would read: the rows have to speak for them first.
            let rows = self.dedup.rows(change.expected_end);
            change.puts.extend(rows.puts.iter().cloned());
            change.deletes.extend(rows.deletes.iter().cloned());
            left_out |= rows.position.is_none();
            if let Some(position) = rows.position {
                change.trim = self.trim.take().and_then(|trim| self.trim_now(trim, position.min(end)));
            }
            dedup_rows = Some(rows);
        }
        let trimmed = change.trim;
        let told = if alone { self.whom_to_tell(&flushed) } else { Vec::new() };
        if change.is_empty() {
            self.flush_at = None;
            self.taken(&flushed);
            tell(flushed.into_iter().flat_map(|flushed| flushed.waiters).map(settled));
            tell(told.into_iter().map(replied));
            return true;
        }
        match self.commit(change, pending).await {
            Ok(()) => {
                self.taken(&flushed);
                self.flush_refused = false;
                if let Some(pending) = self.pending.back_mut() {
                    pending.afterwards.extend(flushed.into_iter().flat_map(|flushed| flushed.waiters).map(settled));
                    pending.afterwards.extend(told.into_iter().map(replied));
                }
                if dedup_rows.is_some_and(|rows| rows.position.is_some()) {
                    self.dedup_behind = (0, 0);
                }
                if let Some(to) = trimmed {
                    self.trimmed(to);
                }
                // What found no room goes with the next change, as soon as this one is durable.
                let later = self.groups.values().any(|slot| slot.state.is_dirty());
                self.flush_at = if left_out { Some(now.monotonic) } else { later.then(|| self.next_flush()) };
                true
            }
            Err((error, _)) => {
                for Flushed { group, waiters, .. } in flushed {
                    if let Some(slot) = self.groups.get_mut(&group) {
                        slot.state.refused();
                        slot.waiters.extend(waiters);
                    }
                }
                if let Some(rows) = dedup_rows {
                    self.dedup.unwritten(rows);
                }
                self.refuse_waiters(&refused_by_storage(&error));
                for reply in told {
                    replied(reply).failed(&refused_by_storage(&error));
                }
                self.flush_at = Some(self.next_flush());
                self.flush_refused = true;
                tracing::warn!(topic = %self.topic, partition = %self.partition.index, %error, "progress was not written");
                false
            }
        }
    }

    /// The groups with something to write, beginning behind the one that was served last: when one change cannot take
    /// everything, each gets its turn.
    fn flush_order(&self) -> Vec<GroupName> {
        let wanting = |slot: &Slot| !slot.moving && (slot.state.is_dirty() || !slot.waiters.is_empty());
        let wanting = self.groups.iter().filter(|(_, slot)| wanting(slot)).map(|(group, _)| group);
        let (before, behind): (Vec<_>, Vec<_>) = wanting.cloned().partition(|group| self.served_before(group));
        behind.into_iter().chain(before).collect()
    }

    fn served_before(&self, group: &GroupName) -> bool {
        self.flushed_last.as_ref().is_some_and(|last| group <= last)
    }

    /// How far the log may be trimmed now. What was decided on may be owed meanwhile: a group was sought back, or is new.
    fn trim_now(&self, trim: Trim, bound: Offset) -> Option<Offset> {
        let allowed = self.finished().max(trim.owed_from.unwrap_or(Offset::ZERO));
        Some(trim.to.min(allowed).min(bound)).filter(|to| *to > self.log_bounds().start)
    }

    /// The storage has taken what these groups had to write.
    fn taken(&mut self, flushed: &[Flushed]) {
        for Flushed { group, .. } in flushed {
            if let Some(slot) = self.groups.get_mut(group) {
                slot.state.flushed();
            }
        }
    }

    /// Those of [`Task::after_flush`] whose group is flushed completely, or has nothing to write.
    fn whom_to_tell(&mut self, flushed: &[Flushed]) -> Vec<super::command::Reply<()>> {
        let mut told = Vec::new();
        let groups = &self.groups;
        let mut kept = Vec::new();
        for (group, reply) in self.after_flush.drain(..) {
            let now = flushed.iter().any(|flushed| flushed.complete && flushed.group == group);
            if now || groups.get(&group).is_none_or(|slot| !slot.moving && !slot.state.is_dirty()) {
                told.push(reply);
            } else {
                kept.push((group, reply));
            }
        }
        self.after_flush = kept;
        told
    }

    /// Nobody is left waiting for what cannot be written: what they settled stays settled, and is written later.
    fn refuse_waiters(&mut self, error: &wire::Error) {
        for slot in self.groups.values_mut() {
            for waiter in slot.waiters.drain(..) {
                settled(waiter).failed(error);
            }
        }
    }

    /// Writes one group with what moves to or from its dead letters. A refusal goes to whoever waits, and comes back too.
    pub(super) async fn flush_one(
        &mut self,
        group: &GroupName,
        moves: Moves,
        deletes: Vec<KeyRange>,
        afterwards: Afterwards,
    ) -> Result<(), wire::Error> {
        let now = self.now();
        let mut change = self.change();
        change.deletes = deletes;
        let mut pending = Pending { progress: true, afterwards: vec![afterwards], ..Pending::default() };
        let Some(slot) = self.groups.get_mut(group) else { return Ok(()) };
        let rows = slot.state.flush(PROGRESS_BYTES_MAX, moves, now);
        change.puts.extend(rows.puts);
        change.deletes.extend(rows.deletes);
        pending.horizons.push((group.clone(), slot.generation, rows.horizon));
        let outcome = self.commit(change, pending).await;
        let slot = self.groups.get_mut(group);
        match outcome {
            Ok(()) => {
                slot.into_iter().for_each(|slot| slot.state.flushed());
                Ok(())
            }
            Err((error, pending)) => {
                slot.into_iter().for_each(|slot| slot.state.refused());
                let refused = refused_by_storage(&error);
                for afterwards in pending.afterwards {
                    afterwards.failed(&refused);
                }
                Err(refused)
            }
        }
    }

    /// Deletes rows that belong to no group that is there.
    pub(super) async fn delete_rows(&mut self, range: KeyRange, afterwards: Afterwards) {
        let mut change = self.change();
        change.deletes = vec![range];
        let pending = Pending { afterwards: vec![afterwards], ..Pending::default() };
        if let Err((error, pending)) = self.commit(change, pending).await {
            let refused = refused_by_storage(&error);
            for afterwards in pending.afterwards {
                afterwards.failed(&refused);
            }
        }
    }

    /// Gives up what every group is done with, because the storage is full. Says whether that freed anything.
    pub(super) async fn make_room(&mut self) -> bool {
        let log = self.log_bounds();
        let facts = Facts {
            log,
            bytes: 0,
            finished: self.finished(),
            retained_from: log.start,
            retain_bytes: None,
            owed_from: None,
            short: true,
        };
        let Some(to) = trim_to(&facts) else { return false };
        self.trim = Some(Trim { to, owed_from: None });
        // The log is trimmed with the last portion of the deduplication's rows.
        while self.trim.is_some() {
            if !self.flush(true).await {
                return false;
            }
        }
        true
    }

    /// Everything below is done with by every group.
    pub(super) fn finished(&self) -> Offset {
        let end = self.durable_end();
        self.groups.values().map(|slot| slot.state.floor()).min().unwrap_or(end).min(end)
    }

    /// The log now starts at `to`.
    fn trimmed(&mut self, to: Offset) {
        self.tail.drop_below(to);
        for (group, slot) in &mut self.groups {
            let owed = slot.state.trimmed(to);
            if owed > 0 {
                slot.order.metrics.expired.inc_by(owed);
                tracing::warn!(topic = %self.topic, partition = %self.partition.index, %group, owed, "owed messages expired");
            }
            slot.ahead.drop_below(to);
        }
    }
}

fn bytes_of(puts: &[(Key, Bytes)]) -> usize {
    puts.iter().map(|(key, value)| key.0.len() + value.len()).sum()
}

fn settled(waiter: DurableWaiter) -> Afterwards {
    Afterwards::Settled(waiter)
}

fn replied(reply: super::command::Reply<()>) -> Afterwards {
    Afterwards::Reply(reply)
}

fn tell(all: impl Iterator<Item = Afterwards>) {
    all.for_each(Afterwards::done);
}
