//! What happens at the byte bound, under either policy.

mod support;

use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use stentor_conformance::fixtures::{batch_at, batch_of_bytes, bodies_of, key, random_bytes, row};
use stentor_core::storage::{Append, Change, KeyRange, PartitionReader, Storage, StorageError, WhenFull};
use stentor_core::{Offset, Timestamp};
use stentor_storage_mem::{Dropped, MemStorage};
use support::{KIB, Partition};
use tokio::task::JoinSet;

const BYTES_MAX: u64 = 100 * KIB;

/// A batch of one message that takes ten of the hundred KiB that fit, with its overhead.
fn tenth() -> Append {
    Append::Batch(batch_of_bytes(&mut Rng::with_seed(1), 9_600))
}

/// A partition with as many batches as fit: ten.
async fn full(storage: &MemStorage, when_full: WhenFull) -> Partition {
    let mut partition = Partition::open(storage, 1, BYTES_MAX, when_full).await;
    for _ in 0..10 {
        partition.append(vec![tenth()]).await.expect("there is room");
    }
    assert_eq!(storage.dropped(), Dropped::default());
    partition
}

#[tokio::test]
async fn a_full_partition_refuses_to_grow_and_takes_appends_again_once_there_is_room() {
    let storage = MemStorage::new();
    let mut partition = full(&storage, WhenFull::Reject).await;
    let before = partition.reader.bytes();
    assert!(!storage.usage().full);
    let refused = partition.append(vec![tenth()]).await;
    assert!(matches!(refused, Err(StorageError::StorageFull(_))), "{refused:?}");
    assert!(storage.usage().full);
    assert_eq!(partition.reader.bounds().end, Offset(10));
    assert_eq!(partition.reader.bytes(), before);

    partition.trim(Offset(1)).await;
    assert!(!storage.usage().full, "there is room for what was refused");
    assert_eq!(partition.append(vec![tenth()]).await.expect("there is room").end, Offset(11));
}

