//! A subscription's stream: deliveries out, credit and settlements in.
//!
//! Reading and writing go on side by side, so that a consumer that acknowledges while it is being sent to never waits for
//! itself. Settlements are answered in whatever order the partitions are done with them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, Either, join_all, select};
use futures_util::stream::FuturesUnordered;
use prometheus_client::metrics::histogram::Histogram;
use stentor_core::batch::BatchError;
use stentor_core::transport::{Frame, FrameReceiver, TransportError};
use stentor_core::{Clock, GroupName, Offset, OffsetRange, RecordBatch};
use stentor_protocol::wire::{to_broker, to_client};
use stentor_protocol::{ErrorCode, decode_to_broker, frame, wire};
use tokio::sync::{mpsc, oneshot};

use super::connection::{Session, broken};
use super::outlet::{Outlet, SendError};
use crate::catalogue::NewGroup;
use crate::config::SettingMap;
use crate::consumer::{Attached, Consumer, DELIVERIES_WAITING_MAX, Delivery};
use crate::error::{advise, gone, group_not_found, invalid_filter, invalid_name, refusal, shutting_down};
use crate::filter::Filter;
use crate::group::Refusal;
use crate::node::Node;
use crate::partition::{Command, Nack, PICK_BELOW, Settlement, Unsettled, pick};
use crate::topic::{Group, Topic};

/// How many settlements of one stream may be waiting for their answers; the next one stays unread.
const SETTLES_PER_STREAM_MAX: usize = 256;

/// A settlement that the partitions have been told of.
struct Settling {
    request: u64,
    parts: Vec<(u32, oneshot::Receiver<Vec<Unsettled>>)>,
}

/// How a subscription ended.
enum End {
    /// The consumer gave back what it held.
    Unsubscribed,
    /// It finished its side, or is gone.
    Gone,
    /// This side ends it.
    Told(wire::Error),
}

/// Serves a consumer until it is done.
pub(super) async fn run(
    session: &Session,
    subscribe: wire::Subscribe,
    mut outlet: Outlet,
    receiver: Box<dyn FrameReceiver>,
) {
    let node = &session.node;
    let (topic, group) = match find_group(node, &subscribe).await {
        Ok(found) => found,
        Err(error) => return outlet.refuse(error).await,
    };
    let (deliveries, delivered) = mpsc::channel(DELIVERIES_WAITING_MAX);
    let name = format!("{} ({})", subscribe.consumer, session.connection.peer().address);
    let consumer = Arc::new(Consumer::new(node.next_consumer(), name, deliveries, topic.shared_partitions()));
    let attached = Attached { consumer: Arc::clone(&consumer) };
    if let Err(error) = attach(&topic, &group, &consumer).await {
        return outlet.refuse(error).await;
    }
    if outlet.say(to_client::Kind::Subscribed(subscribed(&topic, &group, &consumer))).await.is_err() {
        return;
    }
    let (settling, settled) = mpsc::channel(SETTLES_PER_STREAM_MAX);
    let reading = Reading { session, topic: &topic, group: &group, consumer: &consumer, receiver, settling };
    let writing = Writing {
        outlet,
        consumer: Arc::clone(&consumer),
        clock: Arc::clone(&node.clock),
        delivery_seconds: group.metrics.delivery_seconds.clone(),
        delivered,
        settled,
        answers: FuturesUnordered::new(),
    };
    match select(Box::pin(reading.run()), Box::pin(writing.run())).await {
        Either::Left((End::Unsubscribed, writing)) => {
            attached.release();
            finish(writing.await, None).await;
        }
        Either::Left((End::Gone, writing)) => {
            drop(attached);
            finish(writing.await, None).await;
        }
        Either::Left((End::Told(error), writing)) => {
            // Ended by this side: what the consumer holds was perhaps never looked at.
            attached.release();
            finish(writing.await, Some(error)).await;
        }
        // The peer takes nothing in, or is gone: `attached` is dropped here and the partitions are told.
        Either::Right((Err(error), _)) => tracing::debug!(%error, "a subscription has ended"),
        Either::Right((Ok(_), _)) => {}
    }
}

