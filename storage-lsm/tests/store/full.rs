//! A disk that fills up.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use stentor_conformance::fixtures::key;
use stentor_core::storage::{Change, Storage, StorageError};
use stentor_storage_lsm::LsmStorage;
use stentor_storage_lsm::index::{FjallIndex, FjallOptions};
use tempfile::{TempDir, tempdir};

use super::support::{Faults, TestDisk, config};
use super::{P, bodies, commit, open, pause, publish, run, trim, until};

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 64 * MIB;
const SEGMENT_BYTES: u64 = 2 * MIB;

fn store(folder: &TempDir, faults: &Arc<Faults>) -> LsmStorage {
    let disk = TestDisk::open(folder.path(), faults.clone());
    let index = FjallIndex::open(&folder.path().join("index"), FjallOptions::default()).unwrap();
    LsmStorage::open_on(config(SEGMENT_BYTES), disk, Arc::new(index)).unwrap()
}

fn small_disk() -> (TempDir, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    faults.total.store(DISK_BYTES, Ordering::SeqCst);
    (tempdir().unwrap(), faults)
}

#[test]
fn a_full_disk_refuses_publishing_and_nothing_else_until_there_is_room() {
    run(async {
        let (folder, faults) = small_disk();
        let storage = store(&folder, &faults);
        let mut partition = open(&storage, P).await;
        let mut published = 0_u64;
        let refused = loop {
            match publish(&mut partition, &[3; 200_000]).await {
                Ok(_) => published += 1,
                Err(refused) => break refused,
            }
            assert!(published < 1_000, "200 MB went to a disk of 64");
        };
        assert!(matches!(refused, StorageError::StorageFull(_)), "{refused}");
        assert!(published > 200, "only {published} fit");
        // Reading, acknowledging and trimming go on, for as many segments as there are changes for.
        assert_eq!(bodies(&*partition.reader).await.len() as u64, published);
        for n in 0..1_500_u64 {
            let change = Change {
                puts: vec![(key("acknowledged"), Bytes::from(vec![u8::try_from(n % 251).unwrap(); 3_000]))],
                ..Change::new(partition.epoch, partition.writer.end())
            };
            commit(&mut partition, change).await.unwrap();
        }
        assert!(!storage.usage().poisoned);
        // Once there is room it goes on by itself.
        trim(&mut partition, published).await;
        let mut resumed = false;
        for _ in 0..500 {
            if publish(&mut partition, &[4; 200_000]).await.is_ok() {
                resumed = true;
                break;
            }
            pause().await;
        }
        assert!(resumed, "publishing did not resume: {:?}", storage.usage());
        storage.close().await.unwrap();
        drop((partition, storage));
        let storage = store(&folder, &faults);
        assert_eq!(bodies(&*open(&storage, P).await.reader).await.len(), 1);
    });
}

#[test]
fn others_who_fill_the_disk_stop_publishing_and_publishing_resumes_when_they_leave() {
    run(async {
        let (folder, faults) = small_disk();
        let storage = store(&folder, &faults);
        let mut partition = open(&storage, P).await;
        publish(&mut partition, b"before").await.unwrap();
        assert!(!storage.usage().full);
        faults.taken.store(DISK_BYTES - 8 * MIB, Ordering::SeqCst);
        until("the watermark", || storage.usage().full).await;
        let refused = publish(&mut partition, b"refused").await;
        assert!(matches!(refused, Err(StorageError::StorageFull(_))), "{refused:?}");
        faults.taken.store(0, Ordering::SeqCst);
        until("room", || !storage.usage().full).await;
        publish(&mut partition, b"after").await.unwrap();
        assert_eq!(bodies(&*partition.reader).await, ["before", "after"]);
    });
}

#[test]
fn others_who_take_the_reserve_too_stop_the_store_and_it_starts_again_when_they_leave() {
    run(async {
        let (folder, faults) = small_disk();
        let storage = store(&folder, &faults);
        let mut partition = open(&storage, P).await;
        publish(&mut partition, b"before").await.unwrap();
        faults.taken.store(2 * DISK_BYTES, Ordering::SeqCst);
        until("the end", || storage.usage().poisoned).await;
        let refused = publish(&mut partition, b"refused").await;
        let Err(StorageError::Poisoned(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("full"), "{why}");
        assert_eq!(bodies(&*partition.reader).await, ["before"]);
        assert!(storage.close().await.is_err(), "closing must not hide it");
        drop((partition, storage));
        faults.taken.store(0, Ordering::SeqCst);
        let storage = store(&folder, &faults);
        let mut partition = open(&storage, P).await;
        publish(&mut partition, b"after").await.unwrap();
        assert_eq!(bodies(&*partition.reader).await, ["before", "after"]);
    });
}