#[tokio::test]
async fn acknowledging_goes_on_in_a_full_partition_even_beyond_the_bound() {
    let storage = MemStorage::new();
    let mut partition = full(&storage, WhenFull::Reject).await;
    let value = random_bytes(&mut Rng::with_seed(2), 20_000);
    let change = Change { puts: vec![(key("acknowledged"), value.clone())], ..partition.change() };
    partition.commit(change).await.expect("bookkeeping is never refused");
    assert!(partition.reader.bytes() > BYTES_MAX);
    assert_eq!(partition.reader.get(&key("acknowledged")).await.expect("it can be read"), Some(value));
    // A large row is no bookkeeping.
    let change = Change { puts: vec![(key("half"), Bytes::from(vec![0; 300 << 10]))], ..partition.change() };
    let refused = partition.commit(change).await;
    assert!(matches!(refused, Err(StorageError::TooLarge { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_change_that_frees_as_much_as_it_takes_is_never_refused() {
    // A half message that is committed: its row goes, its batch comes.
    let storage = MemStorage::new();
    let mut partition = Partition::open(&storage, 1, 20_000, WhenFull::Reject).await;
    let half = random_bytes(&mut Rng::with_seed(3), 15_000);
    let change = Change { puts: vec![(key("half"), half)], ..partition.change() };
    partition.commit(change).await.expect("there is room");
    let message = Append::Batch(batch_of_bytes(&mut Rng::with_seed(3), 14_000));
    let refused = partition.append(vec![message.clone()]).await;
    assert!(matches!(refused, Err(StorageError::StorageFull(_))), "not beside the row: {refused:?}");
    let change = Change { appends: vec![message], deletes: vec![KeyRange::single(&key("half"))], ..partition.change() };
    partition.commit(change).await.expect("instead of the row");
    // The same when the bound has been passed already.
    let change = Change { puts: vec![(key("books"), Bytes::from(vec![0; 15_000]))], ..partition.change() };
    partition.commit(change).await.expect("bookkeeping is never refused");
    let change = Change {
        appends: vec![Append::Batch(batch_of_bytes(&mut Rng::with_seed(3), 14_000))],
        deletes: vec![KeyRange::all()],
        ..partition.change()
    };
    partition.commit(change).await.expect("nothing grows");
}

#[tokio::test]
async fn what_could_never_fit_is_too_large_under_either_policy() {
    for when_full in [WhenFull::Reject, WhenFull::DropOldest] {
        let storage = MemStorage::new();
        let mut partition = full(&storage, when_full).await;
        let refused = partition.append(vec![tenth(); 11]).await;
        assert!(
            matches!(refused, Err(StorageError::TooLarge { bytes, bytes_max: BYTES_MAX }) if bytes > BYTES_MAX),
            "{refused:?}"
        );
        assert_eq!(partition.reader.bounds().start, Offset(0), "nothing was dropped for it");
    }
}

#[tokio::test]
async fn the_oldest_batches_make_room_and_are_counted() {
    let storage = MemStorage::new();
    let mut partition = full(&storage, WhenFull::DropOldest).await;
    let full_bytes = partition.reader.bytes();
    for n in 11..=30 {
        partition.append(vec![tenth()]).await.expect("the oldest make room");
        assert!(partition.reader.bytes() <= BYTES_MAX, "{} bytes", partition.reader.bytes());
        assert_eq!(partition.reader.bounds().start, Offset(n - 10));
        assert_eq!(storage.dropped().messages, n - 10);
    }
    assert_eq!(storage.dropped(), Dropped { batches: 20, messages: 20, bytes: 2 * full_bytes });
    assert!(!storage.usage().full);
    let gone = partition.reader.read(Offset(19), 1.try_into().expect("not zero")).await;
    assert!(matches!(gone, Err(StorageError::Trimmed { start: Offset(20) })), "{gone:?}");
}

#[tokio::test]
async fn what_was_trimmed_is_not_counted_as_dropped() {
    let storage = MemStorage::new();
    let mut partition = Partition::open(&storage, 1, BYTES_MAX, WhenFull::DropOldest).await;
    let body = "x".repeat(960);
    let bodies = [&*body; 10];
    partition.append(vec![Append::Batch(batch_at(Timestamp(1), &bodies))]).await.expect("there is room");
    partition.trim(Offset(4)).await;
    partition.append(vec![tenth(); 9]).await.expect("there is room");
    partition.append(vec![tenth()]).await.expect("the oldest makes room");
    assert_eq!(storage.dropped().batches, 1);
    assert_eq!(storage.dropped().messages, 6, "of the ten messages four were trimmed before");
}

#[tokio::test]
async fn bookkeeping_makes_the_oldest_go_too() {
    let storage = MemStorage::new();
    let mut partition = full(&storage, WhenFull::DropOldest).await;
    let change = Change { puts: vec![(key("books"), Bytes::from(vec![0; 25_000]))], ..partition.change() };
    partition.commit(change).await.expect("bookkeeping is never refused");
    assert!(partition.reader.bytes() <= BYTES_MAX, "{} bytes", partition.reader.bytes());
    assert_eq!(partition.reader.bounds().start, Offset(3));
}

#[tokio::test]
async fn rows_are_never_dropped_so_a_table_can_fill_a_partition() {
    let storage = MemStorage::new();
    let mut partition = Partition::open(&storage, 1, BYTES_MAX, WhenFull::DropOldest).await;
    let change = Change { puts: vec![(key("books"), Bytes::from(vec![0; 95_000]))], ..partition.change() };
    partition.commit(change).await.expect("bookkeeping is never refused");
    let refused = partition.append(vec![tenth()]).await;
    assert!(matches!(refused, Err(StorageError::StorageFull(_))), "{refused:?}");
    assert!(storage.usage().full);
    let change = Change { deletes: vec![KeyRange::all()], ..partition.change() };
    partition.commit(change).await.expect("deleting is always taken");
    partition.append(vec![tenth()]).await.expect("there is room");
}

#[tokio::test]
async fn a_smaller_bound_at_the_next_opening_holds_from_then_on() {
    let storage = MemStorage::new();
    drop(full(&storage, WhenFull::Reject).await);
    let mut partition = Partition::open(&storage, 1, BYTES_MAX / 2, WhenFull::DropOldest).await;
    assert_eq!(partition.reader.bounds().start, Offset(0), "opening drops nothing");
    partition.append(vec![tenth()]).await.expect("the oldest make room");
    assert!(partition.reader.bytes() <= BYTES_MAX / 2);
    assert_eq!(partition.reader.bounds().start, Offset(6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_no_hole_and_no_wrong_message_while_the_oldest_are_dropped() {
    const MESSAGES: u64 = 20_000;
    let storage = MemStorage::new();
    let mut partition = Partition::open(&storage, 1, BYTES_MAX, WhenFull::DropOldest).await;
    let mut readers = JoinSet::new();
    for _ in 0..3 {
        readers.spawn(follow(Arc::clone(&partition.reader), MESSAGES));
    }
    for n in (0..MESSAGES).step_by(2) {
        let change = Change {
            appends: vec![Append::Batch(batch_at(Timestamp(n), &[&n.to_string(), &(n + 1).to_string()]))],
            puts: vec![row("last", &n.to_string())],
            ..partition.change()
        };
        partition.commit(change).await.expect("the oldest make room");
        if n % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut seen = 0;
    while let Some(reader) = readers.join_next().await {
        seen += reader.expect("a reader saw what it should not");
    }
    let dropped = storage.dropped().messages;
    assert!(dropped > MESSAGES / 2, "{dropped} messages were dropped");
    assert_eq!(partition.reader.bounds().start, Offset(dropped));
    assert!(seen > 0);
}

/// Reads on from the start whenever it has fallen behind; says how many messages it saw.
async fn follow(reader: Arc<dyn PartitionReader>, until: u64) -> u64 {
    let (mut next, mut seen) = (Offset::ZERO, 0);
    while next < Offset(until) {
        match reader.read(next, 3_000.try_into().expect("not zero")).await {
            Ok(batches) => {
                for stored in batches {
                    let base = stored.batch.base_offset();
                    assert_eq!(base, next, "a hole");
                    assert_eq!(stored.batch.stored_at(), Timestamp(base.0));
                    assert_eq!(bodies_of(&stored.batch), [base.to_string(), base.next().to_string()]);
                    next = stored.batch.offsets().end;
                    seen += 2;
                }
            }
            Err(StorageError::Trimmed { start }) => {
                assert!(start > next);
                next = start;
            }
            Err(error) => panic!("{error}"),
        }
        tokio::task::yield_now().await;
    }
    seen
}
