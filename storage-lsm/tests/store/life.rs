//! Opening, being killed, and opening again.

use std::path::Path;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use stentor_conformance::fixtures::key;
use stentor_core::storage::{Change, KeyRange, OpenOptions, Storage, StorageError};
use stentor_core::{Durability, Offset};
use stentor_storage_lsm::{LsmStorage, verify};
use tempfile::{TempDir, tempdir};

use super::support::config;
use super::{P, Q, SYNCED, bodies, commit, open, publish, run, trim};

/// So small that a handful of messages fills one.
const SEGMENT_BYTES: u64 = 64 << 10;

fn store(folder: &Path) -> LsmStorage {
    LsmStorage::open(folder, config(SEGMENT_BYTES)).unwrap()
}

fn journal_files(folder: &Path, prefix: &str) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_killed_store_comes_back_with_all_that_was_acknowledged() {
    run(async {
        let folder = tempdir().unwrap();
        let mut expected = Vec::new();
        for life in 0..5 {
            // Dropped without being closed: nothing is flushed, nothing is written any more.
            let storage = store(folder.path());
            let mut partition = open(&storage, P).await;
            assert_eq!(bodies(&*partition.reader).await, expected, "life {life}");
            for n in 0..50 {
                let body = format!("{life}/{n}/{}", "x".repeat(2_000));
                publish(&mut partition, body.as_bytes()).await.unwrap();
                expected.push(body);
            }
        }
        let report = verify(folder.path()).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
    });
}

/// A closed store of one partition with so many messages, numbered, and a copy of its index.
async fn closed_store(messages: u64) -> TempDir {
    let folder = tempdir().unwrap();
    let storage = store(folder.path());
    let mut partition = open(&storage, P).await;
    for n in 0..messages {
        publish(&mut partition, format!("{n}").as_bytes()).await.unwrap();
    }
    storage.close().await.unwrap();
    copy(&folder.path().join("index"), &folder.path().join("older"));
    folder
}

/// Puts the copy of the index in the place of the index.
fn fall_back(folder: &TempDir) {
    lose_index(folder);
    std::fs::rename(folder.path().join("older"), folder.path().join("index")).unwrap();
}

fn lose_index(folder: &TempDir) {
    std::fs::remove_dir_all(folder.path().join("index")).unwrap();
}

/// kill -9 hardly tests replay, since the index keeps up: so an older index is put in its place.
#[test]
fn an_index_that_fell_back_is_made_good_from_the_journal() {
    run(async {
        let folder = closed_store(20).await;
        let storage = store(folder.path());
        let mut partition = open(&storage, P).await;
        let large = Bytes::from(vec![9; 5_000]);
        let change = Change {
            puts: vec![(key("large"), large.clone()), (key("gone"), Bytes::from_static(b"x"))],
            ..Change::new(partition.epoch, partition.writer.end())
        };
        commit(&mut partition, change).await.unwrap();
        for n in 20..120 {
            publish(&mut partition, format!("{n}/{}", "y".repeat(1_000)).as_bytes()).await.unwrap();
        }
        let change = Change {
            deletes: vec![KeyRange::single(&key("gone"))],
            ..Change::new(partition.epoch, partition.writer.end())
        };
        commit(&mut partition, change).await.unwrap();
        partition.writer.truncate(Offset(110)).await.unwrap();
        trim(&mut partition, 10).await;
        open(&storage, Q).await;
        storage.delete(Q).await.unwrap();
        let expected = bodies(&*partition.reader).await;
        storage.wait_until_indexed();
        drop((partition, storage));

        fall_back(&folder);
        let storage = store(folder.path());
        let partition = open(&storage, P).await;
        assert_eq!(bodies(&*partition.reader).await, expected);
        assert_eq!(partition.reader.bounds().start, Offset(10));
        assert_eq!(partition.reader.get(&key("large")).await.unwrap(), Some(large));
        assert_eq!(partition.reader.get(&key("gone")).await.unwrap(), None);
        assert_eq!(storage.list().await.unwrap(), [P]);
        storage.close().await.unwrap();
        let report = verify(folder.path()).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
    });
}

