//! The control stream: requests, served side by side up to a bound, and the coming of further streams.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use stentor_core::limits::{BATCH_BYTES_SLACK, MESSAGE_BYTES_MAX_CEILING};
use stentor_core::transport::{CloseCode, Frame, FrameReceiver, FrameStream, TransportError};
use stentor_protocol::frame::encode_response;
use stentor_protocol::wire::{request, response, to_broker, to_client};
use stentor_protocol::{decode_to_broker, wire};
use tokio::task::JoinSet;

use super::connection::{Session, serve_stream};
use super::outlet::{Outlet, SendError};
use crate::admin;
use crate::error::refusal;
use crate::node::Phase;

/// How many requests of a connection are served at the same time; further ones wait in the stream.
const REQUESTS_MAX: usize = 16;

/// The largest body of an answer: what every client takes, since deliveries may be as large.
const ANSWER_BYTES_MAX: u32 = MESSAGE_BYTES_MAX_CEILING + BATCH_BYTES_SLACK;

type Answer = (u64, response::Kind, Bytes);

/// The control stream of a connection.
pub(super) struct Control {
    session: Arc<Session>,
    outlet: Outlet,
    receiver: Box<dyn FrameReceiver>,
    requests: FuturesUnordered<BoxFuture<'static, Answer>>,
}

/// Why the control stream has ended badly: the peer broke the protocol or does not read.
pub(super) struct Broken;

impl From<SendError> for Broken {
    fn from(_: SendError) -> Self {
        Self
    }
}

/// What has happened.
enum Event {
    Frame(Result<Option<Frame>, TransportError>),
    Answer(Answer),
    Stream(Result<FrameStream, TransportError>),
    StreamEnded,
    Routes,
    Phase(Phase),
}

impl Control {
    pub(super) fn new(session: &Arc<Session>, outlet: Outlet, receiver: Box<dyn FrameReceiver>) -> Self {
        Self { session: Arc::clone(session), outlet, receiver, requests: FuturesUnordered::new() }
    }

    /// Serves until the peer is done, the connection is over, or the node is down.
    pub(super) async fn run(mut self, streams: &mut JoinSet<()>) -> Result<(), Broken> {
        let mut phase = self.session.node.phase.subscribe();
        let mut routes = self.session.node.route_changes.subscribe();
        let mut known = Phase::Running;
        let connection = Arc::clone(&self.session.connection);
        let streams_max = self.session.node.config.node.streams_per_connection_max as usize;
        loop {
            // A node that drains lets go of a connection once nothing is under way on it.
            if known >= Phase::Draining && streams.is_empty() && self.requests.is_empty() {
                self.outlet.finish().await;
                return Ok(());
            }
            let event = tokio::select! {
                biased;
                Ok(phase) = phase.wait_for(|phase| *phase > known) => Event::Phase(*phase),
                Ok(()) = routes.changed() => Event::Routes,
                Some(answer) = self.requests.next(), if !self.requests.is_empty() => Event::Answer(answer),
                Some(_) = streams.join_next(), if !streams.is_empty() => Event::StreamEnded,
                frame = self.receiver.receive(), if self.requests.len() < REQUESTS_MAX => Event::Frame(frame),
                stream = connection.accept() => Event::Stream(stream),
            };
            match event {
                Event::Phase(Phase::Closing) => return Ok(()),
                Event::Phase(phase) => {
                    known = phase;
                    let reason = "the node is shutting down".to_owned();
                    self.outlet.say(to_client::Kind::GoingAway(wire::GoingAway { reason })).await?;
                }
                Event::Answer((id, kind, body)) => {
                    let frame = respond(id, kind, body);
                    self.outlet.send(frame).await?;
                }
                Event::StreamEnded => {}
                Event::Routes => {
                    for route in self.session.followed.news(&self.session.node) {
                        self.outlet.say(to_client::Kind::Route(route)).await?;
                    }
                }
                Event::Frame(Ok(Some(frame))) => self.request(frame).await?,
                // The peer is done, or gone.
                Event::Frame(Ok(None)) => return Ok(()),
                Event::Frame(Err(error @ (TransportError::Malformed(_) | TransportError::FrameTooLarge { .. }))) => {
                    self.outlet.end(super::connection::broken(&error)).await;
                    return Err(Broken);
                }
                Event::Frame(Err(_)) | Event::Stream(Err(_)) => return Ok(()),
                Event::Stream(Ok(mut stream)) if streams.len() >= streams_max => {
                    self.session.node.metrics.refuse("streams_per_connection_max");
                    stream.sender.reset(CloseCode::LIMIT);
                    stream.receiver.stop(CloseCode::LIMIT);
                }
                Event::Stream(Ok(stream)) => drop(streams.spawn(serve_stream(Arc::clone(&self.session), stream))),
            }
        }
    }

