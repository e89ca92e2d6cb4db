//! The client, and how it is built.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stentor_core::Clock;
use stentor_core::clock::SystemClock;
use stentor_core::transport::Transport;
use stentor_protocol::wire::Welcome;

use crate::admin::Admin;
use crate::consumer::ConsumerBuilder;
use crate::error::{ConnectError, OpenError};
use crate::link::{Link, LinkParts};
use crate::producer::ProducerBuilder;
use crate::profile::Profile;

/// How long a connection may take, unless the builder says otherwise: name, TLS and handshake together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a request waits for its answer, unless the builder says otherwise.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// A connection to the brokers, and the way to everything else. Clones share it; it is cheap to clone.
///
/// When the connection is lost it is made again by itself, and producers and consumers go on where they were. It ends
/// with [`close`](Self::close), or when the last clone, producer and consumer is dropped.
#[derive(Clone)]
pub struct Client {
    link: Link,
    ending: Ending,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Begins to connect to `address` (`HOST:PORT`).
    pub fn connect(address: impl Into<String>) -> ConnectBuilder {
        ConnectBuilder::new(vec![address.into()])
    }

    /// Begins to connect to the servers that the profile at `path` lists.
    pub fn from_profile(path: impl Into<PathBuf>) -> ConnectBuilder {
        ConnectBuilder::new(Vec::new()).profile(path)
    }

    /// A producer for `topic`; goes on with the builder's [`open`](ProducerBuilder::open).
    pub fn producer(&self, topic: impl AsRef<str>) -> ProducerBuilder {
        ProducerBuilder::new(self.link.clone(), topic.as_ref())
    }

    /// A consumer of `group` on `topic`; goes on with the builder's [`open`](ConsumerBuilder::open).
    pub fn consumer(&self, topic: impl AsRef<str>, group: impl AsRef<str>) -> ConsumerBuilder {
        ConsumerBuilder::new(self.link.clone(), topic.as_ref(), group.as_ref())
    }

    /// Requests about topics, groups, dead letters and nodes.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.link.clone())
    }

    /// What the broker said when it took the connection. Waits for a connection if there is none.
    ///
    /// # Errors
    /// When there is none in time, or the client has been closed.
    pub async fn broker(&self) -> Result<Welcome, OpenError> {
        Ok(self.link.live_to_open().await?.welcome.clone())
    }

    /// Ends the connection, and returns when it has ended and the broker has been told. Producers and consumers that are
    /// still open end with it, so close them first.
    pub async fn close(self) {
        self.link.close().await;
        self.ending.wait().await;
    }
}

/// How a [`Client`] connects.
#[must_use = "nothing happens before `open`"]
pub struct ConnectBuilder {
    servers: Vec<String>,
    profile: Option<PathBuf>,
    ca: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
    transport: Option<Arc<dyn Transport>>,
    clock: Arc<dyn Clock>,
    seed: Option<u64>,
    connect_timeout: Duration,
    request_timeout: Duration,
}

impl ConnectBuilder {
    fn new(servers: Vec<String>) -> Self {
        Self {
            servers,
            profile: None,
            ca: None,
            certificate: None,
            transport: None,
            clock: Arc::new(SystemClock::new()),
            seed: None,
            connect_timeout: CONNECT_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
        }
    }

    /// Reads certificates, and servers if no address was given, from a `client.toml`; see [`Profile`].
    pub fn profile(mut self, path: impl Into<PathBuf>) -> Self {
        self.profile = Some(path.into());
        self
    }

    /// Adds a server to be tried when the ones before it cannot be reached.
    pub fn server(mut self, address: impl Into<String>) -> Self {
        self.servers.push(address.into());
        self
    }

    /// The certificate (PEM) of the authority that the brokers' certificates are signed by. Goes before the profile's.
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// The client's own certificate and key (PEM). Goes before the profile's.
    pub fn certificate(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.certificate = Some((cert.into(), key.into()));
        self
    }

