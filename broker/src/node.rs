//! What the parts of a running broker share.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use stentor_core::storage::Storage;
use stentor_core::{Clock, Monotonic, TopicName};
use stentor_protocol::wire;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::broker::{BrokerParts, ProcessStats};
use crate::catalogue;
use crate::config::BrokerConfig;
use crate::error::{invalid_name, topic_not_found};
use crate::group::ConsumerId;
use crate::metrics::Metrics;
use crate::settings::StorageKind;
use crate::tasks::Tasks;
use crate::topic::Topic;

/// The unit in which in-flight bytes are counted, so that any bound fits a semaphore.
const ROOM_UNIT: u64 = 1 << 10;

/// The share of the node's in-flight bytes that one connection may take: one of so many parts.
const CONNECTION_SHARE: u64 = 4;

/// How far along the node is on its way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Running,
    /// Clients are told to go; what is under way is finished.
    Draining,
    /// Whoever is still there is cut off.
    Closing,
}

/// See the module.
pub(crate) struct Node {
    pub(crate) config: BrokerConfig,
    pub(crate) storages: BTreeMap<StorageKind, Arc<dyn Storage>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) process: Arc<dyn Fn() -> ProcessStats + Send + Sync>,
    pub(crate) metrics: Metrics,
    pub(crate) catalogue: catalogue::Handle,
    /// What the tails of all partitions hold.
    pub(crate) tail_bytes: Arc<AtomicUsize>,
    pub(crate) phase: watch::Sender<Phase>,
    /// Counts the changes of routes, so that sessions look whether one of theirs is among them.
    pub(crate) route_changes: watch::Sender<u64>,
    pub(crate) session_tasks: Tasks,
    pub(crate) partition_tasks: Tasks,
    pub(crate) catalogue_tasks: Tasks,
    pub(crate) started: Monotonic,
    in_flight: Room,
    // Read by every request, written when topics come and go; never held across an await.
    topics: RwLock<BTreeMap<TopicName, Arc<Topic>>>,
    // Only to seed the generators of partitions.
    rng: Mutex<fastrand::Rng>,
    consumers: AtomicU64,
    connections: AtomicU64,
}

impl Node {
    pub(crate) fn new(parts: BrokerParts, catalogue: catalogue::Handle) -> Self {
        let BrokerParts { config, storages, clock, seed, process } = parts;
        Self {
            in_flight: Room::new(config.node.in_flight_bytes_max.0),
            started: clock.monotonic(),
            config,
            storages,
            clock,
            process,
            metrics: Metrics::default(),
            catalogue,
            tail_bytes: Arc::default(),
            phase: watch::Sender::new(Phase::Running),
            route_changes: watch::Sender::new(0),
            session_tasks: Tasks::default(),
            partition_tasks: Tasks::default(),
            catalogue_tasks: Tasks::default(),
            topics: RwLock::default(),
            rng: Mutex::new(fastrand::Rng::with_seed(seed)),
            consumers: AtomicU64::new(1),
            connections: AtomicU64::new(0),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// A generator of its own for whoever needs one.
    pub(crate) fn rng(&self) -> fastrand::Rng {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).fork()
    }

    pub(crate) fn next_consumer(&self) -> ConsumerId {
        ConsumerId(self.consumers.fetch_add(1, Ordering::Relaxed))
    }

    /// Every topic, by name.
    pub(crate) fn topics(&self) -> Vec<Arc<Topic>> {
        self.topics.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The topics behind `after`, by name; all of them without.
    pub(crate) fn topics_after(&self, after: Option<&TopicName>) -> Vec<Arc<Topic>> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        topics.range::<TopicName, _>((start, Bound::Unbounded)).map(|(_, topic)| Arc::clone(topic)).collect()
    }

    pub(crate) fn topic(&self, name: &str) -> Result<Arc<Topic>, wire::Error> {
        let topics = self.topics.read().unwrap_or_else(PoisonError::into_inner);
        topics.get(name).cloned().ok_or_else(|| topic_not_found(name))
    }

    pub(crate) fn put_topic(&self, topic: Arc<Topic>) {
        self.topics.write().unwrap_or_else(PoisonError::into_inner).insert(topic.name.clone(), topic);
    }

    pub(crate) fn remove_topic(&self, name: &str) -> Option<Arc<Topic>> {
        self.topics.write().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    /// The topic; where the configuration says so it is created when it is missing.
    pub(crate) async fn topic_or_create(&self, name: &str) -> Result<Arc<Topic>, wire::Error> {
        match self.topic(name) {
            Err(_) if self.config.auto_create => {
                let name = TopicName::new(name).map_err(|error| invalid_name(&error))?;
                self.catalogue.ensure_topic(name).await
            }
            found => {
                // A name that no topic can have deserves to be told so.
                if found.is_err() {
                    TopicName::new(name).map_err(|error| invalid_name(&error))?;
                }
                found
            }
        }
    }

    /// How many bytes one connection may have in flight.
    pub(crate) fn connection_bytes_max(&self) -> u64 {
        (self.config.node.in_flight_bytes_max.0 / CONNECTION_SHARE).max(ROOM_UNIT)
    }

    /// The in-flight bytes of the whole node.
    pub(crate) fn in_flight(&self) -> &Room {
        &self.in_flight
    }

    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// A place for one more connection, if there is one.
    pub(crate) fn connect(self: &Arc<Self>) -> Option<ConnectionPlace> {
        let place = ConnectionPlace(Arc::clone(self));
        let before = self.connections.fetch_add(1, Ordering::Relaxed);
        (before < u64::from(self.config.node.connections_max)).then_some(place)
    }
}

/// A connection's place among those that the node takes.
pub(crate) struct ConnectionPlace(Arc<Node>);

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Room for so many bytes. First come, first served.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    units: Arc<Semaphore>,
    units_max: u32,
}

impl Room {
    pub(crate) fn new(bytes: u64) -> Self {
        let units_max = u32::try_from(bytes / ROOM_UNIT).unwrap_or(u32::MAX).clamp(1, u32::MAX >> 4);
        Self { units: Arc::new(Semaphore::new(units_max as usize)), units_max }
    }

    /// Waits for room for `bytes`; what is larger than all of it passes alone. None when the node is gone.
    pub(crate) async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from((bytes as u64).div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX).clamp(1, self.units_max);
        Arc::clone(&self.units).acquire_many_owned(units).await.ok()
    }

    /// Waits until there is any room at all, without taking it.
    pub(crate) async fn any(&self) {
        // The permit goes back at once.
        let _ = self.units.acquire().await;
    }
}
