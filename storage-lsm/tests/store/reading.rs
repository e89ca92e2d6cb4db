//! Where reads come from, and how many there are.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stentor_core::Offset;
use stentor_storage_lsm::LsmStorage;
use stentor_storage_lsm::index::{FjallIndex, FjallOptions};
use tempfile::{TempDir, tempdir};

use super::support::{Faults, TestDisk, config};
use super::{P, Q, bodies, open, publish, run, trim};

fn store() -> (TempDir, Arc<Faults>, LsmStorage) {
    let (folder, faults) = (tempdir().unwrap(), Arc::<Faults>::default());
    let disk = TestDisk::open(folder.path(), faults.clone());
    let index = FjallIndex::open(&folder.path().join("index"), FjallOptions::default()).unwrap();
    let storage = LsmStorage::open_on(config(16 << 20), disk, Arc::new(index)).unwrap();
    (folder, faults, storage)
}

#[test]
fn a_reader_close_behind_the_end_never_goes_to_the_disk() {
    run(async {
        let (_folder, faults, storage) = store();
        let mut partition = open(&storage, P).await;
        let before = faults.reads.load(Ordering::SeqCst);
        for n in 0..100 {
            publish(&mut partition, format!("message {n}").as_bytes()).await.unwrap();
            // A hundred changes behind, so most of it is in the index already.
            let read = partition.reader.read(Offset(n / 2), NonZeroU32::MAX).await.unwrap();
            assert_eq!(read.len() as u64, n - n / 2 + 1);
        }
        assert_eq!(faults.reads.load(Ordering::SeqCst), before);
        // What is trimmed is gone from memory too.
        trim(&mut partition, 90).await;
        assert!(partition.reader.read(Offset(89), NonZeroU32::MAX).await.is_err());
        assert_eq!(bodies(&*partition.reader).await.len(), 10);
        // A truncation, and what follows it, is what readers see.
        partition.writer.truncate(Offset(95)).await.unwrap();
        publish(&mut partition, b"another").await.unwrap();
        let expected = ["message 93", "message 94", "another"];
        assert_eq!(bodies(&*partition.reader).await[3..], expected);
        storage.wait_until_indexed();
        assert_eq!(bodies(&*partition.reader).await[3..], expected);
    });
}

#[test]
fn catching_up_reads_what_lies_together_at_once_and_says_what_comes_next() {
    run(async {
        let (_folder, faults, storage) = store();
        let (mut partition, mut other) = (open(&storage, P).await, open(&storage, Q).await);
        for n in 0..100 {
            publish(&mut partition, format!("{n}/{}", "x".repeat(3_000)).as_bytes()).await.unwrap();
        }
        for n in 0..100 {
            publish(&mut partition, format!("{n}/{}", "y".repeat(3_000)).as_bytes()).await.unwrap();
            publish(&mut other, &[7; 10_000]).await.unwrap();
        }
        storage.wait_until_indexed();
        let (reads, hints) = (faults.reads.load(Ordering::SeqCst), faults.hints.load(Ordering::SeqCst));
        let alone = partition.reader.read(Offset(0), NonZeroU32::new(250_000).unwrap()).await.unwrap();
        assert!(alone.len() > 75, "{}", alone.len());
        assert_eq!(faults.reads.load(Ordering::SeqCst) - reads, 1, "its batches lie one behind the other");
        assert_eq!(faults.hints.load(Ordering::SeqCst), hints, "all of it is at hand");
        faults.cold.store(true, Ordering::SeqCst);
        let scattered = partition.reader.read(Offset(100), NonZeroU32::new(100_000).unwrap()).await.unwrap();
        assert!(scattered.len() > 30, "{}", scattered.len());
        // One for each batch between those of the other log: what is read now, and what is read next.
        assert_eq!(faults.hints.load(Ordering::SeqCst) - hints, 100);
        assert_eq!(bodies(&*partition.reader).await.len(), 200);
    });
}
