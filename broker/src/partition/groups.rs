//! A group on a partition: its state, its consumers, and what is being fetched for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use stentor_core::storage::{Key, KeyRange, StorageError};
use stentor_core::{GroupName, Monotonic, Offset, OffsetRange, Timestamp};
use stentor_protocol::{ErrorCode, wire};
use tokio::sync::oneshot;

use super::command::{Command, GroupOrder, GroupStats, Redriven, Reply, Story, Unsettled};
use super::commit::Afterwards;
use super::jobs::Portion;
use super::stop::Stop;
use super::tail::{Held, Run};
use super::task::Task;
use crate::consumer::{Consumer, Departure};
use crate::error::{group_not_found, refusal, refused_by_storage};
use crate::filter::Filter;
use crate::group::{ConsumerId, DeadLetter, GroupState, Now, Whereabouts, group_range};

/// How many batches of which single messages are due stay in memory.
pub(super) const DUE_BATCHES_MAX: usize = 8;

/// How many requests of operators wait for a group on a partition.
const STEERING_WAITING_MAX: usize = 16;

/// An operator's request that moves dead letters; one at a time.
pub(super) enum Steering {
    Redrive {
        filter: Option<Arc<Filter>>,
        limit: u32,
        after: Option<Offset>,
        reply: Reply<Redriven>,
    },
    /// `purged` of the letters are gone already.
    Purge {
        purged: u64,
        reply: Reply<u64>,
    },
}

/// Settlements that wait for a flush.
pub(super) struct DurableWaiter {
    pub(super) reply: oneshot::Sender<Vec<Unsettled>>,
    pub(super) unsettled: Vec<Unsettled>,
    /// What was settled, to be named if it cannot be made durable.
    pub(super) spans: Vec<OffsetRange>,
}

/// A group on this partition.
pub(super) struct Slot {
    pub(super) order: GroupOrder,
    pub(super) state: GroupState,
    /// Tells this group from an earlier one of the same name when a job comes back.
    pub(super) generation: u64,
    pub(super) consumers: Vec<Arc<Consumer>>,
    /// Whose turn it is.
    pub(super) turn: usize,
    /// Whether serving it may get somewhere.
    pub(super) ready: bool,
    /// What it has read ahead of the tail.
    pub(super) ahead: Run,
    /// Batches that hold what is due.
    pub(super) due: VecDeque<Held>,
    /// A redriven message that was fetched.
    pub(super) redriven: Option<(Offset, DeadLetter)>,
    /// How far reading ahead gets: what follows is damaged, and the group stops there once it has had what lies before.
    pub(super) ahead_until: Option<Offset>,
    /// A read for it is under way.
    pub(super) reading: bool,
    /// Letters are being fetched for it; until they are written or given up, nothing of the group is flushed.
    pub(super) moving: bool,
    /// After a read failed: not again before.
    pub(super) retry_at: Option<Monotonic>,
    /// After a burial failed: not again before. The rest of the group goes on.
    pub(super) bury_at: Option<Monotonic>,
    /// Why it is not served any more.
    pub(super) stopped: Option<Stop>,
    pub(super) waiters: Vec<DurableWaiter>,
    pub(super) steering: VecDeque<Steering>,
    /// When the oldest owed message was stored, as last looked up.
    pub(super) oldest: Option<(Offset, Timestamp)>,
}

impl Slot {
    pub(super) fn new(order: GroupOrder, state: GroupState, generation: u64) -> Self {
        Self {
            order,
            state,
            generation,
            consumers: Vec::new(),
            turn: 0,
            ready: false,
            ahead: Run::default(),
            due: VecDeque::new(),
            redriven: None,
            ahead_until: None,
            reading: false,
            moving: false,
            retry_at: None,
            bury_at: None,
            stopped: None,
            waiters: Vec::new(),
            steering: VecDeque::new(),
            oldest: None,
        }
    }

    /// The next consumer with credit and room. The others are noted as waiting for either.
    pub(super) fn next_consumer(&mut self) -> Option<Arc<Consumer>> {
        for step in 0..self.consumers.len() {
            let at = (self.turn + step) % self.consumers.len();
            let consumer = &self.consumers[at];
            if consumer.departure().is_none() && consumer.has_room() && consumer.credit.available() {
                self.turn = at + 1;
                return Some(Arc::clone(consumer));
            }
        }
        None
    }