/// Says the last word, once what was settled is answered.
async fn finish(writing: Result<Outlet, SendError>, error: Option<wire::Error>) {
    let Ok(mut outlet) = writing else { return };
    match error {
        Some(error) => outlet.end(error).await,
        None => outlet.finish().await,
    }
}

/// The group, created if it is missing and that was not forbidden; it must be what the consumer takes it for.
async fn find_group(node: &Node, subscribe: &wire::Subscribe) -> Result<(Arc<Topic>, Arc<Group>), wire::Error> {
    let topic = node.topic_or_create(&subscribe.topic).await?;
    let name = GroupName::new(&subscribe.group).map_err(|error| invalid_name(&error))?;
    let wanted = subscribe.filter.as_deref().filter(|filter| !filter.is_empty()).map(Filter::parse).transpose();
    let wanted = wanted.map_err(|error| invalid_filter(&error))?;
    let group = match topic.group(name.as_str()) {
        Ok(group) => group,
        Err(error) if subscribe.existing_only => return Err(error),
        Err(_) => {
            let filter = subscribe.filter.clone().map(|filter| ("filter".to_owned(), filter));
            let ordered = subscribe.ordered.map(|ordered| ("ordered".to_owned(), ordered.to_string()));
            let set: SettingMap = filter.into_iter().chain(ordered).collect();
            let from = subscribe.from;
            let order = NewGroup { topic: Arc::clone(&topic), group: name, from, set, or_existing: true };
            node.catalogue.create_group(order).await?
        }
    };
    let mismatch = |what: &str, has: &str, asked: &str| {
        let message = format!("group `{}` has {what} `{has}`, the consumer asks for `{asked}`", group.name);
        advise(ErrorCode::GroupMismatch, message, "leave it out to take the group as it is, or use another group")
    };
    if subscribe.filter.is_some() {
        let (has, asked) = (group.filter_text(), wanted.map_or_else(String::new, |filter| filter.to_string()));
        if has != asked {
            return Err(mismatch("the filter", &has, &asked));
        }
    }
    match subscribe.ordered {
        Some(ordered) if ordered != group.settings.ordered => {
            Err(mismatch("ordered", &group.settings.ordered.to_string(), &ordered.to_string()))
        }
        _ => Ok((topic, group)),
    }
}

/// Makes the consumer known to every partition. One that is out of order does not keep it from the others.
async fn attach(topic: &Topic, group: &Group, consumer: &Arc<Consumer>) -> Result<(), wire::Error> {
    let attaching = topic.partitions().iter().map(|partition| {
        let (group, consumer) = (group.name.clone(), Arc::clone(consumer));
        partition.ask(move |reply| Command::Attach { group, consumer, reply })
    });
    for (partition, attached) in join_all(attaching).await.into_iter().enumerate() {
        match attached {
            Ok(()) => {}
            Err(error) if error.code() == ErrorCode::GroupNotFound => return Err(error),
            Err(error) => {
                tracing::warn!(topic = %topic.name, partition, %error, "a partition cannot be subscribed to");
                // Damage does not pass by itself, so whoever waits for its messages has to know.
                if error.code() == ErrorCode::Corrupt {
                    let (partition, error) = (u32::try_from(partition).unwrap_or(u32::MAX), Some(error));
                    consumer.stopped(wire::PartitionStopped { partition, offset: None, error });
                }
            }
        }
    }
    Ok(())
}

fn subscribed(topic: &Topic, group: &Group, consumer: &Consumer) -> wire::Subscribed {
    wire::Subscribed {
        consumer: consumer.id.0,
        lease_millis: u32::try_from(group.settings.lease.as_millis()).unwrap_or(u32::MAX),
        max_attempts: group.settings.max_attempts,
        message_bytes_max: u32::try_from(topic.settings().message_bytes_max.0).unwrap_or(u32::MAX),
        filter: group.filter_text(),
        ordered: group.settings.ordered,
    }
}

/// The reading half.
struct Reading<'a> {
    session: &'a Session,
    topic: &'a Topic,
    group: &'a Group,
    consumer: &'a Consumer,
    receiver: Box<dyn FrameReceiver>,
    settling: mpsc::Sender<Settling>,
}

