//! The connection to a broker: made, watched, made anew.
//!
//! A [`Link`] has at most one live connection at a time, numbered by generation. When it is lost, or its broker goes
//! away, a supervisor connects again, to the servers in turn, with growing pauses, for as long as the link lives.
//! Producers and consumers open streams of their own on it and watch the generation: a greater one, or none, means that
//! the old connection takes nothing new; what is under way there may still be finished.
//!
//! Invariants: the supervisor and every control task end when the link is closed or its last handle is dropped; a
//! request is asked again by itself only if asking twice does no harm, or if it certainly was not done.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use stentor_core::transport::{Connection, FrameStream, Transport, TransportError};
use stentor_core::{Clock, Monotonic};
use stentor_protocol::error::{ErrorCode, Verdict};
use stentor_protocol::wire::{self, request, response, to_broker, to_client};
use stentor_protocol::{decode_to_client, encode_to_broker};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::error::{BrokerError, ConnectError, OpenError, RequestError};
use crate::routes::Routes;

mod control;
mod handshake;
mod supervisor;

use control::{Ask, Unanswered};

/// What a link needs to know.
pub(crate) struct LinkParts {
    pub(crate) servers: Vec<String>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) seed: u64,
}

/// A connection that has been welcomed.
pub(crate) struct Live {
    pub(crate) generation: u64,
    pub(crate) connection: Arc<dyn Connection>,
    pub(crate) welcome: wire::Welcome,
    asks: mpsc::Sender<Ask>,
}

#[derive(Clone, Default)]
pub(crate) struct State {
    pub(crate) live: Option<Arc<Live>>,
    /// What the last try to connect met.
    last_error: Option<Arc<ConnectError>>,
    closed: bool,
}

impl State {
    /// Whether the connection of this generation takes new work.
    pub(crate) fn is_current(&self, generation: u64) -> bool {
        !self.closed && self.live.as_ref().is_some_and(|live| live.generation == generation)
    }
}

/// Handle on the connection. Clones share it.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    request_timeout: Duration,
    state: watch::Receiver<State>,
    /// Its end, or the end of its sender, ends the supervisor.
    stop: watch::Sender<bool>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
    routes: Arc<Routes>,
    random: Mutex<fastrand::Rng>,
}

/// Why no stream was opened.
#[derive(Debug, Error)]
pub(crate) enum StreamError {
    #[error("{0}")]
    Refused(BrokerError),
    #[error("{0}")]
    Lost(#[from] TransportError),
    #[error("no answer in time")]
    TimedOut,
    #[error("{0}")]
    Protocol(String),
}

impl From<StreamError> for OpenError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Refused(error) => Self::Refused(error),
            StreamError::Protocol(what) => Self::Protocol(what),
            other => Self::Lost(other.to_string()),
        }
    }
}

