//! What writers, readers and the threads share.
//!
//! Threads: the committer writes the journal, the syncer syncs it and answers, the indexer follows with the index, the
//! keeper watches the room on the disk, the rewriter moves what is owed in sparse segments.
//! Locks, in the order in which they may be held together: the watches, the map of partitions, a partition's state, the
//! queue. All others are leaves.
//! No lock is held across I/O but where its field says so.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use stentor_core::storage::{Leadership, PendingCommit, StorageError};
use stentor_core::{Epoch, Offset, OffsetRange, PartitionId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::backlog::Backlog;
use crate::bell::Bell;
use crate::config::LsmConfig;
use crate::damage::Damage;
use crate::disk::{Disk, DiskLock};
use crate::format::PAGE_BYTES;
use crate::format::group::{FRAME_HEADER_BYTES, GROUP_HEADER_BYTES};
use crate::format::payload::Encoded;
use crate::format::segment::FIRST_GROUP;
use crate::index::Index;
use crate::journal::segments::Segments;
use crate::journal::sparse::{Choice, Limits};
use crate::partition::{Partition, PartitionState};
use crate::queue::{Ending, Job, Need, PERMIT_BYTES, QUEUE_BYTES_MAX, Queue, Request, frame_bytes};
use crate::snapshot::Snapshot;

/// Where a view keeps its snapshot.
#[derive(Debug)]
pub(crate) struct ViewSlot(Mutex<Option<Arc<Snapshot>>>);

impl ViewSlot {
    pub(crate) fn get(&self) -> Result<Arc<Snapshot>, StorageError> {
        lock(&self.0).clone().ok_or(StorageError::Closed)
    }
}

/// A node's store.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) config: LsmConfig,
    /// How large new segments are.
    pub(crate) segment_bytes: u64,
    pub(crate) store: u64,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) segments: Arc<Segments>,
    /// None once the store is closed. Held for reading as long as a read lasts, by threads that may block: closing waits
    /// for them, so that nothing has the index when the folder is let go.
    index: RwLock<Option<Arc<dyn Index>>>,
    /// The views that were taken; those of a closed store are emptied.
    views: Mutex<Vec<Weak<ViewSlot>>>,
    closed: AtomicBool,
    pub(crate) lock: Mutex<Option<DiskLock>>,
    pub(crate) partitions: Mutex<BTreeMap<PartitionId, Arc<Partition>>>,
    watches: Mutex<BTreeMap<PartitionId, watch::Sender<Leadership>>>,
    pub(crate) queue: Queue,
    pub(crate) backlog: Backlog,
    pub(crate) keeper: Bell,
    pub(crate) rewriter: Bell,
    queue_bytes: Arc<Semaphore>,
    /// Given out to segments and spares, never twice.
    next_generation: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) damage: Damage,
    /// What was moved out of sparse segments.
    pub(crate) rewritten_bytes: AtomicU64,
    /// What the index and the reserve take on disk.
    pub(crate) other_bytes: AtomicU64,
    /// How large the active segment is.
    pub(crate) active_bytes: AtomicU64,
    /// How large the groups of the active segment are on average.
    pub(crate) group_bytes: AtomicU64,
    /// How urgently the next segment should be made ready: a [`SpareWanted`].
    spare_wanted: AtomicU8,
    /// Whether the index should be flushed for the sake of a segment that waits for nothing else.
    pub(crate) flush_wanted: AtomicBool,
}

/// How urgently the next segment should be made ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SpareWanted {
    /// The one at hand will do for a while.
    No,
    /// There is time to get one by letting go of another.
    Soon,
    /// It has to be there in a moment.
    Now,
}

impl SpareWanted {
    /// What follows from what is left of a segment.
    pub(crate) const fn of(left: u64, capacity: u64) -> Self {
        if left >= capacity / 2 {
            Self::No
        } else if left >= capacity / 4 {
            Self::Soon
        } else {
            Self::Now
        }
    }
}

/// What recovery hands over.
pub(crate) struct Opened {
    pub(crate) config: LsmConfig,
    pub(crate) segment_bytes: u64,
    pub(crate) store: u64,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) lock: DiskLock,
    pub(crate) segments: Arc<Segments>,
    pub(crate) partitions: BTreeMap<PartitionId, Arc<Partition>>,
    pub(crate) next_generation: u64,
    pub(crate) next_sequence: u64,
}

impl Engine {
    pub(crate) fn new(opened: Opened) -> Self {
        let queue = Queue::default();
        queue.state().next_sequence = opened.next_sequence;
        Self {
            config: opened.config,
            segment_bytes: opened.segment_bytes,
            store: opened.store,
            disk: opened.disk,
            segments: opened.segments,
            index: RwLock::new(Some(opened.index)),
            views: Mutex::default(),
            closed: AtomicBool::new(false),
            lock: Mutex::new(Some(opened.lock)),
            partitions: Mutex::new(opened.partitions),
            watches: Mutex::default(),
            queue,
            backlog: Backlog::after(opened.next_sequence - 1),
            keeper: Bell::default(),
            rewriter: Bell::default(),
            queue_bytes: Arc::new(Semaphore::new(QUEUE_BYTES_MAX / PERMIT_BYTES)),
            next_generation: AtomicU64::new(opened.next_generation),
            syncs: AtomicU64::new(0),
            damage: Damage::default(),
            rewritten_bytes: AtomicU64::new(0),
            other_bytes: AtomicU64::new(0),
            active_bytes: AtomicU64::new(opened.segment_bytes),
            group_bytes: AtomicU64::new(0),
            spare_wanted: AtomicU8::new(SpareWanted::No as u8),
            flush_wanted: AtomicBool::new(false),
        }
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.next_generation.fetch_add(1, Ordering::Relaxed)
    }