impl Reading<'_> {
    async fn run(mut self) -> End {
        let mut draining = Box::pin(self.session.draining());
        let (mut group_deleted, mut topic_deleted) = (self.group.deleted.subscribe(), self.topic.deleted.subscribe());
        loop {
            let frame = tokio::select! {
                biased;
                () = &mut draining => return End::Told(shutting_down()),
                _ = group_deleted.wait_for(|deleted| *deleted) => return End::Told(self.deleted()),
                _ = topic_deleted.wait_for(|deleted| *deleted) => return End::Told(self.deleted()),
                frame = self.receiver.receive() => frame,
            };
            let frame = match frame {
                Ok(Some(frame)) => frame,
                Ok(None) => return End::Gone,
                Err(error @ (TransportError::Malformed(_) | TransportError::FrameTooLarge { .. })) => {
                    self.session.node.metrics.refuse("frame");
                    return End::Told(broken(&error));
                }
                Err(_) => return End::Gone,
            };
            match decode_to_broker(frame.head) {
                Ok(to_broker::Kind::Grant(grant)) => {
                    if self.consumer.credit.grant(grant.messages, grant.bytes) {
                        self.consumer.wake_partitions();
                    }
                }
                Ok(to_broker::Kind::Settle(settle)) => match self.settle(settle).await {
                    Ok(settling) => {
                        // The writing half has ended only when this one is about to.
                        let _ = self.settling.send(settling).await;
                    }
                    Err(error) => return End::Told(error),
                },
                Ok(to_broker::Kind::Unsubscribe(_)) => return End::Unsubscribed,
                Ok(_) => {
                    let error = refusal(ErrorCode::Protocol, "a subscription takes credit and settlements");
                    return End::Told(error);
                }
                Err(error) => return End::Told(refusal(ErrorCode::Protocol, error.to_string())),
            }
        }
    }

    fn deleted(&self) -> wire::Error {
        group_not_found(self.topic.name.as_str(), self.group.name.as_str())
    }

    /// Tells each partition its share of a settlement.
    async fn settle(&mut self, settle: wire::Settle) -> Result<Settling, wire::Error> {
        let wire::Settle { request, durable, acks, nacks, extends } = settle;
        let mut shares: BTreeMap<u32, Share> = BTreeMap::new();
        for wire::Ack { partition, spans } in acks {
            shares.entry(partition).or_default().acks.extend(spans.iter().map(span_of));
        }
        for nack in nacks {
            shares.entry(nack.partition).or_default().nacks.push(nack_of(nack));
        }
        for wire::Extend { partition, spans, lease_millis } in extends {
            let by = (lease_millis > 0).then(|| Duration::from_millis(lease_millis.into()));
            shares.entry(partition).or_default().extends.extend(spans.iter().map(|span| (span_of(span), by)));
        }
        let mut parts = Vec::with_capacity(shares.len());
        for (index, share) in shares {
            let partition = self.topic.partition(index)?;
            let (reply, answer) = oneshot::channel();
            let Share { acks, nacks, extends } = share;
            let settlement = Settlement { consumer: self.consumer.id, acks, nacks, extends, durable, reply };
            partition.tell(Command::Settle { group: self.group.name.clone(), settlement }).await?;
            parts.push((index, answer));
        }
        Ok(Settling { request, parts })
    }
}

/// What of a settlement concerns one partition.
#[derive(Default)]
struct Share {
    acks: Vec<OffsetRange>,
    nacks: Vec<Nack>,
    extends: Vec<(OffsetRange, Option<Duration>)>,
}

fn span_of(span: &wire::OffsetSpan) -> OffsetRange {
    let start = Offset(span.start);
    OffsetRange::new(start, start.advance(span.count.into()))
}

fn nack_of(nack: wire::Nack) -> Nack {
    let refusal = match nack.nack_kind() {
        wire::NackKind::Retry => Refusal::Retry { delay: nack.delay_millis.map(Duration::from_millis) },
        wire::NackKind::Reject => Refusal::Reject,
        wire::NackKind::Release => Refusal::Release,
    };
    Nack { offset: Offset(nack.offset), refusal, reason: nack.reason }
}

/// The writing half.
struct Writing {
    outlet: Outlet,
    consumer: Arc<Consumer>,
    clock: Arc<dyn Clock>,
    delivery_seconds: Histogram,
    delivered: mpsc::Receiver<Delivery>,
    settled: mpsc::Receiver<Settling>,
    answers: FuturesUnordered<BoxFuture<'static, Result<wire::Settled, wire::Error>>>,
}

