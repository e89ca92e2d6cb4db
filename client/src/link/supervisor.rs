//! Keeps a link connected.

use std::sync::Arc;
use std::time::Duration;

use stentor_core::Monotonic;
use stentor_core::transport::{CloseCode, Connection, FrameStream};
use stentor_protocol::wire;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::control::{self, ASKS_MAX, Event};
use super::{LinkParts, Live, State, handshake};
use crate::backoff::{Backoff, RECONNECT};
use crate::error::ConnectError;
use crate::routes::Routes;

/// Events of a control task that the supervisor has not heard yet.
const EVENTS_MAX: usize = 4;

/// A broker that goes away sooner than this after its welcome keeps the pauses growing: it may welcome everybody until it is
/// down.
const SETTLED_AFTER: Duration = Duration::from_secs(10);

pub(super) struct Supervisor {
    parts: LinkParts,
    states: watch::Sender<State>,
    stopped: watch::Receiver<bool>,
    routes: Arc<Routes>,
    backoff: Backoff,
    /// The server to be tried next.
    next_server: usize,
    generation: u64,
    controls: JoinSet<()>,
    current: Current,
}

/// The connection in use.
struct Current {
    connection: Arc<dyn Connection>,
    events: mpsc::Receiver<Event>,
    since: Monotonic,
}

struct Established {
    connection: Arc<dyn Connection>,
    control: FrameStream,
    welcome: wire::Welcome,
}

enum Ended {
    /// The link was closed or dropped.
    Stopped,
    /// The broker drains; its streams may finish.
    GoingAway,
    Lost,
}

impl Supervisor {
    /// Makes the first connection: every server gets one try.
    pub(super) async fn connect(
        parts: LinkParts,
        states: watch::Sender<State>,
        stopped: watch::Receiver<bool>,
        routes: Arc<Routes>,
        seed: u64,
    ) -> Result<Self, ConnectError> {
        let mut last = ConnectError::NoServer;
        for (index, server) in parts.servers.iter().enumerate() {
            match establish(&parts, server).await {
                Ok(established) => {
                    let mut controls = JoinSet::new();
                    let next_server = (index + 1) % parts.servers.len();
                    let current = begin(&parts, &states, &routes, &mut controls, 1, established);
                    let backoff = Backoff::new(RECONNECT, seed);
                    let generation = 1;
                    return Ok(Self {
                        parts,
                        states,
                        stopped,
                        routes,
                        backoff,
                        next_server,
                        generation,
                        controls,
                        current,
                    });
                }
                Err(error) => {
                    tracing::debug!(%server, %error, "cannot connect");
                    last = error;
                }
            }
        }
        Err(last)
    }

    pub(super) async fn run(mut self) {
        loop {
            let ended = self.watch_current().await;
            // First, so that nobody begins anything on it.
            self.states.send_modify(|state| state.live = None);
            match &ended {
                Ended::Stopped => break,
                Ended::GoingAway => {}
                Ended::Lost => self.current.connection.close(CloseCode::NORMAL, "the control stream is over"),
            }
            // A connection that was welcomed was a good one: after it, pauses begin with the shortest again.
            let settled = self.parts.clock.monotonic().since(self.current.since) >= SETTLED_AFTER;
            if settled || !matches!(ended, Ended::GoingAway) {
                self.backoff.succeeded();
            }
            if !self.reconnect().await {
                break;
            }
        }
        self.states.send_modify(|state| state.closed = true);
        self.current.connection.close(CloseCode::NORMAL, "the client closed");
        // Also those of earlier connections, which would wait until the last stream there is done.
        self.controls.abort_all();
        while self.controls.join_next().await.is_some() {}
    }

    /// Returns when the connection takes nothing new.
    async fn watch_current(&mut self) -> Ended {
        tokio::select! {
            biased;
            // An error: the last handle is gone.
            _ = self.stopped.wait_for(|stopped| *stopped) => Ended::Stopped,
            event = self.current.events.recv() => match event {
                Some(Event::GoingAway(reason)) => {
                    tracing::info!(%reason, "the broker is going away");
                    Ended::GoingAway
                }
                Some(Event::Over(reason)) => {
                    tracing::warn!(%reason, "the connection is lost");
                    Ended::Lost
                }
                None => Ended::Lost,
            },
        }
    }

    /// Tries the servers in turn until one answers; false when the link is closed meanwhile.
    async fn reconnect(&mut self) -> bool {
        loop {
            let wake = self.parts.clock.monotonic().after(self.backoff.failed());
            let server = self.parts.servers[self.next_server].clone();
            self.next_server = (self.next_server + 1) % self.parts.servers.len();
            let trying = async {
                self.parts.clock.sleep_until(wake).await;
                establish(&self.parts, &server).await
            };
            let established = tokio::select! {
                biased;
                _ = self.stopped.wait_for(|stopped| *stopped) => return false,
                established = trying => established,
            };
            // Tasks of earlier connections that have ended.
            while self.controls.try_join_next().is_some() {}
            match established {
                Ok(established) => {
                    tracing::info!(%server, "connected again");
                    self.generation += 1;
                    self.current = begin(
                        &self.parts,
                        &self.states,
                        &self.routes,
                        &mut self.controls,
                        self.generation,
                        established,
                    );
                    return true;
                }
                Err(error) => {
                    tracing::warn!(%server, %error, "cannot connect; trying again");
                    self.states.send_modify(|state| state.last_error = Some(Arc::new(error)));
                }
            }
        }
    }
}

/// Puts a connection into use.
fn begin(
    parts: &LinkParts,
    states: &watch::Sender<State>,
    routes: &Arc<Routes>,
    controls: &mut JoinSet<()>,
    generation: u64,
    established: Established,
) -> Current {
    let Established { connection, control, welcome } = established;
    let (asks, asked) = mpsc::channel(ASKS_MAX);
    let (event, events) = mpsc::channel(EVENTS_MAX);
    controls.spawn(control::run(control, asked, event, Arc::clone(routes)));
    let live = Live { generation, connection: Arc::clone(&connection), welcome, asks };
    states.send_modify(|state| {
        state.live = Some(Arc::new(live));
        state.last_error = None;
    });
    Current { connection, events, since: parts.clock.monotonic() }
}

/// Connects to one server and greets it.
async fn establish(parts: &LinkParts, server: &str) -> Result<Established, ConnectError> {
    let deadline = parts.clock.monotonic().after(parts.connect_timeout);
    let establishing = async {
        let connection = parts.transport.connect(server).await?;
        let (control, welcome) = handshake::greet(&*connection, server).await?;
        Ok(Established { connection, control, welcome })
    };
    tokio::select! {
        biased;
        established = establishing => established,
        () = parts.clock.sleep_until(deadline) => {
            Err(ConnectError::TimedOut { address: server.to_owned(), after: parts.connect_timeout })
        }
    }
}
