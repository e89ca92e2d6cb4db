//! What is on the books is what is held, and nothing is held for long that is not on the books.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use fastrand::Rng;
use stentor_conformance::fixtures::{STORED_AT, batch_at, batch_of_bytes, key, random_bytes, row};
use stentor_core::storage::{Append, Change, KeyRange, Storage, WhenFull};
use stentor_core::{Offset, PartitionId, RecordBatch, Timestamp};
use stentor_storage_mem::{COPIED_BYTES_MAX, MemStorage};
use support::{KIB, Partition};

const BYTES_MAX: u64 = 64 << 20;

async fn open(storage: &MemStorage, id: u64) -> Partition {
    Partition::open(storage, id, BYTES_MAX, WhenFull::Reject).await
}

fn batch(bytes: usize) -> Append {
    Append::Batch(batch_of_bytes(&mut Rng::with_seed(1), bytes))
}

#[tokio::test]
async fn the_books_are_even_when_all_is_gone() {
    let storage = MemStorage::new();
    let mut partition = open(&storage, 1).await;
    assert_eq!(storage.usage().bytes, 0);
    for n in 0..10 {
        let change = Change {
            appends: vec![batch(1_000), batch(100_000)],
            puts: vec![row(&n.to_string(), "v"), row("same", &"x".repeat(n)), row("same", "y")],
            ..partition.change()
        };
        partition.commit(change).await.expect("there is room");
    }
    assert_eq!(storage.usage().bytes, partition.reader.bytes(), "one partition, nothing shared");
    assert!(partition.reader.bytes() > 10 * 101_000);
    let change = Change { deletes: vec![KeyRange::all()], trim: Some(Offset(20)), ..partition.change() };
    partition.commit(change).await.expect("trimming is always taken");
    assert_eq!(partition.reader.bytes(), 0);
    assert_eq!(storage.usage().bytes, 0);
}

#[tokio::test]
async fn a_deleted_and_a_closed_partition_give_everything_back() {
    let storage = MemStorage::new();
    let mut handles = Vec::new();
    for id in 1..=2 {
        let mut partition = open(&storage, id).await;
        partition.append(vec![batch(10_000)]).await.expect("there is room");
        handles.push(partition);
    }
    let both = storage.usage().bytes;
    storage.delete(PartitionId(1)).await.expect("it can be deleted");
    assert_eq!(storage.usage().bytes, both / 2);
    storage.close().await.expect("it can be closed");
    assert_eq!(storage.usage().bytes, 0, "although the handles are still there");
}

#[tokio::test]
async fn every_row_and_batch_costs_more_than_its_bytes() {
    let storage = MemStorage::new();
    let mut partition = open(&storage, 1).await;
    let change = Change { puts: (0..1_000).map(|n| row(&format!("{n:08}"), "")).collect(), ..partition.change() };
    partition.commit(change).await.expect("there is room");
    let rows = partition.reader.bytes();
    assert!(rows >= 1_000 * (8 + 64), "{rows} bytes for a thousand rows");
    partition.append((0..1_000).map(|_| Append::Batch(batch_at(STORED_AT, &[""]))).collect()).await.expect("room");
    let batches = partition.reader.bytes() - rows;
    assert!(batches >= 1_000 * (RecordBatch::len(&batch_at(STORED_AT, &[""])) as u64 + 100), "{batches} bytes");
}

#[tokio::test]
async fn a_shared_batch_is_on_the_books_once_until_the_last_log_drops_it() {
    let storage = MemStorage::new();
    let (mut one, mut other) = (open(&storage, 1).await, open(&storage, 2).await);
    one.append(vec![batch(100_000)]).await.expect("there is room");
    let alone = storage.usage().bytes;
    let place = one.reader.read(Offset(0), 1.try_into().expect("not zero")).await.expect("it can be read")[0].place;
    other.append(vec![Append::Stored { place, stored_at: STORED_AT }]).await.expect("there is room");
    assert!(storage.usage().bytes < alone + KIB, "it was not copied");
    assert_eq!(other.reader.bytes(), one.reader.bytes(), "each partition's bound counts it in full");
    one.trim(Offset(1)).await;
    assert_eq!(storage.usage().bytes, alone);
    other.trim(Offset(1)).await;
    assert_eq!(storage.usage().bytes, 0);
}

