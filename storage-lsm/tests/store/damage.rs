//! Rot: every bit that was synced.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use stentor_conformance::fixtures::key;
use stentor_core::Offset;
use stentor_core::storage::{Change, Storage, StorageError};
use stentor_storage_lsm::disk::Disk;
use stentor_storage_lsm::index::Index;
use stentor_storage_lsm::sim::{Power, SimDisk, SimIndex, SyncHonesty};
use stentor_storage_lsm::{LsmStorage, verify, verify_on};
use tempfile::tempdir;

use super::support::config;
use super::{P, Q, bodies, commit, open, publish, run};

const SEGMENT_BYTES: u64 = 64 << 10;

/// A closed store over simulated seams: a few messages of two partitions, rows small and large, sealed by a later segment.
async fn small_store() -> (Arc<SimDisk>, Arc<dyn Index>) {
    let power = Arc::new(Power::steady());
    let disk = Arc::new(SimDisk::new(power.clone(), SyncHonesty::Honest, 64 << 20));
    let index: Arc<dyn Index> = Arc::new(SimIndex::new(power, 1));
    let storage = LsmStorage::open_on(config(SEGMENT_BYTES), disk.clone(), index.clone()).unwrap();
    let mut partition = open(&storage, P).await;
    let mut other = open(&storage, Q).await;
    for n in 0..3 {
        publish(&mut partition, format!("message {n}").as_bytes()).await.unwrap();
        publish(&mut other, format!("other {n}").as_bytes()).await.unwrap();
    }
    let change = Change {
        puts: vec![(key("small"), Bytes::from_static(b"row")), (key("large"), Bytes::from(vec![7; 1_100]))],
        ..Change::new(partition.epoch, partition.writer.end())
    };
    commit(&mut partition, change).await.unwrap();
    storage.close().await.unwrap();
    drop((partition, other, storage));
    // Opening begins a segment, which seals the one before: of the very last group nobody can tell rot from a tear.
    let storage = LsmStorage::open_on(config(SEGMENT_BYTES), disk.clone(), index.clone()).unwrap();
    storage.close().await.unwrap();
    (disk, index)
}

/// The segment that holds something, and where its groups end.
fn segment(disk: &SimDisk) -> (String, u64) {
    let mut names: Vec<String> =
        disk.list().unwrap().into_iter().map(|entry| entry.name).filter(|name| name.starts_with("segment-")).collect();
    names.sort();
    let file = disk.open(&names[0]).unwrap();
    let mut bytes = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    (names[0].clone(), end as u64)
}

#[test]
fn verifying_finds_every_flipped_bit_of_the_journal() {
    run(async {
        let (disk, index) = small_store().await;
        let report = verify_on(&*disk, &index).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        assert_eq!((report.partitions, report.batches, report.rows), (2, 6, 2));
        let (name, end) = segment(&disk);
        let mut rng = Rng::with_seed(3);
        for byte in 0..usize::try_from(end).unwrap() {
            let bit = rng.u8(..8);
            disk.flip(&name, byte, bit);
            let report = verify_on(&*disk, &index).unwrap();
            assert!(!report.damage.is_empty(), "byte {byte} of {end} is flipped and nobody noticed");
            disk.flip(&name, byte, bit);
        }
        assert!(verify_on(&*disk, &index).unwrap().damage.is_empty());
    });
}

#[test]
fn a_flipped_bit_is_never_served_and_other_partitions_go_on() {
    run(async {
        let (disk, index) = small_store().await;
        let (name, end) = segment(&disk);
        let whole = {
            let storage = LsmStorage::open_on(config(SEGMENT_BYTES), disk.clone(), index.clone()).unwrap();
            let whole = served(&storage).await;
            storage.close().await.unwrap();
            whole
        };
        assert!(whole.iter().all(|outcome| outcome.is_ok()));
        let mut found = 0;
        for byte in (0..usize::try_from(end).unwrap()).step_by(13) {
            disk.flip(&name, byte, 5);
            match LsmStorage::open_on(config(SEGMENT_BYTES), disk.clone(), index.clone()) {
                Err(StorageError::Damaged(_)) => found += 1,
                Err(other) => panic!("byte {byte}: {other}"),
                Ok(storage) => {
                    let now = served(&storage).await;
                    let mut damaged = 0;
                    for (now, whole) in now.iter().zip(&whole) {
                        match (now, whole) {
                            (Ok(now), Ok(whole)) => assert_eq!(now, whole, "byte {byte} is served damaged"),
                            (Err(StorageError::Corrupt { partition, .. }), _) => {
                                assert!([P, Q].contains(partition));
                                damaged += 1;
                            }
                            (other, _) => panic!("byte {byte}: {other:?}"),
                        }
                    }
                    // Of the two partitions and the row, one byte can hurt only one.
                    assert!(damaged <= 1, "byte {byte}");
                    found += damaged;
                    storage.close().await.unwrap();
                }
            }
            disk.flip(&name, byte, 5);
        }
        assert!(found > 50, "only {found} were met");
    });
}

