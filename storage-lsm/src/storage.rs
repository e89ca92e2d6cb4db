//! The backend as the engine of the broker sees it.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use async_trait::async_trait;
use stentor_core::storage::{Leadership, OpenOptions, OpenPartition, PendingCommit, Storage, StorageError, Usage};
use stentor_core::{Durability, Epoch, Offset, PartitionId};
use tokio::sync::watch;

use crate::config::LsmConfig;
use crate::disk::{Disk, FileDisk};
use crate::engine::{Engine, lock, range_from};
use crate::format::group::FrameKind;
use crate::format::payload::Encoder;
use crate::index::{FjallIndex, FjallOptions, Index};
use crate::open;
use crate::partition::Partition;
use crate::queue::{Ending, Need, Request};
use crate::reader::Reader;
use crate::writer::Writer;

/// What the backend keeps, the default first.
const KEEPS: &[Durability] = &[Durability::Synced, Durability::Buffered];

/// The folder of the index within the store's.
pub(crate) const INDEX_FOLDER: &str = "index";

/// The memtable of the index takes at most this part of a small file system.
const MEMTABLE_SHARE: u64 = 256;

/// The least memtable that is worth it.
const MEMTABLE_BYTES_MIN: u64 = 256 << 10;

/// The `lsm` backend of a node. Dropping it without [`close`](Storage::close) is as if the process were killed: what was
/// acknowledged is safe, what was not may be lost.
#[derive(Debug)]
pub struct LsmStorage {
    engine: Arc<Engine>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl LsmStorage {
    /// Opens the store in `folder`, creating it if there is none. Blocks for as long as recovery takes.
    ///
    /// # Errors
    /// [`Locked`](StorageError::Locked) when another process has it; [`Damaged`](StorageError::Damaged) when something
    /// that was safe is not there or not whole; what the system says.
    pub fn open(folder: &Path, config: LsmConfig) -> Result<Self, StorageError> {
        let opening = |error| StorageError::io(format!("opening the data folder {}", folder.display()), error);
        let disk = Arc::new(FileDisk::open(folder).map_err(opening)?);
        let opened = open::open(config, disk, |total| open_index(folder, &config, total));
        Self::from(opened.map_err(|error| match error {
            StorageError::Locked(_) => StorageError::Locked(folder.display().to_string()),
            other => other,
        })?)
    }

    /// Opens a store over the two seams.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on(config: LsmConfig, disk: Arc<dyn Disk>, index: Arc<dyn Index>) -> Result<Self, StorageError> {
        Self::from(open::open(config, disk, |_| Ok(index))?)
    }

    #[expect(clippy::unnecessary_wraps, reason = "shaped for its callers")]
    fn from((engine, threads): (Arc<Engine>, Vec<JoinHandle<()>>)) -> Result<Self, StorageError> {
        Ok(Self { engine, threads: Mutex::new(threads) })
    }

    /// Waits until the index reflects everything that was taken so far, so that it is read from where it lies and no
    /// longer from memory. For tests and measurements.
    #[doc(hidden)]
    pub fn wait_until_indexed(&self) {
        self.engine.wait_until_indexed();
    }

    /// What was moved out of sparse segments since the store was opened, in bytes. For tests and measurements.
    #[doc(hidden)]
    #[must_use]
    pub fn rewritten_bytes(&self) -> u64 {
        self.engine.rewritten_bytes.load(Ordering::Relaxed)
    }

    /// A reader that deposes no writer; none if there is no such partition. For tests and for looking into a store.
    #[doc(hidden)]
    #[must_use]
    pub fn reader(&self, partition: PartitionId) -> Option<Arc<dyn stentor_core::storage::PartitionReader>> {
        let found = self.engine.partition(partition)?;
        Some(Arc::new(Reader::new(self.engine.clone(), found)))
    }

    fn finish(&self) {
        for thread in lock(&self.threads).drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the store has panicked");
            }
        }
        self.engine.release();
    }

    /// Commits an opening or a deletion, which are durable whatever the partition's durability is.
    async fn settle(
        &self,
        partition: &Arc<Partition>,
        make: impl FnOnce(&mut crate::partition::PartitionState) -> Encoder + Send,
    ) -> Result<PendingCommit, StorageError> {
        // What is encoded depends on the state, which is locked inside; it is small, so no room in the queue is asked for.
        let mut state = partition.state();
        let before = state.admitted;
        let encoder = make(&mut state);
        let after = state.admitted;
        state.admitted = before;
        drop(state);
        let request = Request {
            encoded: encoder.finish(),
            offsets: range_from(after.end, 0),
            synced: true,
            need: Need::Books,
            pins: Vec::new(),
            permit: None,
        };
        self.engine
            .submit(partition, request, |state| {
                if state.admitted != before || state.deleted {
                    // Somebody was faster.
                    return Err(partition.deposed(state.admitted));
                }
                state.admitted = after;
                Ok(())
            })
            .map(|(_, pending)| pending)
    }
}

fn open_index(folder: &Path, config: &LsmConfig, total: u64) -> Result<Arc<dyn Index>, StorageError> {
    let memtable_bytes = config.memtable_bytes.min((total / MEMTABLE_SHARE).max(MEMTABLE_BYTES_MIN));
    let options = FjallOptions { memtable_bytes, cache_bytes: config.cache_bytes };
    let index = FjallIndex::open(&folder.join(INDEX_FOLDER), options)
        .map_err(|error| StorageError::from(open::OpenError::Apply(error.into())))?;
    Ok(Arc::new(index))
}