#[tokio::test]
async fn a_view_holds_what_it_shows_until_it_is_dropped() {
    let storage = MemStorage::new();
    let mut partition = open(&storage, 1).await;
    partition.append(vec![batch(100_000)]).await.expect("there is room");
    let view = partition.reader.view().await.expect("a view");
    partition.trim(Offset(1)).await;
    assert_eq!(partition.reader.bytes(), 0);
    assert!(storage.usage().bytes >= 100_000);
    drop(view);
    assert_eq!(storage.usage().bytes, 0);
}

/// A receive buffer that says when it is freed.
struct Buffer(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

/// Bytes at the front of a buffer of a MiB more, and whether that was freed.
fn received(bytes: &[u8]) -> (Bytes, Arc<AtomicBool>) {
    let mut buffer = bytes.to_vec();
    buffer.resize(bytes.len() + (1 << 20), 0);
    let freed = Arc::new(AtomicBool::new(false));
    (Bytes::from_owner(Buffer(buffer, Arc::clone(&freed))).slice(..bytes.len()), freed)
}

#[tokio::test]
async fn a_small_batch_or_value_does_not_keep_its_receive_buffer() {
    let storage = MemStorage::new();
    let mut partition = open(&storage, 1).await;
    let original = batch_of_bytes(&mut Rng::with_seed(2), 1_000);
    let (bytes, batch_freed) = received(&original.to_bytes());
    let (value, value_freed) = received(&random_bytes(&mut Rng::with_seed(3), COPIED_BYTES_MAX));
    let change = Change {
        appends: vec![Append::Batch(RecordBatch::decode(bytes).expect("a batch"))],
        puts: vec![(key("k"), value)],
        ..partition.change()
    };
    partition.commit(change).await.expect("there is room");
    assert!(batch_freed.load(Ordering::SeqCst) && value_freed.load(Ordering::SeqCst));
    let read = partition.reader.read(Offset(0), 1.try_into().expect("not zero")).await.expect("it can be read");
    assert_eq!(read[0].batch.payload(), original.payload());
}

#[tokio::test]
async fn a_large_batch_is_shared_and_not_copied() {
    let storage = MemStorage::new();
    let mut partition = open(&storage, 1).await;
    let batch = batch_of_bytes(&mut Rng::with_seed(2), COPIED_BYTES_MAX);
    let lies_at = batch.payload().as_ptr();
    partition.append(vec![Append::Batch(batch)]).await.expect("there is room");
    let read = partition.reader.read(Offset(0), 1.try_into().expect("not zero")).await.expect("it can be read");
    assert_eq!(read[0].batch.payload().as_ptr(), lies_at);
}

#[tokio::test]
async fn a_clock_that_steps_back_hides_no_batch_from_a_search_by_time() {
    let storage = MemStorage::new();
    let mut partition = open(&storage, 1).await;
    for at in [100, 50, 70, 120] {
        partition.append(vec![Append::Batch(batch_at(Timestamp(at), &["x"]))]).await.expect("there is room");
    }
    let cases = [(60, 0), (110, 3), (130, 4)];
    for (at, offset) in cases {
        assert_eq!(partition.reader.offset_at(Timestamp(at)).await.expect("it can be read"), Offset(offset), "{at}");
    }
    // The batch of time 100 is gone: now the one of time 70 is the first.
    partition.trim(Offset(1)).await;
    assert_eq!(partition.reader.offset_at(Timestamp(60)).await.expect("it can be read"), Offset(2));
}
