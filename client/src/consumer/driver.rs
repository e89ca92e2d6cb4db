//! The task of a consumer: takes in deliveries, sends what became of them and how much more may come, on a stream that it
//! opens anew whenever it is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stentor_core::transport::{Frame, FrameReceiver, FrameStream};
use stentor_core::{Offset, PartitionIndex};
use stentor_protocol::error::Verdict;
use stentor_protocol::wire::{self, NackKind, Subscribe, Subscribed, Unsubscribe, to_broker, to_client};
use stentor_protocol::{decode_to_client, encode_to_broker};
use tokio::sync::watch;

use super::credit::Credit;
use super::inbox::{Arrival, Inbox};
use super::session::{Arrived, Session, SettleOutcome, Settled};
use crate::backoff::Backoff;
use crate::error::{BrokerError, ReceiveError};
use crate::line::{Line, sleep_until};
use crate::link::{Link, Live, StreamError};

/// How many frames of acknowledgements, of each kind, may be unanswered. Beyond it they gather into larger ones.
const SETTLES_IN_FLIGHT: usize = 4;

/// How long a broker may take to say farewell to a consumer that closes.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);

/// A stream that is open for this consumer.
pub(super) struct Opened {
    pub(super) live: Arc<Live>,
    pub(super) stream: FrameStream,
    pub(super) subscribed: Subscribed,
}

pub(super) struct Driver {
    pub(super) link: Link,
    pub(super) subscribe: Subscribe,
    pub(super) credit_messages: u32,
    pub(super) credit_bytes: u64,
    pub(super) inbox: Arc<Inbox>,
    /// The end of its sender, too, ends the consumer.
    pub(super) closing: watch::Receiver<bool>,
    pub(super) backoff: Backoff,
}

/// How serving a stream ended.
enum Ended {
    /// The consumer is closed.
    Closed,
    /// The connection takes nothing new, and nothing is held any more.
    Leaving,
    /// Trying again makes no sense.
    Refused(BrokerError),
    Lost(String),
}

/// Subscribes.
pub(super) async fn open(link: &Link, live: Arc<Live>, subscribe: &Subscribe) -> Result<Opened, StreamError> {
    match link.open_stream(&live, to_broker::Kind::Subscribe(subscribe.clone())).await? {
        (stream, to_client::Kind::Subscribed(subscribed)) => Ok(Opened { live, stream, subscribed }),
        _ => Err(StreamError::Protocol("the broker answered a subscription with something else".to_owned())),
    }
}

/// A frame of settlements that was sent, and whether it was to be durable.
type Unanswered = BTreeMap<u64, (Arc<SettleOutcome>, bool)>;

impl Driver {
    pub(super) async fn run(mut self, first: Opened) {
        let mut next = Some(first);
        while let Some(opened) = next {
            let mut unanswered = Unanswered::new();
            let credit = Credit::new(self.credit_messages, self.credit_bytes);
            let session = Session::new(Arc::clone(self.link.clock()), &opened.subscribed, credit);
            let ended = self.serve(opened, &session, &mut unanswered).await;
            let reason = match &ended {
                Ended::Closed => "the consumer was closed",
                Ended::Leaving => "the broker went away",
                Ended::Refused(error) => &error.message,
                Ended::Lost(reason) => reason,
            };
            session.lose(reason);
            for (outcome, _) in unanswered.into_values() {
                outcome.fill(Settled::Lost(reason.to_owned()));
            }
            // They come again.
            drop(self.inbox.drain());
            match ended {
                Ended::Closed => return self.inbox.end(None),
                Ended::Refused(error) => return self.inbox.end(Some(ReceiveError::Ended(error))),
                Ended::Leaving => tracing::debug!(topic = %self.subscribe.topic, "a consumer moves on"),
                Ended::Lost(reason) => {
                    tracing::warn!(topic = %self.subscribe.topic, %reason, "a consumer lost its stream");
                }
            }
            next = self.reopen().await;
        }
    }

    /// Subscribes again, however long it takes; none when the consumer is over, which it has been told then.
    async fn reopen(&mut self) -> Option<Opened> {
        let clock = Arc::clone(self.link.clock());
        loop {
            let not_before = clock.monotonic().after(self.backoff.failed());
            let opening = async {
                clock.sleep_until(not_before).await;
                let live = self.link.live(0).await?;
                Some(open(&self.link, live, &self.subscribe).await)
            };
            let opened = tokio::select! {
                biased;
                _ = self.closing.wait_for(|closing| *closing) => {
                    self.inbox.end(None);
                    return None;
                }
                opened = opening => opened,
            };
            match opened {
                Some(Ok(opened)) => return Some(opened),
                Some(Err(StreamError::Refused(error))) if error.verdict() == Verdict::Refused => {
                    self.inbox.end(Some(ReceiveError::Ended(error)));
                    return None;
                }
                Some(Err(error)) => {
                    tracing::debug!(topic = %self.subscribe.topic, %error, "a consumer cannot subscribe again yet");
                }
                None => {
                    self.inbox.end(Some(ReceiveError::Closed));
                    return None;
                }
            }
        }
    }