    /// Says how urgently the next segment is wanted, and wakes the keeper when that grows.
    pub(crate) fn want_spare(&self, wanted: SpareWanted) {
        if self.spare_wanted.swap(wanted as u8, Ordering::Relaxed) < wanted as u8 {
            self.keeper.ring();
        }
    }

    pub(crate) fn spare_wanted(&self) -> SpareWanted {
        let wanted = self.spare_wanted.load(Ordering::Relaxed);
        [SpareWanted::No, SpareWanted::Soon].into_iter().find(|of| *of as u8 == wanted).unwrap_or(SpareWanted::Now)
    }

    /// Whether there has been a segment of this generation.
    pub(crate) fn was_used(&self, generation: u64) -> bool {
        generation < self.next_generation.load(Ordering::Relaxed)
    }

    /// Which segments are to be rewritten now.
    pub(crate) fn sparse(&self) -> Choice {
        let room = self.queue.state().room.for_rewriting();
        self.segments.sparse(Limits { slack: self.segment_bytes * u64::from(self.config.sparse_slack), room })
    }

    /// The most that the payload of one change may come to: it must fit into a segment.
    pub(crate) const fn payload_bytes_max(&self) -> u64 {
        payload_bytes_max(self.segment_bytes)
    }

    /// Whether the store is still open.
    pub(crate) fn is_open(&self) -> Result<(), StorageError> {
        if self.closed.load(Ordering::Acquire) { Err(StorageError::Closed) } else { Ok(()) }
    }