/// So many rows that they go to the index in several batches.
#[test]
fn a_long_replay_goes_in_pieces_and_ends_where_the_live_run_was() {
    run(async {
        let folder = closed_store(1).await;
        let large = config(16 << 20);
        let storage = LsmStorage::open(folder.path(), large).unwrap();
        let mut partition = open(&storage, P).await;
        for n in 0..20_u32 {
            let puts = (0..2_000).map(|row| (key(&format!("row {n} {row}")), Bytes::copy_from_slice(&n.to_le_bytes())));
            let change = Change { puts: puts.collect(), ..Change::new(partition.epoch, partition.writer.end()) };
            commit(&mut partition, change).await.unwrap();
        }
        let all = async |storage: &LsmStorage| {
            let reader = storage.reader(P).unwrap();
            reader.scan(KeyRange::all(), std::num::NonZeroU32::MAX).await.unwrap()
        };
        let expected = all(&storage).await;
        assert_eq!(expected.len(), 40_000);
        drop((partition, storage));
        fall_back(&folder);
        let storage = LsmStorage::open(folder.path(), large).unwrap();
        assert_eq!(all(&storage).await, expected);
        storage.close().await.unwrap();
        assert!(verify(folder.path()).unwrap().damage.is_empty());
    });
}

#[test]
fn an_index_that_is_lost_is_made_anew_as_long_as_the_whole_journal_is_there() {
    run(async {
        let folder = closed_store(1).await;
        lose_index(&folder);
        // The partition owes its first segment, so the journal reaches back to the beginning.
        let storage = store(folder.path());
        assert_eq!(bodies(&*open(&storage, P).await.reader).await, ["0"]);
    });
}

#[test]
fn an_index_older_than_the_journal_is_refused() {
    run(async {
        let folder = closed_store(1).await;
        // So much is written and trimmed that the first segments are released.
        for _ in 0..2 {
            let storage = store(folder.path());
            let mut partition = open(&storage, P).await;
            for n in 0..100_u64 {
                publish(&mut partition, &[7; 4_000]).await.unwrap();
                trim(&mut partition, 2 + n).await;
            }
            storage.close().await.unwrap();
        }
        fall_back(&folder);
        let refused = LsmStorage::open(folder.path(), config(SEGMENT_BYTES));
        assert!(matches!(refused, Err(StorageError::Damaged(_))), "{refused:?}");
        assert!(!verify(folder.path()).unwrap().damage.is_empty());
        // And the same of no index at all.
        lose_index(&folder);
        let refused = LsmStorage::open(folder.path(), config(SEGMENT_BYTES));
        assert!(matches!(refused, Err(StorageError::Damaged(_))), "{refused:?}");
    });
}

#[test]
fn segments_are_used_again_and_what_they_held_never_shows() {
    run(async {
        let folder = tempdir().unwrap();
        let mut end = 0;
        for life in 0..4_u64 {
            let storage = store(folder.path());
            let mut partition = open(&storage, P).await;
            assert_eq!(partition.reader.bounds().end, Offset(end));
            for n in 0..300_u64 {
                let body = format!("{life}/{n}/{}", "z".repeat(3_000));
                publish(&mut partition, body.as_bytes()).await.unwrap();
                end += 1;
                trim(&mut partition, end.saturating_sub(3)).await;
            }
            let left = bodies(&*partition.reader).await;
            let expected: Vec<String> = (297..300).map(|n| format!("{life}/{n}/{}", "z".repeat(3_000))).collect();
            assert_eq!(left, expected);
            storage.close().await.unwrap();
            // 900 KiB went through segments of 64 KiB.
            let segments = journal_files(folder.path(), "segment-").len();
            assert!(segments <= 4, "{segments} segments are left");
        }
        assert!(!journal_files(folder.path(), "spare-").is_empty());
        let report = verify(folder.path()).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
    });
}

#[test]
fn a_segment_that_somebody_still_reads_is_not_used_again() {
    run(async {
        let folder = tempdir().unwrap();
        let storage = store(folder.path());
        let mut partition = open(&storage, P).await;
        for n in 0..30_u64 {
            publish(&mut partition, format!("{n}/{}", "v".repeat(4_000)).as_bytes()).await.unwrap();
        }
        storage.wait_until_indexed();
        let view = partition.reader.view().await.unwrap();
        trim(&mut partition, 30).await;
        for n in 0..200_u64 {
            publish(&mut partition, &[1; 4_000]).await.unwrap();
            trim(&mut partition, 30 + n).await;
        }
        storage.wait_until_indexed();
        let seen = view.read(Offset(0), std::num::NonZeroU32::MAX).await.unwrap();
        assert_eq!(seen.len(), 30);
        assert!(stentor_conformance::fixtures::bodies_of(&seen[7].batch)[0].starts_with("7/"));
    });
}

#[test]
fn a_second_process_is_kept_out() {
    run(async {
        let folder = tempdir().unwrap();
        let storage = store(folder.path());
        let refused = LsmStorage::open(folder.path(), config(SEGMENT_BYTES));
        assert!(matches!(refused, Err(StorageError::Locked(_))), "{refused:?}");
        assert!(matches!(verify(folder.path()), Err(StorageError::Locked(_))));
        drop(storage);
        store(folder.path());
    });
}

