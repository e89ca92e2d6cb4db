//! A message that has been delivered, and what can be said about it.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stentor_core::batch::RecordHeader;
use stentor_core::{MessageId, Offset, PartitionIndex, Record, Timestamp, TopicName};
use stentor_protocol::wire::NackKind;

use super::session::{Arrived, Session, Word};
use super::settlement::Settlement;

/// A message, leased to this consumer. It is to be settled: [`ack`](Self::ack), [`nack`](Self::nack) or
/// [`reject`](Self::reject). One that is dropped instead comes back to the group when its lease runs out, and keeps its
/// share of the credit until then.
///
/// When the connection is lost, so is the lease: what is said about the message then is a
/// [`LeaseLost`](crate::SettleError::LeaseLost), and the message is delivered again.
pub struct Delivery {
    topic: TopicName,
    record: Record,
    attempt: u32,
    redelivered: bool,
    published_at: Timestamp,
    lease: Lease,
}

impl Delivery {
    pub(super) const fn new(
        topic: TopicName,
        record: Record,
        attempt: u32,
        redelivered: bool,
        published_at: Timestamp,
        lease: Lease,
    ) -> Self {
        Self { topic, record, attempt, redelivered, published_at, lease }
    }

    /// What identifies the message.
    #[must_use]
    pub const fn id(&self) -> &MessageId {
        &self.record.id
    }

    /// The topic.
    #[must_use]
    pub const fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The partition that it is stored in.
    #[must_use]
    pub const fn partition(&self) -> PartitionIndex {
        PartitionIndex(self.lease.partition)
    }

    /// Its place in the partition.
    #[must_use]
    pub const fn offset(&self) -> Offset {
        Offset(self.lease.offset)
    }

    /// The key, if it has one.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.record.key.as_deref()
    }

    /// The tag, if it has one.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.record.tag.as_deref()
    }

    /// The headers, in the order in which they were given.
    #[must_use]
    pub fn headers(&self) -> &[RecordHeader] {
        &self.record.headers
    }

    /// The value of the first header of this name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.record.headers.iter().find(|header| &*header.name == name).map(|header| &*header.value)
    }

    /// What it is about. Cloning it copies nothing.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.record.body
    }

    /// How many deliveries are known, this one included.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether it may have been delivered before.
    #[must_use]
    pub const fn redelivered(&self) -> bool {
        self.redelivered
    }

    /// When the broker stored it.
    #[must_use]
    pub const fn published_at(&self) -> Timestamp {
        self.published_at
    }

    /// The message as it was sent.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Says that the message is done with. It is sent now; the future returns when the broker has accepted it, which is
    /// durable within the broker's `ack_flush`. Many such futures may be kept and awaited later.
    pub fn ack(self) -> Settlement {
        self.lease.settle(&Word::Ack { durable: false })
    }

    /// As [`ack`](Self::ack), but the future returns when the acknowledgement is durable.
    pub fn ack_durable(self) -> Settlement {
        self.lease.settle(&Word::Ack { durable: true })
    }

    /// Refuses the message: it comes back, later each time, and goes to the dead letters after the group's
    /// `max_attempts`.
    pub fn nack(self) -> Refusal {
        Refusal { lease: self.lease, kind: NackKind::Retry, after: None, reason: String::new() }
    }

    /// Refuses the message for good: it goes straight to the dead letters.
    pub fn reject(self) -> Refusal {
        Refusal { lease: self.lease, kind: NackKind::Reject, after: None, reason: String::new() }
    }

    /// Keeps the message for another lease of the group, from now on.
    pub fn extend(&self) -> Settlement {
        self.lease.say(&Word::Extend { by: None })
    }

    /// Keeps the message for so long, from now on.
    pub fn extend_by(&self, by: Duration) -> Settlement {
        self.lease.say(&Word::Extend { by: Some(by) })
    }

    /// Gives the message back as if it had never been delivered.
    pub(super) fn release(self) {
        let word = Word::Nack { kind: NackKind::Release, after: None, reason: String::new() };
        // Nobody waits for the answer: without it the lease runs out.
        drop(self.lease.settle(&word));
    }

    /// Whether it can still be settled, as far as is known here. One that cannot is given up.
    pub(super) fn check_lease(mut self) -> Option<Self> {
        if self.lease.session.is_lost() {
            return None;
        }
        if !self.lease.session.is_leased(&self.lease.frame) {
            self.lease.held = false;
            self.lease.session.overslept(&self.lease.frame);
            return None;
        }
        Some(self)
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.record.id)
            .field("partition", &self.lease.partition)
            .field("offset", &self.lease.offset)
            .field("attempt", &self.attempt)
            .field("redelivered", &self.redelivered)
            .finish_non_exhaustive()
    }
}

