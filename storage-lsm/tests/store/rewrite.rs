//! Segments that are kept alive by little.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use stentor_conformance::fixtures::key;
use stentor_core::storage::{Append, Change, OpenPartition, Storage, StorageError};
use stentor_core::{Offset, PartitionId, Timestamp};
use stentor_storage_lsm::index::{FjallIndex, FjallOptions};
use stentor_storage_lsm::{LsmConfig, LsmStorage, verify};
use tempfile::tempdir;

use super::support::{Faults, TestDisk, config, flip};
use super::{P, Q, bodies, commit, open, pause, publish, run, trim, until};

const SEGMENT_BYTES: u64 = 64 << 10;

/// Rewrites whatever is sparse.
fn eager() -> LsmConfig {
    LsmConfig { sparse_slack: 0, ..config(SEGMENT_BYTES) }
}

/// What the journal takes in this folder.
fn journal_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().filter_map(Result::ok);
    let journal = entries.filter(|entry| entry.file_name().to_str().unwrap().ends_with(".journal"));
    journal.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

async fn trim_all(partition: &mut OpenPartition) {
    let end = partition.writer.end();
    trim(partition, end.0).await;
}

/// Publishes so much to `busy` that the segments before are complete, and trims all of it.
async fn pass_by(storage: &LsmStorage, busy: &mut OpenPartition, segments: u64) {
    for _ in 0..segments * SEGMENT_BYTES / 8_000 {
        publish(busy, &[1; 8_000]).await.unwrap();
    }
    trim_all(busy).await;
    storage.wait_until_indexed();
}

/// The story of a group that somebody forgot: 1 % of the messages are its own and stay, in a journal shared with 50 busy
/// partitions that are trimmed as they go. The disk holds what it owes and a bounded share.
#[test]
fn a_forgotten_group_costs_its_own_bytes_and_not_everybodys() {
    const ROUNDS: u64 = 60;
    const SLACK: u64 = 4;
    run(async {
        let folder = tempdir().unwrap();
        let storage = LsmStorage::open(folder.path(), config(SEGMENT_BYTES)).unwrap();
        let mut forgotten = open(&storage, P).await;
        let mut busy = Vec::new();
        for partition in 100..150 {
            busy.push(open(&storage, PartitionId(partition)).await);
        }
        let mut expected = Vec::new();
        let (mut most, mut written) = (0, 0);
        for round in 0..ROUNDS {
            for partition in &mut busy {
                publish(partition, &[7; 4_000]).await.unwrap();
                written += 4_000;
                trim(partition, round + 1).await;
            }
            let body = format!("{round}/{}", "f".repeat(2_000));
            publish(&mut forgotten, body.as_bytes()).await.unwrap();
            expected.push(body);
            most = most.max(journal_bytes(folder.path()));
        }
        let owed = forgotten.reader.bytes();
        // What is sparse is rewritten while the others go on; at its worst the journal held the bound and what waited for a
        // flush of the index.
        let bound = owed * 7 / 4 + (2 * SLACK + 8) * SEGMENT_BYTES;
        assert!(written > 8 * bound, "{written} bytes prove nothing against {bound}");
        until("the bound", || journal_bytes(folder.path()) <= bound).await;
        assert!(most < 2 * bound, "{most} bytes at the worst, and {bound} in the end");
        assert_eq!(bodies(&*forgotten.reader).await, expected);
        storage.close().await.unwrap();
        drop((forgotten, busy, storage));
        let report = verify(folder.path()).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        let storage = LsmStorage::open(folder.path(), config(SEGMENT_BYTES)).unwrap();
        assert_eq!(bodies(&*open(&storage, P).await.reader).await, expected);
    });
}

#[test]
fn references_and_large_rows_move_with_the_batches_and_survive_a_kill() {
    run(async {
        let folder = tempdir().unwrap();
        let storage = LsmStorage::open(folder.path(), eager()).unwrap();
        let (mut source, mut other) = (open(&storage, P).await, open(&storage, Q).await);
        let mut busy = open(&storage, PartitionId(9)).await;
        publish(&mut source, b"first").await.unwrap();
        publish(&mut source, b"second").await.unwrap();
        let place = source.reader.read(Offset(1), NonZeroU32::MIN).await.unwrap()[0].place;
        let large = Bytes::from(vec![9; 5_000]);
        let change = Change {
            appends: vec![Append::Stored { place, stored_at: Timestamp(77) }],
            puts: vec![(key("large"), large.clone()), (key("small"), Bytes::from_static(b"s"))],
            ..Change::new(other.epoch, other.writer.end())
        };
        commit(&mut other, change).await.unwrap();
        trim(&mut source, 1).await;
        pass_by(&storage, &mut busy, 3).await;
        until("the move", || storage.rewritten_bytes() > 5_000).await;
        // Nobody owes the old place any more, and so it goes, with the next ones: a flush of the index is for a few.
        pass_by(&storage, &mut busy, 3).await;
        let name = folder.path().join(format!("segment-{:016x}.journal", place.segment));
        until("the release", || !name.exists()).await;
        let stale = Change {
            appends: vec![Append::Stored { place, stored_at: Timestamp(78) }],
            ..Change::new(other.epoch, other.writer.end())
        };
        let refused = commit(&mut other, stale).await;
        assert!(matches!(refused, Err(StorageError::Moved { place: of }) if of == place), "{refused:?}");
        // Reading again tells where it lies now.
        let read = source.reader.read(Offset(1), NonZeroU32::MIN).await.unwrap();
        let again = Change {
            appends: vec![Append::Stored { place: read[0].place, stored_at: Timestamp(79) }],
            ..Change::new(other.epoch, other.writer.end())
        };
        commit(&mut other, again).await.unwrap();
        holds(&source, &other, &large).await;
        drop((source, other, busy, storage));
        let storage = LsmStorage::open(folder.path(), eager()).unwrap();
        holds(&open(&storage, P).await, &open(&storage, Q).await, &large).await;
        drop(storage);
        let report = verify(folder.path()).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
    });
}

