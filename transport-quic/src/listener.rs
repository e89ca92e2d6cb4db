//! Taking connections.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quinn::{Endpoint, Incoming};
use stentor_core::Clock;
use stentor_core::transport::{Connection, Listener, TransportError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connection::QuicConnection;
use crate::reset::ResetKey;
use crate::settings::QuicSettings;
use crate::tls::{ServerTls, Stamps};
use crate::{handshake, socket, tls};

/// Connections whose handshake is done and that wait to be accepted.
const CONNECTIONS_WAITING_MAX: usize = 64;

/// Handshakes under way; more are refused.
const HANDSHAKES_MAX: usize = 1_024;

/// From here on a client has to show first that its address is its own, so that a flood from forged addresses costs a
/// packet each and no handshake.
const HANDSHAKES_UNCHECKED_MAX: usize = 64;

/// Bytes that quinn keeps for a connection that has not been looked at. Without 0-RTT a client has nothing to send yet.
const INCOMING_BYTES_MAX: u64 = 64 << 10;

/// The same for all of them.
const INCOMING_BYTES_TOTAL_MAX: u64 = 4 << 20;

/// How a server listens.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// `HOST:PORT`; port 0 picks a free one.
    pub listen: String,
    /// Its certificate files.
    pub tls: ServerTls,
    /// How often those are looked at for changes.
    pub tls_reload_every: Duration,
    /// Connections at a time; more are refused.
    pub connections_max: usize,
    /// How QUIC is set.
    pub quic: QuicSettings,
    /// What a listener that is started here again ends this one's connections with, if this one dies without a word. None: a
    /// key that nobody keeps.
    pub reset_key: Option<ResetKey>,
}

/// Takes connections over QUIC. Dropping it closes it.
pub struct QuicListener {
    endpoint: Endpoint,
    local_address: String,
    ready: mpsc::Receiver<QuicConnection>,
    closed: watch::Sender<bool>,
    /// Its sender goes when the listener's task has ended.
    ended: watch::Receiver<()>,
}

impl QuicListener {
    /// Reads the certificate files, takes the port, and follows the files from then on.
    ///
    /// # Errors
    /// [`Tls`](TransportError::Tls), [`Listen`](TransportError::Listen) or [`Settings`](TransportError::Settings),
    /// saying what to change.
    pub async fn bind(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Self, TransportError> {
        config.quic.check()?;
        let paths = config.tls.paths();
        let seen = Stamps::of(&paths);
        let server = server_config(&config)?;
        let endpoint = bind(&config, server).await.map_err(|source| TransportError::Listen {
            address: config.listen.clone(),
            source: Arc::new(match source.kind() {
                io::ErrorKind::AddrInUse => {
                    io::Error::new(source.kind(), "another process has this port; stop it, or choose another port")
                }
                _ => source,
            }),
        })?;
        let local_address = endpoint.local_addr().map(|address| address.to_string()).unwrap_or(config.listen.clone());
        let (to_ready, ready) = mpsc::channel(CONNECTIONS_WAITING_MAX);
        let closed = watch::Sender::new(false);
        let reload = {
            let (config, endpoint, closed) = (config.clone(), endpoint.clone(), closed.clone());
            move || {
                let server = server_config(&config)?;
                // The connections that are there keep what they were made with. Under the lock of `closed`, so that a
                // listener that closes meanwhile stays closed.
                closed.send_if_modified(|closed| {
                    if !*closed {
                        endpoint.set_server_config(Some(server));
                    }
                    false
                });
                Ok(())
            }
        };
        let follow = tls::follow(paths, seen, clock, config.tls_reload_every, reload);
        let acceptor = Acceptor {
            endpoint: endpoint.clone(),
            places: Arc::new(Semaphore::new(config.connections_max.min(Semaphore::MAX_PERMITS))),
            settings: config.quic.clone(),
            to_ready,
        };
        let mut closing = closed.subscribe();
        let (ended_sender, ended) = watch::channel(());
        let knocking = endpoint.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = closing.wait_for(|closed| *closed) => {}
                () = follow => {}
                () = acceptor.run() => {}
            }
            // Whoever knocks while the guests leave is told at once, so as to go elsewhere.
            tokio::select! {
                () = refuse_all(&knocking) => {}
                () = knocking.wait_idle() => {}
            }
            knocking.set_server_config(None);
            drop(ended_sender);
        });
        Ok(Self { endpoint, local_address, ready, closed, ended })
    }

    /// Returns once the listener is closed, every connection is over and has said its farewell (or given up on it), and
    /// nothing of the listener runs any more. Before that the end of the process would leave peers to find out by their
    /// idle time.
    pub fn idle(&self) -> impl Future<Output = ()> + Send + 'static {
        let (endpoint, mut ended) = (self.endpoint.clone(), self.ended.clone());
        async move {
            // Nothing is ever sent: this fails when the task has ended.
            while ended.changed().await.is_ok() {}
            endpoint.wait_idle().await;
        }
    }
}

