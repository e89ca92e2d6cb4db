//! Making connections.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use quinn::{ConnectError, ConnectionError, Endpoint, EndpointConfig};
use stentor_core::transport::{Connection, Transport, TransportError};
use tokio::time::timeout;

use crate::connection::QuicConnection;
use crate::settings::QuicSettings;
use crate::tls::{ClientTls, Stamps};
use crate::{address, error, handshake, socket, tls};

/// How a client connects.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Its certificate files. Read again by a connect that finds them changed.
    pub tls: ClientTls,
    /// What the server's certificate has to name, where that is not the host of the address.
    pub server_name: Option<String>,
    /// How QUIC is set.
    pub quic: QuicSettings,
}

/// Connects over QUIC. All connections share one socket per address family.
pub struct QuicTransport {
    config: ClientConfig,
    endpoint_config: EndpointConfig,
    transport_config: Arc<quinn::TransportConfig>,
    state: Mutex<State>,
}

struct State {
    tls: quinn::ClientConfig,
    stamps: Stamps,
    /// Bound when first needed.
    ipv4: Option<Endpoint>,
    ipv6: Option<Endpoint>,
}

impl QuicTransport {
    /// Reads the certificate files. Connects nowhere yet.
    ///
    /// # Errors
    /// [`Tls`](TransportError::Tls) or [`Settings`](TransportError::Settings), saying what to change.
    pub fn new(config: ClientConfig) -> Result<Self, TransportError> {
        config.quic.check()?;
        let stamps = Stamps::of(&config.tls.paths());
        let transport_config = config.quic.transport();
        let tls = client_config(&config.tls, &transport_config)?;
        let state = Mutex::new(State { tls, stamps, ipv4: None, ipv6: None });
        Ok(Self { endpoint_config: config.quic.endpoint(), transport_config, config, state })
    }

    /// Returns once every connection has said its farewell, or given up on it. Before that the end of the process would
    /// leave peers to find out by their idle time.
    pub async fn idle(&self) {
        let endpoints = {
            let state = self.lock();
            [state.ipv4.clone(), state.ipv6.clone()]
        };
        for endpoint in endpoints.into_iter().flatten() {
            endpoint.wait_idle().await;
        }
    }

    /// The endpoint for such an address, and the TLS that is in force.
    fn endpoint(&self, remote: SocketAddr) -> std::io::Result<(Endpoint, quinn::ClientConfig)> {
        let mut state = self.lock();
        let tls = state.tls.clone();
        let (slot, local) = if remote.is_ipv6() {
            (&mut state.ipv6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)))
        } else {
            (&mut state.ipv4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))
        };
        if let Some(endpoint) = slot {
            return Ok((endpoint.clone(), tls));
        }
        let socket = socket::bind(local, self.config.quic.socket_buffer_bytes)?;
        let sockets = Arc::new(self.config.quic.sockets());
        let endpoint = Endpoint::new(self.endpoint_config.clone(), None, socket, sockets)?;
        Ok((slot.insert(endpoint).clone(), tls))
    }

    /// Takes up certificates that have changed. Bad ones are logged, once, and the old ones stay.
    async fn refresh(&self) {
        let paths = self.config.tls.paths();
        // Off the runtime's threads: a file system may hang.
        let Ok(stamps) = tokio::task::spawn_blocking(move || Stamps::of(&paths)).await else { return };
        if self.lock().stamps == stamps {
            return;
        }
        let (files, transport) = (self.config.tls.clone(), Arc::clone(&self.transport_config));
        let Ok(loaded) = tokio::task::spawn_blocking(move || client_config(&files, &transport)).await else { return };
        let mut state = self.lock();
        state.stamps = stamps;
        match loaded {
            Ok(tls) => state.tls = tls,
            Err(error) => tracing::warn!(%error, "the certificates have changed and do not do; the old ones stay"),
        }
    }

    async fn connect_to(&self, remote: SocketAddr, address: &str) -> Result<Arc<dyn Connection>, TransportError> {
        let refused = |reason: String| TransportError::Connect { address: address.to_owned(), reason };
        let (endpoint, tls) = self.endpoint(remote).map_err(|error| refused(error.to_string()))?;
        let name = self.config.server_name.as_deref().unwrap_or_else(|| address::host(address));
        let connecting = endpoint.connect_with(tls, remote, name).map_err(|error| match error {
            ConnectError::InvalidServerName(name) => {
                TransportError::Tls(format!("{name:?} is no name that a certificate could carry; set `server_name`"))
            }
            other => refused(other.to_string()),
        })?;
        let connection = connecting.await.map_err(|error| match error {
            ConnectionError::TimedOut => refused("it does not answer".to_owned()),
            // In a handshake that is how a listener says that it is full.
            ConnectionError::ConnectionClosed(close)
                if close.error_code == quinn::TransportErrorCode::CONNECTION_REFUSED =>
            {
                refused("it takes no more connections".to_owned())
            }
            other => match error::connection(other) {
                tls @ TransportError::Tls(_) => tls,
                other => refused(other.to_string()),
            },
        })?;
        let peer = handshake::peer(&connection).ok_or_else(|| {
            TransportError::Tls(format!("{address} does not speak stentor/1; check the address and the versions"))
        })?;
        Ok(Arc::new(QuicConnection::new(connection, peer, &self.config.quic, None)))
    }

    async fn connect_to_any(&self, address: &str) -> Result<Arc<dyn Connection>, TransportError> {
        let mut last = None;
        for remote in address::resolve(address).await? {
            match self.connect_to(remote, address).await {
                // Another address of the same name may do.
                Err(error @ TransportError::Connect { .. }) => last = Some(error),
                done => return done,
            }
        }
        // `resolve` gave at least one.
        Err(last.unwrap_or(TransportError::ConnectionClosed(None)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Held for a few instructions that cannot panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Transport for QuicTransport {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Connection>, TransportError> {
        self.refresh().await;
        timeout(self.config.quic.handshake_timeout, self.connect_to_any(address)).await.unwrap_or_else(|_| {
            Err(TransportError::Connect { address: address.to_owned(), reason: "it does not answer".to_owned() })
        })
    }
}

fn client_config(
    files: &ClientTls,
    transport: &Arc<quinn::TransportConfig>,
) -> Result<quinn::ClientConfig, TransportError> {
    let mut config = quinn::ClientConfig::new(tls::client(files)?);
    config.transport_config(Arc::clone(transport));
    Ok(config)
}