#[test]
fn a_folder_that_cannot_be_written_is_one_clear_error() {
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("taken"), b"a file").unwrap();
    let refused = LsmStorage::open(&folder.path().join("taken"), config(SEGMENT_BYTES));
    let Err(StorageError::Io { context, .. }) = refused else { panic!("{refused:?}") };
    assert!(context.contains("taken"), "{context}");
}

#[test]
fn buffered_receipts_wait_for_no_sync_and_survive_a_kill() {
    run(async {
        let folder = tempdir().unwrap();
        let storage = store(folder.path());
        let options = OpenOptions { durability: Durability::Buffered, ..SYNCED };
        let mut partition = storage.open(P, options).await.unwrap();
        let before = storage.usage().syncs;
        for n in 0..10 {
            publish(&mut partition, format!("{n}").as_bytes()).await.unwrap();
        }
        assert_eq!(storage.usage().syncs, before);
        assert_eq!(bodies(&*partition.reader).await.len(), 10);
        drop((partition, storage));
        let storage = store(folder.path());
        assert_eq!(bodies(&*open(&storage, P).await.reader).await.len(), 10);
    });
}

#[test]
fn changes_that_wait_together_share_one_sync() {
    run(async {
        let folder = tempdir().unwrap();
        let faults = std::sync::Arc::new(super::support::Faults::default());
        let disk = super::support::TestDisk::open(folder.path(), faults.clone());
        let index = stentor_storage_lsm::index::FjallIndex::open(&folder.path().join("index"), Default::default());
        let storage = LsmStorage::open_on(config(1 << 20), disk, std::sync::Arc::new(index.unwrap())).unwrap();
        let mut partitions = Vec::new();
        for id in 0..8 {
            partitions.push(open(&storage, stentor_core::PartitionId(id)).await);
        }
        faults.hold_syncs(true);
        let before = storage.usage().syncs;
        let mut pending = Vec::new();
        for partition in &mut partitions {
            for _ in 0..10 {
                let change = Change {
                    appends: vec![super::append(b"x")],
                    ..Change::new(partition.epoch, partition.writer.end())
                };
                pending.push(partition.writer.commit(change).await.unwrap());
            }
        }
        faults.hold_syncs(false);
        for pending in pending {
            pending.durable().await.unwrap();
        }
        // The first may have gone alone; the others waited for it together.
        let syncs = storage.usage().syncs - before;
        assert!(syncs <= 3, "{syncs} syncs for 80 changes");
    });
}

/// Shown to fail with the answer of a group that asks for no sync given without a look whether the store is poisoned.
#[test]
fn what_was_written_while_a_sync_failed_is_not_answered_as_if_it_had_not() {
    run(async {
        let folder = tempdir().unwrap();
        let faults = std::sync::Arc::new(super::support::Faults::default());
        let disk = super::support::TestDisk::open(folder.path(), faults.clone());
        let index = stentor_storage_lsm::index::FjallIndex::open(&folder.path().join("index"), Default::default());
        let storage = LsmStorage::open_on(config(64 << 20), disk, std::sync::Arc::new(index.unwrap())).unwrap();
        let mut synced = open(&storage, P).await;
        let options = OpenOptions { durability: Durability::Buffered, ..SYNCED };
        let mut buffered = storage.open(stentor_core::PartitionId(9), options).await.unwrap();
        // The first segment is a small one; this begins a whole one, into which all the others go.
        publish(&mut synced, &vec![7; 9 << 20]).await.unwrap();
        // The committer syncs the first by itself. The other two are too large for one group, so the last waits when the one
        // before it is written: that one is left to the syncer, and the last is written meanwhile.
        faults.hold_syncs(true);
        faults.hold_failure(true);
        faults.fail_sync_number.store(2, Ordering::SeqCst);
        let change = |partition: &stentor_core::storage::OpenPartition, bytes: usize| Change {
            appends: vec![super::append(&vec![7; bytes])],
            ..Change::new(partition.epoch, partition.writer.end())
        };
        let before = faults.writes.load(Ordering::SeqCst);
        let first = synced.writer.commit(change(&synced, 1)).await.unwrap();
        let writes = async |wanted: u64| {
            while faults.writes.load(Ordering::SeqCst) < before + wanted {
                tokio::task::yield_now().await;
            }
        };
        writes(1).await;
        let fails = synced.writer.commit(change(&synced, 5 << 20)).await.unwrap();
        let behind = buffered.writer.commit(change(&buffered, 5 << 20)).await.unwrap();
        faults.hold_syncs(false);
        writes(3).await;
        faults.hold_failure(false);
        first.durable().await.unwrap();
        assert!(matches!(fails.durable().await, Err(StorageError::Poisoned(_))));
        assert!(matches!(behind.durable().await, Err(StorageError::Poisoned(_))));
    });
}