    /// Runs a read that may block, with the index; closing waits for it.
    pub(crate) fn reading<T, E: From<StorageError>>(
        &self,
        read: impl FnOnce(&Arc<dyn Index>) -> Result<T, E>,
    ) -> Result<T, E> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        read(index.as_ref().ok_or(StorageError::Closed)?)
    }

    /// Keeps a snapshot until it is dropped or the store is closed.
    pub(crate) fn view(&self, snapshot: Snapshot) -> Arc<ViewSlot> {
        let slot = Arc::new(ViewSlot(Mutex::new(Some(Arc::new(snapshot)))));
        let mut views = lock(&self.views);
        views.retain(|view| view.strong_count() > 0);
        views.push(Arc::downgrade(&slot));
        slot
    }

    /// Lets go of what keeps others out, once the threads have ended.
    pub(crate) fn release(&self) {
        self.closed.store(true, Ordering::Release);
        let index = self.index.write().unwrap_or_else(PoisonError::into_inner).take();
        for view in lock(&self.views).drain(..).filter_map(|view| view.upgrade()) {
            lock(&view.0).take();
        }
        drop(index);
        lock(&self.lock).take();
    }

    pub(crate) fn partition(&self, id: PartitionId) -> Option<Arc<Partition>> {
        lock(&self.partitions).get(&id).cloned()
    }

    /// Drops a deleted partition, unless it has been made anew.
    pub(crate) fn forget(&self, partition: &Arc<Partition>) {
        let mut partitions = lock(&self.partitions);
        if partitions.get(&partition.id).is_some_and(|found| Arc::ptr_eq(found, partition)) {
            partitions.remove(&partition.id);
        }
    }

    /// Drops a partition whose creation was refused.
    pub(crate) fn forget_unborn(&self, partition: &Arc<Partition>) {
        if partition.state().admitted.epoch == Epoch(0) {
            self.forget(partition);
        }
    }

    /// Waits for room in the queue. Cancel safe.
    pub(crate) async fn permit(&self, encoded: &Encoded) -> Result<Option<OwnedSemaphorePermit>, StorageError> {
        let bytes = usize::try_from(frame_bytes(encoded)).unwrap_or(usize::MAX);
        // One change larger than the queue has the queue for itself.
        let wanted = bytes.div_ceil(PERMIT_BYTES).clamp(1, QUEUE_BYTES_MAX / PERMIT_BYTES);
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let permit = self.queue_bytes.clone().acquire_many_owned(wanted).await;
        Ok(Some(permit.map_err(|_| StorageError::Closed)?))
    }

    /// Puts a change into the queue: the one moment at which it is taken or refused. `admit` checks it against the
    /// partition, whose lock is held, and changes what is promised; it runs only when nothing else refuses the change. Returns its
    /// sequence too.
    pub(crate) fn submit(
        &self,
        partition: &Arc<Partition>,
        request: Request,
        admit: impl FnOnce(&mut PartitionState) -> Result<(), StorageError>,
    ) -> Result<(u64, PendingCommit), StorageError> {
        let bytes = frame_bytes(&request.encoded);
        let mut state = partition.state();
        // The order of locks makes the order of a partition's changes that of their sequences.
        let mut queue = self.queue.state();
        if queue.ending.is_some() {
            return Err(StorageError::Closed);
        }
        if let Some(why) = &queue.poisoned {
            return Err(StorageError::Poisoned(why.clone()));
        }
        let mut left = queue.room;
        let room = match request.need {
            Need::Books => 0,
            Need::Data => left.admit(bytes).map(|()| bytes)?,
            Need::Rewriting => left.admit_rewriting(bytes).map(|()| bytes)?,
        };
        admit(&mut state)?;
        queue.room = left;
        let sequence = queue.next_sequence;
        queue.next_sequence += 1;
        let (receipt, pending) = PendingCommit::new(request.offsets);
        queue.jobs.push_back(Job {
            partition: partition.clone(),
            sequence,
            encoded: request.encoded,
            synced: request.synced,
            room,
            receipt,
            pins: request.pins,
            permit: request.permit,
        });
        drop((queue, state));
        self.queue.filled.notify_one();
        Ok((sequence, pending))
    }

    /// Ends writing: what waits and all that comes is refused. Reads go on.
    pub(crate) fn poison(&self, why: &str) {
        let waiting = {
            let mut queue = self.queue.state();
            if queue.poisoned.is_none() {
                tracing::error!(why, "the storage takes no more writes");
                queue.poisoned = Some(why.to_owned());
            }
            std::mem::take(&mut queue.jobs)
        };
        self.backlog.fail();
        for job in waiting {
            job.receipt.resolve(Err(StorageError::Poisoned(why.to_owned())));
        }
    }

    pub(crate) fn poisoned(&self) -> Option<String> {
        self.queue.state().poisoned.clone()
    }

    /// Takes no more changes and lets the threads end.
    pub(crate) fn end(&self, ending: Ending) {
        {
            let mut queue = self.queue.state();
            queue.ending.get_or_insert(ending);
            if ending == Ending::Abandon {
                queue.ending = Some(ending);
                queue.jobs.clear();
            }
        }
        self.queue_bytes.close();
        self.queue.filled.notify_all();
        if ending == Ending::Abandon {
            self.backlog.end(ending);
        }
        self.keeper.end();
        self.rewriter.end();
    }

    /// Waits until the index reflects everything that was taken so far, and forgets what memory keeps of it.
    pub(crate) fn wait_until_indexed(&self) {
        let last = self.queue.state().next_sequence - 1;
        self.backlog.wait_for(last);
        let partitions: Vec<Arc<Partition>> = lock(&self.partitions).values().cloned().collect();
        partitions.iter().for_each(|partition| partition.state().recent.forget_through(last));
    }

    /// Tells whoever watches who leads a partition.
    pub(crate) fn lead(&self, partition: PartitionId, epoch: Epoch) {
        if let Some(sender) = lock(&self.watches).get(&partition) {
            sender.send_replace(Leadership::Leader(epoch));
        }
    }

    /// Watches who leads a partition: always this node.
    pub(crate) fn watch(&self, partition: PartitionId) -> watch::Receiver<Leadership> {
        let mut watches = lock(&self.watches);
        // The epoch is looked up under the lock: an opening that comes after finds the sender and tells it.
        let sender = watches.entry(partition).or_insert_with(|| {
            let epoch = self.partition(partition).map_or(Epoch(0), |found| found.state().admitted.epoch);
            watch::Sender::new(Leadership::Leader(epoch))
        });
        sender.subscribe()
    }

    /// Counts damage that a reader met.
    pub(crate) fn met(&self, error: StorageError) -> StorageError {
        if let StorageError::Corrupt { partition, offset, detail } = &error
            && self.damage.met(*partition, *offset)
        {
            tracing::error!(%partition, %offset, detail, "damage");
        }
        error
    }
}

/// The most that the payload of one change may come to in segments of this size.
pub(crate) const fn payload_bytes_max(segment_bytes: u64) -> u64 {
    segment_bytes - FIRST_GROUP - (GROUP_HEADER_BYTES + FRAME_HEADER_BYTES) as u64
}

/// How large segments are on a file system of this size.
pub(crate) fn segment_bytes(config: &LsmConfig, total: u64) -> u64 {
    /// Below this a segment is not cut down on a small file system.
    const SMALL_SEGMENT_BYTES: u64 = 8 << 20;
    /// So many segments fit on any file system.
    const SEGMENTS: u64 = 16;
    let bytes = config.segment_bytes.min((total / SEGMENTS).max(SMALL_SEGMENT_BYTES));
    bytes.max(2 * PAGE_BYTES).next_multiple_of(PAGE_BYTES).min(u64::from(u32::MAX) - PAGE_BYTES)
}

/// A lock whose holder may have panicked: what it guards is replaced as a whole, so it is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The offsets of `count` messages behind `end`.
pub(crate) const fn range_from(end: Offset, count: u64) -> OffsetRange {
    OffsetRange::new(end, end.advance(count))
}