impl Writing {
    /// Writes until the reading half has ended and everything that it settled is answered.
    async fn run(mut self) -> Result<Outlet, SendError> {
        let mut reading = true;
        loop {
            tokio::select! {
                biased;
                Some(answer) = self.answers.next(), if !self.answers.is_empty() => match answer {
                    Ok(settled) => self.outlet.say(to_client::Kind::Settled(settled)).await?,
                    Err(error) => {
                        self.outlet.end(error).await;
                        return Ok(self.outlet);
                    }
                },
                settling = self.settled.recv(), if reading && self.answers.len() < SETTLES_PER_STREAM_MAX => {
                    match settling {
                        Some(settling) => self.answers.push(Box::pin(answer(settling))),
                        None => reading = false,
                    }
                }
                // Before the deliveries, which may never cease: the other partitions go on.
                stops = self.consumer.stops(), if reading => {
                    for stop in stops.into_values() {
                        self.outlet.say(to_client::Kind::PartitionStopped(stop)).await?;
                    }
                }
                Some(delivery) = self.delivered.recv(), if reading => self.deliver(delivery).await?,
            }
            if !reading && self.answers.is_empty() {
                return Ok(self.outlet);
            }
        }
    }

    async fn deliver(&mut self, delivery: Delivery) -> Result<(), SendError> {
        if self.consumer.credit.relieve() {
            self.consumer.wake_partitions();
        }
        let now = self.clock.now();
        let stored_at = delivery.batch.stored_at();
        if delivery.leased.iter().any(|leased| leased.attempt == 1 && !leased.redelivered) {
            self.delivery_seconds.observe(now.since(stored_at).as_secs_f64());
        }
        match frame_of(&delivery) {
            Ok(frame) => {
                let real = frame.body.len() as u64;
                if delivery.charged != real && self.consumer.credit.correct(delivery.charged, real) {
                    self.consumer.wake_partitions();
                }
                self.outlet.send(frame).await
            }
            Err(error) => {
                // It was unpacked without complaint when it was published, and its checksum held when it was read.
                tracing::error!(%error, "a batch cannot be unpacked for its delivery");
                self.outlet.end(refusal(ErrorCode::Corrupt, error.to_string())).await;
                Err(SendError::Stalled)
            }
        }
    }
}

/// A delivery as it goes out: the whole batch, or just the leased messages when they are the smaller part.
fn frame_of(delivery: &Delivery) -> Result<Frame, BatchError> {
    let Delivery { partition, batch, leased, .. } = delivery;
    let messages: u64 = leased.iter().map(|leased| leased.offsets.len()).sum();
    let spans = leased.iter().map(|leased| wire::Leased {
        start: leased.offsets.start.0,
        count: u32::try_from(leased.offsets.len()).unwrap_or(u32::MAX),
        attempt: leased.attempt,
        redelivered: leased.redelivered,
    });
    let spans: Vec<_> = spans.collect();
    let picked = if messages * PICK_BELOW < u64::from(batch.count()) { picked(batch, delivery)? } else { None };
    Ok(match picked {
        Some(picked) => frame::encode_delivery(partition.0, &picked, spans, true),
        None => frame::encode_delivery(partition.0, batch, spans, false),
    })
}

fn picked(batch: &RecordBatch, delivery: &Delivery) -> Result<Option<RecordBatch>, BatchError> {
    let offsets = delivery.leased.iter().flat_map(|leased| leased.offsets.start.0..leased.offsets.end.0);
    pick(batch, offsets.map(Offset))
}

/// Gathers what the partitions say of a settlement.
async fn answer(settling: Settling) -> Result<wire::Settled, wire::Error> {
    let mut failed = Vec::new();
    for (partition, answer) in settling.parts {
        let unsettled = answer.await.map_err(gone)?;
        failed.extend(unsettled.into_iter().map(|Unsettled { span, error }| wire::Unsettled {
            partition,
            span: Some(wire::OffsetSpan { start: span.start.0, count: u32::try_from(span.len()).unwrap_or(u32::MAX) }),
            error: Some(error),
        }));
    }
    Ok(wire::Settled { request: settling.request, failed })
}
