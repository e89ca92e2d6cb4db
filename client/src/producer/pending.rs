//! What a sender waits for.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use stentor_core::{MessageId, Offset, PartitionIndex, TopicName};
use stentor_protocol::error::ErrorCode;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::{BrokerError, SendError};
use crate::outcome::Outcome;

/// That a message was stored, as durably as its topic says, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The message.
    pub id: MessageId,
    /// Its topic.
    pub topic: TopicName,
    /// Its partition.
    pub partition: PartitionIndex,
    /// Its place in the partition.
    pub offset: Offset,
    /// Whether an earlier try had stored it already. It is stored once all the same.
    pub duplicate: bool,
}

/// Where a batch was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) partition: PartitionIndex,
    pub(super) base: Offset,
    pub(super) duplicate: bool,
}

pub(super) type BatchOutcome = Outcome<Result<Placed, SendError>>;

/// A message that has been taken over by its producer: a future of its [`Receipt`]. Dropping it changes nothing about
/// the message.
#[must_use = "whether the message was stored is known only by awaiting this"]
pub struct PendingSend {
    pub(super) id: MessageId,
    pub(super) topic: TopicName,
    pub(super) outcome: Arc<BatchOutcome>,
    /// Its place in the batch.
    pub(super) index: u32,
}

impl PendingSend {
    /// The message's id.
    #[must_use]
    pub const fn id(&self) -> &MessageId {
        &self.id
    }
}

impl Future for PendingSend {
    type Output = Result<Receipt, SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.outcome.poll(self.index as usize, context).map_ok(|placed| Receipt {
            id: self.id.clone(),
            topic: self.topic.clone(),
            partition: placed.partition,
            offset: placed.base.advance(u64::from(self.index)),
            duplicate: placed.duplicate,
        })
    }
}

impl fmt::Debug for PendingSend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingSend").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The batches that somebody may still wait for, by number, so that a flush knows what to wait for.
#[derive(Debug, Default)]
pub(super) struct Unresolved(Mutex<BTreeMap<u64, Arc<BatchOutcome>>>);

impl Unresolved {
    pub(super) fn all(&self) -> Vec<Arc<BatchOutcome>> {
        self.lock().values().cloned().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<BatchOutcome>>> {
        // Held for one operation of the map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The duty to say what became of a batch, and the room that it takes. Dropped without a word (the runtime ends in the
/// middle), it says that the outcome is unknown.
#[derive(Debug)]
pub(super) struct Ticket {
    number: u64,
    outcome: Arc<BatchOutcome>,
    unresolved: Arc<Unresolved>,
    /// Where the room came from, and how much.
    room: (Arc<Semaphore>, usize),
    resolved: bool,
}

impl Ticket {
    pub(super) fn new(number: u64, unresolved: &Arc<Unresolved>, room: &Arc<Semaphore>) -> Self {
        let outcome = Outcome::new();
        unresolved.lock().insert(number, Arc::clone(&outcome));
        Self { number, outcome, unresolved: Arc::clone(unresolved), room: (Arc::clone(room), 0), resolved: false }
    }

    pub(super) const fn outcome(&self) -> &Arc<BatchOutcome> {
        &self.outcome
    }

    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Adds the room of one more message, which is given back when the ticket is dropped.
    pub(super) fn take_room(&mut self, room: SemaphorePermit<'_>) {
        self.room.1 += room.num_permits();
        room.forget();
    }

    /// Whether it has been said what became of the batch.
    pub(super) const fn is_resolved(&self) -> bool {
        self.resolved
    }

    /// Says what became of the batch. Only the first word counts.
    pub(super) fn resolve(&mut self, outcome: Result<Placed, SendError>) {
        self.resolved = true;
        self.unresolved.lock().remove(&self.number);
        self.outcome.fill(outcome);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.resolved {
            let reason = BrokerError::new(ErrorCode::OutcomeUnknown, "the producer ended before an answer came");
            self.resolve(Err(SendError::OutcomeUnknown { reason }));
        }
        let (room, taken) = &self.room;
        room.add_permits(*taken);
    }
}
