//! Sending messages.
//!
//! [`Producer::send`] returns when the message is stored as durably as its topic says. [`Producer::enqueue`] returns when
//! the producer has room for it, with a future of the receipt, so that many can be under way. Messages are gathered into
//! batches on the way; see [`ProducerBuilder`] for what can be set.
//!
//! # What becomes of a message
//!
//! A message without a key goes to any partition, and when one refuses it, to another one at once. A message with a key
//! goes to the partition of its key, in the order of sending, and is tried there again with growing pauses. When the
//! connection is lost, what was not answered is sent again on the next one and is stored once. When an outcome stays
//! open, [`InDoubt`] says what happens. In the end every message has a receipt, or a [`SendError`] that says whether it
//! may have been stored.
//!
//! A batch in flight is a row of decisions; they are made in `lane.rs`, whose first page states the rules.
//!
//! # Closing
//!
//! [`Producer::close`] waits until all is answered. A producer that is dropped instead finishes what it took over in the
//! background, as long as the runtime lives, and nobody learns of failures but those who hold the [`PendingSend`]s.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stentor_core::{Compression, PartitionIndex, ProducerId, TopicName, partition_for_key};
use stentor_protocol::wire::Route;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;

use crate::error::{OpenError, SendError};
use crate::link::Link;
use crate::message::Message;

mod accumulator;
mod driver;
mod lane;
mod outbox;
mod pending;
mod settings;

pub use pending::{PendingSend, Receipt};
pub use settings::{IN_FLIGHT_BATCHES_MAX, InDoubt};

use accumulator::{Accumulator, Destination, Limits, Pushed};
use driver::{Driver, Shared};
use lane::Rules;
use outbox::{Outbox, OutboxParts};
use pending::Unresolved;
use settings::Settings;

/// What a message takes beside its key, tag, headers and body, roughly: it counts against `in_flight_bytes`.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

/// How a [`Producer`] behaves.
#[derive(Clone)]
#[must_use = "nothing happens before `open`"]
pub struct ProducerBuilder {
    link: Link,
    topic: String,
    settings: Settings,
}

impl ProducerBuilder {
    pub(crate) fn new(link: Link, topic: &str) -> Self {
        Self { link, topic: topic.to_owned(), settings: Settings::default() }
    }

    /// How batches are compressed; not at all unless set.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.settings.compression = compression;
        self
    }

    /// How long a batch that could be sent waits for more messages; not at all unless set. Under load batches grow without
    /// it.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger;
        self
    }

    /// The size at which a batch is closed, before compression; 64 KiB unless set, at most 1 MiB. A larger message makes a
    /// batch of its own.
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.settings.batch_bytes = bytes;
        self
    }

    /// The number of messages at which a batch is closed; 4,096 unless set.
    pub fn batch_records(mut self, records: u32) -> Self {
        self.settings.batch_records = records;
        self
    }

    /// How many bytes of messages the producer holds that are not yet answered; 32 MiB unless set. Beyond it,
    /// [`enqueue`](Producer::enqueue) waits.
    pub fn in_flight_bytes(mut self, bytes: u32) -> Self {
        self.settings.in_flight_bytes = bytes;
        self
    }

    /// How many batches may be under way in a partition; 16 unless set, at most [`IN_FLIGHT_BATCHES_MAX`].
    pub fn in_flight_batches(mut self, batches: u32) -> Self {
        self.settings.in_flight_batches = batches;
        self
    }

    /// What is done with messages whose outcome stays open.
    pub fn in_doubt(mut self, in_doubt: InDoubt) -> Self {
        self.settings.in_doubt = in_doubt;
        self
    }

    /// How long a message in doubt is tried where it was before it goes elsewhere; 3 s unless set.
    pub fn in_doubt_timeout(mut self, timeout: Duration) -> Self {
        self.settings.in_doubt_timeout = timeout;
        self
    }

    /// How long a message that is refused for now is tried again; 10 s unless set. Then it is a
    /// [`NotStored`](SendError::NotStored).
    pub fn retry_for(mut self, duration: Duration) -> Self {
        self.settings.retry_for = duration;
        self
    }

    /// How long a message may take in all, also while there is no connection; 30 s unless set.
    pub fn send_timeout(mut self, timeout: Duration) -> Self {
        self.settings.send_timeout = timeout;
        self
    }

    /// Sends everything to this partition, whatever the keys.
    pub fn partition(mut self, partition: u32) -> Self {
        self.settings.partition = Some(PartitionIndex(partition));
        self
    }

    /// Opens the producer.
    ///
    /// # Errors
    /// When a setting or the topic's name does not do, the broker refuses, or there is no connection in time.
    pub async fn open(self) -> Result<Producer, OpenError> {
        let Self { link, topic, settings } = self;
        let topic = TopicName::new(&topic)?;
        settings.check()?;
        // 0 is nobody.
        let producer = ProducerId(link.seed().max(1));
        let opened = link.open_first(|live| driver::open(&link, live, &topic, producer, 0)).await?;
        let route = opened.route.clone();
        if let Some(partition) = settings.partition {
            let there = route.borrow().partitions.iter().any(|there| there.index == partition.0);
            if !there {
                return Err(OpenError::Setting(format!("{topic} has no partition {partition}")));
            }
        }
        Ok(Producer::start(link, topic, producer, settings, opened, route))
    }
}

