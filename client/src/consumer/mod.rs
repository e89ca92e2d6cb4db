//! Receiving messages.
//!
//! A consumer belongs to a group, and the consumers of a group share its messages. The broker sends as many as the
//! consumer has given credit for and leases each of them; the consumer says what became of it ([`Delivery::ack`],
//! [`Delivery::nack`], [`Delivery::reject`]), one by one or a batch at a time, in any order. What it does not settle
//! within the lease comes back to the group.
//!
//! When the connection is lost the consumer subscribes again by itself. What it held has gone back to the group then:
//! deliveries of before can no longer be settled, and say so.
//!
//! # Damage
//!
//! Where the broker's store turns out to be damaged, the group stops on that one partition, and
//! [`Stopped`](ReceiveError::Stopped) says so instead of a message, once for each such place, also when the consumer had to
//! subscribe again meanwhile. Go on receiving: the other partitions do.
//!
//! # Closing
//!
//! [`Consumer::close`] gives back at once what was never asked for, which does not count as an attempt, and waits for the
//! answers to what was said. A consumer that is dropped does the same in the background, as long as the runtime lives.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use stentor_core::{GroupName, Offset, PartitionIndex, Timestamp, TopicName};
use stentor_protocol::wire::{self, Subscribe};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backoff::{Backoff, RETRY};
use crate::error::{OpenError, ReceiveError};
use crate::link::Link;

mod credit;
mod delivery;
mod driver;
mod inbox;
mod session;
mod settlement;
mod spans;

pub use delivery::{Delivery, DeliveryBatch, Refusal};
pub use settlement::Settlement;

use driver::Driver;
use inbox::{Inbox, News};

/// Messages that a consumer may hold, unless the builder says otherwise.
const CREDIT_MESSAGES: u32 = 1_000;

/// Bytes that a consumer may hold, unless the builder says otherwise.
const CREDIT_BYTES: u64 = 16 << 20;

/// Where a new group starts, or an old one is moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// With the oldest message that is kept.
    Earliest,
    /// With the next message that comes.
    Latest,
    /// With the first message stored at or after this time.
    Time(Timestamp),
    /// At this offset of this partition. Others are left as they are; those of a new group start at the latest.
    Offset {
        /// The partition.
        partition: PartitionIndex,
        /// The offset.
        offset: Offset,
    },
}

impl From<StartAt> for wire::StartAt {
    fn from(start: StartAt) -> Self {
        use wire::start_at::At;
        let at = match start {
            StartAt::Earliest => At::Earliest(true),
            StartAt::Latest => At::Latest(true),
            StartAt::Time(time) => At::TimeMicros(time.0),
            StartAt::Offset { partition, offset } => {
                At::Offset(wire::PartitionOffset { partition: partition.0, offset: offset.0 })
            }
        };
        Self { at: Some(at) }
    }
}

/// How a [`Consumer`] receives.
#[derive(Clone)]
#[must_use = "nothing happens before `open`"]
pub struct ConsumerBuilder {
    link: Link,
    topic: String,
    group: String,
    subscribe: Subscribe,
    credit_messages: u32,
    credit_bytes: u64,
}

impl ConsumerBuilder {
    pub(crate) fn new(link: Link, topic: &str, group: &str) -> Self {
        Self {
            link,
            topic: topic.to_owned(),
            group: group.to_owned(),
            subscribe: Subscribe::default(),
            credit_messages: CREDIT_MESSAGES,
            credit_bytes: CREDIT_BYTES,
        }
    }

    /// What the group receives: a condition over `tag`, `key` and header names, as in `tag = 'paid' AND amount > 10`. It
    /// belongs to the group; a group that has another one refuses the consumer with `group_mismatch`. Unless set, it is
    /// whatever the group has.
    pub fn filter(mut self, filter: impl Into<String>) -> Self {
        self.subscribe.filter = Some(filter.into());
        self
    }

    /// Messages of one key go to one consumer at a time, in order. It belongs to the group, as the filter does.
    pub fn ordered(mut self) -> Self {
        self.subscribe.ordered = Some(true);
        self
    }

    /// Where the group starts if it is created by this; at the latest unless set.
    pub fn from(mut self, start: StartAt) -> Self {
        self.subscribe.from = Some(start.into());
        self
    }

    /// How many messages the consumer may hold that are not settled; 1,000 unless set.
    pub fn credit(mut self, messages: u32) -> Self {
        self.credit_messages = messages;
        self
    }

    /// How many bytes the consumer may hold that are not settled; 16 MiB unless set. A message that is larger comes alone.
    pub fn credit_bytes(mut self, bytes: u64) -> Self {
        self.credit_bytes = bytes;
        self
    }

