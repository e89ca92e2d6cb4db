//! Reigns: one writer at a time, and everybody knows which.

use stentor_core::storage::{Change, Leadership, StorageError};
use stentor_core::{Epoch, Offset};

use super::Subject;
use super::harness::{P, Partition, Q, assert_refused, range};
use crate::fixtures::{append_of, row};

/// And what the first had committed stays.
pub async fn opening_again_deposes_the_first_writer(subject: &mut dyn Subject) {
    let mut first = Partition::open(subject, P).await;
    first.append(&["a"]).await;
    let mut second = Partition::open(subject, P).await;
    assert_eq!(second.writer.end(), Offset(1), "the second writer begins where the first ended");
    let change = Change { appends: vec![append_of(&["late"])], puts: vec![row("late", "v")], ..first.change() };
    assert_refused!(
        first.refusal(change).await,
        StorageError::Deposed { partition: P, epoch, end: Offset(1) } if epoch == second.epoch
    );
    assert_eq!(second.append(&["b"]).await, range(1, 2));
    assert_eq!(second.bodies().await, ["a", "b"]);
    assert!(second.rows().await.is_empty());
    // The reader of the first is no worse than any other.
    assert_eq!(first.bodies().await, ["a", "b"]);
}

/// Even from the writer that reigns.
pub async fn a_change_of_an_older_epoch_is_refused(subject: &mut dyn Subject) {
    let first = Partition::open(subject, P).await;
    let mut second = Partition::open(subject, P).await;
    let change = Change { epoch: first.epoch, appends: vec![append_of(&["a"])], ..second.change() };
    assert_refused!(second.refusal(change).await, StorageError::Deposed { .. });
    assert_eq!(second.append(&["b"]).await, range(0, 1));
}

/// Whether it lies before or behind the true one.
pub async fn a_stale_end_is_refused(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a", "b"]).await;
    for expected_end in [0, 1, 3] {
        let change = Change {
            expected_end: Offset(expected_end),
            appends: vec![append_of(&["c"])],
            puts: vec![row("k", "v")],
            ..partition.change()
        };
        assert_refused!(partition.refusal(change).await, StorageError::Deposed { end: Offset(2), .. });
    }
    assert_eq!(partition.append(&["c"]).await, range(2, 3));
    assert!(partition.rows().await.is_empty());
}

/// Each partition for itself.
pub async fn epochs_only_grow(subject: &mut dyn Subject) {
    let mut last = Epoch(0);
    for _ in 0..5 {
        let partition = Partition::open(subject, P).await;
        assert!(partition.epoch > last, "{} after {last}", partition.epoch);
        last = partition.epoch;
    }
    let mut other = Partition::open(subject, Q).await;
    Partition::open(subject, P).await;
    assert_eq!(other.append(&["a"]).await, range(0, 1), "the reign of another partition goes on");
}

/// It would take from the second what that committed.
pub async fn a_deposed_writer_cannot_truncate(subject: &mut dyn Subject) {
    let mut first = Partition::open(subject, P).await;
    let mut second = Partition::open(subject, P).await;
    second.append(&["a"]).await;
    assert_refused!(first.writer.truncate(Offset(0)).await, Err(StorageError::Deposed { .. }));
    assert_eq!(second.bodies().await, ["a"]);
}

/// A local backend always leads, and says in which epoch, now and at every change.
pub async fn watching_tells_the_epoch(subject: &mut dyn Subject) {
    let storage = subject.storage();
    let mut early = storage.watch(P);
    assert!(matches!(*early.borrow_and_update(), Leadership::Leader(_)), "before there is such a partition");
    let first = Partition::open(subject, P).await;
    early.changed().await.expect("the opening is told");
    assert_eq!(*early.borrow_and_update(), Leadership::Leader(first.epoch));
    let late = storage.watch(P);
    assert_eq!(*late.borrow(), Leadership::Leader(first.epoch));

    let second = Partition::open(subject, P).await;
    early.changed().await.expect("the second opening is told");
    for watch in [early, late] {
        assert_eq!(*watch.borrow(), Leadership::Leader(second.epoch));
    }
}
