//! Which batch goes where, and when: everything that a producer decides, without I/O.
//!
//! A lane (see [`lane`](super::lane)) for each partition keeps what is under way there. Batches that may go anywhere are
//! placed when they are sent, on the one with fewer batches under way of two lanes taken at random. A batch that is
//! refused leaves for another partition at once if it may, and waits in `unplaced` while none can take it.
//!
//! Invariants: at most `in_flight_batches` are under way in a partition; a batch that could still grow is sent only where
//! fewer than [`SMALL_IN_FLIGHT`] are under way; every batch taken out of the accumulator is resolved exactly once.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use stentor_core::{Monotonic, PartitionIndex, ProducerId, RecordBatch};
use stentor_protocol::error::{ErrorCode, Verdict};
use stentor_protocol::wire::Route;

use super::accumulator::{Accumulator, Destination, Gathered, Offer};
use super::lane::{Entry, Lane, Rules};
use super::pending::Placed;
use crate::error::{BrokerError, SendError};

/// With so many batches under way in a partition, messages gather for a larger one. Two: one is being stored while the
/// next one travels.
const SMALL_IN_FLIGHT: usize = 2;

/// How often it is looked whether something has been tried for long enough.
pub(super) const EXPIRY_TICK: Duration = Duration::from_millis(250);

/// How many random pairs of partitions are looked at before all are.
const PICKS: usize = 4;

/// What an outbox needs to know.
#[derive(Debug)]
pub(super) struct OutboxParts {
    pub(super) producer: ProducerId,
    pub(super) in_flight_batches: usize,
    pub(super) send_timeout: Duration,
    pub(super) rules: Rules,
    pub(super) seed: u64,
}

#[derive(Debug)]
pub(super) struct Outbox {
    parts: OutboxParts,
    random: fastrand::Rng,
    lanes: BTreeMap<PartitionIndex, Lane>,
    partitions: Vec<PartitionIndex>,
    /// Batches that left their partition, with the partition that refused them.
    unplaced: VecDeque<(PartitionIndex, Entry)>,
    /// The partition of each request on the present stream.
    requests: BTreeMap<u64, PartitionIndex>,
    next_request: u64,
    /// Bytes under way, and how many of them the broker takes.
    bytes: usize,
    bytes_max: usize,
    /// Who was served last.
    turn: Destination,
    next_tick: Monotonic,
}

/// A batch to be sent.
#[derive(Debug, PartialEq)]
pub(super) struct Sending {
    pub(super) request: u64,
    pub(super) partition: PartitionIndex,
    pub(super) batch: RecordBatch,
}

/// What was chosen from the accumulator, to be made into a batch outside its lock.
#[derive(Debug)]
pub(super) struct Chosen {
    gathered: Gathered,
    partition: PartitionIndex,
    movable: bool,
}

impl Outbox {
    pub(super) fn new(parts: OutboxParts) -> Self {
        Self {
            random: fastrand::Rng::with_seed(parts.seed),
            parts,
            lanes: BTreeMap::new(),
            partitions: Vec::new(),
            unplaced: VecDeque::new(),
            requests: BTreeMap::new(),
            next_request: 1,
            bytes: 0,
            bytes_max: usize::MAX,
            turn: Destination::Any,
            next_tick: Monotonic::default(),
        }
    }

    /// A greater epoch than this has not been used.
    pub(super) fn epoch(&self) -> u32 {
        self.lanes.values().map(Lane::epoch).max().unwrap_or(0)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.unplaced.is_empty() && self.lanes.values().all(Lane::is_idle)
    }