    async fn request(&mut self, frame: Frame) -> Result<(), Broken> {
        let request = match decode_to_broker(frame.head) {
            Ok(to_broker::Kind::Request(request)) => request,
            Ok(_) => return self.break_off("the control stream takes only requests").await,
            Err(error) => return self.break_off(&error.to_string()).await,
        };
        let session = Arc::clone(&self.session);
        self.requests.push(Box::pin(async move {
            let (kind, body) = match request.kind {
                Some(kind) => {
                    if let request::Kind::GetRoute(get) = &kind
                        && let Ok(topic) = session.node.topic_or_create(&get.topic).await
                    {
                        session.followed.add(&topic);
                    }
                    admin::answer(&session.node, kind).await
                }
                // A request of a later version: it alone is refused.
                None => {
                    let error = refusal(stentor_protocol::ErrorCode::Invalid, "this request is not known here");
                    (response::Kind::Error(error), Bytes::new())
                }
            };
            (request.id, kind, body)
        }));
        Ok(())
    }

    async fn break_off(&mut self, why: &str) -> Result<(), Broken> {
        self.session.node.metrics.refuse("protocol");
        self.outlet.end(refusal(stentor_protocol::ErrorCode::Protocol, why)).await;
        Err(Broken)
    }
}

/// The frame of an answer. One that the other side would have to refuse is replaced by an error: that ends the request,
/// and not the connection with everything on it.
fn respond(id: u64, kind: response::Kind, body: Bytes) -> Frame {
    let frame = encode_response(wire::Response { id, kind: Some(kind) }, body);
    if frame.body.len() <= ANSWER_BYTES_MAX as usize {
        return frame;
    }
    let message = format!(
        "the answer takes {} bytes, more than the {ANSWER_BYTES_MAX} of one frame: ask for less at once",
        frame.body.len()
    );
    let error = refusal(stentor_protocol::ErrorCode::LimitReached, message);
    encode_response(wire::Response { id, kind: Some(response::Kind::Error(error)) }, Bytes::new())
}

#[cfg(test)]
mod tests {
    use stentor_protocol::decode_to_client;

    use super::*;

    #[test]
    fn an_answer_too_large_for_a_frame_becomes_an_error_of_its_request() {
        let said = |message: String| response::Kind::Error(wire::Error { message, ..wire::Error::default() });
        let fits = respond(7, said("g".repeat(2_000_000)), Bytes::from_static(b"body"));
        assert!(fits.body.ends_with(b"body"));
        let large = respond(7, said("g".repeat(ANSWER_BYTES_MAX as usize + 1)), Bytes::from_static(b"body"));
        let Ok(to_client::Kind::Response(wire::Response { id: 7, kind: Some(response::Kind::Error(error)) })) =
            decode_to_client(large.head)
        else {
            panic!("no answer to request 7");
        };
        assert_eq!(error.code(), stentor_protocol::ErrorCode::LimitReached);
        assert!(large.body.is_empty());
    }
}
