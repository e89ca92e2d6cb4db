//! The task of a producer: carries out what the outbox decides, on a stream that it opens anew whenever it is lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stentor_core::transport::{Frame, FrameStream};
use stentor_core::{Monotonic, Offset, PartitionIndex, ProducerId, TopicName};
use stentor_protocol::decode_to_client;
use stentor_protocol::error::{ErrorCode, Verdict};
use stentor_protocol::frame::encode_publish;
use stentor_protocol::wire::{OpenProducer, Route, to_broker, to_client};
use tokio::sync::{Notify, watch};

use super::accumulator::Accumulator;
use super::outbox::{Outbox, Sending};
use super::pending::{Placed, Unresolved};
use crate::backoff::{Backoff, RETRY};
use crate::error::BrokerError;
use crate::line::{Line, sleep_until};
use crate::link::{Link, Live, StreamError};

/// What the producer's handle and its task share.
pub(super) struct Shared {
    /// Held for encoding one record, and by the driver for a look; never across an await.
    pub(super) gathered: Mutex<Accumulator>,
    pub(super) unresolved: Arc<Unresolved>,
    /// Something was gathered, or is wanted.
    pub(super) wake: Notify,
}

impl Shared {
    pub(super) fn gathered(&self) -> MutexGuard<'_, Accumulator> {
        // A panic between two of its steps would leave a batch that is whole.
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that is open for this producer.
pub(super) struct Opened {
    pub(super) live: Arc<Live>,
    pub(super) stream: FrameStream,
    pub(super) route: watch::Receiver<Arc<Route>>,
}

pub(super) struct Driver {
    pub(super) link: Link,
    pub(super) topic: TopicName,
    pub(super) producer: ProducerId,
    pub(super) shared: Arc<Shared>,
    pub(super) outbox: Outbox,
    pub(super) backoff: Backoff,
}

/// How serving a stream ended.
enum Ended {
    /// The producer is closed and everything is resolved.
    Done,
    /// The connection takes nothing new, and what was under way is answered.
    Leaving,
    Lost(String),
}

/// Opens a stream for a producer.
pub(super) async fn open(
    link: &Link,
    live: Arc<Live>,
    topic: &TopicName,
    producer: ProducerId,
    epoch: u32,
) -> Result<Opened, StreamError> {
    let first = OpenProducer { topic: topic.to_string(), producer: producer.0, epoch };
    match link.open_stream(&live, to_broker::Kind::OpenProducer(first)).await? {
        (stream, to_client::Kind::ProducerOpened(opened)) => {
            let route = opened
                .route
                .filter(|route| route.topic == topic.as_str() && !route.partitions.is_empty())
                .ok_or_else(|| StreamError::Protocol("a producer was opened without a route".to_owned()))?;
            Ok(Opened { live, stream, route: link.routes().follow(route) })
        }
        _ => Err(StreamError::Protocol("the broker answered the opening of a producer with something else".to_owned())),
    }
}

impl Driver {
    /// The pauses of a producer's reopening.
    pub(super) fn backoff(seed: u64) -> Backoff {
        Backoff::new(RETRY, seed)
    }

    pub(super) async fn run(mut self, first: Opened) {
        let mut next = Some(first);
        while let Some(opened) = next {
            let ended = self.serve(opened).await;
            self.outbox.stream_lost(self.now());
            match ended {
                Ended::Done => return,
                Ended::Leaving => tracing::debug!(topic = %self.topic, "a producer moves to another connection"),
                Ended::Lost(reason) => tracing::warn!(topic = %self.topic, %reason, "a producer lost its stream"),
            }
            next = self.reopen().await;
        }
    }

