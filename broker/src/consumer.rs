//! A consumer as the partitions see it: where deliveries go, and how many it takes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use stentor_core::{PartitionIndex, RecordBatch};
use stentor_protocol::wire;
use tokio::sync::{Notify, mpsc};

use crate::credit::Credit;
use crate::group::{ConsumerId, Leased};
use crate::partition::Partition;

/// How many deliveries wait for the stream of a consumer. Beyond it the partitions skip the consumer until there is
/// room; each holds a batch that the tail or a read-ahead holds as well.
pub(crate) const DELIVERIES_WAITING_MAX: usize = 64;

/// A batch of which some messages were leased.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) partition: PartitionIndex,
    pub(crate) batch: RecordBatch,
    pub(crate) leased: Vec<Leased>,
    /// The bytes that were charged to the credit for it.
    pub(crate) charged: u64,
}

/// A consumer of a group. Shared by its session and the partitions of its topic.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) id: ConsumerId,
    /// What people call it.
    pub(crate) name: String,
    pub(crate) credit: Credit,
    pub(crate) deliveries: mpsc::Sender<Delivery>,
    /// Those of its topic.
    partitions: Arc<[Arc<Partition>]>,
    departure: AtomicU8,
    /// Where the group has stopped, to be told: one for each partition at most, so that no partition has to wait to say it.
    /// Held for one operation, never across an await.
    stops: Mutex<BTreeMap<u32, wire::PartitionStopped>>,
    stop: Notify,
}

/// How a consumer has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// In good order: what it held was not looked at.
    Released,
    /// It is gone: what it held may have been worked on.
    Lost,
}

const PRESENT: u8 = 0;
const RELEASED: u8 = 1;
const LOST: u8 = 2;

impl Consumer {
    pub(crate) fn new(
        id: ConsumerId,
        name: String,
        deliveries: mpsc::Sender<Delivery>,
        partitions: Arc<[Arc<Partition>]>,
    ) -> Self {
        let departure = AtomicU8::new(PRESENT);
        let credit = Credit::default();
        Self { id, name, credit, deliveries, partitions, departure, stops: Mutex::default(), stop: Notify::new() }
    }

    /// Whether another delivery fits its queue; when not, whoever asked is woken once one has left.
    pub(crate) fn has_room(&self) -> bool {
        if self.deliveries.capacity() > 0 {
            return true;
        }
        self.credit.starve();
        // The queue may have been emptied before that was noted.
        self.deliveries.capacity() > 0
    }

    /// Has the partitions look again whether they can serve it.
    pub(crate) fn wake_partitions(&self) {
        for partition in &*self.partitions {
            partition.wake();
        }
    }

    /// Has the consumer told that its group has stopped on a partition.
    pub(crate) fn stopped(&self, stop: wire::PartitionStopped) {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner).insert(stop.partition, stop);
        self.stop.notify_one();
    }

    /// Where its group has stopped since this was last asked; waits until it has. Cancel safe.
    pub(crate) async fn stops(&self) -> BTreeMap<u32, wire::PartitionStopped> {
        loop {
            let stops = std::mem::take(&mut *self.stops.lock().unwrap_or_else(PoisonError::into_inner));
            if !stops.is_empty() {
                return stops;
            }
            self.stop.notified().await;
        }
    }

    /// Whether it has left, and how.
    pub(crate) fn departure(&self) -> Option<Departure> {
        match self.departure.load(Ordering::Acquire) {
            PRESENT => None,
            RELEASED => Some(Departure::Released),
            _ => Some(Departure::Lost),
        }
    }
}

/// Holds a consumer in its group: when it is dropped, in whatever way its session ends, the partitions take back what the
/// consumer held. It needs no room in any queue for that.
pub(crate) struct Attached {
    pub(crate) consumer: Arc<Consumer>,
}

impl Attached {
    /// The consumer leaves in good order.
    pub(crate) fn release(self) {
        self.consumer.departure.store(RELEASED, Ordering::Release);
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let departure = &self.consumer.departure;
        // Already released: only the partitions are to be told.
        let _ = departure.compare_exchange(PRESENT, LOST, Ordering::AcqRel, Ordering::Acquire);
        for partition in &*self.consumer.partitions {
            partition.consumer_left();
        }
    }
}
