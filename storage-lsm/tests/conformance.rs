//! The suite that every backend passes.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use stentor_conformance::storage::Subject;
use stentor_core::storage::{OpenOptions, Storage};
use stentor_core::{Durability, Offset, PartitionId};
use stentor_storage_lsm::LsmStorage;
use stentor_storage_lsm::index::{FjallIndex, FjallOptions};
use support::{Faults, TestDisk, config};
use tempfile::TempDir;

const SEGMENT_BYTES: u64 = 16 << 20;

struct Lsm {
    folder: TempDir,
    faults: Arc<Faults>,
    storage: Arc<LsmStorage>,
}

impl Lsm {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let faults = Arc::new(Faults::default());
        let storage = open(&folder, &faults);
        Self { folder, faults, storage }
    }
}

fn open(folder: &TempDir, faults: &Arc<Faults>) -> Arc<LsmStorage> {
    let disk = TestDisk::open(folder.path(), faults.clone());
    let index = FjallIndex::open(&folder.path().join("index"), FjallOptions::default()).unwrap();
    Arc::new(LsmStorage::open_on(config(SEGMENT_BYTES), disk, Arc::new(index)).unwrap())
}

#[async_trait]
impl Subject for Lsm {
    fn storage(&self) -> Arc<dyn Storage> {
        self.storage.clone()
    }

    fn options(&self) -> OpenOptions {
        OpenOptions { durability: Durability::Synced, first_offset: Offset::ZERO, bound: None }
    }

    fn change_bytes_max(&self) -> u64 {
        SEGMENT_BYTES
    }

    async fn reopen(&mut self) -> bool {
        self.storage.close().await.unwrap();
        self.storage = open(&self.folder, &self.faults);
        true
    }

    fn fail_next_sync(&mut self) -> bool {
        self.faults.fail_next_sync.store(true, Ordering::SeqCst);
        true
    }

    fn hold_syncs(&mut self) -> bool {
        self.faults.hold_syncs(true);
        true
    }

    fn release_syncs(&mut self) {
        self.faults.hold_syncs(false);
    }

    async fn damage(&mut self, partition: PartitionId, offset: Offset) -> bool {
        // From here on it is read from the segment and not from memory.
        self.storage.wait_until_indexed();
        let disk = TestDisk::open(self.folder.path(), self.faults.clone());
        let place = place_of(&self.storage, partition, offset).await;
        support::flip(&disk.disk, &format!("segment-{:016x}.journal", place.0), place.1 + 90, 0);
        true
    }
}

/// Reads it through a reader that deposes nobody.
async fn place_of(storage: &LsmStorage, partition: PartitionId, offset: Offset) -> (u64, u64) {
    let reader = storage.reader(partition).unwrap();
    let read = reader.read(offset, NonZeroU32::MIN).await.unwrap();
    (read[0].place.segment, read[0].place.position)
}

stentor_conformance::storage_suite!(Lsm::new());