#[async_trait]
impl Listener for QuicListener {
    fn local_address(&self) -> String {
        self.local_address.clone()
    }

    async fn accept(&mut self) -> Option<Arc<dyn Connection>> {
        let mut closing = self.closed.subscribe();
        tokio::select! {
            biased;
            _ = closing.wait_for(|closed| *closed) => {}
            connection = self.ready.recv() => {
                if let Some(connection) = connection {
                    return Some(Arc::new(connection));
                }
            }
        }
        // Those that wait are closed as they are dropped.
        self.ready.close();
        while self.ready.try_recv().is_ok() {}
        None
    }

    fn close(&self) {
        self.closed.send_replace(true);
    }
}

impl Drop for QuicListener {
    fn drop(&mut self) {
        self.close();
    }
}

/// Ends when the endpoint does.
async fn refuse_all(endpoint: &Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        incoming.refuse();
    }
}

/// Runs the handshakes, many at a time.
struct Acceptor {
    endpoint: Endpoint,
    places: Arc<Semaphore>,
    settings: QuicSettings,
    to_ready: mpsc::Sender<QuicConnection>,
}

impl Acceptor {
    async fn run(self) {
        // Dropped with this future, which ends them.
        let mut handshakes = JoinSet::new();
        loop {
            tokio::select! {
                incoming = self.endpoint.accept() => match incoming {
                    Some(incoming) => self.admit(incoming, &mut handshakes),
                    None => return,
                },
                Some(_) = handshakes.join_next() => {}
            }
        }
    }

    fn admit(&self, incoming: Incoming, handshakes: &mut JoinSet<()>) {
        let from = incoming.remote_address();
        if handshakes.len() >= HANDSHAKES_UNCHECKED_MAX && incoming.may_retry() {
            // Fails only where there may be no retry.
            let _ = incoming.retry();
            return;
        }
        let place = Arc::clone(&self.places).try_acquire_owned();
        let Some(place) = place.ok().filter(|_| handshakes.len() < HANDSHAKES_MAX) else {
            tracing::debug!(%from, "a connection was refused: there are as many as allowed");
            incoming.refuse();
            return;
        };
        let handshake = shake_hands(incoming, place, self.settings.clone(), self.to_ready.clone());
        handshakes.spawn(handshake);
    }
}

async fn shake_hands(
    incoming: Incoming,
    place: OwnedSemaphorePermit,
    settings: QuicSettings,
    to_ready: mpsc::Sender<QuicConnection>,
) {
    let from = incoming.remote_address();
    let connection = match timeout(settings.handshake_timeout, async { incoming.accept()?.await }).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            tracing::debug!(%from, %error, "a handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!(%from, "a handshake took too long");
            return;
        }
    };
    let Some(peer) = handshake::peer(&connection) else {
        tracing::debug!(%from, "a peer did not offer stentor/1");
        return;
    };
    // An error says that the listener has closed, and the connection closes with it.
    let _ = to_ready.send(QuicConnection::new(connection, peer, &settings, Some(place))).await;
}

fn server_config(config: &ServerConfig) -> Result<quinn::ServerConfig, TransportError> {
    let mut server = quinn::ServerConfig::with_crypto(tls::server(&config.tls)?);
    server
        .transport_config(config.quic.transport())
        .max_incoming(HANDSHAKES_MAX)
        .incoming_buffer_size(INCOMING_BYTES_MAX)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL_MAX);
    Ok(server)
}

async fn bind(config: &ServerConfig, server: quinn::ServerConfig) -> io::Result<Endpoint> {
    let mut addresses = tokio::net::lookup_host(&config.listen).await?;
    let address = addresses.next().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))?;
    let socket = socket::bind(address, config.quic.socket_buffer_bytes)?;
    let mut endpoint = config.quic.endpoint();
    if let Some(key) = &config.reset_key {
        key.set(&mut endpoint);
    }
    Endpoint::new(endpoint, Some(server), socket, Arc::new(config.quic.sockets()))
}
