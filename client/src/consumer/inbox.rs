//! What has arrived and was not yet asked for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use stentor_core::TopicName;
use stentor_core::batch::BatchError;
use stentor_core::limits::{BATCH_BYTES_SLACK, MESSAGE_BYTES_MAX_CEILING};
use stentor_core::{Offset, PartitionIndex, Record, Timestamp};
use stentor_protocol::frame;
use stentor_protocol::wire::{self, NackKind};
use tokio::sync::Notify;

use super::delivery::{Delivery, Lease};
use super::session::{Arrived, Session, Word};
use crate::error::{BrokerError, ReceiveError};

/// A delivery frame as it came.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) session: Arc<Session>,
    pub(super) frame: Arc<Arrived>,
    pub(super) delivery: wire::Delivery,
    pub(super) body: Bytes,
}

/// The most that the records of a batch may take, uncompressed. What the topic takes may have been raised since this consumer
/// subscribed, so it is the ceiling for all topics that counts.
const BATCH_BYTES_MAX: u32 = MESSAGE_BYTES_MAX_CEILING + BATCH_BYTES_SLACK;

/// What the application is to hear of next.
#[derive(Debug)]
pub(super) enum News {
    Arrival(Arrival),
    /// The group has stopped on a partition.
    Stopped {
        partition: PartitionIndex,
        offset: Option<Offset>,
        error: BrokerError,
    },
}

/// News that wait for the application. Bounded: arrivals by the credit, which the consumer's task checks before it puts one
/// in, and the rest by one for each partition.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<News>,
    /// Why nothing more comes. Told once.
    end: Option<ReceiveError>,
    over: bool,
}

impl Inbox {
    pub(super) fn put(&self, arrival: Arrival) {
        self.lock().queue.push_back(News::Arrival(arrival));
        self.arrived.notify_one();
    }

    /// The group has stopped on this partition. A later word about a partition takes the place of an earlier one.
    pub(super) fn stopped(&self, partition: PartitionIndex, offset: Option<Offset>, error: BrokerError) {
        let mut state = self.lock();
        state.queue.retain(|news| !matches!(news, News::Stopped { partition: told, .. } if *told == partition));
        state.queue.push_back(News::Stopped { partition, offset, error });
        drop(state);
        self.arrived.notify_one();
    }

    /// Nothing more comes.
    pub(super) fn end(&self, error: Option<ReceiveError>) {
        let mut state = self.lock();
        state.end = error;
        state.over = true;
        drop(state);
        self.arrived.notify_one();
    }

    /// Takes all arrivals out. What else is to be heard stays true.
    pub(super) fn drain(&self) -> Vec<Arrival> {
        let mut state = self.lock();
        let mut arrivals = Vec::new();
        for news in std::mem::take(&mut state.queue) {
            match news {
                News::Arrival(arrival) => arrivals.push(arrival),
                stopped @ News::Stopped { .. } => state.queue.push_back(stopped),
            }
        }
        arrivals
    }

    /// What is to be heard next; none when nothing more comes. Cancel safe: nothing is taken out before it is given.
    pub(super) async fn next(&self) -> Result<Option<News>, ReceiveError> {
        loop {
            {
                let mut state = self.lock();
                if let Some(news) = state.queue.pop_front() {
                    return Ok(Some(news));
                }
                if state.over {
                    return state.end.take().map_or(Ok(None), Err);
                }
            }
            // There is one waiter, so a notification that comes before it waits is kept for it.
            self.arrived.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arrival {
    /// The offsets that are leased, with how often they were delivered.
    fn leased(&self) -> impl Iterator<Item = (u64, u32, bool)> + use<'_> {
        self.delivery.leased.iter().flat_map(|leased| {
            let end = leased.start.saturating_add(leased.count.into());
            (leased.start..end).map(|offset| (offset, leased.attempt, leased.redelivered))
        })
    }

    /// Gives everything back, for this reason.
    pub(super) fn give_back(&self, kind: NackKind, reason: &str) {
        let offsets: Vec<u64> = self.leased().map(|(offset, ..)| offset).collect();
        let word = Word::Nack { kind, after: None, reason: reason.to_owned() };
        // Whoever gives back does not wait for the answer: without it the lease runs out.
        drop(self.session.say(&word, self.delivery.partition, &offsets, &self.frame));
    }

    /// Takes the messages out. What is damaged is refused, so that it comes again or goes to the dead letters.
    pub(super) fn open(self, topic: &TopicName) -> Result<Vec<Delivery>, ReceiveError> {
        match self.decode() {
            Ok(records) => Ok(records.into_iter().map(|record| self.deliver(topic, record)).collect()),
            Err(error) => {
                let offset = Offset(self.delivery.leased.first().map_or(0, |leased| leased.start));
                self.give_back(NackKind::Retry, &format!("arrived damaged: {error}"));
                Err(ReceiveError::Corrupt { partition: PartitionIndex(self.delivery.partition), offset, error })
            }
        }
    }

    fn decode(&self) -> Result<Vec<Opened>, BatchError> {
        let batch = frame::batch(&self.delivery.batch_header, self.body.clone())?;
        let stored_at = batch.stored_at();
        let mut records = batch.records(BATCH_BYTES_MAX)?;
        let mut opened = Vec::new();
        let mut next = batch.base_offset().0;
        for (offset, attempt, redelivered) in self.leased() {
            // A picked batch holds the leased messages alone; else those between are not ours.
            let skip = if self.delivery.picked { Some(0) } else { offset.checked_sub(next) };
            let skip = skip.and_then(|skip| usize::try_from(skip).ok());
            let skip = skip.ok_or(BatchError::Record("the leased offsets are not in order"))?;
            let record = records.nth(skip).ok_or(BatchError::Record("a leased offset is not in the batch"))??;
            let published_at = if stored_at == Timestamp::default() { record.timestamp } else { stored_at };
            opened.push(Opened { record, offset, attempt, redelivered, published_at });
            next = offset + 1;
        }
        Ok(opened)
    }

    fn deliver(&self, topic: &TopicName, opened: Opened) -> Delivery {
        let Opened { record, offset, attempt, redelivered, published_at } = opened;
        let lease = Lease::new(Arc::clone(&self.session), Arc::clone(&self.frame), self.delivery.partition, offset);
        Delivery::new(topic.clone(), record, attempt, redelivered, published_at, lease)
    }
}

struct Opened {
    record: Record,
    offset: u64,
    attempt: u32,
    redelivered: bool,
    published_at: Timestamp,
}
