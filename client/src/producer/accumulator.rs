//! Where messages become batches.
//!
//! A message is encoded at once, by its sender, into the last batch for its destination. A batch is closed when it has
//! reached its size or count; the driver takes it, closed or not, when it can be sent. So a lone message goes at once,
//! and under load batches grow for as long as the ones before them are under way.
//!
//! Invariant: batches of one destination are taken in the order in which they were begun, and all but the last one are
//! closed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use stentor_core::batch::{BatchBuilder, BatchError, Sequenced};
use stentor_core::{Compression, Monotonic, PartitionIndex, Record, RecordBatch};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::pending::{BatchOutcome, Ticket, Unresolved};

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Destination {
    /// Any partition.
    Any,
    /// This one: by its key, or because the producer was told so.
    Partition(PartitionIndex),
}

/// When a batch is closed, and how it is compressed.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) compression: Compression,
    pub(super) bytes: usize,
    pub(super) records: u32,
    pub(super) linger: Duration,
}

/// A batch that is being gathered.
#[derive(Debug)]
pub(super) struct Gathered {
    builder: BatchBuilder,
    pub(super) ticket: Ticket,
    pub(super) begun: Monotonic,
    closed: bool,
}

impl Gathered {
    /// The batch as it is sent; none only if nothing was ever put into it.
    pub(super) fn finish(&mut self, sequenced: Sequenced) -> Option<RecordBatch> {
        self.builder.finish(Some(sequenced))
    }
}

/// What a destination has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// A closed batch: it goes as soon as there is room.
    Full,
    /// A batch that could still grow: it goes when little is under way.
    Small,
}

/// Where a message has been put.
pub(super) struct Pushed {
    /// Of its batch.
    pub(super) outcome: Arc<BatchOutcome>,
    /// Its place there.
    pub(super) index: u32,
    /// Whether there is more to offer than before: a batch has begun, or one is closed.
    pub(super) is_news: bool,
}

#[derive(Debug)]
pub(super) struct Accumulator {
    limits: Limits,
    /// What messages take until they are answered.
    room: Arc<Semaphore>,
    /// The size of the batch taken last.
    bytes_before: usize,
    waiting: BTreeMap<Destination, VecDeque<Gathered>>,
    unresolved: Arc<Unresolved>,
    next_number: u64,
    /// Batches with a smaller number do not linger: somebody waits for them.
    hurried_below: u64,
    /// No more messages are taken.
    closed: bool,
}

impl Accumulator {
    pub(super) fn new(limits: Limits, unresolved: Arc<Unresolved>, room: Arc<Semaphore>) -> Self {
        Self {
            limits,
            room,
            bytes_before: 0,
            waiting: BTreeMap::new(),
            unresolved,
            next_number: 0,
            hurried_below: 0,
            closed: false,
        }
    }

    /// Adds a message, with the room that it takes. The time is asked for only when a batch begins.
    ///
    /// # Errors
    /// When the record is beyond a ceiling of the format.
    pub(super) fn push(
        &mut self,
        destination: Destination,
        record: &Record,
        room: SemaphorePermit<'_>,
        now: impl FnOnce() -> Monotonic,
    ) -> Result<Pushed, BatchError> {
        let Self { limits, waiting, unresolved, next_number, room: all_room, bytes_before, .. } = self;
        // Checked before anything is begun for it, so that no empty queue is left behind.
        record.check()?;
        let queue = waiting.entry(destination).or_default();
        if let Some(last) = queue.back_mut() {
            // What one more would not fit into is closed.
            last.closed |= last.builder.bytes() + record.bytes() > limits.bytes;
        }
        let begins = queue.back().is_none_or(|last| last.closed);
        if begins {
            let mut builder = BatchBuilder::new(limits.compression);
            // Batches grow and shrink with the load: the next is about as large as the last.
            builder.reserve((*bytes_before).min(limits.bytes));
            builder.push(record)?;
            let ticket = Ticket::new(*next_number, unresolved, all_room);
            *next_number += 1;
            queue.push_back(Gathered { builder, ticket, begun: now(), closed: false });
        } else if let Some(last) = queue.back_mut() {
            last.builder.push(record)?;
        }
        // Just pushed, so there is one.
        let Some(last) = queue.back_mut() else { return Err(BatchError::Truncated) };
        last.ticket.take_room(room);
        last.closed |= last.builder.bytes() >= limits.bytes || last.builder.count() >= limits.records;
        let outcome = Arc::clone(last.ticket.outcome());
        Ok(Pushed { outcome, index: last.builder.count() - 1, is_news: begins || last.closed })
    }

    /// What can be taken now, each destination once, beginning behind `after` so that all get their turn.
    pub(super) fn offers(
        &self,
        now: Monotonic,
        after: Destination,
    ) -> impl Iterator<Item = (Destination, Offer)> + use<'_> {
        let behind = self.waiting.range((Bound::Excluded(after), Bound::Unbounded));
        behind.chain(self.waiting.range(..=after)).filter_map(move |(destination, queue)| {
            let first = queue.front()?;
            let due = self.is_hurried(first) || first.begun.after(self.limits.linger) <= now;
            let offer = if first.closed { Some(Offer::Full) } else { due.then_some(Offer::Small) };
            offer.map(|offer| (*destination, offer))
        })
    }

    /// Takes the first batch of a destination.
    pub(super) fn take(&mut self, destination: Destination) -> Option<Gathered> {
        let queue = self.waiting.get_mut(&destination)?;
        let first = queue.pop_front();
        self.bytes_before = first.as_ref().map_or(0, |first| first.builder.bytes());
        if queue.is_empty() {
            self.waiting.remove(&destination);
        }
        first
    }

    /// Takes what was begun at or before `begun`.
    pub(super) fn take_begun_by(&mut self, begun: Monotonic) -> Vec<Gathered> {
        let mut taken = Vec::new();
        self.waiting.retain(|_, queue| {
            let old = queue.iter().take_while(|first| first.begun <= begun).count();
            taken.extend(queue.drain(..old));
            !queue.is_empty()
        });
        taken
    }

    /// When the next batch that lingers is due.
    pub(super) fn next_due(&self) -> Option<Monotonic> {
        let firsts = self.waiting.values().filter_map(VecDeque::front);
        let lingering = firsts.filter(|first| !first.closed && !self.is_hurried(first));
        lingering.map(|first| first.begun.after(self.limits.linger)).min()
    }

    fn is_hurried(&self, gathered: &Gathered) -> bool {
        self.closed || gathered.ticket.number() < self.hurried_below
    }

    /// Lets nothing that is there linger.
    pub(super) fn hurry(&mut self) {
        self.hurried_below = self.next_number;
    }

    /// Takes no more messages, and lets nothing linger.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
