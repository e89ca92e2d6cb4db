//! The wiring of a node, from configuration to `ready` and back.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use stentor_broker::{Broker, BrokerParts, StartError, StorageKind};
use stentor_core::Clock;
use stentor_core::clock::SystemClock;
use stentor_core::limits::{BATCH_BYTES_SLACK, MESSAGE_BYTES_MAX_CEILING};
use stentor_core::storage::Storage;
use stentor_core::transport::{Listener, TransportError};
use stentor_transport_quic::{QuicListener, QuicSettings, ResetKey, ServerConfig, ServerTls};

use super::admin::Admin;
use super::ready::Ready;
use super::signals::Signals;
use super::{data_dir, logging, process_stats, reset_key, storages};
use crate::config::{Config, Tls};
use crate::output::{Failure, say};

/// How often certificate files are looked at for changes.
const TLS_RELOAD_EVERY: Duration = Duration::from_secs(10);

/// How long closed connections may take to say their farewell.
const FAREWELL: Duration = Duration::from_secs(1);

/// What the streams of one connection may leave unread in this process, all together.
const CONNECTION_WINDOW_BYTES_MAX: u32 = 256 << 20;

/// What one stream may leave unread at most; larger windows gained nothing on loopback.
const STREAM_WINDOW_BYTES_MAX: u32 = 1 << 20;

/// And at least, or a frame would need a round trip for each few packets.
const STREAM_WINDOW_BYTES_MIN: u32 = 64 << 10;

/// What a node is started with.
pub(crate) struct Plan {
    /// What it is to do.
    pub(crate) config: Config,
    /// How it proves who it is.
    pub(crate) tls: Tls,
    /// Whether it ends when standard input closes, besides by signals.
    pub(crate) with_parent: bool,
}

/// Runs a node until a signal ends it. `on_ready` is called once, when it serves.
///
/// # Errors
/// When it cannot start, or what it took could not be made durable on the way down.
pub(crate) async fn run(plan: Plan, on_ready: impl FnOnce(&Ready) -> Result<(), Failure>) -> Result<(), Failure> {
    logging::start(&plan.config.log);
    let mut signals =
        Signals::new(plan.with_parent).map_err(|error| Failure::io("cannot listen for signals", &error))?;
    let node = tokio::select! {
        node = Node::start(&plan) => node?,
        signal = signals.next() => {
            tracing::info!(signal, "asked to stop before the node was ready");
            return Ok(());
        }
    };
    let ready = node.ready();
    tracing::info!(quic = ready.quic, admin = ready.admin, data_dir = %ready.data_dir.display(), "ready");
    if let Err(failure) = on_ready(&ready) {
        node.stop(Duration::ZERO).await?;
        return Err(failure);
    }

    let signal = signals.next().await;
    let deadline = plan.config.drain_timeout;
    tracing::info!(signal, deadline_seconds = deadline.as_secs_f64(), "draining; a second signal ends at once");
    // A task of its own, on a thread of its own: whatever the way down is busy with, the second signal is heard.
    let impatience = tokio::spawn(async move {
        let signal = signals.next().await;
        say(&format!("stentor: {signal} while draining: ended at once; what was acknowledged is safe"));
        std::process::exit(1);
    });
    let stopped = node.stop(deadline).await;
    impatience.abort();
    stopped?;
    tracing::info!("stopped");
    Ok(())
}

/// Returns once every connection has ended and said so.
type Idle = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A node that serves.
struct Node {
    broker: Broker,
    storages: BTreeMap<StorageKind, Arc<dyn Storage>>,
    admin: Admin,
    quic: String,
    idle: Idle,
    data_dir: PathBuf,
}