#[async_trait]
impl Storage for LsmStorage {
    fn keeps(&self) -> &'static [Durability] {
        KEEPS
    }

    async fn open(&self, partition: PartitionId, options: OpenOptions) -> Result<OpenPartition, StorageError> {
        self.engine.is_open()?;
        if !KEEPS.contains(&options.durability) {
            let durability = options.durability;
            return Err(StorageError::Unsupported(format!(
                "`lsm` does not keep `{durability}`: use synced or buffered"
            )));
        }
        if options.bound.is_some() {
            return Err(StorageError::Unsupported("`lsm` bounds no partition: its bound is the disk".to_owned()));
        }
        loop {
            let found = lock(&self.engine.partitions)
                .entry(partition)
                .or_insert_with(|| Arc::new(Partition::new(partition)))
                .clone();
            let opened = self.begin_epoch(&found, options.first_offset).await;
            let (epoch, pending) = match opened {
                Ok(opened) => opened,
                Err(StorageError::Deposed { .. }) => {
                    // Deleted, or opened by somebody else, since it was looked up.
                    if found.state().deleted {
                        self.engine.forget(&found);
                    }
                    continue;
                }
                Err(error) => {
                    self.engine.forget_unborn(&found);
                    return Err(error);
                }
            };
            let end = pending.offsets().end;
            pending.durable().await?;
            let synced = options.durability == Durability::Synced;
            let writer = Writer::new(self.engine.clone(), found.clone(), epoch, synced, end);
            let reader = Reader::new(self.engine.clone(), found);
            return Ok(OpenPartition { epoch, writer: Box::new(writer), reader: Arc::new(reader) });
        }
    }

    async fn list(&self) -> Result<Vec<PartitionId>, StorageError> {
        self.engine.is_open()?;
        let partitions = lock(&self.engine.partitions);
        Ok(partitions.values().filter(|found| found.state().incarnation != 0).map(|found| found.id).collect())
    }

    async fn delete(&self, partition: PartitionId) -> Result<(), StorageError> {
        self.engine.is_open()?;
        loop {
            let Some(found) = self.engine.partition(partition) else {
                return Ok(());
            };
            if found.state().admitted.epoch == Epoch(0) {
                return Ok(());
            }
            let deleted = self
                .settle(&found, |state| {
                    Encoder::new(FrameKind::Deletion, partition, state.admitted.epoch, state.admitted.end)
                })
                .await;
            match deleted {
                Ok(pending) => return pending.durable().await.map(|_| ()),
                Err(StorageError::Deposed { .. }) if found.state().deleted => return Ok(()),
                // Its writer was at work: again, behind that.
                Err(StorageError::Deposed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn watch(&self, partition: PartitionId) -> watch::Receiver<Leadership> {
        self.engine.watch(partition)
    }

    fn usage(&self) -> Usage {
        let engine = &self.engine;
        let (journal, _) = engine.segments.bytes();
        let (full, poisoned) = {
            let poisoned = engine.poisoned().is_some();
            (engine.queue.state().room.is_full(), poisoned)
        };
        let partitions: Vec<Arc<Partition>> = lock(&engine.partitions).values().cloned().collect();
        Usage {
            bytes: journal + engine.other_bytes.load(Ordering::Relaxed),
            bytes_live: partitions.iter().map(|partition| partition.state().bytes()).sum(),
            syncs: engine.syncs.load(Ordering::Relaxed),
            corruptions: engine.damage.times(),
            full,
            poisoned,
        }
    }

    async fn close(&self) -> Result<(), StorageError> {
        if self.engine.is_open().is_err() {
            return Ok(());
        }
        self.engine.end(Ending::Close);
        let threads: Vec<JoinHandle<()>> = lock(&self.threads).drain(..).collect();
        let joined = tokio::task::spawn_blocking(move || threads.into_iter().all(|thread| thread.join().is_ok()));
        let whole = joined.await.unwrap_or(false);
        self.engine.release();
        match self.engine.poisoned() {
            Some(why) => Err(StorageError::Poisoned(why)),
            None if whole => Ok(()),
            None => Err(StorageError::Poisoned("a thread of the store has panicked".to_owned())),
        }
    }
}

impl LsmStorage {
    async fn begin_epoch(
        &self,
        partition: &Arc<Partition>,
        first_offset: Offset,
    ) -> Result<(Epoch, PendingCommit), StorageError> {
        let mut epoch = Epoch(0);
        let pending = self
            .settle(partition, |state| {
                let created = (state.admitted.epoch == Epoch(0)).then_some(first_offset);
                if let Some(first) = created {
                    (state.admitted.start, state.admitted.end) = (first, first);
                }
                let mut encoder =
                    Encoder::new(FrameKind::Change, partition.id, state.admitted.epoch, state.admitted.end);
                epoch = state.admitted.epoch.next();
                encoder.open(epoch, created);
                state.admitted.epoch = epoch;
                encoder
            })
            .await?;
        Ok((epoch, pending))
    }
}

impl Drop for LsmStorage {
    fn drop(&mut self) {
        self.engine.end(Ending::Abandon);
        self.finish();
    }
}
