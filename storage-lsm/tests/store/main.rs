//! The store over a real folder: what a kill, a lost index, a full disk and rot do to it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../support/mod.rs"]
mod support;

mod damage;
mod full;
mod life;
mod reading;
mod rewrite;

use std::num::NonZeroU32;
use std::time::Duration;

use stentor_conformance::fixtures::{bodies_of, record};
use stentor_core::batch::Compression;
use stentor_core::storage::{Append, Change, OpenOptions, OpenPartition, PartitionReader, Storage, StorageError};
use stentor_core::{Clock as _, Durability, Offset, OffsetRange, PartitionId};
use stentor_storage_lsm::LsmStorage;

const P: PartitionId = PartitionId(3);
const Q: PartitionId = PartitionId(4);

const SYNCED: OpenOptions = OpenOptions { durability: Durability::Synced, first_offset: Offset::ZERO, bound: None };

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

async fn open(storage: &LsmStorage, partition: PartitionId) -> OpenPartition {
    storage.open(partition, SYNCED).await.unwrap()
}

fn append(body: &[u8]) -> Append {
    Append::Batch(stentor_conformance::fixtures::batch_with(&[record(body.to_vec())], Compression::None))
}

async fn commit(partition: &mut OpenPartition, change: Change) -> Result<OffsetRange, StorageError> {
    let pending = partition.writer.commit(change).await?;
    pending.durable().await.map(stentor_core::Durable::into_inner)
}

/// Appends one message of its own batch, and waits.
async fn publish(partition: &mut OpenPartition, body: &[u8]) -> Result<OffsetRange, StorageError> {
    let change = Change { appends: vec![append(body)], ..Change::new(partition.epoch, partition.writer.end()) };
    commit(partition, change).await
}

async fn trim(partition: &mut OpenPartition, start: u64) {
    let change = Change { trim: Some(Offset(start)), ..Change::new(partition.epoch, partition.writer.end()) };
    commit(partition, change).await.unwrap();
}

async fn bodies(reader: &dyn PartitionReader) -> Vec<String> {
    let mut from = reader.bounds().start;
    let mut bodies = Vec::new();
    while from < reader.bounds().end {
        let read = reader.read(from, NonZeroU32::new(64 << 10).unwrap()).await.unwrap();
        for stored in read {
            bodies.extend(bodies_of(&stored.batch));
            from = stored.batch.offsets().end;
        }
    }
    bodies
}

/// Waits for what the store does by itself.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        pause().await;
    }
    panic!("{what} did not come");
}

async fn pause() {
    let clock = stentor_core::clock::SystemClock::new();
    clock.sleep_until(clock.monotonic().after(Duration::from_millis(20))).await;
}
