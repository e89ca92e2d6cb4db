//! The life of partitions and of the store: opening, listing, deleting, closing, reopening.

use std::num::NonZeroU32;

use stentor_core::storage::{Append, ByteBound, Change, KeyRange, OpenOptions, Storage, StorageError, WhenFull};
use stentor_core::{Compression, Durability, Offset, PartitionId};

use super::Subject;
use super::harness::{P, Partition, Q, assert_refused, range};
use crate::fixtures::{append_of, batch_of_bytes, batch_with, key, record, row};

/// Whatever the order of their opening.
pub async fn partitions_are_listed_in_order(subject: &mut dyn Subject) {
    let storage = subject.storage();
    assert!(list(&*storage).await.is_empty());
    for id in [5, 300, 0, 70_000, 1, 256] {
        Partition::open(subject, PartitionId(id)).await;
    }
    assert_eq!(list(&*storage).await, [0, 1, 5, 256, 300, 70_000].map(PartitionId));
    storage.delete(PartitionId(256)).await.expect("the partition can be deleted");
    assert_eq!(list(&*storage).await, [0, 1, 5, 300, 70_000].map(PartitionId));
}

async fn list(storage: &dyn Storage) -> Vec<PartitionId> {
    storage.list().await.expect("the partitions can be listed")
}

/// And its neighbours are not.
pub async fn a_deleted_partition_is_gone(subject: &mut dyn Subject) {
    let ids = [6, 7, 8].map(PartitionId);
    for id in ids {
        let mut partition = Partition::open(subject, id).await;
        partition.append(&[&id.to_string()]).await;
        partition.put(vec![row("k", &id.to_string())]).await;
    }
    let storage = subject.storage();
    storage.delete(PartitionId(7)).await.expect("the partition can be deleted");
    assert_eq!(list(&*storage).await, [6, 8].map(PartitionId));
    for id in [6, 8].map(PartitionId) {
        let partition = Partition::open(subject, id).await;
        assert_eq!(partition.bodies().await, [id.to_string()]);
        assert_eq!(partition.rows().await, [row("k", &id.to_string())]);
    }
}

/// No row and no message of the old one shows, and it begins where it is told to.
pub async fn a_partition_made_anew_is_empty(subject: &mut dyn Subject) {
    let mut old = Partition::open(subject, P).await;
    old.append(&["a", "b"]).await;
    old.put(vec![row("k", "v")]).await;
    subject.storage().delete(P).await.expect("the partition can be deleted");
    let mut new = Partition::open_at(subject, P, Offset(50)).await;
    assert_eq!(new.reader.bounds(), range(50, 50));
    assert!(new.rows().await.is_empty());
    assert_eq!(new.append(&["c"]).await, range(50, 51));
    assert_eq!(new.bodies().await, ["c"]);
}

/// Also when it has been made anew since.
pub async fn a_deleted_partition_deposes_its_writer(subject: &mut dyn Subject) {
    let mut old = Partition::open(subject, P).await;
    let storage = subject.storage();
    storage.delete(P).await.expect("the partition can be deleted");
    let change = Change { appends: vec![append_of(&["late"])], ..old.change() };
    assert_refused!(old.refusal(change.clone()).await, StorageError::Deposed { .. });
    assert!(list(&*storage).await.is_empty(), "a late change does not bring it back");
    let new = Partition::open(subject, P).await;
    assert_refused!(old.refusal(change).await, StorageError::Deposed { .. });
    assert!(new.bodies().await.is_empty());
}

/// So that a deletion can be repeated after a crash.
pub async fn deleting_what_is_not_there_is_done_already(subject: &mut dyn Subject) {
    let storage = subject.storage();
    storage.delete(P).await.expect("nothing has to be done");
    Partition::open(subject, P).await;
    for _ in 0..2 {
        storage.delete(P).await.expect("the partition can be deleted");
    }
}

/// An existing log stays as it is.
pub async fn the_first_offset_counts_only_for_a_new_partition(subject: &mut dyn Subject) {
    let mut partition = Partition::open_at(subject, P, Offset(10)).await;
    partition.append(&["a"]).await;
    let again = Partition::open_at(subject, P, Offset(500)).await;
    assert_eq!(again.writer.end(), Offset(11));
    assert_eq!(again.reader.bounds(), range(10, 11));
}