    async fn serve(&mut self, opened: Opened, session: &Arc<Session>, unanswered: &mut Unanswered) -> Ended {
        let Opened { live, stream, subscribed: _ } = opened;
        let FrameStream { sender, mut receiver } = stream;
        let mut line = Line::new(sender);
        let mut states = self.link.watch();
        let clock = Arc::clone(self.link.clock());
        let mut next_request = 1;
        loop {
            let now = clock.monotonic();
            // An error: the handle is gone.
            let closing = self.closing.has_changed().is_err() || *self.closing.borrow_and_update();
            let leaving = !states.borrow_and_update().is_current(live.generation);
            if closing {
                for arrival in self.inbox.drain() {
                    arrival.give_back(NackKind::Release, "");
                }
            }
            if line.is_free() {
                if let Some(frame) = next_settle(session, unanswered, &mut next_request) {
                    line = line.carry(frame);
                } else if !closing
                    && !leaving
                    && let Some(grant) = session.grant(now)
                {
                    line = line.carry(encode_to_broker(to_broker::Kind::Grant(grant)));
                } else if unanswered.is_empty() && session.is_quiet() && (closing || leaving && session.held() == 0) {
                    self.farewell(line, receiver).await;
                    return if closing { Ended::Closed } else { Ended::Leaving };
                }
            }
            tokio::select! {
                biased;
                frame = receiver.receive() => match frame {
                    Ok(Some(frame)) => {
                        if let Err(ended) = self.hear(frame, session, unanswered) {
                            return ended;
                        }
                    }
                    Ok(None) => return Ended::Lost("the broker ended it".to_owned()),
                    Err(error) => return Ended::Lost(error.to_string()),
                },
                sent = line.carried() => if let Err(error) = sent { return Ended::Lost(error.to_string()) },
                () = session.wake.notified() => {}
                _ = states.changed() => {}
                // Once it is closing there is nothing more to be told.
                _ = self.closing.changed(), if !closing => {}
                () = sleep_until(&*clock, session.next_lapse(now)) => {}
            }
        }
    }

    /// Takes in what the broker says.
    fn hear(&mut self, frame: Frame, session: &Arc<Session>, unanswered: &mut Unanswered) -> Result<(), Ended> {
        let protocol = |what: &str| Err(Ended::Lost(format!("the broker broke the protocol: {what}")));
        match decode_to_client(frame.head) {
            Ok(to_client::Kind::Delivery(delivery)) => {
                self.backoff.succeeded();
                let sum = delivery.leased.iter().try_fold(0_u32, |sum, leased| sum.checked_add(leased.count));
                let Some(messages) = sum.filter(|sum| *sum > 0) else {
                    return protocol("a delivery of nothing");
                };
                let bytes = frame.body.len() as u64;
                if !session.arrived(messages, bytes) {
                    return protocol("a delivery without credit");
                }
                let frame_share = Arc::new(Arrived::new(self.link.clock().monotonic(), bytes, messages));
                let session = Arc::clone(session);
                self.inbox.put(Arrival { session, frame: frame_share, delivery, body: frame.body });
                Ok(())
            }
            Ok(to_client::Kind::PartitionStopped(stopped)) => {
                let error = stopped.error.unwrap_or_default().into();
                self.inbox.stopped(PartitionIndex(stopped.partition), stopped.offset.map(Offset), error);
                Ok(())
            }
            Ok(to_client::Kind::Settled(settled)) => match unanswered.remove(&settled.request) {
                Some((outcome, _)) => {
                    outcome.fill(Settled::Answered(settled.failed.into()));
                    Ok(())
                }
                None => protocol("an answer to what was not asked"),
            },
            Ok(to_client::Kind::Ended(error) | to_client::Kind::Refused(error)) => {
                let error = BrokerError::from(error);
                Err(match error.verdict() {
                    Verdict::Refused => Ended::Refused(error),
                    Verdict::NotDone | Verdict::Unknown => Ended::Lost(error.message),
                })
            }
            Ok(_) => protocol("what does not belong here"),
            Err(error) => protocol(&error.to_string()),
        }
    }

    /// Gives back whatever may still be on its way, and waits for the broker to end the stream.
    async fn farewell(&self, line: Line, mut receiver: Box<dyn FrameReceiver>) {
        let saying = async {
            let mut line = line.carry(encode_to_broker(to_broker::Kind::Unsubscribe(Unsubscribe {})));
            if line.carried().await.is_err() {
                return;
            }
            line.finish();
            // What still comes was sent before the broker heard of it, and goes back by itself.
            while let Ok(Some(_)) = receiver.receive().await {}
        };
        let deadline = self.link.clock().monotonic().after(FAREWELL_TIMEOUT);
        if self.link.until(deadline, saying).await.is_none() {
            tracing::debug!("the broker did not say farewell in time");
        }
    }
}

/// The next frame of settlements, if one may be sent now.
fn next_settle(session: &Session, unanswered: &mut Unanswered, next_request: &mut u64) -> Option<Frame> {
    let sending = [false, true].into_iter().find_map(|kind| {
        let in_flight = unanswered.values().filter(|(_, durable)| *durable == kind).count();
        if in_flight < SETTLES_IN_FLIGHT { session.take(kind) } else { None }
    })?;
    let request = *next_request;
    *next_request += 1;
    unanswered.insert(request, (sending.outcome, sending.settle.durable));
    Some(encode_to_broker(to_broker::Kind::Settle(wire::Settle { request, ..sending.settle })))
}
