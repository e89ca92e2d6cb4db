//! Serving the groups: batches from memory, or fetched beside the task, to whichever consumer has credit.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use stentor_core::storage::{StorageError, StoredBatch};
use stentor_core::{GroupName, Offset, RecordBatch};

use super::groups::{DUE_BATCHES_MAX, Slot};
use super::jobs::READ_AHEAD_BYTES;
use super::stop::Stop;
use super::tail::{Held, Insight, Tail};
use super::task::Task;
use crate::consumer::{Consumer, Delivery};
use crate::group::{Batch, DeadLetter, Leased, Now, Want};

/// How many batches a group is served in one turn, so that the others and the publishers get theirs.
const BATCHES_PER_TURN: usize = 32;

/// How long a group waits after a read failed for a reason that may pass.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// When less than one of so many messages of a batch is leased, the messages are picked out of it.
pub(crate) const PICK_BELOW: u64 = 2;

/// How serving a group ended.
enum Served {
    /// Nothing more can be done for now.
    Enough,
    /// Something was done: go on.
    More,
    /// It wants something that is not in memory.
    Fetch(Want),
    /// Something is damaged.
    Stop(Stop),
}

impl Task {
    /// Serves every group for which that may get somewhere.
    pub(super) fn serve_groups(&mut self) {
        let ready: Vec<GroupName> =
            self.groups.iter().filter(|(_, slot)| slot.ready).map(|(group, _)| group.clone()).collect();
        for group in ready {
            self.serve(&group);
        }
    }

    fn serve(&mut self, group: &GroupName) {
        let (end, now, index) = (self.durable_end(), self.now(), self.partition.index);
        let Some(slot) = self.groups.get_mut(group) else { return };
        slot.ready = false;
        for _ in 0..BATCHES_PER_TURN {
            match serve_once(slot, &mut self.tail, end, now, index) {
                Served::More => {}
                Served::Enough => {
                    self.read_ahead(group, end);
                    return;
                }
                Served::Fetch(want) => {
                    slot.reading = true;
                    let generation = slot.generation;
                    self.spawn_read(group, generation, want);
                    return;
                }
                Served::Stop(stop) => return self.stop_group(group, stop),
            }
        }
        slot.ready = true;
        self.again = true;
        self.read_ahead(group, end);
    }

    /// Reads on for a group that lags while it is still busy with what was read.
    fn read_ahead(&mut self, group: &GroupName, end: Offset) {
        let until = self.tail.start().unwrap_or(end);
        let Some(slot) = self.groups.get_mut(group) else { return };
        slot.ahead.drop_below(slot.state.next());
        let Some(range) = slot.ahead.range() else { return };
        let low = slot.ahead.bytes() < READ_AHEAD_BYTES.get() as usize / 2;
        let blind = slot.stopped.is_some() || slot.ahead_until == Some(range.end);
        if slot.reading || !low || range.end >= until || blind {
            return;
        }
        slot.reading = true;
        let generation = slot.generation;
        self.spawn_read(group, generation, Want::Log(range.end));
    }

    /// A read has come back.
    pub(super) fn read_done(
        &mut self,
        group: &GroupName,
        generation: u64,
        want: Want,
        outcome: Result<Vec<StoredBatch>, StorageError>,
    ) {
        let now = self.now();
        let Some(slot) = self.slot_of(group, generation) else { return };
        slot.reading = false;
        match outcome {
            // The log ends there: what comes next sets the group going again.
            Ok(batches) if batches.is_empty() => {}
            Ok(batches) => {
                slot.ready = true;
                for stored in batches {
                    if matches!(want, Want::Log(_)) {
                        slot.ahead.push(stored.batch);
                    } else {
                        slot.due.truncate(DUE_BATCHES_MAX - 1);
                        slot.due.push_front(Held::new(stored.batch));
                    }
                }
            }
            Err(StorageError::Trimmed { start }) => {
                let expired = slot.state.trimmed(start);
                slot.order.metrics.expired.inc_by(expired);
                slot.ready = true;
            }
            Err(error) => match (Stop::of(&error), want) {
                (Some(_), Want::Log(from)) if slot.state.next() < from => slot.ahead_until = Some(from),
                (Some(stop), _) => self.stop_group(group, stop),
                (None, _) => {
                    tracing::warn!(%group, %error, "a read for the group failed; it is tried again");
                    slot.retry_at = Some(now.monotonic.after(READ_AGAIN_AFTER));
                }
            },
        }
    }

    /// A redriven message has been fetched.
    pub(super) fn redriven_fetched(
        &mut self,
        group: &GroupName,
        generation: u64,
        offset: Offset,
        outcome: Result<Option<Bytes>, StorageError>,
    ) {
        let now = self.now();
        let Some(slot) = self.slot_of(group, generation) else { return };
        slot.reading = false;
        match outcome {
            Ok(Some(row)) => match DeadLetter::decode(group, &row) {
                Ok(letter) => {
                    slot.redriven = Some((offset, letter));
                    slot.ready = true;
                }
                Err(error) => self.stop_group(group, Stop::at(offset, &error.to_string())),
            },
            // Its row is on its way, or it was done with meanwhile.
            Ok(None) => slot.retry_at = Some(now.monotonic.after(READ_AGAIN_AFTER)),
            Err(error) => match Stop::of(&error) {
                Some(stop) => self.stop_group(group, stop),
                None => {
                    tracing::warn!(%group, %error, "a read for the group failed; it is tried again");
                    slot.retry_at = Some(now.monotonic.after(READ_AGAIN_AFTER));
                }
            },
        }
    }
}

