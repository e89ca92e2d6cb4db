//! The backends, made ready for work.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stentor_core::storage::{ByteBound, OpenOptions, OpenPartition, Storage, WhenFull};
use stentor_core::{Durability, Offset, PartitionId};
use stentor_storage_lsm::{LsmConfig, LsmStorage};
use stentor_storage_mem::MemStorage;
use tempfile::TempDir;

use crate::lab::{Failure, Lab};
use crate::workload::Appender;

/// More than any bench keeps in memory: they trim.
const MEMORY_MAX: u64 = 4 << 30;

/// What a new `lsm` store is fed before it is measured: enough for its journal to go round, since that is how it is from
/// then on.
const BREAK_IN_BYTES: u64 = 640 << 20;

/// Who takes part: a backend at a durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `storage-mem`.
    Memory,
    /// `storage-lsm`, acknowledging what survives the process.
    Buffered,
    /// `storage-lsm`, acknowledging what survives the loss of power.
    Synced,
}

impl Backend {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Buffered, Self::Synced];

    /// What it is called in criterion's names.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Memory => "mem",
            Self::Buffered => "lsm-buffered",
            Self::Synced => "lsm-synced",
        }
    }

    /// How its partitions are opened.
    #[must_use]
    pub fn options(self) -> OpenOptions {
        let durability = match self {
            Self::Memory => Durability::Memory,
            Self::Buffered => Durability::Buffered,
            Self::Synced => Durability::Synced,
        };
        let bound = ByteBound { bytes_max: MEMORY_MAX, when_full: WhenFull::Reject };
        OpenOptions { durability, first_offset: Offset::ZERO, bound: (self == Self::Memory).then_some(bound) }
    }
}

/// A store of either kind.
pub struct Store {
    storage: Arc<dyn Storage>,
    /// The same, where there is an index to wait for.
    lsm: Option<Arc<LsmStorage>>,
    next: AtomicU64,
    /// Goes after the storage.
    folder: Option<TempDir>,
}

impl Store {
    /// An empty store, `lsm` in a folder of its own.
    ///
    /// # Errors
    /// When it does not open.
    pub fn new(lab: &Lab, backend: Backend) -> Result<Self, Failure> {
        if backend == Backend::Memory {
            let storage = Arc::new(MemStorage::new());
            return Ok(Self { storage, lsm: None, next: AtomicU64::new(1), folder: None });
        }
        let folder = lab.folder()?;
        let lsm = Arc::new(open_lsm(folder.path())?);
        Ok(Self { storage: lsm.clone(), lsm: Some(lsm), next: AtomicU64::new(1), folder: Some(folder) })
    }

    /// A new partition.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn create(&self, backend: Backend) -> Result<(PartitionId, OpenPartition), Failure> {
        let id = PartitionId(self.next.fetch_add(1, Ordering::Relaxed));
        Ok((id, self.storage.open(id, backend.options()).await?))
    }

    /// Deletes a partition.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn delete(&self, partition: PartitionId) -> Result<(), Failure> {
        Ok(self.storage.delete(partition).await?)
    }

    /// Waits until the store reads from where it keeps, and no longer from what it has still in memory. Blocks.
    pub fn settle(&self) {
        if let Some(lsm) = &self.lsm {
            lsm.wait_until_indexed();
        }
    }

    /// Closes the store and gives back its folder.
    ///
    /// # Errors
    /// When something could not be made durable, or there is no folder.
    pub async fn close(self) -> Result<TempDir, Failure> {
        self.storage.close().await?;
        self.folder.ok_or(Failure::Unfit("what is in memory cannot be opened again"))
    }
}

/// Opens an `lsm` store as a node does, with the default settings.
///
/// # Errors
/// When it does not open.
pub fn open_lsm(folder: &Path) -> Result<LsmStorage, Failure> {
    Ok(LsmStorage::open(folder, LsmConfig::default())?)
}

/// One store of each kind, made when first asked for, since the command line may leave one out.
pub struct Stores<'a> {
    lab: &'a Lab,
    mem: OnceCell<Store>,
    lsm: OnceCell<Store>,
}

impl<'a> Stores<'a> {
    /// No store yet.
    #[must_use]
    pub const fn new(lab: &'a Lab) -> Self {
        Self { lab, mem: OnceCell::new(), lsm: OnceCell::new() }
    }

    /// The store of this backend. Both durabilities share one: its journal has gone round by then. Making one waits on the
    /// lab's runtime, so ask from outside of it.
    pub fn get(&self, backend: Backend) -> &Store {
        let cell = if backend == Backend::Memory { &self.mem } else { &self.lsm };
        cell.get_or_init(|| {
            let store = self.lab.must(Store::new(self.lab, backend));
            if backend != Backend::Memory {
                self.break_in(&store);
            }
            store
        })
    }

    fn break_in(&self, store: &Store) {
        self.lab.run(async {
            let mut appender =
                Appender::open(store, Backend::Buffered, crate::workload::batch(1_024, 1 << 10)?, 1).await?;
            let batches = self.lab.bytes(BREAK_IN_BYTES) >> 20;
            appender = appender.run(batches).await?;
            store.delete(appender.partition()).await
        });
        store.settle();
    }
}

/// Forces what the files under `folder` hold to the disk and asks the kernel to forget it, so that the next reader gets it
/// from the disk.
///
/// # Errors
/// What the system says.
pub fn drop_page_cache(folder: &Path) -> Result<(), Failure> {
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                forget(&std::fs::File::open(entry.path())?)?;
            }
        }
    }
    Ok(())
}

/// The same for one file.
///
/// # Errors
/// What the system says.
pub fn forget(file: &std::fs::File) -> Result<(), Failure> {
    // What is dirty is not forgotten.
    file.sync_all()?;
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).map_err(std::io::Error::from)?;
    Ok(())
}