    /// Opens a stream again, however long it takes; none when the producer is over.
    async fn reopen(&mut self) -> Option<Opened> {
        loop {
            let not_before = self.now().after(self.backoff.failed());
            let (link, topic, producer, epoch) =
                (self.link.clone(), self.topic.clone(), self.producer, self.outbox.epoch());
            let mut opening = Box::pin(async move {
                link.clock().sleep_until(not_before).await;
                let live = link.live(0).await?;
                Some(open(&link, live, &topic, producer, epoch).await)
            });
            let opened = loop {
                // Meanwhile time goes by for what waits.
                let wake = self.look();
                if self.is_done() {
                    return None;
                }
                let clock = Arc::clone(self.link.clock());
                tokio::select! {
                    biased;
                    opened = &mut opening => break opened,
                    () = self.shared.wake.notified() => {}
                    () = sleep_until(&*clock, wake) => {}
                }
            };
            match opened {
                Some(Ok(opened)) => return Some(opened),
                Some(Err(StreamError::Refused(error))) if error.verdict() == Verdict::Refused => {
                    // Trying goes on for what is sent later: a topic may come back.
                    tracing::warn!(topic = %self.topic, %error, "a producer is not opened again");
                    self.abandon(&error);
                }
                Some(Err(error)) => tracing::debug!(topic = %self.topic, %error, "a producer cannot reopen its stream"),
                None => {
                    self.shared.gathered().close();
                    self.abandon(&BrokerError::new(ErrorCode::Unavailable, "the client has been closed"));
                    return None;
                }
            }
        }
    }

    async fn serve(&mut self, opened: Opened) -> Ended {
        let Opened { live, stream, mut route } = opened;
        let FrameStream { sender, mut receiver } = stream;
        let mut line = Line::new(sender);
        let mut states = self.link.watch();
        self.outbox.stream_opened(live.welcome.in_flight_bytes_max);
        self.outbox.set_route(&route.borrow_and_update());
        let clock = Arc::clone(self.link.clock());
        loop {
            let wake = self.look();
            let leaving = !states.borrow_and_update().is_current(live.generation);
            if !leaving
                && line.is_free()
                && let Some(Sending { request, partition, batch }) = self.next()
            {
                line = line.carry(encode_publish(request, partition.0, &batch));
            }
            if self.is_done() && line.finish() {
                return Ended::Done;
            }
            if leaving && self.outbox.sent() == 0 && line.finish() {
                return Ended::Leaving;
            }
            tokio::select! {
                biased;
                frame = receiver.receive() => match frame {
                    Ok(Some(frame)) => if let Err(reason) = self.hear(frame) { return Ended::Lost(reason) },
                    Ok(None) => return Ended::Lost("the broker ended it".to_owned()),
                    Err(error) => return Ended::Lost(error.to_string()),
                },
                sent = line.carried() => if let Err(error) = sent { return Ended::Lost(error.to_string()) },
                () = self.shared.wake.notified() => {}
                _ = states.changed() => {}
                Ok(()) = route.changed() => self.outbox.set_route(&route.borrow_and_update()),
                () = sleep_until(&*clock, wake) => {}
            }
        }
    }

    /// Takes in what the broker says.
    fn hear(&mut self, frame: Frame) -> Result<(), String> {
        let now = self.now();
        let known = match decode_to_client(frame.head).map_err(|error| error.to_string())? {
            to_client::Kind::Published(published) => {
                self.backoff.succeeded();
                let placed = Placed {
                    partition: PartitionIndex(published.partition),
                    base: Offset(published.base_offset),
                    duplicate: published.duplicate,
                };
                self.outbox.stored(published.request, placed, now)
            }
            to_client::Kind::PublishRefused(refused) => {
                let error = refused.error.unwrap_or_default().into();
                self.outbox.refused(refused.request, error, now)
            }
            to_client::Kind::Ended(error) | to_client::Kind::Refused(error) => return Err(error.to_string()),
            _ => return Err("the broker said what does not belong there".to_owned()),
        };
        if known { Ok(()) } else { Err("the broker answered what it was not asked".to_owned()) }
    }

    /// What is to be sent now.
    fn next(&mut self) -> Option<Sending> {
        let now = self.now();
        if let Some(sending) = self.outbox.next_resend(now) {
            return Some(sending);
        }
        let chosen = self.outbox.choose(now, &mut self.shared.gathered())?;
        // Summed and compressed outside the lock.
        self.outbox.send(chosen)
    }

    /// Gives up what is too old. Returns when to look again.
    fn look(&mut self) -> Option<Monotonic> {
        let now = self.now();
        let mut gathered = self.shared.gathered();
        self.outbox.tick(now, &mut gathered);
        self.outbox.wakes_at(now, &gathered)
    }

    fn abandon(&mut self, reason: &BrokerError) {
        self.outbox.abandon(reason, &mut self.shared.gathered());
    }

    /// Whether the producer is closed and nobody waits for anything any more.
    fn is_done(&self) -> bool {
        self.shared.gathered().is_closed() && self.shared.unresolved.is_empty()
    }

    fn now(&self) -> Monotonic {
        self.link.clock().monotonic()
    }
}
