//! A producer's stream: batches in, receipts out.
//!
//! Reading and answering go on side by side, so that a peer that sends before it reads holds up nothing but itself. A
//! place for the answer is taken before a frame is read, and room for its bytes before the next one is.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, select};
use stentor_core::transport::{Frame, FrameReceiver, TransportError};
use stentor_core::{ProducerId, RecordBatch};
use stentor_protocol::wire::{to_broker, to_client};
use stentor_protocol::{ErrorCode, decode_to_broker, frame, wire};
use tokio::sync::mpsc;

use super::connection::{Session, broken};
use super::outlet::{Outlet, SendError};
use crate::admin::route;
use crate::error::{bad_batch, refusal, shutting_down, topic_not_found};
use crate::partition::{Answer, Answered, Publish};
use crate::topic::Topic;

/// How many batches of one stream may be waiting for their answers; the next one stays unread.
const PUBLISHES_PER_STREAM_MAX: usize = 1_024;

/// Serves a producer until it is done.
pub(super) async fn run(
    session: &Session,
    open: &wire::OpenProducer,
    mut outlet: Outlet,
    receiver: Box<dyn FrameReceiver>,
) {
    let topic = match session.node.topic_or_create(&open.topic).await {
        Ok(topic) => topic,
        Err(error) => return outlet.refuse(error).await,
    };
    if open.producer == 0 {
        return outlet.refuse(refusal(ErrorCode::Invalid, "the producer 0 is nobody")).await;
    }
    session.followed.add(&topic);
    let opened = wire::ProducerOpened { route: Some(route::of(&session.node, &topic)) };
    if outlet.say(to_client::Kind::ProducerOpened(opened)).await.is_err() {
        return;
    }
    let (answers, answered) = mpsc::channel(PUBLISHES_PER_STREAM_MAX);
    let reading = Reading { session, topic: &topic, producer: ProducerId(open.producer), receiver, answers };
    let reading = Box::pin(reading.run());
    let writing = Box::pin(write(outlet, answered));
    match select(reading, writing).await {
        // All that was read is answered before the last word.
        Either::Left((reason, writing)) => {
            let Ok(mut outlet) = writing.await else { return };
            match reason {
                Some(error) => outlet.end(error).await,
                None => outlet.finish().await,
            }
        }
        // Nobody is there to hear.
        Either::Right(_) => {}
    }
}

/// Sends answers until no more can come.
async fn write(mut outlet: Outlet, mut answered: mpsc::Receiver<Answered>) -> Result<Outlet, SendError> {
    while let Some(answer) = answered.recv().await {
        let kind = match answer {
            Answered::Published(published) => to_client::Kind::Published(published),
            Answered::Refused(refused) => to_client::Kind::PublishRefused(refused),
        };
        outlet.say(kind).await?;
    }
    Ok(outlet)
}

/// The reading half.
struct Reading<'a> {
    session: &'a Session,
    topic: &'a Topic,
    producer: ProducerId,
    receiver: Box<dyn FrameReceiver>,
    answers: mpsc::Sender<Answered>,
}

impl Reading<'_> {
    /// Reads until the peer is done; gives the reason when it is this side that ends the stream.
    async fn run(mut self) -> Option<wire::Error> {
        let mut draining = Box::pin(self.session.draining());
        let mut deleted = self.topic.deleted.subscribe();
        loop {
            let taken = tokio::select! {
                biased;
                () = &mut draining => return Some(shutting_down()),
                _ = deleted.wait_for(|deleted| *deleted) => return Some(topic_not_found(self.topic.name.as_str())),
                taken = next(self.session, &mut *self.receiver, &self.answers) => taken,
            };
            let (place, frame) = match taken {
                Ok(Some(taken)) => taken,
                Ok(None) => return None,
                Err(error @ (TransportError::Malformed(_) | TransportError::FrameTooLarge { .. })) => {
                    self.session.node.metrics.refuse("frame");
                    return Some(broken(&error));
                }
                Err(_) => return None,
            };
            let publish = match decode_to_broker(frame.head) {
                Ok(to_broker::Kind::Publish(publish)) => publish,
                Ok(_) => return Some(refusal(ErrorCode::Protocol, "a producer's stream takes only batches")),
                Err(error) => return Some(refusal(ErrorCode::Protocol, error.to_string())),
            };
            self.publish(place, publish, frame.body).await?;
        }
    }

    /// Hands on one batch; one that does not do is refused alone. None when the node is gone.
    async fn publish(&mut self, place: mpsc::OwnedPermit<Answered>, publish: wire::Publish, body: Bytes) -> Option<()> {
        let node = Arc::clone(&self.session.node);
        let since = node.clock.monotonic();
        let wire::Publish { request, partition, batch_header } = publish;
        let bytes = batch_header.len() + body.len();
        let room = [self.session.room.take(bytes).await?, node.in_flight().take(bytes).await?];
        let answer = Answer::new(request, partition, place, since, room);
        match self.check(partition, &batch_header, body) {
            Ok(batch) => match self.topic.partition(partition) {
                Ok(partition) => partition.publish(Publish { batch, answer }).await,
                Err(error) => answer.refused(error),
            },
            Err(error) => {
                node.metrics.refuse(error.code().kind());
                answer.refused(error);
            }
        }
        Some(())
    }

    fn check(&self, partition: u32, batch_header: &[u8], body: Bytes) -> Result<RecordBatch, wire::Error> {
        self.topic.partition(partition)?;
        let batch = frame::batch(batch_header, body).map_err(|error| bad_batch(&error))?;
        let message_bytes_max = u32::try_from(self.topic.settings().message_bytes_max.0).unwrap_or(u32::MAX);
        batch.validate(message_bytes_max).map_err(|error| bad_batch(&error))?;
        match batch.producer() {
            Some(sequenced) if sequenced.producer != self.producer => {
                Err(refusal(ErrorCode::Invalid, "the batch is another producer's"))
            }
            _ => Ok(batch),
        }
    }
}

/// The next frame, once there is a place for its answer and any room for its bytes.
async fn next(
    session: &Session,
    receiver: &mut dyn FrameReceiver,
    answers: &mpsc::Sender<Answered>,
) -> Result<Option<(mpsc::OwnedPermit<Answered>, Frame)>, TransportError> {
    let Ok(place) = answers.clone().reserve_owned().await else { return Ok(None) };
    session.room.any().await;
    session.node.in_flight().any().await;
    Ok(receiver.receive().await?.map(|frame| (place, frame)))
}
