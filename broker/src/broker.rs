//! The broker as the process sees it: start, serve, ask, shut down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, join_all, select};
use prometheus_client::registry::Registry;
use stentor_core::storage::{Storage, StorageError};
use stentor_core::transport::Listener;
use stentor_core::{Clock, Monotonic};
use stentor_protocol::wire;
use thiserror::Error;

use crate::config::{BrokerConfig, ConfigError};
use crate::metrics::Gauges;
use crate::node::{Node, Phase};
use crate::settings::StorageKind;
use crate::{admin, catalogue, session};

/// How long it takes at most to cut off a connection.
const CUT_OFF_MAX: Duration = Duration::from_secs(5);

/// What a broker is made of.
pub struct BrokerParts {
    /// What it is to do.
    pub config: BrokerConfig,
    /// The backends there are. The broker does not close them.
    pub storages: BTreeMap<StorageKind, Arc<dyn Storage>>,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Where chance comes from.
    pub seed: u64,
    /// What the process uses, when asked.
    pub process: Arc<dyn Fn() -> ProcessStats + Send + Sync>,
}

/// What the process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessStats {
    /// User and system time since its start.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub rss_bytes: u64,
}

/// Why a broker cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A topic is kept by a backend that this node does not have.
    #[error("topic `{topic}` is kept by storage `{storage}`, which this node does not have")]
    StorageMissing {
        /// The topic.
        topic: String,
        /// The backend.
        storage: StorageKind,
    },
    /// The catalogue of topics does not make sense.
    #[error("the catalogue of topics is damaged: {0}")]
    Catalogue(String),
    /// A topic that exists, or that the configuration names, cannot be brought up.
    #[error("topic `{topic}`: {error}")]
    Topic {
        /// The topic.
        topic: String,
        /// What stands in the way.
        error: String,
    },
    /// A backend cannot be read or written.
    #[error("{context}: {source}")]
    Storage {
        /// What was being done.
        context: String,
        /// What went wrong.
        source: StorageError,
    },
}

/// A running broker. Clones are handles on the same one.
#[derive(Clone)]
pub struct Broker {
    node: Arc<Node>,
}

impl Broker {
    /// Reads the catalogue, opens every partition and recovers what the groups were doing. When this returns the broker
    /// is ready to serve.
    ///
    /// # Errors
    /// See [`StartError`]. A single damaged partition does not keep a broker from starting; it is shown as failed.
    pub async fn start(parts: BrokerParts) -> Result<Self, StartError> {
        parts.config.validate()?;
        let (store, contents) = catalogue::Store::open(&parts.storages).await?;
        let (handle, operations) = catalogue::channel();
        let node = Arc::new(Node::new(parts, handle));
        match catalogue::start(Arc::clone(&node), store, contents).await {
            Ok(catalogue) => {
                node.catalogue_tasks.spawn(catalogue.run(operations));
                Ok(Self { node })
            }
            Err(error) => {
                // Those partitions that were opened already have tasks.
                close_partitions(&node).await;
                Err(error)
            }
        }
    }

    /// Whether a storage has ended writing after a failed sync: nothing can be published there until the node is started anew.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.node.storages.values().any(|storage| storage.usage().poisoned)
    }

    /// Takes connections from `listener` until it closes or the broker shuts down. May be called for several listeners.
    pub fn serve(&self, listener: Box<dyn Listener>) {
        self.node.session_tasks.spawn(session::accept(Arc::clone(&self.node), listener));
    }

    /// Answers an administrative request as it would on a control stream: the response, and the body of its frame.
    pub async fn request(&self, kind: wire::request::Kind) -> (wire::response::Kind, Bytes) {
        admin::answer(&self.node, kind).await
    }

    /// Adds the broker's metrics to `registry`, under names without the `stentor` prefix: give a registry that has it.
    pub fn register_metrics(&self, registry: &mut Registry) {
        self.node.metrics.register(registry);
        registry.register_collector(Box::new(Gauges::new(Arc::downgrade(&self.node))));
    }

    /// Stops taking connections and publishes, tells clients to go elsewhere, answers what is under way, makes the
    /// groups' progress durable and joins every task; whatever has not ended by itself after `deadline` is cut off.
    /// The storages stay open. A second call waits for nothing.
    pub async fn shutdown(&self, deadline: Duration) {
        let node = &self.node;
        node.phase.send_if_modified(|phase| {
            let running = *phase == Phase::Running;
            *phase = (*phase).max(Phase::Draining);
            running
        });
        let cut_off = node.clock.monotonic().after(deadline);
        if !joined_by(node, cut_off).await {
            tracing::warn!("some connections did not end by themselves and are cut off");
            node.phase.send_replace(Phase::Closing);
            if !joined_by(node, cut_off.after(CUT_OFF_MAX)).await {
                tracing::error!("some connections cannot be ended and are dropped as they stand");
                node.session_tasks.abort();
                node.session_tasks.join().await;
            }
        }
        node.catalogue.shut_down().await;
        node.catalogue_tasks.join().await;
        close_partitions(node).await;
    }
}

/// Waits until every session has ended; says whether they did in time.
async fn joined_by(node: &Node, at: Monotonic) -> bool {
    let joined = Box::pin(node.session_tasks.join());
    matches!(select(joined, node.clock.sleep_until(at)).await, Either::Left(_))
}

/// Ends every partition: what they know is durable afterwards.
async fn close_partitions(node: &Node) {
    let topics = node.topics();
    join_all(topics.iter().flat_map(|topic| topic.partitions()).map(|partition| partition.shut_down())).await;
    node.partition_tasks.join().await;
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Broker").finish_non_exhaustive()
    }
}
