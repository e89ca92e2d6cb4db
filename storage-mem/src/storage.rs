//! The store: its partitions, and the handles that it gives out.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use dashmap::DashMap;
use stentor_core::storage::{
    Append, Change, Key, KeyRange, Leadership, OpenOptions, OpenPartition, PartitionReader, PartitionView,
    PartitionWriter, PendingCommit, Place, Storage, StorageError, StoredBatch, Usage,
};
use stentor_core::{Durability, Epoch, Offset, OffsetRange, PartitionId, Timestamp};
use tokio::sync::watch;
use xxhash_rust::xxh3::Xxh3DefaultBuilder;

use crate::change::{Staged, StagedAppend};
use crate::held::Held;
use crate::ledger::{Dropped, Ledger};
use crate::log::Log;
use crate::partition::Partition;
use crate::table::Table;

/// Partitions in memory. Cloning gives another handle on the same store.
#[derive(Clone, Debug, Default)]
pub struct MemStorage {
    store: Arc<Store>,
}

#[derive(Debug, Default)]
struct Store {
    /// A fixed hasher, so that nothing depends on chance; whoever lists partitions sorts them.
    partitions: DashMap<PartitionId, Arc<Partition>, Xxh3DefaultBuilder>,
    /// Who watches what, also before there is such a partition. A plain mutex: it is locked when a partition is opened,
    /// watched or deleted, never on the way of a message.
    leaders: Mutex<BTreeMap<PartitionId, watch::Sender<Leadership>>>,
    ledger: Arc<Ledger>,
    closed: AtomicBool,
}

/// What is said of a partition that nobody has opened: this node leads whatever it has, in no epoch yet.
fn unopened() -> watch::Sender<Leadership> {
    watch::Sender::new(Leadership::Leader(Epoch(0)))
}

impl MemStorage {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was dropped to make room, in all partitions.
    #[must_use]
    pub fn dropped(&self) -> Dropped {
        self.store.ledger.dropped()
    }
}

impl Store {
    fn check_open(&self) -> Result<(), StorageError> {
        if self.closed.load(Ordering::SeqCst) { Err(StorageError::Closed) } else { Ok(()) }
    }

    fn partition(&self, id: PartitionId) -> Option<Arc<Partition>> {
        self.partitions.get(&id).map(|partition| Arc::clone(&partition))
    }

    /// The batch at `place`: in the log that it entered first, or wherever it went by reference from there.
    fn find(&self, place: Place) -> Result<Arc<Held>, StorageError> {
        let first = self.partition(PartitionId(place.segment));
        first
            .and_then(|partition| partition.find(place))
            .or_else(|| self.ledger.find(place))
            .ok_or_else(|| StorageError::Invalid(format!("no log holds a batch at {place:?}")))
    }

    /// Makes ready what a change appends to the log of `partition`.
    fn stage(&self, partition: PartitionId, appends: &[Append]) -> Result<Vec<StagedAppend>, StorageError> {
        let staged = appends.iter().map(|append| match append {
            Append::Batch(batch) => {
                let stored_at = batch.stored_at();
                let held = Held::new(batch.clone(), partition, &self.ledger);
                Ok(StagedAppend { number: held.place().position, stored_at, held })
            }
            Append::Stored { place, stored_at } => {
                let held = self.find(*place)?;
                held.list();
                Ok(StagedAppend { number: self.ledger.next_number(), stored_at: *stored_at, held })
            }
        });
        staged.collect()
    }

    fn leaders(&self) -> MutexGuard<'_, BTreeMap<PartitionId, watch::Sender<Leadership>>> {
        // Nothing that can panic happens under it.
        self.leaders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Storage for MemStorage {
    fn keeps(&self) -> &'static [Durability] {
        &[Durability::Memory]
    }

    async fn open(&self, partition: PartitionId, options: OpenOptions) -> Result<OpenPartition, StorageError> {
        let OpenOptions { durability, first_offset, bound } = options;
        if durability != Durability::Memory {
            let refusal = format!("a partition in memory is not `{durability}`: use `memory`");
            return Err(StorageError::Unsupported(refusal));
        }
        let Some(bound) = bound else {
            return Err(StorageError::Unsupported("a partition in memory needs a bound of its bytes".to_owned()));
        };
        let store = &self.store;
        loop {
            let handle = {
                let ledger = || Arc::clone(&store.ledger);
                let new = || Arc::new(Partition::new(partition, first_offset, bound, ledger()));
                Arc::clone(&*store.partitions.entry(partition).or_insert_with(new))
            };
            // Asked after the insertion, so that either this call sees the closing or the closing sees the partition.
            if store.closed.load(Ordering::SeqCst) {
                store.partitions.remove(&partition);
                return Err(StorageError::Closed);
            }
            // The epoch begins and is told under one lock, so that watchers hear of two openings in their order.
            let mut leaders = store.leaders();
            // Deleted in between: by then it is out of the map, and the next turn makes a new one.
            let Some((epoch, end)) = handle.open(bound) else { continue };
            leaders.entry(partition).or_insert_with(unopened).send_replace(Leadership::Leader(epoch));
            drop(leaders);
            let reader = Arc::new(Reader { partition: Arc::clone(&handle) });
            let writer = Box::new(Writer { id: partition, store: Arc::clone(store), partition: handle, epoch, end });
            return Ok(OpenPartition { epoch, writer, reader });
        }
    }