    pub(super) fn consumer_name(&self, id: ConsumerId) -> Option<&str> {
        self.consumers.iter().find(|consumer| consumer.id == id).map(|consumer| consumer.name.as_str())
    }

    pub(super) fn stats(&self, end: Offset) -> GroupStats {
        GroupStats {
            floor: self.state.floor(),
            next: self.state.next(),
            backlog: self.state.backlog(end),
            in_flight: self.state.in_flight(),
            retrying: self.state.retrying(),
            dead_letters: self.state.dead_letters(),
            consumers: u32::try_from(self.consumers.len()).unwrap_or(u32::MAX),
            oldest_owed: self.state.oldest_owed(end),
            oldest_stored_at: self.oldest.map(|(_, stored_at)| stored_at),
        }
    }

    /// Forgets what was fetched: the group was moved elsewhere.
    fn forget_fetched(&mut self) {
        self.ahead.clear();
        self.ahead_until = None;
        self.due.clear();
        self.redriven = None;
        self.ready = true;
    }
}

impl Task {
    /// Takes a command about one group.
    pub(super) async fn group_command(&mut self, command: Command) {
        match command {
            Command::AddGroup { order, at, reply } => self.add_group(order, at, reply).await,
            Command::UpdateGroup { order, reply } => self.update_group(order, reply),
            Command::RemoveGroup { group, reply } => self.remove_group(group, reply),
            Command::SeekGroup { group, to, reply } => self.seek_group(&group, to, reply),
            Command::Attach { group, consumer, reply } => self.attach(&group, consumer, reply),
            Command::Settle { group, settlement } => self.settle(&group, settlement),
            Command::Redrive { group, filter, limit, after, reply } => {
                let steering = Steering::Redrive { filter, limit, after, reply };
                self.steer(&group, steering);
            }
            Command::Purge { group, reply } => self.steer(&group, Steering::Purge { purged: 0, reply }),
            Command::Story { .. } | Command::Describe { .. } | Command::Settings { .. } | Command::Shutdown => {}
        }
    }