/// A refusal that is being made. Dropped before it is sent, the message comes back when its lease runs out.
#[must_use = "nothing is refused before `send`"]
pub struct Refusal {
    lease: Lease,
    kind: NackKind,
    after: Option<Duration>,
    reason: String,
}

impl Refusal {
    /// Says why; it is kept with the dead letter. Cut after 1 KiB.
    pub fn reason(mut self, reason: impl fmt::Display) -> Self {
        self.reason = reason.to_string();
        self
    }

    /// When the message is to come back, instead of the group's growing delay.
    pub const fn after(mut self, delay: Duration) -> Self {
        self.after = Some(delay);
        self
    }

    /// Sends the refusal; the future returns when the broker has accepted it. Awaiting the refusal itself does the same.
    pub fn send(self) -> Settlement {
        let Self { lease, kind, after, reason } = self;
        lease.settle(&Word::Nack { kind, after, reason })
    }
}

impl IntoFuture for Refusal {
    type Output = <Settlement as Future>::Output;
    type IntoFuture = Settlement;

    fn into_future(self) -> Settlement {
        self.send()
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusal").field("offset", &self.lease.offset).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Messages that arrived together, all of one partition.
pub struct DeliveryBatch {
    deliveries: Vec<Delivery>,
}

impl DeliveryBatch {
    /// `deliveries` are of one partition and one frame, and there is at least one.
    pub(super) const fn new(deliveries: Vec<Delivery>) -> Self {
        Self { deliveries }
    }

    /// How many there are; at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub const fn len(&self) -> usize {
        self.deliveries.len()
    }

    /// The messages, in the order of their offsets.
    pub fn iter(&self) -> std::slice::Iter<'_, Delivery> {
        self.deliveries.iter()
    }

    /// Says that all of them are done with; see [`Delivery::ack`].
    pub fn ack(self) -> Settlement {
        self.settle(&Word::Ack { durable: false })
    }

    /// As [`ack`](Self::ack), but the future returns when the acknowledgement is durable.
    pub fn ack_durable(self) -> Settlement {
        self.settle(&Word::Ack { durable: true })
    }

    fn settle(mut self, word: &Word) -> Settlement {
        let offsets: Vec<u64> = self.deliveries.iter().map(|delivery| delivery.lease.offset).collect();
        for delivery in &mut self.deliveries {
            delivery.lease.held = false;
        }
        match self.deliveries.first() {
            Some(Delivery { lease, .. }) => lease.session.say(word, lease.partition, &offsets, &lease.frame),
            None => Settlement::lost(0, 0, "there was no message".to_owned()),
        }
    }
}

impl IntoIterator for DeliveryBatch {
    type Item = Delivery;
    type IntoIter = std::vec::IntoIter<Delivery>;

    fn into_iter(self) -> Self::IntoIter {
        self.deliveries.into_iter()
    }
}

impl<'a> IntoIterator for &'a DeliveryBatch {
    type Item = &'a Delivery;
    type IntoIter = std::slice::Iter<'a, Delivery>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for DeliveryBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.deliveries).finish()
    }
}

/// The hold on a message. Dropped without a word, its credit comes back when it has run out.
pub(super) struct Lease {
    session: Arc<Session>,
    frame: Arc<Arrived>,
    partition: u32,
    offset: u64,
    held: bool,
}

impl Lease {
    pub(super) const fn new(session: Arc<Session>, frame: Arc<Arrived>, partition: u32, offset: u64) -> Self {
        Self { session, frame, partition, offset, held: true }
    }

    fn say(&self, word: &Word) -> Settlement {
        self.session.say(word, self.partition, &[self.offset], &self.frame)
    }

    fn settle(mut self, word: &Word) -> Settlement {
        self.held = false;
        self.say(word)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.held {
            self.session.dropped(&self.frame);
        }
    }
}
