//! Batches that enter another log by reference: stored once, owed by several.

use std::time::Duration;

use fastrand::Rng;
use stentor_core::storage::{Append, Change, Place, StorageError};
use stentor_core::{Offset, PartitionId, RecordBatch};

use super::Subject;
use super::harness::{P, Partition, Q, assert_refused, range};
use crate::fixtures::{STORED_AT, append_of, batch_of_bytes, bodies_of};

/// A third partition.
const R: PartitionId = PartitionId(9);

/// Where the batch that holds `offset` lies.
async fn place_at(partition: &Partition, offset: u64) -> Place {
    partition.read(offset, 1).await.first().expect("a batch lies there").place
}

fn stored(place: Place) -> Append {
    Append::Stored { place, stored_at: STORED_AT.after(Duration::from_secs(1)) }
}

/// A source with two batches, and the place of the second, which is large enough for any backend to treat it as such.
async fn source(subject: &dyn Subject) -> (Partition, RecordBatch, Place) {
    let mut source = Partition::open(subject, P).await;
    let batch = batch_of_bytes(&mut Rng::with_seed(6), 100_000);
    source.append(&["a", "b"]).await;
    source.append_all(vec![Append::Batch(batch.clone())]).await;
    let place = place_at(&source, 2).await;
    (source, batch, place)
}

/// Only its base offset and its time of storing are that log's own.
pub async fn a_stored_batch_enters_another_log_as_it_is(subject: &mut dyn Subject) {
    let (mut source, batch, place) = source(subject).await;
    let mut other = Partition::open(subject, Q).await;
    let first = place_at(&source, 0).await;
    other.append(&["x"]).await;
    assert_eq!(other.append_all(vec![stored(first), append_of(&["y"]), stored(place)]).await, range(1, 5));
    let later = STORED_AT.after(Duration::from_secs(1));
    let batches = other.batches().await;
    assert_eq!(bodies_of(&batches[1]), ["a", "b"]);
    assert_eq!(batches[1].offsets(), range(1, 3));
    assert_eq!(batches[1].stored_at(), later);
    assert_eq!(bodies_of(&batches[2]), ["y"]);
    assert!(batches[3] == batch.clone().stored(Offset(4), later), "the large batch differs");
    // Nothing has changed where it came from.
    assert!(source.batches().await[1] == batch.clone().stored(Offset(2), STORED_AT), "the source differs");
    assert_eq!(source.append(&["c"]).await, range(3, 4));
    if subject.reopen().await {
        let other = Partition::open(subject, Q).await;
        assert_eq!(other.batches().await, batches, "after reopening");
    }
}

/// It lives while either owes it.
pub async fn a_stored_batch_outlives_the_trimming_of_its_source(subject: &mut dyn Subject) {
    let (mut source, batch, place) = source(subject).await;
    let mut other = Partition::open(subject, Q).await;
    other.append_all(vec![stored(place)]).await;
    source.trim(3).await;
    overwrite(&mut source).await;
    check_alone(subject, &other, &batch).await;
}

/// Even of the whole partition.
pub async fn a_stored_batch_outlives_the_deletion_of_its_source(subject: &mut dyn Subject) {
    let (source, batch, place) = source(subject).await;
    let mut other = Partition::open(subject, Q).await;
    other.append_all(vec![stored(place)]).await;
    drop(source);
    subject.storage().delete(P).await.expect("the partition can be deleted");
    let mut anew = Partition::open(subject, P).await;
    overwrite(&mut anew).await;
    check_alone(subject, &other, &batch).await;
}

/// Gives a backend that frees too early the occasion to write over what it freed.
async fn overwrite(partition: &mut Partition) {
    for seed in 0..20 {
        partition.append_all(vec![Append::Batch(batch_of_bytes(&mut Rng::with_seed(seed), 100_000))]).await;
    }
}

/// The other log holds that one batch.
async fn check_alone(subject: &mut dyn Subject, other: &Partition, batch: &RecordBatch) {
    let expected = [batch.clone().stored(Offset(0), STORED_AT.after(Duration::from_secs(1)))];
    assert!(other.batches().await == expected, "the batch differs");
    if subject.reopen().await {
        let other = Partition::open(subject, Q).await;
        assert!(other.batches().await == expected, "the batch differs after reopening");
    }
}

/// The other way round.
pub async fn the_source_outlives_the_deletion_of_the_other(subject: &mut dyn Subject) {
    let (source, batch, place) = source(subject).await;
    let mut other = Partition::open(subject, Q).await;
    other.append_all(vec![stored(place)]).await;
    subject.storage().delete(Q).await.expect("the partition can be deleted");
    assert!(source.batches().await[1] == batch.stored(Offset(2), STORED_AT), "the source differs");
}

/// From a log that it entered by reference it can be appended to a third, by the place that its source told or by the
/// one that this log tells.
pub async fn a_place_holds_while_any_log_owes_the_batch(subject: &mut dyn Subject) {
    let (mut source, batch, place) = source(subject).await;
    let mut other = Partition::open(subject, Q).await;
    other.append_all(vec![stored(place)]).await;
    source.trim(3).await;
    let told = place_at(&other, 0).await;
    let mut third = Partition::open(subject, R).await;
    assert_eq!(third.append_all(vec![stored(told), stored(place)]).await, range(0, 2));
    other.trim(1).await;
    let later = STORED_AT.after(Duration::from_secs(1));
    let expected = [0, 1].map(|base| batch.clone().stored(Offset(base), later));
    assert!(third.batches().await == expected, "the batches differ");
}

/// A retry into the same log.
pub async fn a_stored_batch_can_enter_its_own_log_again(subject: &mut dyn Subject) {
    let (mut source, batch, place) = source(subject).await;
    assert_eq!(source.append_all(vec![stored(place)]).await, range(3, 4));
    source.trim(3).await;
    let expected = [batch.stored(Offset(3), STORED_AT.after(Duration::from_secs(1)))];
    assert!(source.batches().await == expected, "the batch differs");
}

/// As a whole change.
pub async fn a_place_where_nothing_lies_is_refused(subject: &mut dyn Subject) {
    let (mut source, _, place) = source(subject).await;
    let before = source.all().await;
    let nowhere = Place { segment: place.segment + 1_000_000, ..place };
    let change = Change { appends: vec![append_of(&["x"]), stored(nowhere)], ..source.change() };
    assert_refused!(source.refusal(change).await, StorageError::Invalid(_));
    assert!(source.all().await == before, "the refused change changed something");
}