/// Serves one batch.
fn serve_once(
    slot: &mut Slot,
    tail: &mut Tail,
    end: Offset,
    now: Now,
    partition: stentor_core::PartitionIndex,
) -> Served {
    if slot.stopped.is_some() || slot.retry_at.is_some() {
        return Served::Enough;
    }
    let want = slot.state.wants(now, end);
    if want == Want::Nothing {
        return Served::Enough;
    }
    let Some(consumer) = slot.next_consumer() else { return Served::Enough };
    let offset = match want {
        Want::Nothing => return Served::Enough,
        Want::Redriven(offset) => return serve_redriven(slot, &consumer, offset, now, partition),
        Want::Due(offset) | Want::Log(offset) => offset,
    };
    let filter = slot.order.filter.clone();
    let ordered = slot.state.rules().ordered;
    let due = slot.due.iter_mut().find(|held| held.batch.offsets().contains(offset));
    let Some(held) = tail.get(offset).or_else(|| slot.ahead.get(offset)).or(due) else {
        return if slot.reading { Served::Enough } else { Served::Fetch(want) };
    };
    let insight = match held.insight(filter.as_ref(), ordered) {
        Ok(insight) => insight,
        Err(error) => {
            let why = format!("the batch at offset {offset} cannot be unpacked: {error}");
            return Served::Stop(Stop::at(offset, &why));
        }
    };
    let batch = held.batch.clone();
    offer(slot, &consumer, batch, &insight, now, end, want, partition)
}

#[expect(clippy::too_many_arguments, reason = "one step of serving, apart so that the borrow of the batch has ended")]
fn offer(
    slot: &mut Slot,
    consumer: &Consumer,
    batch: RecordBatch,
    insight: &Insight,
    now: Now,
    end: Offset,
    want: Want,
    partition: stentor_core::PartitionIndex,
) -> Served {
    let Ok(place) = consumer.deliveries.try_reserve() else { return Served::More };
    let Some(credit) = consumer.credit.take(batch.count()) else { return Served::More };
    let bytes = u32::try_from(batch.payload().len()).unwrap_or(u32::MAX);
    let seen =
        Batch { offsets: batch.offsets(), bytes, matching: insight.mask.as_deref(), keys: insight.keys.as_deref() };
    let mut leased = Vec::new();
    slot.state.offer(seen, consumer.id, credit, now, &mut leased);
    let messages: u64 = leased.iter().map(|leased| leased.offsets.len()).sum();
    let charged = charge(messages, batch.count(), bytes);
    let unused = credit.messages.saturating_sub(u32::try_from(messages).unwrap_or(u32::MAX));
    if consumer.credit.settle(unused, charged) {
        consumer.wake_partitions();
    }
    if leased.is_empty() {
        // Passed over by the filter, perhaps; if nothing has moved at all, more offering changes nothing.
        return if slot.state.wants(now, end) == want { Served::Enough } else { Served::More };
    }
    count(slot, &leased, messages);
    place.send(Delivery { partition, batch, leased, charged });
    Served::More
}

fn serve_redriven(
    slot: &mut Slot,
    consumer: &Consumer,
    offset: Offset,
    now: Now,
    partition: stentor_core::PartitionIndex,
) -> Served {
    let Some((_, letter)) = slot.redriven.take_if(|(fetched, _)| *fetched == offset) else {
        return if slot.reading { Served::Enough } else { Served::Fetch(Want::Redriven(offset)) };
    };
    let batch = match RecordBatch::decode(letter.batch) {
        Ok(batch) => batch,
        Err(error) => {
            let why = format!("the redriven message {offset} is damaged: {error}");
            return Served::Stop(Stop::at(offset, &why));
        }
    };
    let Ok(place) = consumer.deliveries.try_reserve() else { return Served::More };
    let Some(credit) = consumer.credit.take(1) else { return Served::More };
    let leased = slot.state.offer_redriven(offset, consumer.id, now);
    let charged = if leased.is_some() { batch.payload().len() as u64 } else { 0 };
    if consumer.credit.settle(credit.messages - u32::from(leased.is_some()), charged) {
        consumer.wake_partitions();
    }
    let Some(leased) = leased else { return Served::Enough };
    count(slot, &[leased], 1);
    place.send(Delivery { partition, batch, leased: vec![leased], charged });
    Served::More
}

/// What a delivery will take on the wire: the whole batch, or about the part that is picked out of it.
fn charge(messages: u64, of: u32, bytes: u32) -> u64 {
    if messages * PICK_BELOW >= u64::from(of) {
        return if messages == 0 { 0 } else { u64::from(bytes) };
    }
    u64::from(bytes) * messages / u64::from(NonZeroU32::new(of).unwrap_or(NonZeroU32::MIN).get())
}

fn count(slot: &Slot, leased: &[Leased], messages: u64) {
    let metrics = &slot.order.metrics;
    metrics.delivered.inc_by(messages);
    let again: u64 = leased.iter().filter(|leased| leased.redelivered).map(|leased| leased.offsets.len()).sum();
    metrics.redelivered.inc_by(again);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_is_charged_whole_from_half_of_the_batch_on() {
        assert_eq!(charge(0, 100, 5_000), 0);
        assert_eq!(charge(1, 1, 10), 10);
        assert_eq!(charge(50, 100, 5_000), 5_000);
        assert_eq!(charge(49, 100, 5_000), 2_450);
    }
}
