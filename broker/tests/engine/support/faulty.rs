//! A storage in memory that fails on demand.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use stentor_core::storage::{
    Change, Key, KeyRange, Leadership, OpenOptions, OpenPartition, PartitionReader, PartitionView, PartitionWriter,
    PendingCommit, Storage, StorageError, StoredBatch, Usage,
};
use stentor_core::{Durability, Offset, OffsetRange, PartitionId, Timestamp};
use stentor_storage_mem::MemStorage;
use tokio::sync::watch;

/// No partition at all.
const NONE: u64 = u64::MAX;

/// What is to go wrong.
#[derive(Default)]
pub struct Faults {
    /// Receipts of this partition fail from now on.
    failing: AtomicU64,
    /// Reads of that offset of that partition find it damaged.
    damaged: Mutex<Option<(u64, Offset)>>,
    /// Receipts wait until they are let go.
    held: Mutex<Option<watch::Receiver<bool>>>,
}

#[derive(Clone)]
pub struct FaultyStorage {
    inner: Arc<MemStorage>,
    faults: Arc<Faults>,
}

impl FaultyStorage {
    pub fn new() -> Self {
        let faults = Faults { failing: AtomicU64::new(NONE), ..Faults::default() };
        Self { inner: Arc::new(MemStorage::new()), faults: Arc::new(faults) }
    }

    pub fn fail_receipts_of(&self, partition: u64) {
        self.faults.failing.store(partition, Ordering::SeqCst);
    }

    pub fn damage(&self, partition: u64, offset: Offset) {
        *self.faults.damaged.lock().unwrap() = Some((partition, offset));
    }

    /// Holds back every receipt until the sender says true.
    pub fn hold_receipts(&self) -> watch::Sender<bool> {
        let (sender, receiver) = watch::channel(false);
        *self.faults.held.lock().unwrap() = Some(receiver);
        sender
    }
}

#[async_trait]
impl Storage for FaultyStorage {
    fn keeps(&self) -> &'static [Durability] {
        self.inner.keeps()
    }

    async fn open(&self, partition: PartitionId, options: OpenOptions) -> Result<OpenPartition, StorageError> {
        let OpenPartition { epoch, writer, reader } = self.inner.open(partition, options).await?;
        let faults = Arc::clone(&self.faults);
        Ok(OpenPartition {
            epoch,
            writer: Box::new(Writer { partition, inner: writer, faults: Arc::clone(&faults) }),
            reader: Arc::new(Reader { partition, inner: reader, faults }),
        })
    }

    async fn list(&self) -> Result<Vec<PartitionId>, StorageError> {
        self.inner.list().await
    }

    async fn delete(&self, partition: PartitionId) -> Result<(), StorageError> {
        self.inner.delete(partition).await
    }

    fn watch(&self, partition: PartitionId) -> watch::Receiver<Leadership> {
        self.inner.watch(partition)
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    async fn close(&self) -> Result<(), StorageError> {
        self.inner.close().await
    }
}

struct Writer {
    partition: PartitionId,
    inner: Box<dyn PartitionWriter>,
    faults: Arc<Faults>,
}

#[async_trait]
impl PartitionWriter for Writer {
    fn end(&self) -> Offset {
        self.inner.end()
    }

    async fn commit(&mut self, change: Change) -> Result<PendingCommit, StorageError> {
        let inner = self.inner.commit(change).await?;
        let (receipt, pending) = PendingCommit::new(inner.offsets());
        let failing = self.faults.failing.load(Ordering::SeqCst) == self.partition.0;
        let held = self.faults.held.lock().unwrap().clone();
        tokio::spawn(async move {
            if let Some(mut held) = held {
                let _ = held.wait_for(|go| *go).await;
            }
            let outcome = inner.durable().await.map(|_| ());
            let failed = Err(StorageError::Poisoned("the sync failed".to_owned()));
            receipt.resolve(if failing { failed } else { outcome });
        });
        Ok(pending)
    }

    async fn truncate(&mut self, end: Offset) -> Result<(), StorageError> {
        self.inner.truncate(end).await
    }
}

struct Reader {
    partition: PartitionId,
    inner: Arc<dyn PartitionReader>,
    faults: Arc<Faults>,
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
        let damaged = *self.faults.damaged.lock().unwrap();
        if let Some((_, offset)) = damaged.filter(|(partition, _)| *partition == self.partition.0) {
            batches.truncate(batches.iter().take_while(|batch| !batch.batch.offsets().contains(offset)).count());
            if batches.is_empty() && from <= offset {
                let detail = "the checksum does not hold".to_owned();
                return Err(StorageError::Corrupt { partition: self.partition, offset, detail });
            }
        }
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
        self.inner.view().await
    }
}