/// What the test of references put there.
async fn holds(source: &OpenPartition, other: &OpenPartition, large: &Bytes) {
    assert_eq!(bodies(&*source.reader).await, ["second"]);
    assert_eq!(bodies(&*other.reader).await, ["second", "second"]);
    let read = other.reader.read(Offset(0), NonZeroU32::MAX).await.unwrap();
    assert_eq!(read.iter().map(|stored| stored.batch.stored_at().0).collect::<Vec<_>>(), [77, 79]);
    assert_eq!(other.reader.get(&key("large")).await.unwrap().as_ref(), Some(large));
    assert_eq!(other.reader.get(&key("small")).await.unwrap().as_deref(), Some(&b"s"[..]));
}

/// A damaged batch is neither copied, which would make it look whole, nor dropped: its segment stays, and says so.
#[test]
fn a_segment_with_damage_stays_and_the_others_move() {
    run(async {
        let folder = tempdir().unwrap();
        let disk = TestDisk::open(folder.path(), Arc::default());
        let storage = LsmStorage::open(folder.path(), eager()).unwrap();
        let (mut partition, mut busy) = (open(&storage, P).await, open(&storage, Q).await);
        let mut places = Vec::new();
        // With all of it in memory and nothing sparse: as long as the others are there, no segment is.
        for n in 0..3 {
            publish(&mut partition, format!("message {n}").as_bytes()).await.unwrap();
            let read = partition.reader.read(Offset(n), NonZeroU32::MIN).await.unwrap();
            places.push(read[0].place);
            for _ in 0..SEGMENT_BYTES / 8_000 {
                publish(&mut busy, &[1; 8_000]).await.unwrap();
            }
        }
        assert!(places[0].segment < places[1].segment && places[1].segment < places[2].segment);
        storage.wait_until_indexed();
        let name = |at: usize| format!("segment-{:016x}.journal", places[at].segment);
        flip(&disk.disk, &name(1), places[1].position + 90, 3);
        trim_all(&mut busy).await;
        pass_by(&storage, &mut busy, 3).await;
        until("the release of the others", || {
            [0, 2].iter().all(|at| !folder.path().join(name(*at)).exists()) && storage.usage().corruptions > 0
        })
        .await;
        assert!(folder.path().join(name(1)).exists());
        let read = |from| partition.reader.read(Offset(from), NonZeroU32::MIN);
        let damaged = read(1).await;
        assert!(matches!(damaged, Err(StorageError::Corrupt { partition: P, offset: Offset(1), .. })), "{damaged:?}");
        for whole in [0, 2] {
            assert!(read(whole).await.unwrap()[0].place.segment > places[2].segment);
        }
        storage.close().await.unwrap();
        drop((partition, busy, storage));
        let damage = verify(folder.path()).unwrap().damage;
        assert!(damage.iter().any(|damage| damage.offset == Some(Offset(1))), "{damage:?}");
        assert!(damage.iter().all(|damage| damage.offset == Some(Offset(1))), "it spread: {damage:?}");
    });
}

/// Every segment holds a little of a group that does not come; nothing but rewriting can make room.
#[test]
fn on_a_full_disk_rewriting_makes_room_and_publishing_resumes() {
    const MIB: u64 = 1 << 20;
    run(async {
        let folder = tempdir().unwrap();
        let faults = Arc::new(Faults::default());
        faults.total.store(64 * MIB, Ordering::SeqCst);
        let disk = TestDisk::open(folder.path(), faults.clone());
        let index = FjallIndex::open(&folder.path().join("index"), FjallOptions::default()).unwrap();
        let storage = LsmStorage::open_on(config(2 * MIB), disk, Arc::new(index)).unwrap();
        let (mut forgotten, mut busy) = (open(&storage, P).await, open(&storage, Q).await);
        let mut expected = Vec::new();
        for n in 0..10_000 {
            let body = format!("{n}/{}", "f".repeat(1_000));
            let published = publish(&mut forgotten, body.as_bytes()).await;
            if published.is_ok() {
                expected.push(body);
            }
            if published.is_err() || publish(&mut busy, &[3; 100_000]).await.is_err() {
                break;
            }
        }
        assert!(expected.len() > 300, "only {} fit", expected.len());
        assert_eq!(storage.rewritten_bytes(), 0, "nothing is sparse as long as all is owed");
        trim_all(&mut busy).await;
        // Far more than was left anywhere when the disk was full.
        for n in 0..100 {
            let mut refusals = 0;
            while publish(&mut busy, &[3; 100_000]).await.is_err() {
                refusals += 1;
                assert!(refusals < 500, "message {n} found no room: {:?}", storage.usage());
                pause().await;
            }
        }
        assert!(storage.rewritten_bytes() > 0);
        assert_eq!(bodies(&*forgotten.reader).await, expected);
        assert!(!storage.usage().poisoned);
    });
}