impl Link {
    /// Connects, and keeps connected from then on.
    ///
    /// # Errors
    /// When none of the servers could be connected to; the error is that of the last one tried.
    pub(crate) async fn open(parts: LinkParts) -> Result<Self, ConnectError> {
        let mut random = fastrand::Rng::with_seed(parts.seed);
        let (stop, stopped) = watch::channel(false);
        let (states, state) = watch::channel(State::default());
        let clock = Arc::clone(&parts.clock);
        let request_timeout = parts.request_timeout;
        let routes = Arc::new(Routes::default());
        let supervisor =
            supervisor::Supervisor::connect(parts, states, stopped, Arc::clone(&routes), random.u64(..)).await?;
        let supervisor = Mutex::new(Some(tokio::spawn(supervisor.run())));
        let random = Mutex::new(random);
        Ok(Self(Arc::new(Inner { clock, request_timeout, state, stop, supervisor, routes, random })))
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    pub(crate) fn routes(&self) -> &Arc<Routes> {
        &self.0.routes
    }

    /// A random number that no other caller gets.
    pub(crate) fn seed(&self) -> u64 {
        lock(&self.0.random).u64(..)
    }

    /// 128 random bits, for a message id.
    pub(crate) fn random_bits(&self) -> u128 {
        lock(&self.0.random).u128(..)
    }

    /// The state as it changes.
    pub(crate) fn watch(&self) -> watch::Receiver<State> {
        self.0.state.clone()
    }

    /// Ends the connection and the supervisor, and returns when they have ended.
    pub(crate) async fn close(&self) {
        self.0.stop.send_replace(true);
        let supervisor = lock(&self.0.supervisor).take();
        if let Some(supervisor) = supervisor {
            // It neither panics nor is aborted; there is nothing to do about it if it were.
            let _ = supervisor.await;
        }
    }

    /// A live connection of a generation beyond `after`; waits for one. None once the link is closed. Cancel safe.
    pub(crate) async fn live(&self, after: u64) -> Option<Arc<Live>> {
        let mut state = self.watch();
        let there = |state: &State| state.closed || state.live.as_ref().is_some_and(|live| live.generation > after);
        match state.wait_for(there).await {
            Ok(state) if !state.closed => state.live.clone(),
            _ => None,
        }
    }

    /// As [`live`](Self::live), up to a deadline.
    async fn live_until(&self, after: u64, asked: Monotonic, timeout: Duration) -> Result<Arc<Live>, RequestError> {
        match self.until(asked.after(timeout), self.live(after)).await {
            Some(Some(live)) => Ok(live),
            Some(None) => Err(RequestError::Closed),
            None => Err(RequestError::Unavailable { waited: timeout, last: self.0.state.borrow().last_error.clone() }),
        }
    }

    /// The connection on which something is to be opened for the first time.
    pub(crate) async fn live_to_open(&self) -> Result<Arc<Live>, OpenError> {
        let timeout = self.0.request_timeout;
        self.live_until(0, self.0.clock.monotonic(), timeout).await.map_err(unopened)
    }

    /// Opens something for the first time. Opening twice does no harm: when the connection turns out to be over, as it does
    /// to a client that has not heard yet that its broker was killed, the next one is tried, up to the timeout of requests.
    pub(crate) async fn open_first<T, F>(&self, mut open: impl FnMut(Arc<Live>) -> F) -> Result<T, OpenError>
    where
        F: Future<Output = Result<T, StreamError>>,
    {
        let (asked, timeout) = (self.0.clock.monotonic(), self.0.request_timeout);
        let mut after = 0;
        loop {
            let live = self.live_until(after, asked, timeout).await.map_err(unopened)?;
            after = live.generation;
            match open(live).await {
                Err(StreamError::Lost(TransportError::ConnectionClosed(_) | TransportError::ConnectionLost(_))) => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    /// The output of `future`, or none once `deadline` has passed.
    pub(crate) async fn until<T>(&self, deadline: Monotonic, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = self.0.clock.sleep_until(deadline) => None,
        }
    }

    /// Opens a stream by saying `first`, and waits for the answer.
    pub(crate) async fn open_stream(
        &self,
        live: &Live,
        first: to_broker::Kind,
    ) -> Result<(FrameStream, to_client::Kind), StreamError> {
        let deadline = self.0.clock.monotonic().after(self.0.request_timeout);
        let opening = async {
            let mut stream = live.connection.open().await?;
            stream.sender.send(encode_to_broker(first)).await?;
            let Some(frame) = stream.receiver.receive().await? else {
                return Err(StreamError::Protocol("the stream ended without an answer".to_owned()));
            };
            match decode_to_client(frame.head).map_err(|error| StreamError::Protocol(error.to_string()))? {
                to_client::Kind::Refused(error) | to_client::Kind::Ended(error) => {
                    Err(StreamError::Refused(error.into()))
                }
                answer => Ok((stream, answer)),
            }
        };
        self.until(deadline, opening).await.unwrap_or(Err(StreamError::TimedOut))
    }

    /// Asks on the control stream.
    ///
    /// # Errors
    /// See [`RequestError`]; an error of the broker whose outcome is open is an
    /// [`OutcomeUnknown`](RequestError::OutcomeUnknown).
    pub(crate) async fn request(&self, kind: request::Kind) -> Result<(response::Kind, Bytes), RequestError> {
        let (asked, timeout) = (self.0.clock.monotonic(), self.0.request_timeout);
        let mut after = 0;
        loop {
            let live = self.live_until(after, asked, timeout).await?;
            after = live.generation;
            let (answer, answered) = oneshot::channel();
            let asking = async {
                let ask = Ask { kind: kind.clone(), answer };
                if live.asks.send(ask).await.is_err() {
                    return Err(Unanswered::NotSent);
                }
                // A control task that ends answers everything; one that was dropped has lost it.
                answered.await.unwrap_or_else(|_| Err(Unanswered::Lost("the connection was lost".to_owned())))
            };
            match self.until(asked.after(timeout), asking).await {
                Some(Ok((response::Kind::Error(error), _))) => return Err(refused(error.into())),
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(Unanswered::NotSent)) => {}
                Some(Err(Unanswered::Lost(_))) if only_reads(&kind) => {}
                Some(Err(Unanswered::Lost(reason))) => return Err(RequestError::OutcomeUnknown { reason }),
                None => {
                    let reason = format!("no answer within {} s", timeout.as_secs_f32());
                    return Err(RequestError::OutcomeUnknown { reason });
                }
            }
        }
    }
}

fn unopened(error: RequestError) -> OpenError {
    match error {
        RequestError::Unavailable { waited, last } => OpenError::Unavailable { waited, last },
        _ => OpenError::Closed,
    }
}

fn refused(error: BrokerError) -> RequestError {
    match error.verdict() {
        Verdict::Unknown if error.code != ErrorCode::Internal => {
            RequestError::OutcomeUnknown { reason: error.to_string() }
        }
        _ => RequestError::Refused(error),
    }
}

/// Whether asking twice does no harm.
fn only_reads(kind: &request::Kind) -> bool {
    use request::Kind;
    match kind {
        Kind::GetRoute(_)
        | Kind::ListTopics(_)
        | Kind::ShowTopic(_)
        | Kind::ListGroups(_)
        | Kind::ShowGroup(_)
        | Kind::ListDeadLetters(_)
        | Kind::ShowMessage(_)
        | Kind::NodeStatus(_) => true,
        Kind::Redrive(redrive) => redrive.dry_run,
        Kind::CreateTopic(_)
        | Kind::SetTopic(_)
        | Kind::DeleteTopic(_)
        | Kind::CreateGroup(_)
        | Kind::SetGroup(_)
        | Kind::SeekGroup(_)
        | Kind::PauseGroup(_)
        | Kind::DeleteGroup(_)
        | Kind::PurgeDeadLetters(_) => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Held for an instruction or two that cannot panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
