//! A backend over memory that behaves as if it had a disk, and has a fault if it is told to.
//!
//! Its disk is a queue: while syncs are held back, changes wait in it and are applied, and their receipts resolved, when
//! the syncs go on.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use stentor_conformance::storage::Subject;
use stentor_core::storage::{
    Append, ByteBound, Change, CommitReceipt, Key, KeyRange, Leadership, OpenOptions, OpenPartition, PartitionReader,
    PartitionView, PartitionWriter, PendingCommit, Storage, StorageError, StoredBatch, Usage, WhenFull,
};
use stentor_core::{Durability, Epoch, Offset, OffsetRange, PartitionId, Timestamp};
use stentor_storage_mem::MemStorage;
use tokio::sync::watch;

/// What a backend may do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    DropsAPut,
    IgnoresEpochs,
    AppliesLate,
    AcknowledgesBeforeTheSync,
    ShowsBeforeTheSync,
    SplitsChanges,
    GoesOnAfterAFailedSync,
    HandsOutDamage,
    ShowsLiveViews,
    KeepsDeleted,
    ForgetsTrims,
}

/// Enough for a reader on another thread to come by.
const YIELDS_MAX: u32 = 10_000;

const BYTES_MAX: u64 = 80 << 20;

type SharedWriter = Arc<Mutex<Box<dyn PartitionWriter>>>;

/// A change, or a receipt alone, that waits for the syncs to go on.
struct Waiting {
    writer: SharedWriter,
    change: Option<Change>,
    receipt: Option<CommitReceipt>,
}

impl Waiting {
    fn apply(self) {
        if let Some(change) = self.change {
            let mut writer = self.writer.lock().expect("nobody panicked");
            // Memory never makes one wait.
            writer.commit(change).now_or_never().expect("memory is at once").expect("the change is good");
        }
        if let Some(receipt) = self.receipt {
            receipt.resolve(Ok(()));
        }
    }
}

#[derive(Default)]
struct Disk {
    held: bool,
    fail_next: bool,
    poisoned: bool,
    waiting: Vec<Waiting>,
    damaged: BTreeSet<(PartitionId, Offset)>,
    corruptions: u64,
}

#[derive(Clone)]
pub(crate) struct Faulty {
    inner: MemStorage,
    fault: Option<Fault>,
    disk: Arc<Mutex<Disk>>,
    /// How many views were taken.
    views: Arc<AtomicU64>,
}

impl Faulty {
    pub(crate) fn new(fault: Option<Fault>) -> Self {
        Self { inner: MemStorage::new(), fault, disk: Arc::default(), views: Arc::default() }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().expect("nobody panicked")
    }
}

#[async_trait]
impl Subject for Faulty {
    fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(self.clone())
    }

    fn options(&self) -> OpenOptions {
        let bound = ByteBound { bytes_max: BYTES_MAX, when_full: WhenFull::Reject };
        OpenOptions { durability: Durability::Memory, first_offset: Offset::ZERO, bound: Some(bound) }
    }

    fn change_bytes_max(&self) -> u64 {
        BYTES_MAX
    }

    fn fail_next_sync(&mut self) -> bool {
        self.disk().fail_next = true;
        true
    }

    fn hold_syncs(&mut self) -> bool {
        self.disk().held = true;
        true
    }

    fn release_syncs(&mut self) {
        let mut disk = self.disk();
        disk.held = false;
        disk.waiting.drain(..).for_each(Waiting::apply);
    }

    async fn damage(&mut self, partition: PartitionId, offset: Offset) -> bool {
        self.disk().damaged.insert((partition, offset));
        true
    }
}