/// All messages of both partitions, and the large row.
async fn served(storage: &LsmStorage) -> [Result<Vec<String>, StorageError>; 3] {
    let (first, second) = (storage.reader(P).unwrap(), storage.reader(Q).unwrap());
    let large = first.get(&key("large")).await.map(|value| vec![format!("{value:?}")]);
    let mut outcomes = [Ok(Vec::new()), Ok(Vec::new()), large];
    for (outcome, reader) in outcomes.iter_mut().zip([first, second]) {
        let mut from = Offset(0);
        while from < reader.bounds().end {
            match reader.read(from, NonZeroU32::MIN).await {
                Ok(read) => {
                    if let Ok(bodies) = outcome {
                        bodies.extend(stentor_conformance::fixtures::bodies_of(&read[0].batch));
                    }
                    from = read[0].batch.offsets().end;
                }
                Err(error) => {
                    *outcome = Err(error);
                    break;
                }
            }
        }
    }
    outcomes
}

/// fjall's tables have checksums, its own log cuts itself silently: then the journal makes it good.
#[test]
fn a_flipped_bit_in_the_index_never_loses_a_message_silently() {
    run(async {
        let folder = tempdir().unwrap();
        let good = tempdir().unwrap();
        let storage = LsmStorage::open(folder.path(), config(SEGMENT_BYTES)).unwrap();
        let mut partition = open(&storage, P).await;
        for n in 0..10 {
            publish(&mut partition, format!("message {n}").as_bytes()).await.unwrap();
        }
        storage.close().await.unwrap();
        drop((partition, storage));
        // Some of it lies in tables, some in fjall's own log.
        let storage = LsmStorage::open(folder.path(), config(SEGMENT_BYTES)).unwrap();
        let mut partition = open(&storage, P).await;
        for n in 10..20 {
            publish(&mut partition, format!("message {n}").as_bytes()).await.unwrap();
        }
        let expected = bodies(&*partition.reader).await;
        storage.wait_until_indexed();
        drop((partition, storage));
        copy_files(folder.path(), good.path());
        let files = index_files(&good.path().join("index"));
        let mut rng = Rng::with_seed(11);
        let (mut refused, mut whole) = (0, 0);
        for round in 0..60 {
            let work = tempdir().unwrap();
            copy_files(good.path(), work.path());
            let file = &files[round % files.len()];
            let path = work.path().join("index").join(file);
            let mut bytes = std::fs::read(&path).unwrap();
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            if used == 0 {
                continue;
            }
            let at = rng.usize(..used);
            bytes[at] ^= 1 << rng.u8(..8);
            std::fs::write(&path, bytes).unwrap();
            match LsmStorage::open(work.path(), config(SEGMENT_BYTES)) {
                Err(StorageError::Damaged(_) | StorageError::Io { .. }) => refused += 1,
                Err(other) => panic!("{file}, byte {at}: {other}"),
                Ok(storage) => {
                    let Some(reader) = storage.reader(P) else { panic!("{file}, byte {at}: the partition is lost") };
                    assert_eq!(reader.bounds().end, Offset(20), "{file}, byte {at}");
                    match reader.read(Offset(0), NonZeroU32::MAX).await {
                        Err(StorageError::Corrupt { .. }) => refused += 1,
                        Err(other) => panic!("{file}, byte {at}: {other}"),
                        Ok(_) => {
                            assert_eq!(bodies(&*reader).await, expected, "{file}, byte {at}");
                            whole += 1;
                        }
                    }
                }
            }
        }
        assert!(refused > 0 && whole > 0, "{refused} refused, {whole} whole");
    });
}

#[test]
fn verifying_a_folder_names_file_partition_and_offset() {
    run(async {
        let folder = tempdir().unwrap();
        let storage = LsmStorage::open(folder.path(), config(SEGMENT_BYTES)).unwrap();
        let mut partition = open(&storage, P).await;
        for n in 0..3 {
            publish(&mut partition, format!("message {n}").as_bytes()).await.unwrap();
        }
        let place = partition.reader.read(Offset(1), NonZeroU32::MIN).await.unwrap()[0].place;
        storage.close().await.unwrap();
        drop((partition, storage));
        assert!(verify(folder.path()).unwrap().damage.is_empty());
        let name = format!("segment-{:016x}.journal", place.segment);
        let disk = stentor_storage_lsm::disk::FileDisk::open(folder.path()).unwrap();
        super::support::flip(&disk, &name, place.position + 85, 1);
        let damage = verify(folder.path()).unwrap().damage;
        let in_file = damage.iter().find(|damage| damage.file.as_ref() == Some(&name)).unwrap();
        assert_eq!((in_file.partition, in_file.offset), (Some(P), Some(Offset(1))), "{in_file}");
        let in_log = damage.iter().find(|damage| damage.file.is_none()).unwrap();
        assert_eq!((in_log.partition, in_log.offset), (Some(P), Some(Offset(1))), "{in_log}");
        // What is not there cannot be verified.
        assert!(matches!(verify(&folder.path().join("nowhere")), Err(StorageError::Io { .. })));
    });
}

fn copy_files(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_files(&entry.path(), &target);
        } else if entry.file_name() != "reserve" {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn index_files(folder: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if entry.metadata().unwrap().len() > 0 {
                found.push(entry.path().strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}
