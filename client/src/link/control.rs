//! The control stream of one connection: requests and their answers, and what the broker says unasked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::{Either, select};
use stentor_core::transport::{FrameReceiver, FrameSender, FrameStream};
use stentor_protocol::wire::{Request, request, response, to_broker, to_client};
use stentor_protocol::{decode_to_client, encode_to_broker};
use tokio::sync::{mpsc, oneshot};

use crate::routes::Routes;

/// Requests that wait for the control stream to take them.
pub(super) const ASKS_MAX: usize = 64;

/// A request, and where its answer goes.
pub(super) struct Ask {
    pub(super) kind: request::Kind,
    pub(super) answer: oneshot::Sender<Answer>,
}

type Answer = Result<(response::Kind, Bytes), Unanswered>;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The request never left.
    NotSent,
    /// It left, and the connection was lost.
    Lost(String),
}

/// What the supervisor must know.
#[derive(Debug)]
pub(super) enum Event {
    /// The broker drains: nothing new is to be begun on the connection.
    GoingAway(String),
    /// The control stream is over, and with it the connection.
    Over(String),
}

/// Requests that wait for their answers.
type Waiting = Mutex<BTreeMap<u64, oneshot::Sender<Answer>>>;

/// Serves the control stream until it ends, or until nobody can ask any more and all is answered.
pub(super) async fn run(
    control: FrameStream,
    asks: mpsc::Receiver<Ask>,
    events: mpsc::Sender<Event>,
    routes: Arc<Routes>,
) {
    let waiting = Waiting::default();
    let FrameStream { sender, receiver } = control;
    let asking = std::pin::pin!(ask(sender, asks, &waiting));
    let hearing = std::pin::pin!(hear(receiver, &events, &waiting, &routes));
    let reason = match select(hearing, asking).await {
        Either::Left((reason, _)) => reason,
        Either::Right((Err(reason), _)) => reason,
        // Nobody is left to ask. Whatever is still unanswered is; then the stream has no more use.
        Either::Right((Ok(sender), hearing)) => {
            let _sender = sender;
            if lock(&waiting).is_empty() { "nobody asks any more".to_owned() } else { hearing.await }
        }
    };
    for (_, answer) in std::mem::take(&mut *lock(&waiting)) {
        // Whoever asked may have given up.
        let _ = answer.send(Err(Unanswered::Lost(reason.clone())));
    }
    // The supervisor decides about the connection. If it listens no more it has another one already, and this one closes
    // when the last stream on it is done.
    let _ = events.send(Event::Over(reason)).await;
}

/// Sends requests. Returns the sender once nobody can ask any more.
async fn ask(
    mut sender: Box<dyn FrameSender>,
    mut asks: mpsc::Receiver<Ask>,
    waiting: &Waiting,
) -> Result<Box<dyn FrameSender>, String> {
    let mut id = 0;
    while let Some(Ask { kind, answer }) = asks.recv().await {
        if answer.is_closed() {
            continue;
        }
        id += 1;
        lock(waiting).insert(id, answer);
        let frame = encode_to_broker(to_broker::Kind::Request(Request { id, kind: Some(kind) }));
        if let Err(error) = sender.send(frame).await {
            asks.close();
            while let Some(ask) = asks.recv().await {
                let _ = ask.answer.send(Err(Unanswered::NotSent));
            }
            return Err(error.to_string());
        }
    }
    Ok(sender)
}

/// Takes in answers and news. Returns why it cannot go on.
async fn hear(
    mut receiver: Box<dyn FrameReceiver>,
    events: &mpsc::Sender<Event>,
    waiting: &Waiting,
    routes: &Routes,
) -> String {
    loop {
        let frame = match receiver.receive().await {
            Ok(Some(frame)) => frame,
            Ok(None) => return "the broker ended the control stream".to_owned(),
            Err(error) => return error.to_string(),
        };
        match decode_to_client(frame.head) {
            Ok(to_client::Kind::Response(response)) => {
                let (response, body) = match stentor_protocol::frame::response(response, frame.body) {
                    Ok(answered) => answered,
                    Err(error) => return error.to_string(),
                };
                let answer = lock(waiting).remove(&response.id);
                // None: whoever asked gave up, or the broker answers twice.
                if let (Some(answer), Some(kind)) = (answer, response.kind) {
                    let _ = answer.send(Ok((kind, body)));
                }
            }
            Ok(to_client::Kind::Route(route)) => routes.update(route),
            Ok(to_client::Kind::GoingAway(going)) => {
                let _ = events.send(Event::GoingAway(going.reason)).await;
            }
            Ok(to_client::Kind::Refused(error) | to_client::Kind::Ended(error)) => return error.to_string(),
            Ok(_) => return "the broker said on the control stream what does not belong there".to_owned(),
            Err(error) => return error.to_string(),
        }
    }
}

fn lock(waiting: &Waiting) -> MutexGuard<'_, BTreeMap<u64, oneshot::Sender<Answer>>> {
    // Held for one operation of the map, which does not panic half-way.
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}