#[async_trait]
impl Storage for Faulty {
    fn keeps(&self) -> &'static [Durability] {
        self.inner.keeps()
    }

    async fn open(&self, id: PartitionId, options: OpenOptions) -> Result<OpenPartition, StorageError> {
        let OpenPartition { epoch, writer, reader } = self.inner.open(id, options).await?;
        let end = writer.end();
        let writer = Arc::new(Mutex::new(writer));
        let live = Arc::clone(&reader);
        let writer = Box::new(Writer { store: self.clone(), id, writer, live, end });
        Ok(OpenPartition { epoch, writer, reader: Arc::new(Reader { store: self.clone(), id, inner: reader }) })
    }

    async fn list(&self) -> Result<Vec<PartitionId>, StorageError> {
        self.inner.list().await
    }

    async fn delete(&self, partition: PartitionId) -> Result<(), StorageError> {
        if self.fault == Some(Fault::KeepsDeleted) { Ok(()) } else { self.inner.delete(partition).await }
    }

    fn watch(&self, partition: PartitionId) -> watch::Receiver<Leadership> {
        self.inner.watch(partition)
    }

    fn usage(&self) -> Usage {
        let disk = self.disk();
        Usage { poisoned: disk.poisoned, corruptions: disk.corruptions, ..self.inner.usage() }
    }

    async fn close(&self) -> Result<(), StorageError> {
        self.inner.close().await
    }
}

struct Writer {
    store: Faulty,
    id: PartitionId,
    writer: SharedWriter,
    live: Arc<dyn PartitionReader>,
    end: Offset,
}

impl Writer {
    /// What the fault makes of a change.
    fn spoil(&self, mut change: Change) -> Change {
        match self.store.fault {
            Some(Fault::DropsAPut) => drop(change.puts.pop()),
            Some(Fault::ForgetsTrims) => change.trim = None,
            Some(Fault::IgnoresEpochs) => {
                if let Leadership::Leader(epoch) = *self.store.inner.watch(self.id).borrow() {
                    change.epoch = epoch.max(Epoch(1));
                }
                change.expected_end = self.live.bounds().end;
            }
            _ => {}
        }
        change
    }

    fn apply(&mut self, change: Change) -> Result<OffsetRange, StorageError> {
        let mut writer = self.writer.lock().expect("nobody panicked");
        let offsets = writer.commit(change).now_or_never().expect("memory is at once")?.offsets();
        self.end = writer.end();
        Ok(offsets)
    }

