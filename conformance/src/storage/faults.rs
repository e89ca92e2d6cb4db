//! What a backend does when the disk fails it. Properties of a backend without a disk hold of themselves.

use std::num::NonZeroU32;

use futures_util::FutureExt;
use stentor_core::Offset;
use stentor_core::storage::{Change, PendingCommit, StorageError};

use super::Subject;
use super::harness::{P, Partition, Q, assert_refused, range};
use crate::fixtures::{append_of, key, row};

/// One message and one row.
async fn start(partition: &mut Partition, body: &str) -> PendingCommit {
    let change = Change { appends: vec![append_of(&[body])], puts: vec![row(body, "v")], ..partition.change() };
    partition.start(change).await
}

/// Neither in the bounds, nor by reading, nor in the table, nor in a view; and the receipt waits with it.
pub async fn nothing_is_seen_before_it_is_durable(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    start(&mut partition, "a").await.durable().await.expect("the change gets durable");
    if !subject.hold_syncs() {
        return;
    }
    let before = partition.all().await;
    let receipt = start(&mut partition, "b").await;
    assert_eq!(receipt.offsets(), range(1, 2), "the offsets are fixed already");
    let mut receipt = Box::pin(receipt.durable());
    assert!(receipt.as_mut().now_or_never().is_none(), "the receipt came before the sync");
    assert_eq!(partition.all().await, before);
    assert_eq!(partition.get(&key("b")).await, None);
    assert_eq!(super::harness::seen_of(&*partition.view().await).await, before);
    subject.release_syncs();
    receipt.await.expect("the change gets durable");
    assert_eq!(partition.bodies().await, ["a", "b"]);
    assert_eq!(partition.rows().await, [row("a", "v"), row("b", "v")]);
}

/// There may be no hole: what came after the failed one is not durable either, whoever committed it.
pub async fn a_failed_sync_fails_its_receipt_and_every_later_one(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let mut other = Partition::open(subject, Q).await;
    start(&mut partition, "a").await.durable().await.expect("the change gets durable");
    if !subject.fail_next_sync() {
        return;
    }
    let failed = start(&mut partition, "b").await;
    // It may come into the failed sync or find the store poisoned already; it must not succeed.
    let change = Change { appends: vec![append_of(&["c"])], ..other.change() };
    let beside = other.writer.commit(change).await;
    assert!(failed.durable().await.is_err(), "the receipt of the failed sync was good");
    if let Ok(beside) = beside {
        assert!(beside.durable().await.is_err(), "a receipt behind the failed sync was good");
    }
    for _ in 0..3 {
        let change = partition.change();
        assert_refused!(partition.refusal(change).await, StorageError::Poisoned(_));
    }
}

/// Consumers are served what was durable before; publishers are refused until the store is opened anew.
pub async fn a_failed_sync_ends_writing_but_not_reading(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    start(&mut partition, "a").await.durable().await.expect("the change gets durable");
    let before = partition.all().await;
    assert!(!subject.storage().usage().poisoned);
    if !subject.fail_next_sync() {
        return;
    }
    assert!(start(&mut partition, "b").await.durable().await.is_err(), "the receipt of the failed sync was good");
    assert_refused!(partition.refusal(partition.change()).await, StorageError::Poisoned(_));
    assert!(subject.storage().usage().poisoned);
    assert_eq!(partition.all().await, before, "what was durable can be read, and nothing else");
    assert_eq!(partition.get(&key("a")).await.as_deref(), Some(&b"v"[..]));
}

/// The reader learns where; what lies before and behind is still served.
pub async fn a_damaged_batch_is_reported_and_never_handed_out(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let mut other = Partition::open(subject, Q).await;
    for body in ["a", "b", "c"] {
        partition.append(&[body]).await;
    }
    other.append(&["x"]).await;
    if !subject.damage(P, Offset(1)).await {
        return;
    }
    let all = NonZeroU32::MAX;
    let read = partition.reader.read(Offset(0), all).await.expect("the first batch is whole");
    assert_eq!(read.len(), 1, "the damaged batch ends the read before it");
    let damaged = partition.reader.read(Offset(1), all).await;
    assert_refused!(damaged, Err(StorageError::Corrupt { partition: P, offset: Offset(1), .. }));
    assert_eq!(partition.bodies_from(2).await, ["c"]);
    assert_eq!(other.bodies().await, ["x"], "other partitions go on");
    assert!(subject.storage().usage().corruptions > 0, "{:?}", subject.storage().usage());
}
