//! Readers of a partition, and views of it.

use std::num::NonZeroU32;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use stentor_core::storage::{Key, KeyRange, PartitionReader, PartitionView, StorageError, StoredBatch};
use stentor_core::{Offset, OffsetRange, Timestamp};

use crate::engine::{Engine, ViewSlot};
use crate::index::Index;
use crate::overlay::{Overlaid, Overlay};
use crate::partition::{Partition, TailEntry};
use crate::snapshot::{ReadError, Snapshot, Source};

/// How often a read starts over because what a row pointed to was released meanwhile. Each time the log's start or the
/// row has moved, so more than a few is damage.
const ATTEMPTS_MAX: usize = 16;

/// Reads from one partition.
#[derive(Clone)]
pub(crate) struct Reader {
    engine: Arc<Engine>,
    partition: Arc<Partition>,
}

/// What of the memory a snapshot is to hold.
enum Wanted<'a> {
    Log(Offset),
    Table(&'a KeyRange),
    Everything,
}

impl Reader {
    pub(crate) const fn new(engine: Arc<Engine>, partition: Arc<Partition>) -> Self {
        Self { engine, partition }
    }

    fn snapshot(&self, index: &Arc<dyn Index>, wanted: &Wanted<'_>) -> Snapshot {
        let state = self.partition.state();
        let tail = |from: Offset| -> Vec<TailEntry> {
            let first = state.tail.partition_point(|entry| entry.end() <= from);
            state.tail.range(first..).cloned().collect()
        };
        let memory = match wanted {
            Wanted::Log(from) => (tail(*from), Overlay::default()),
            Wanted::Table(range) => (Vec::new(), state.overlay.within(range)),
            Wanted::Everything => (tail(Offset::ZERO), state.overlay.within(&KeyRange::all())),
        };
        let source = match wanted {
            Wanted::Everything => Source::Held(self.engine.segments.all()),
            Wanted::Log(_) | Wanted::Table(_) => Source::Live(self.engine.segments.clone()),
        };
        // Taken under the partition's lock, so that the index is not behind what was copied.
        Snapshot::new(self.partition.id, &state, memory, index.snapshot(), source)
    }

    /// Serves a read from memory alone, if it can be.
    fn read_memory(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Option<Vec<StoredBatch>>, StorageError> {
        self.engine.is_open()?;
        let state = self.partition.state();
        if from < state.start {
            return Err(StorageError::Trimmed { start: state.start });
        }
        if from >= state.end {
            return Ok(Some(Vec::new()));
        }
        if from < state.memory_start() {
            return Ok(None);
        }
        let mut batches = Vec::new();
        let mut bytes = 0_u64;
        let mut there = None;
        for entry in state.memory_from(from) {
            bytes += u64::from(entry.row.place.length);
            if bytes > u64::from(bytes_max.get()) && !batches.is_empty() {
                break;
            }
            // What the index has may have been moved to another segment; a place that was released leads nowhere.
            if there != Some(entry.row.place.segment) {
                if self.engine.segments.get(entry.row.place.segment).is_none() {
                    return Ok(None);
                }
                there = Some(entry.row.place.segment);
            }
            match &entry.batch {
                Some(batch) => batches.push(StoredBatch { batch: batch.clone(), place: entry.row.place }),
                // Appended by reference: it has to be fetched.
                None => return Ok(None),
            }
        }
        Ok(Some(batches))
    }

    /// Runs a read where it may block, and again when what it found has been released meanwhile.
    async fn blocking<T: Send + 'static>(
        &self,
        read: impl Fn(&Self, &Arc<dyn Index>) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, StorageError> {
        let reader = self.clone();
        let engine = self.engine.clone();
        let done = tokio::task::spawn_blocking(move || {
            reader.engine.reading(|index| {
                let mut attempt = 1;
                loop {
                    match read(&reader, index) {
                        Err(ReadError::Gone(_)) if attempt < ATTEMPTS_MAX => attempt += 1,
                        other => return other.map_err(ReadError::into_storage),
                    }
                }
            })
        });
        done.await.map_err(|_| StorageError::Closed)?.map_err(|error| engine.met(error))
    }

    /// Whether a batch begins at `offset`, or the log ends there.
    pub(crate) async fn is_boundary(&self, offset: Offset) -> Result<bool, StorageError> {
        self.blocking(move |reader, index| Ok(reader.snapshot(index, &Wanted::Log(offset)).is_boundary(offset)?)).await
    }
}

#[async_trait]
impl PartitionReader for Reader {
    fn bounds(&self) -> OffsetRange {
        self.partition.state().bounds()
    }

    fn bytes(&self) -> u64 {
        self.partition.state().bytes()
    }

    async fn read(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Vec<StoredBatch>, StorageError> {
        if let Some(batches) = self.read_memory(from, bytes_max)? {
            return Ok(batches);
        }
        self.blocking(move |reader, index| reader.snapshot(index, &Wanted::Log(from)).read(from, bytes_max)).await
    }

    async fn get(&self, key: &Key) -> Result<Option<Bytes>, StorageError> {
        self.engine.is_open()?;
        match self.partition.state().overlay.get(key) {
            Overlaid::Value(value) => return Ok(Some(value)),
            Overlaid::Deleted => return Ok(None),
            Overlaid::Unknown => {}
        }
        let key = key.clone();
        let wanted = KeyRange::single(&key);
        self.blocking(move |reader, index| reader.snapshot(index, &Wanted::Table(&wanted)).get(&key)).await
    }

    async fn scan(&self, range: KeyRange, limit: NonZeroU32) -> Result<Vec<(Key, Bytes)>, StorageError> {
        self.blocking(move |reader, index| reader.snapshot(index, &Wanted::Table(&range)).scan(&range, limit)).await
    }

    async fn offset_at(&self, at: Timestamp) -> Result<Offset, StorageError> {
        self.blocking(move |reader, index| Ok(reader.snapshot(index, &Wanted::Log(Offset::ZERO)).offset_at(at)?)).await
    }

    async fn view(&self) -> Result<Box<dyn PartitionView>, StorageError> {
        let snapshot = self.blocking(|reader, index| Ok(reader.snapshot(index, &Wanted::Everything))).await?;
        let bounds = snapshot.bounds();
        Ok(Box::new(View { slot: self.engine.view(snapshot), engine: self.engine.clone(), bounds }))
    }
}

/// A partition as it stood at one moment.
struct View {
    engine: Arc<Engine>,
    slot: Arc<ViewSlot>,
    bounds: OffsetRange,
}

impl View {
    async fn blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Snapshot) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, StorageError> {
        let (slot, engine) = (self.slot.clone(), self.engine.clone());
        let done = tokio::task::spawn_blocking(move || {
            engine.reading(|_| read(&*slot.get()?).map_err(ReadError::into_storage))
        });
        done.await.map_err(|_| StorageError::Closed)?.map_err(|error| self.engine.met(error))
    }
}

#[async_trait]
impl PartitionView for View {
    fn bounds(&self) -> OffsetRange {
        self.bounds
    }

    async fn read(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Vec<StoredBatch>, StorageError> {
        self.blocking(move |snapshot| snapshot.read(from, bytes_max)).await
    }

    async fn scan(&self, range: KeyRange, limit: NonZeroU32) -> Result<Vec<(Key, Bytes)>, StorageError> {
        self.blocking(move |snapshot| snapshot.scan(&range, limit)).await
    }
}