    /// Waits until a view was taken, so that whether the fault is found does not depend on luck; but not for ever, since
    /// most properties have nobody who would look.
    async fn let_someone_look(&self) {
        let before = self.store.views.load(Ordering::Relaxed);
        for _ in 0..YIELDS_MAX {
            if self.store.views.load(Ordering::Relaxed) > before {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Where a change that waits will lie.
    fn offsets_of(&self, change: &Change) -> OffsetRange {
        let count = |append: &Append| match append {
            Append::Batch(batch) => u64::from(batch.count()),
            Append::Stored { place, .. } => u64::from(place.count),
        };
        OffsetRange::new(self.end, self.end.advance(change.appends.iter().map(count).sum()))
    }
}

fn poisoned() -> StorageError {
    StorageError::Poisoned("a sync failed".to_owned())
}

#[async_trait]
impl PartitionWriter for Writer {
    fn end(&self) -> Offset {
        self.end
    }

    async fn commit(&mut self, change: Change) -> Result<PendingCommit, StorageError> {
        let fault = self.store.fault;
        let change = self.spoil(change);
        let disk = Arc::clone(&self.store.disk);
        {
            let mut disk = disk.lock().expect("nobody panicked");
            if disk.poisoned {
                return Err(poisoned());
            }
            if std::mem::take(&mut disk.fail_next) {
                disk.poisoned = fault != Some(Fault::GoesOnAfterAFailedSync);
                let (receipt, pending) = PendingCommit::new(self.offsets_of(&change));
                receipt.resolve(Err(poisoned()));
                return Ok(pending);
            }
            if disk.held || fault == Some(Fault::AppliesLate) {
                let offsets = self.offsets_of(&change);
                let (receipt, pending) = PendingCommit::new(offsets);
                let (mut change, mut receipt) = (Some(change), Some(receipt));
                match fault {
                    Some(Fault::ShowsBeforeTheSync) => {
                        self.apply(change.take().expect("just set"))?;
                    }
                    Some(Fault::AcknowledgesBeforeTheSync | Fault::AppliesLate) => {
                        receipt.take().expect("just set").resolve(Ok(()));
                    }
                    _ => {}
                }
                self.end = offsets.end;
                disk.waiting.push(Waiting { writer: Arc::clone(&self.writer), change, receipt });
                if !disk.held {
                    let late = disk.waiting.len() - 1;
                    disk.waiting.drain(..late).for_each(Waiting::apply);
                }
                return Ok(pending);
            }
        }
        let offsets = if fault == Some(Fault::SplitsChanges) {
            let log = Change { puts: Vec::new(), deletes: Vec::new(), ..change.clone() };
            let offsets = self.apply(log)?;
            self.let_someone_look().await;
            self.apply(Change { expected_end: offsets.end, appends: Vec::new(), trim: None, ..change })?;
            offsets
        } else {
            self.apply(change)?
        };
        let (receipt, pending) = PendingCommit::new(offsets);
        receipt.resolve(Ok(()));
        Ok(pending)
    }

    async fn truncate(&mut self, end: Offset) -> Result<(), StorageError> {
        let mut writer = self.writer.lock().expect("nobody panicked");
        writer.truncate(end).now_or_never().expect("memory is at once")?;
        self.end = writer.end();
        Ok(())
    }
}

struct Reader {
    store: Faulty,
    id: PartitionId,
    inner: Arc<dyn PartitionReader>,
}

#[async_trait]
impl PartitionReader for Reader {
    fn bounds(&self) -> OffsetRange {
        self.inner.bounds()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    async fn read(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Vec<StoredBatch>, StorageError> {
        let mut batches = self.inner.read(from, bytes_max).await?;
        if self.store.fault == Some(Fault::HandsOutDamage) {
            return Ok(batches);
        }
        let mut disk = self.store.disk();
        let damaged = |stored: &StoredBatch| {
            disk.damaged.iter().any(|(id, offset)| *id == self.id && stored.batch.offsets().contains(*offset))
        };
        let Some(at) = batches.iter().position(damaged) else { return Ok(batches) };
        if at == 0 {
            disk.corruptions += 1;
            let (partition, offset) = (self.id, batches[0].batch.base_offset());
            return Err(StorageError::Corrupt { partition, offset, detail: "planted".to_owned() });
        }
        batches.truncate(at);
        Ok(batches)
    }

    async fn get(&self, key: &Key) -> Result<Option<Bytes>, StorageError> {
        self.inner.get(key).await
    }

    async fn scan(&self, range: KeyRange, limit: NonZeroU32) -> Result<Vec<(Key, Bytes)>, StorageError> {
        self.inner.scan(range, limit).await
    }

    async fn offset_at(&self, at: Timestamp) -> Result<Offset, StorageError> {
        self.inner.offset_at(at).await
    }

    async fn view(&self) -> Result<Box<dyn PartitionView>, StorageError> {
        if self.store.fault == Some(Fault::ShowsLiveViews) {
            return Ok(Box::new(LiveView(Arc::clone(&self.inner))));
        }
        let view = self.inner.view().await;
        self.store.views.fetch_add(1, Ordering::Relaxed);
        view
    }
}

/// No view at all.
struct LiveView(Arc<dyn PartitionReader>);

#[async_trait]
impl PartitionView for LiveView {
    fn bounds(&self) -> OffsetRange {
        self.0.bounds()
    }

    async fn read(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Vec<StoredBatch>, StorageError> {
        self.0.read(from, bytes_max).await
    }

    async fn scan(&self, range: KeyRange, limit: NonZeroU32) -> Result<Vec<(Key, Bytes)>, StorageError> {
        self.0.scan(range, limit).await
    }
}