    /// What the consumer is called where people look.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.subscribe.consumer = name.into();
        self
    }

    /// Does not create the group: without it there is an error.
    pub fn existing_only(mut self) -> Self {
        self.subscribe.existing_only = true;
        self
    }

    /// Subscribes.
    ///
    /// # Errors
    /// When a setting or a name does not do, the broker refuses (the group has another filter, the topic does not exist),
    /// or there is no connection in time.
    pub async fn open(self) -> Result<Consumer, OpenError> {
        let Self { link, topic, group, mut subscribe, credit_messages, credit_bytes } = self;
        let topic = TopicName::new(&topic)?;
        let group = GroupName::new(&group)?;
        if credit_messages == 0 || credit_bytes == 0 {
            return Err(OpenError::Setting("a credit of 0: nothing would ever come".to_owned()));
        }
        subscribe.topic = topic.to_string();
        subscribe.group = group.to_string();
        let opened = link.open_first(|live| driver::open(&link, live, &subscribe)).await?;
        let inbox = Arc::new(Inbox::default());
        let (closing, closed) = watch::channel(false);
        let backoff = Backoff::new(RETRY, link.seed());
        let driver = Driver {
            link,
            subscribe,
            credit_messages,
            credit_bytes,
            inbox: Arc::clone(&inbox),
            closing: closed,
            backoff,
        };
        let task = Some(tokio::spawn(driver.run(opened)));
        let (ready, stops) = (VecDeque::new(), BTreeMap::new());
        Ok(Consumer { topic, group, inbox, ready, stops, closing, task })
    }
}

impl fmt::Debug for ConsumerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerBuilder")
            .field("topic", &self.topic)
            .field("group", &self.group)
            .field("subscribe", &self.subscribe)
            .field("credit_messages", &self.credit_messages)
            .field("credit_bytes", &self.credit_bytes)
            .finish_non_exhaustive()
    }
}

/// Receives the messages of a group, together with the group's other consumers.
pub struct Consumer {
    topic: TopicName,
    group: GroupName,
    inbox: Arc<Inbox>,
    /// What has been taken out of its frame: all of one frame.
    ready: VecDeque<Delivery>,
    /// Where the group has stopped, as the application was told; one place for each partition.
    stops: BTreeMap<PartitionIndex, Option<Offset>>,
    closing: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl Consumer {
    /// The topic.
    #[must_use]
    pub const fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The group.
    #[must_use]
    pub const fn group(&self) -> &GroupName {
        &self.group
    }

    /// The next message; waits for one. None after an error that ended the subscription. Cancel safe.
    ///
    /// # Errors
    /// [`Ended`](ReceiveError::Ended) and [`Closed`](ReceiveError::Closed) end it; after
    /// [`Corrupt`](ReceiveError::Corrupt) and [`Stopped`](ReceiveError::Stopped) more can be received.
    pub async fn next(&mut self) -> Result<Option<Delivery>, ReceiveError> {
        loop {
            while let Some(delivery) = self.ready.pop_front() {
                if let Some(delivery) = delivery.check_lease() {
                    return Ok(Some(delivery));
                }
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// The next messages that came together: at least one, all of one partition; waits for them. None after an error that
    /// ended the subscription. Cancel safe.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn next_batch(&mut self) -> Result<Option<DeliveryBatch>, ReceiveError> {
        loop {
            let deliveries: Vec<_> = self.ready.drain(..).filter_map(Delivery::check_lease).collect();
            if !deliveries.is_empty() {
                return Ok(Some(DeliveryBatch::new(deliveries)));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// Takes the messages out of the next frame; false when nothing more comes.
    async fn fill(&mut self) -> Result<bool, ReceiveError> {
        match self.inbox.next().await? {
            None => return Ok(false),
            Some(News::Arrival(arrival)) => self.ready = arrival.open(&self.topic)?.into(),
            Some(News::Stopped { partition, offset, error }) => {
                // The broker says it to each subscription; here it is one consumer, however often it subscribes.
                if self.stops.insert(partition, offset) != Some(offset) {
                    return Err(ReceiveError::Stopped { partition, offset, error });
                }
            }
        }
        Ok(true)
    }

    /// Gives back what was not asked for, waits until the broker has accepted what was said about the rest, and ends the
    /// subscription. Messages that are still held then come back to the group.
    pub async fn close(mut self) {
        self.end();
        if let Some(task) = self.task.take() {
            // It neither panics nor is aborted; a runtime that ends has no use for the rest either.
            let _ = task.await;
        }
    }

    fn end(&mut self) {
        self.ready.drain(..).for_each(Delivery::release);
        self.closing.send_replace(true);
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("topic", &self.topic).field("group", &self.group).finish_non_exhaustive()
    }
}