impl fmt::Debug for ProducerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerBuilder").field("topic", &self.topic).field("settings", &self.settings).finish()
    }
}

/// Sends messages to one topic. Shared by reference: all methods but [`close`](Self::close) take `&self`.
pub struct Producer {
    link: Link,
    topic: TopicName,
    partition: Option<PartitionIndex>,
    in_flight_bytes: u32,
    room: Arc<Semaphore>,
    route: watch::Receiver<Arc<Route>>,
    shared: Arc<Shared>,
    task: Option<JoinHandle<()>>,
}

impl Producer {
    fn start(
        link: Link,
        topic: TopicName,
        producer: ProducerId,
        settings: Settings,
        opened: driver::Opened,
        route: watch::Receiver<Arc<Route>>,
    ) -> Self {
        let unresolved = Arc::new(Unresolved::default());
        let limits = Limits {
            compression: settings.compression,
            bytes: settings.batch_bytes,
            records: settings.batch_records,
            linger: settings.linger,
        };
        let in_flight_bytes = settings.in_flight_bytes.min(u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        let room = Arc::new(Semaphore::new(in_flight_bytes as usize));
        let gathered = Mutex::new(Accumulator::new(limits, Arc::clone(&unresolved), Arc::clone(&room)));
        let shared = Arc::new(Shared { gathered, unresolved, wake: Notify::new() });
        let outbox = Outbox::new(OutboxParts {
            producer,
            in_flight_batches: settings.in_flight_batches as usize,
            send_timeout: settings.send_timeout,
            rules: Rules {
                in_doubt: settings.in_doubt,
                in_doubt_timeout: settings.in_doubt_timeout,
                retry_for: settings.retry_for,
            },
            seed: link.seed(),
        });
        let driver = Driver {
            backoff: Driver::backoff(link.seed()),
            link: link.clone(),
            topic: topic.clone(),
            producer,
            shared: Arc::clone(&shared),
            outbox,
        };
        let task = Some(tokio::spawn(driver.run(opened)));
        Self { link, topic, partition: settings.partition, in_flight_bytes, room, route, shared, task }
    }

    /// The topic.
    #[must_use]
    pub const fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// Sends a message and returns when it is stored, as durably as the topic says. Dropped before that, the message may be
    /// sent all the same.
    ///
    /// # Errors
    /// See [`SendError`]; only [`OutcomeUnknown`](SendError::OutcomeUnknown) leaves open whether it was stored.
    pub async fn send(&self, message: Message) -> Result<Receipt, SendError> {
        self.enqueue(message).await?.await
    }

    /// Takes a message over, waiting only while there is no room for it (`in_flight_bytes`). Messages taken over one after
    /// the other keep their order within a key. Dropped while it waits, the message is not sent.
    ///
    /// # Errors
    /// When the message does not do, or the client is closed. What comes later comes from the [`PendingSend`].
    pub async fn enqueue(&self, message: Message) -> Result<PendingSend, SendError> {
        let clock = self.link.clock();
        let (keyed, bytes_max) = {
            let route = self.route.borrow();
            (NonZeroU32::new(route.keyed_partitions), route.message_bytes_max)
        };
        let record = message.into_record(clock.now(), || self.link.random_bits());
        let bytes = record.bytes();
        if bytes_max > 0 && bytes > bytes_max as usize {
            return Err(SendError::TooLarge { bytes, bytes_max, topic: self.topic.to_string() });
        }
        let destination = match (self.partition, &record.key, keyed) {
            (Some(partition), _, _) => Destination::Partition(partition),
            (None, Some(key), Some(keyed)) => Destination::Partition(partition_for_key(key, keyed)),
            (None, ..) => Destination::Any,
        };
        // What is larger than all the room there is goes alone.
        let room = u32::try_from(bytes + MESSAGE_OVERHEAD_BYTES).unwrap_or(u32::MAX).min(self.in_flight_bytes);
        let room = self.room.acquire_many(room).await.map_err(|_| SendError::Closed)?;
        let Pushed { outcome, index, is_news } = {
            let mut gathered = self.shared.gathered();
            if gathered.is_closed() {
                return Err(SendError::Closed);
            }
            gathered.push(destination, &record, room, || clock.monotonic())?
        };
        if is_news {
            self.shared.wake.notify_one();
        }
        Ok(PendingSend { id: record.id, topic: self.topic.clone(), outcome, index })
    }

    /// Lets nothing linger, and returns when everything taken over before is answered.
    ///
    /// # Errors
    /// The first error of a batch that was under way. Those who hold the [`PendingSend`]s get it too.
    pub async fn flush(&self) -> Result<(), SendError> {
        self.shared.gathered().hurry();
        self.shared.wake.notify_one();
        let mut first_error = Ok(());
        for outcome in self.shared.unresolved.all() {
            first_error = first_error.and(outcome.wait().await.map(|_| ()));
        }
        first_error
    }

    /// Flushes, and ends the producer.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub async fn close(mut self) -> Result<(), SendError> {
        let flushed = self.flush().await;
        self.end();
        if let Some(task) = self.task.take() {
            // It neither panics nor is aborted; a runtime that ends has no use for the rest either.
            let _ = task.await;
        }
        flushed
    }

    fn end(&self) {
        self.shared.gathered().close();
        self.shared.wake.notify_one();
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("topic", &self.topic).finish_non_exhaustive()
    }
}