    /// How many batches are under way.
    pub(super) fn sent(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn set_route(&mut self, route: &Route) {
        self.partitions = route.partitions.iter().map(|partition| PartitionIndex(partition.index)).collect();
    }

    /// A stream has been opened, on which the broker takes so many bytes without an answer; 0: as many as there are.
    pub(super) fn stream_opened(&mut self, bytes_max: u64) {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        self.bytes_max = if bytes_max == 0 { usize::MAX } else { bytes_max };
    }

    /// The stream is gone.
    pub(super) fn stream_lost(&mut self, now: Monotonic) {
        self.requests.clear();
        self.bytes = 0;
        for lane in self.lanes.values_mut() {
            lane.stream_lost(now);
        }
        let partitions: Vec<_> = self.lanes.keys().copied().collect();
        // No lane can take anything while there is no stream.
        partitions.into_iter().for_each(|partition| self.settle(partition, now, false));
    }

    /// The next batch to be sent again or elsewhere.
    pub(super) fn next_resend(&mut self, now: Monotonic) -> Option<Sending> {
        if self.is_full() {
            return None;
        }
        let (request, window) = (self.next_request, self.parts.in_flight_batches);
        let resent =
            self.lanes.iter_mut().find_map(|(partition, lane)| Some((*partition, lane.resend(now, window, request)?)));
        if let Some((partition, batch)) = resent {
            return Some(self.sending(partition, batch));
        }
        let refused_by = self.unplaced.front()?.0;
        let partition = self.pick(now, window, Some(refused_by))?;
        let (_, mut entry) = self.unplaced.pop_front()?;
        let lane = self.lane(partition);
        entry.batch = entry.batch.sequenced(lane.next_sequenced());
        let batch = entry.batch.clone();
        lane.append(entry, request);
        Some(self.sending(partition, batch))
    }

    /// Chooses what is sent next of what has been gathered.
    pub(super) fn choose(&mut self, now: Monotonic, gathered: &mut Accumulator) -> Option<Chosen> {
        // What was refused elsewhere is older.
        if self.is_full() || !self.unplaced.is_empty() {
            return None;
        }
        let window = self.parts.in_flight_batches;
        let mut chosen = None;
        for (destination, offer) in gathered.offers(now, self.turn) {
            let window = if offer == Offer::Small { window.min(SMALL_IN_FLIGHT) } else { window };
            let partition = match destination {
                Destination::Any => self.pick(now, window, None),
                Destination::Partition(partition) => {
                    self.lanes.get(&partition).is_none_or(|lane| lane.takes_new(now, window)).then_some(partition)
                }
            };
            if let Some(partition) = partition {
                chosen = Some((destination, partition));
                break;
            }
        }
        let (destination, partition) = chosen?;
        self.turn = destination;
        let movable = destination == Destination::Any;
        Some(Chosen { gathered: gathered.take(destination)?, partition, movable })
    }

    /// Makes the chosen into a batch.
    pub(super) fn send(&mut self, chosen: Chosen) -> Option<Sending> {
        let Chosen { mut gathered, partition, movable } = chosen;
        let request = self.next_request;
        let expires_at = gathered.begun.after(self.parts.send_timeout);
        let lane = self.lane(partition);
        let batch = gathered.finish(lane.next_sequenced())?;
        lane.append(Entry::new(batch.clone(), gathered.ticket, movable, expires_at), request);
        Some(self.sending(partition, batch))
    }

    fn sending(&mut self, partition: PartitionIndex, batch: RecordBatch) -> Sending {
        let request = self.next_request;
        self.next_request += 1;
        self.requests.insert(request, partition);
        self.bytes += batch.len();
        Sending { request, partition, batch }
    }

    /// The broker has stored a batch. False: it never was asked to.
    pub(super) fn stored(&mut self, request: u64, placed: Placed, now: Monotonic) -> bool {
        self.answered(request, now, |lane| lane.stored(request, placed))
    }

    /// The broker has refused a batch. False: it never was asked.
    pub(super) fn refused(&mut self, request: u64, error: BrokerError, now: Monotonic) -> bool {
        self.answered(request, now, |lane| lane.refused(request, error, now))
    }

    fn answered(&mut self, request: u64, now: Monotonic, take: impl FnOnce(&mut Lane) -> Option<usize>) -> bool {
        let Some(partition) = self.requests.remove(&request) else { return false };
        let Some(bytes) = self.lanes.get_mut(&partition).and_then(take) else { return false };
        self.bytes -= bytes;
        let elsewhere = self.partitions.iter().any(|other| *other != partition && self.takes_new(*other, now));
        self.settle(partition, now, elsewhere);
        true
    }

    fn settle(&mut self, partition: PartitionIndex, now: Monotonic, elsewhere: bool) {
        let Some(lane) = self.lanes.get_mut(&partition).filter(|lane| lane.is_to_settle()) else { return };
        let leaving = lane.settle(now, &self.parts.rules, elsewhere);
        self.unplaced.extend(leaving.into_iter().map(|entry| (partition, entry)));
    }

    /// Gives up what has been tried for long enough. Cheap when it is not yet time to look.
    pub(super) fn tick(&mut self, now: Monotonic, gathered: &mut Accumulator) {
        if now < self.next_tick {
            return;
        }
        self.next_tick = now.after(EXPIRY_TICK);
        for lane in self.lanes.values_mut() {
            lane.expire(now, &self.parts.rules);
        }
        for (_, entry) in &mut self.unplaced {
            entry.expire(now, self.parts.rules.retry_for);
        }
        self.unplaced.retain(|(_, entry)| !entry.ticket.is_resolved());
        if let Some(begun) = now.0.checked_sub(self.parts.send_timeout) {
            for mut old in gathered.take_begun_by(Monotonic(begun)) {
                let reason = BrokerError::new(ErrorCode::Unavailable, "no broker took it in time; it was never sent");
                old.ticket.resolve(Err(SendError::NotStored { reason }));
            }
        }
    }

    /// When, after `now`, there is something to do though nothing happens.
    pub(super) fn wakes_at(&self, now: Monotonic, gathered: &Accumulator) -> Option<Monotonic> {
        let waits = !self.is_idle() || !gathered.is_empty();
        let tick = waits.then_some(self.next_tick);
        let held = self.lanes.values().filter(|_| waits).filter_map(Lane::held_until);
        // What is due already waits for something else than time.
        tick.into_iter().chain(held).chain(gathered.next_due()).filter(|at| *at > now).min()
    }

    /// Gives up everything: the producer is over, or its topic.
    pub(super) fn abandon(&mut self, reason: &BrokerError, gathered: &mut Accumulator) {
        for lane in self.lanes.values_mut() {
            lane.abandon(reason);
        }
        for (_, entry) in self.unplaced.drain(..) {
            // As if it had come back to a lane that is over.
            let mut lane = Lane::new(self.parts.producer, 0);
            lane.put_back(entry);
            lane.abandon(reason);
        }
        for mut never_sent in gathered.take_begun_by(Monotonic(Duration::MAX)) {
            never_sent.ticket.resolve(Err(match reason.verdict() {
                Verdict::Refused => SendError::Refused(reason.clone()),
                _ => SendError::NotStored { reason: reason.clone() },
            }));
        }
        self.requests.clear();
        self.bytes = 0;
    }

    /// A partition that can take a batch now: the better of two at random. `avoid` is taken only if there is no other.
    fn pick(&mut self, now: Monotonic, window: usize, avoid: Option<PartitionIndex>) -> Option<PartitionIndex> {
        let count = self.partitions.len();
        let load = |lanes: &BTreeMap<PartitionIndex, Lane>, partition: PartitionIndex| match lanes.get(&partition) {
            Some(lane) => lane.takes_new(now, window).then(|| lane.sent()),
            None => Some(0),
        };
        for _ in 0..PICKS.min(count) {
            let pair = [self.partitions[self.random.usize(..count)], self.partitions[self.random.usize(..count)]];
            let able = pair.into_iter().filter(|partition| Some(*partition) != avoid);
            let best = able.filter_map(|partition| Some((load(&self.lanes, partition)?, partition))).min();
            if let Some((_, partition)) = best {
                return Some(partition);
            }
        }
        let all = self.partitions.iter().copied();
        let best =
            all.filter_map(|partition| Some((Some(partition) == avoid, load(&self.lanes, partition)?, partition)));
        best.min().map(|(_, _, partition)| partition)
    }

    fn takes_new(&self, partition: PartitionIndex, now: Monotonic) -> bool {
        self.lanes.get(&partition).is_none_or(|lane| lane.takes_new(now, self.parts.in_flight_batches))
    }

    /// Whether the broker takes no more before it has answered. One batch always goes.
    fn is_full(&self) -> bool {
        self.bytes > 0 && self.bytes >= self.bytes_max
    }

    fn lane(&mut self, partition: PartitionIndex) -> &mut Lane {
        let Self { lanes, parts, random, .. } = self;
        lanes.entry(partition).or_insert_with(|| Lane::new(parts.producer, random.u64(..)))
    }
}