    /// The slot of a group, or why there is none.
    pub(super) fn slot(&mut self, group: &GroupName) -> Result<&mut Slot, wire::Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let topic = self.topic.as_str();
        self.groups.get_mut(group).ok_or_else(|| group_not_found(topic, group.as_str()))
    }

    async fn add_group(&mut self, order: GroupOrder, at: Offset, reply: Reply<()>) {
        if let Some(error) = &self.failed {
            let _ = reply.send(Err(error.clone()));
            return;
        }
        if self.groups.contains_key(&order.name) {
            let _ = reply.send(Ok(()));
            return;
        }
        let name = order.name.clone();
        let log = self.log_bounds();
        let at = Offset(at.0.clamp(log.start.0, log.end.0));
        let mut state = GroupState::new(name.clone(), order.rules, at);
        state.pause(order.paused);
        self.generation += 1;
        self.groups.insert(name.clone(), Slot::new(order, state, self.generation));
        // A group of this name may have left rows behind in a crash half-way through its deletion.
        let leftovers = vec![group_range(&name)];
        if let Err(error) = self.flush_one(&name, Default::default(), leftovers, Afterwards::Reply(reply)).await {
            self.groups.remove(&name);
            tracing::warn!(topic = %self.topic, group = %name, %error, "the group cannot be created");
        }
    }

    fn update_group(&mut self, order: GroupOrder, reply: Reply<()>) {
        let updated = self.slot(&order.name).map(|slot| {
            slot.state.set_rules(order.rules);
            slot.state.pause(order.paused);
            slot.order = order.clone();
            slot.ready = true;
        });
        let _ = reply.send(updated);
    }

    fn remove_group(&mut self, group: GroupName, reply: Reply<()>) {
        if let Some(error) = &self.failed {
            let _ = reply.send(Err(error.clone()));
            return;
        }
        self.groups.remove(&group);
        self.spawn_removal(group_range(&group), reply);
    }

    /// A portion of the rows of a group that was removed is known: they go, and then the next.
    pub(super) async fn remove_rows(
        &mut self,
        range: KeyRange,
        outcome: Result<Portion, StorageError>,
        reply: Reply<()>,
    ) {
        match outcome {
            Err(error) => drop(reply.send(Err(refused_by_storage(&error)))),
            // All that is left, also what was on its way to the table while it was looked at.
            Ok(Portion { more: false, .. }) => self.delete_rows(range, Afterwards::Reply(reply)).await,
            Ok(Portion { end, .. }) => {
                let left = KeyRange { start: end.clone(), end: range.end };
                self.delete_rows(KeyRange::new(range.start, end), Afterwards::Nobody).await;
                self.spawn_removal(left, reply);
            }
        }
    }

    fn seek_group(&mut self, group: &GroupName, to: Offset, reply: Reply<()>) {
        let log = self.log_bounds();
        match self.slot(group) {
            Err(error) => {
                let _ = reply.send(Err(error));
            }
            Ok(slot) => {
                slot.state.seek(to, log);
                slot.stopped = None;
                slot.forget_fetched();
                // Answered with the next flush, like a durable settlement: after a crash it must not be undone.
                self.after_flush.push((group.clone(), reply));
            }
        }
    }

    fn attach(&mut self, group: &GroupName, consumer: Arc<Consumer>, reply: Reply<()>) {
        let index = self.partition.index.0;
        let attached = self.slot(group).map(|slot| {
            if let Some(stop) = &slot.stopped {
                consumer.stopped(stop.told(index));
            }
            slot.consumers.push(consumer);
            slot.ready = true;
        });
        let _ = reply.send(attached);
        // It may have left while this was under way.
        self.partition.consumer_left();
    }

    fn steer(&mut self, group: &GroupName, steering: Steering) {
        let refused = match self.slot(group) {
            Ok(slot) if slot.steering.len() < STEERING_WAITING_MAX => {
                slot.steering.push_back(steering);
                return;
            }
            Ok(_) => refusal(ErrorCode::LimitReached, "too many requests for this group are waiting"),
            Err(error) => error,
        };
        match steering {
            Steering::Redrive { reply, .. } => drop(reply.send(Err(refused))),
            Steering::Purge { reply, .. } => drop(reply.send(Err(refused))),
        }
    }

    /// Takes back what consumers held that have left.
    pub(super) fn part_with_consumers(&mut self, now: Now) {
        for slot in self.groups.values_mut() {
            let state = &mut slot.state;
            let metrics = &slot.order.metrics;
            let before = slot.consumers.len();
            slot.consumers.retain(|consumer| match consumer.departure() {
                None => true,
                Some(Departure::Released) => {
                    state.release_consumer(consumer.id);
                    false
                }
                Some(Departure::Lost) => {
                    let returned = state.remove_consumer(consumer.id, "the consumer's connection was lost", now);
                    metrics.returned.inc_by(returned);
                    false
                }
            });
            slot.ready |= slot.consumers.len() < before;
        }
    }

    /// What each group knows of one message, `rows` being those of its failures.
    pub(super) fn stories(&self, offset: Offset, rows: &BTreeMap<GroupName, Vec<(Key, Bytes)>>) -> Vec<Story> {
        let now = self.now();
        let tell = |(group, slot): (&GroupName, &Slot)| {
            let whereabouts = slot.state.whereabouts(offset);
            let (consumer, until) = match whereabouts {
                Whereabouts::Leased { consumer, until, .. } => {
                    let left = until.since(now.monotonic);
                    (slot.consumer_name(consumer).unwrap_or_default().to_owned(), Some(now.wall.after(left)))
                }
                Whereabouts::Waiting { due, .. } => (String::new(), Some(due)),
                _ => (String::new(), None),
            };
            let rows = rows.get(group).map_or(&[][..], Vec::as_slice);
            Story {
                group: group.clone(),
                filter: slot.order.filter.clone(),
                whereabouts,
                reasons: slot.state.reasons(offset, rows).unwrap_or_default(),
                consumer,
                until,
            }
        };
        self.groups.iter().map(tell).collect()
    }

    /// The slot that a job was done for, if the group is still the same.
    pub(super) fn slot_of(&mut self, group: &GroupName, generation: u64) -> Option<&mut Slot> {
        self.groups.get_mut(group).filter(|slot| slot.generation == generation)
    }
}