    async fn list(&self) -> Result<Vec<PartitionId>, StorageError> {
        self.store.check_open()?;
        let mut partitions: Vec<PartitionId> = self.store.partitions.iter().map(|entry| *entry.key()).collect();
        partitions.sort_unstable();
        Ok(partitions)
    }

    async fn delete(&self, partition: PartitionId) -> Result<(), StorageError> {
        self.store.check_open()?;
        // First out of the map, then ended: see `open`.
        let deleted = {
            let mut leaders = self.store.leaders();
            leaders.remove(&partition);
            self.store.partitions.remove(&partition)
        };
        if let Some((_, deleted)) = deleted {
            deleted.delete();
        }
        Ok(())
    }

    fn watch(&self, partition: PartitionId) -> watch::Receiver<Leadership> {
        self.store.leaders().entry(partition).or_insert_with(unopened).subscribe()
    }

    /// `bytes_live` is `bytes`: memory that no log holds is freed, but for what a view still shows.
    fn usage(&self) -> Usage {
        let ledger = &self.store.ledger;
        let bytes = ledger.bytes();
        Usage { bytes, bytes_live: bytes, full: ledger.any_refusing(), ..Usage::default() }
    }

    async fn close(&self) -> Result<(), StorageError> {
        self.store.closed.store(true, Ordering::SeqCst);
        let open: Vec<Arc<Partition>> = self.store.partitions.iter().map(|entry| Arc::clone(&entry)).collect();
        self.store.partitions.clear();
        for partition in open {
            partition.close();
        }
        Ok(())
    }
}

/// Nothing here waits, so a call that was dropped had never begun or is done.
#[derive(Debug)]
struct Writer {
    id: PartitionId,
    store: Arc<Store>,
    partition: Arc<Partition>,
    epoch: Epoch,
    end: Offset,
}

#[async_trait]
impl PartitionWriter for Writer {
    fn end(&self) -> Offset {
        self.end
    }

    async fn commit(&mut self, change: Change) -> Result<PendingCommit, StorageError> {
        let appends = self.store.stage(self.id, &change.appends)?;
        let offsets = self.partition.commit(Staged::new(change, appends)?)?;
        self.end = offsets.end;
        let (receipt, pending) = PendingCommit::new(offsets);
        // Memory is all that was promised, and readers see the change already.
        receipt.resolve(Ok(()));
        Ok(pending)
    }

    async fn truncate(&mut self, end: Offset) -> Result<(), StorageError> {
        self.end = self.partition.truncate(self.epoch, end)?;
        Ok(())
    }
}

#[derive(Debug)]
struct Reader {
    partition: Arc<Partition>,
}

#[async_trait]
impl PartitionReader for Reader {
    fn bounds(&self) -> OffsetRange {
        self.partition.bounds()
    }

    fn bytes(&self) -> u64 {
        self.partition.bytes()
    }

    async fn read(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Vec<StoredBatch>, StorageError> {
        self.partition.read(from, bytes_max)
    }

    async fn get(&self, key: &Key) -> Result<Option<Bytes>, StorageError> {
        self.partition.get(key)
    }

    async fn scan(&self, range: KeyRange, limit: NonZeroU32) -> Result<Vec<(Key, Bytes)>, StorageError> {
        self.partition.scan(&range, limit)
    }

    async fn offset_at(&self, at: Timestamp) -> Result<Offset, StorageError> {
        self.partition.offset_at(at)
    }

    async fn view(&self) -> Result<Box<dyn PartitionView>, StorageError> {
        let (log, table) = self.partition.snapshot()?;
        Ok(Box::new(View { log, table }))
    }
}

/// A copy of the index of the log and of the rows' handles, at a cost in proportion to their number; all bytes are
/// shared.
#[derive(Debug)]
struct View {
    log: Log,
    table: Table,
}

#[async_trait]
impl PartitionView for View {
    fn bounds(&self) -> OffsetRange {
        self.log.bounds()
    }

    async fn read(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Vec<StoredBatch>, StorageError> {
        self.log.read(from, bytes_max)
    }

    async fn scan(&self, range: KeyRange, limit: NonZeroU32) -> Result<Vec<(Key, Bytes)>, StorageError> {
        Ok(self.table.scan(&range, limit))
    }
}