impl Node {
    async fn start(plan: &Plan) -> Result<Self, Failure> {
        let config = &plan.config;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        data_dir::prepare(&config.data_dir)?;
        let admin = Admin::start(&config.listen.admin).await?;
        let reset_key = reset_key::prepare(&config.data_dir)?;
        let server = server_config(plan, reset_key);
        let listener = QuicListener::bind(server, Arc::clone(&clock)).await.map_err(refused)?;
        let (quic, idle) = (listener.local_address(), Box::pin(listener.idle()));

        let seed = seed();
        let storages = storages::open(config, seed).await?;
        let parts = BrokerParts {
            config: config.broker.clone(),
            storages: storages.clone(),
            clock,
            seed,
            process: Arc::new(process_stats),
        };
        let broker = Broker::start(parts).await.map_err(not_started)?;
        broker.serve(Box::new(listener));
        admin.ready(&broker);
        Ok(Self { broker, storages, admin, quic, idle, data_dir: config.data_dir.clone() })
    }

    fn ready(&self) -> Ready {
        Ready {
            ready: true,
            quic: self.quic.clone(),
            admin: self.admin.address().to_owned(),
            data_dir: self.data_dir.clone(),
        }
    }

    /// Takes nothing new, finishes what is in flight until the deadline, and closes everything.
    async fn stop(self, deadline: Duration) -> Result<(), Failure> {
        self.admin.draining();
        self.broker.shutdown(deadline).await;
        // Whoever does not hear the farewell finds out by the idle time, or from the next process on this folder.
        let _ = tokio::time::timeout(FAREWELL, self.idle).await;
        let closed = storages::close(&self.storages).await;
        self.admin.stop().await;
        closed
    }
}

fn server_config(plan: &Plan, reset_key: ResetKey) -> ServerConfig {
    let (config, node) = (&plan.config, &plan.config.broker.node);
    let streams = node.streams_per_connection_max;
    let window = (CONNECTION_WINDOW_BYTES_MAX / streams.max(1)).clamp(STREAM_WINDOW_BYTES_MIN, STREAM_WINDOW_BYTES_MAX);
    ServerConfig {
        listen: config.listen.quic.clone(),
        tls: ServerTls {
            cert: plan.tls.cert.clone(),
            key: plan.tls.key.clone(),
            client_ca: plan.tls.client_ca.clone(),
        },
        tls_reload_every: TLS_RELOAD_EVERY,
        connections_max: node.connections_max as usize,
        quic: QuicSettings {
            // What a topic may be set to take at most; what this one takes is the broker's to check. Memory for a frame
            // grows only with what of it has arrived.
            frame_body_bytes_max: MESSAGE_BYTES_MAX_CEILING + BATCH_BYTES_SLACK,
            idle_timeout: node.idle_timeout,
            handshake_timeout: node.handshake_timeout,
            streams_per_connection_max: streams,
            stream_receive_window: window,
            ..QuicSettings::default()
        },
        reset_key: Some(reset_key),
    }
}

/// Chance in the engine comes from one seed, and that from the machine.
#[expect(clippy::disallowed_methods, reason = "the one place where a real node gets its seed")]
fn seed() -> u64 {
    fastrand::Rng::new().u64(..)
}

fn refused(error: TransportError) -> Failure {
    match &error {
        TransportError::Tls(_) => Failure::new("certificate", error.to_string())
            .hint("check tls.cert, tls.key and tls.client_ca; `stentor dev` makes certificates of its own"),
        TransportError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            Failure::new("address_in_use", error.to_string())
                .hint("stop the other process, or choose another port as listen.quic (0 picks a free one)")
        }
        TransportError::Listen { .. } => {
            Failure::new("io", error.to_string()).hint("listen.quic takes HOST:PORT with an address of this machine")
        }
        _ => Failure::new("config", error.to_string()),
    }
}

fn not_started(error: StartError) -> Failure {
    match &error {
        StartError::Config(_) => Failure::new("config", error.to_string()),
        StartError::StorageMissing { .. } => {
            Failure::new("config", error.to_string()).hint("choose memory or lsm as its storage")
        }
        StartError::Catalogue(_) => Failure::new("data_dir", error.to_string())
            .hint("`stentor verify` on the data folder says more; restore it from a copy"),
        StartError::Topic { .. } | StartError::Storage { .. } => {
            Failure::new("data_dir", error.to_string()).hint("`stentor verify` on the data folder says what is damaged")
        }
    }
}