/// Every durability and every bound that the backend does not have; and nothing is made by the attempt.
pub async fn what_is_not_kept_is_refused(subject: &mut dyn Subject) {
    let storage = subject.storage();
    let good = subject.options();
    assert!(storage.keeps().contains(&good.durability), "the options of the subject are kept");
    let durabilities = [Durability::Memory, Durability::Buffered, Durability::Synced, Durability::Quorum];
    for durability in durabilities.into_iter().filter(|durability| !storage.keeps().contains(durability)) {
        let refused = storage.open(P, OpenOptions { durability, ..good }).await;
        assert_refused!(refused, Err(StorageError::Unsupported(_)));
    }
    // A backend needs a bound, or it knows none.
    let bound = match good.bound {
        Some(_) => None,
        None => Some(ByteBound { bytes_max: 1 << 30, when_full: WhenFull::Reject }),
    };
    assert_refused!(storage.open(P, OpenOptions { bound, ..good }).await, Err(StorageError::Unsupported(_)));
    assert!(list(&*storage).await.is_empty());
}

/// Nobody can go on by mistake.
pub async fn a_closed_store_refuses_everything_and_closes_again(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a"]).await;
    let storage = subject.storage();
    for _ in 0..2 {
        storage.close().await.expect("the store can be closed, also twice");
    }
    assert_refused!(storage.open(P, subject.options()).await, Err(StorageError::Closed));
    assert_refused!(storage.list().await, Err(StorageError::Closed));
    assert_refused!(storage.delete(P).await, Err(StorageError::Closed));
    assert_refused!(partition.refusal(partition.change()).await, StorageError::Closed);
    assert_refused!(partition.writer.truncate(Offset(0)).await, Err(StorageError::Closed));
    let one = NonZeroU32::MIN;
    assert_refused!(partition.reader.read(Offset(0), one).await, Err(StorageError::Closed));
    assert_refused!(partition.reader.get(&key("k")).await, Err(StorageError::Closed));
    assert_refused!(partition.reader.scan(KeyRange::all(), one).await, Err(StorageError::Closed));
}

/// Logs, bounds in the middle of a batch, tables, large things; over several reopenings.
pub async fn reopening_keeps_everything(subject: &mut dyn Subject) {
    let rng = &mut fastrand::Rng::with_seed(8);
    let mut first = Partition::open(subject, P).await;
    let mut second = Partition::open_at(subject, Q, Offset(1_000)).await;
    for n in 0..40 {
        let records: Vec<_> = (0..20).map(|m| record(format!("a body with some words, {n}/{m}"))).collect();
        let change = Change {
            appends: vec![Append::Batch(batch_with(&records, Compression::Zstd))],
            puts: vec![row(&format!("{n:02}"), "v")],
            ..first.change()
        };
        first.commit(change).await;
    }
    first.trim(333).await;
    first.delete(vec![KeyRange::new(key("10"), key("20"))]).await;
    second.append_all(vec![Append::Batch(batch_of_bytes(rng, 3 << 20))]).await;
    second.put(vec![(key("large"), crate::fixtures::random_bytes(rng, 2 << 20))]).await;
    let mut expected = [first.all().await, second.all().await];
    drop((first, second));
    for round in 0..3 {
        if !subject.reopen().await {
            return;
        }
        let storage = subject.storage();
        assert_eq!(list(&*storage).await, [P, Q]);
        let mut first = Partition::open(subject, P).await;
        let second = Partition::open(subject, Q).await;
        let found = [first.all().await, second.all().await];
        assert!(found == expected, "something differs after reopening {round}");
        first.append(&["more"]).await;
        first.put(vec![row("more", "v")]).await;
        expected[0] = first.all().await;
    }
}

/// So that a writer of an earlier process can never come back.
pub async fn reopening_begins_a_later_epoch(subject: &mut dyn Subject) {
    let before = Partition::open(subject, P).await.epoch;
    if subject.reopen().await {
        let after = Partition::open(subject, P).await.epoch;
        assert!(after > before, "{after} after {before}");
    }
}

/// Neither it nor what it held, when the store is opened anew.
pub async fn a_deleted_partition_does_not_come_back(subject: &mut dyn Subject) {
    for id in [P, Q] {
        let mut partition = Partition::open(subject, id).await;
        partition.append(&["a", "b"]).await;
        partition.put(vec![row("k", "v")]).await;
    }
    subject.storage().delete(P).await.expect("the partition can be deleted");
    if subject.reopen().await {
        assert_eq!(list(&*subject.storage()).await, [Q]);
        let anew = Partition::open(subject, P).await;
        assert_eq!(anew.reader.bounds(), range(0, 0));
        assert!(anew.rows().await.is_empty());
    }
}