    /// Connects over this instead of QUIC. Certificates are then the transport's own affair.
    pub fn transport(mut self, transport: Arc<dyn Transport>) -> Self {
        self.transport = Some(transport);
        self
    }

    /// Takes the time from this clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Takes all randomness (message ids, producer ids, jitter) from this seed. Two clients of one broker must not have
    /// the same, since they would be taken for the same producers. Without it the operating system provides one.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How long a try to connect may take; 10 s unless set.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long a request, also one that opens a producer or a consumer, waits for its answer; 15 s unless set.
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Connects: each server gets one try.
    ///
    /// # Errors
    /// When the profile or the certificates do not do, or no server could be connected to.
    pub async fn open(mut self) -> Result<Client, ConnectError> {
        if let Some(path) = self.profile.take() {
            let profile = Profile::read(&path)?;
            if self.servers.is_empty() {
                self.servers = profile.servers;
            }
            self.ca.get_or_insert(profile.ca);
            self.certificate = self.certificate.or(profile.cert.zip(profile.key));
        }
        if self.servers.is_empty() {
            return Err(ConnectError::NoServer);
        }
        let (transport, ending) = match self.transport {
            Some(transport) => (transport, Ending::default()),
            None => over_quic(self.ca, self.certificate, self.connect_timeout)?,
        };
        let parts = LinkParts {
            servers: self.servers,
            transport,
            clock: self.clock,
            connect_timeout: self.connect_timeout,
            request_timeout: self.request_timeout,
            seed: self.seed.unwrap_or_else(seed_of_the_system),
        };
        Ok(Client { link: Link::open(parts).await?, ending })
    }
}

impl fmt::Debug for ConnectBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectBuilder")
            .field("servers", &self.servers)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

/// 64 bits from the operating system, through the one door to it that the standard library has.
fn seed_of_the_system() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// What is waited for so that the farewell leaves the machine before the process ends.
#[derive(Clone, Default)]
struct Ending {
    #[cfg(feature = "quic")]
    quic: Option<Arc<stentor_transport_quic::QuicTransport>>,
}

impl Ending {
    #[cfg(feature = "quic")]
    async fn wait(&self) {
        if let Some(quic) = &self.quic {
            quic.idle().await;
        }
    }

    #[cfg(not(feature = "quic"))]
    async fn wait(&self) {}
}

#[cfg(feature = "quic")]
fn over_quic(
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    handshake_timeout: Duration,
) -> Result<(Arc<dyn Transport>, Ending), ConnectError> {
    use stentor_core::limits::{BATCH_BYTES_SLACK, MESSAGE_BYTES_MAX_CEILING};
    use stentor_transport_quic::{ClientConfig, ClientTls, QuicSettings, QuicTransport};

    let ca = ca.ok_or(ConnectError::NoTransport("QUIC needs the certificate of an authority (`ca`)"))?;
    let quic = QuicSettings {
        // Whatever a topic may allow must come through. Memory for a frame grows only with what of it has arrived.
        frame_body_bytes_max: MESSAGE_BYTES_MAX_CEILING + BATCH_BYTES_SLACK,
        handshake_timeout,
        ..QuicSettings::default()
    };
    let config = ClientConfig { tls: ClientTls { ca, identity }, server_name: None, quic };
    let quic = Arc::new(QuicTransport::new(config)?);
    Ok((Arc::clone(&quic) as Arc<dyn Transport>, Ending { quic: Some(quic) }))
}

#[cfg(not(feature = "quic"))]
fn over_quic(
    _: Option<PathBuf>,
    _: Option<(PathBuf, PathBuf)>,
    _: Duration,
) -> Result<(Arc<dyn Transport>, Ending), ConnectError> {
    Err(ConnectError::NoTransport("this build has no QUIC (feature `quic`), so it needs a transport"))
}
