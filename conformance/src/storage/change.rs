//! A change as a whole: its order, its atomicity, its refusal, its receipt.

use bytes::Bytes;
use fastrand::Rng;
use futures_util::FutureExt;
use stentor_core::storage::{Append, Change, KeyRange, StorageError};
use stentor_core::{Epoch, Offset};

use super::Subject;
use super::harness::{P, Partition, assert_refused, range};
use crate::fixtures::{append_of, batch_of_bytes, key, row};

/// So a range can be emptied and filled anew by one change.
pub async fn deletes_come_before_puts(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.put(vec![row("a", "old"), row("b", "old")]).await;
    let change =
        Change { deletes: vec![KeyRange::all()], puts: vec![row("b", "new"), row("c", "new")], ..partition.change() };
    partition.commit(change).await;
    assert_eq!(partition.rows().await, [row("b", "new"), row("c", "new")]);
}

/// Within one change, and over changes that wait for nothing.
pub async fn the_later_of_two_puts_wins(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.put(vec![row("k", "first"), row("j", "x"), row("k", "second")]).await;
    assert_eq!(partition.rows().await, [row("j", "x"), row("k", "second")]);
    let mut last = None;
    for n in 0..20 {
        let change = Change { puts: vec![row("k", &n.to_string())], ..partition.change() };
        last = Some(partition.start(change).await);
    }
    last.expect("twenty changes").durable().await.expect("the change gets durable");
    assert_eq!(partition.get(&key("k")).await.as_deref(), Some(&b"19"[..]));
}

/// Appends, puts, deletes and a trim together.
pub async fn a_change_of_everything_is_seen_whole(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a", "b"]).await;
    partition.put(vec![row("gone", "1"), row("kept", "2")]).await;
    let change = Change {
        appends: vec![append_of(&["c"]), append_of(&["d"])],
        puts: vec![row("new", "3")],
        deletes: vec![KeyRange::single(&key("gone"))],
        trim: Some(Offset(1)),
        ..partition.change()
    };
    assert_eq!(partition.commit(change).await, range(2, 4));
    assert_eq!(partition.reader.bounds(), range(1, 4));
    assert_eq!(partition.bodies().await, ["a", "b", "c", "d"], "the first batch is read whole");
    assert_eq!(partition.rows().await, [row("kept", "2"), row("new", "3")]);
}

/// It may be committed to learn that all before it is durable.
pub async fn an_empty_change_is_taken(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a"]).await;
    let before = partition.all().await;
    assert_eq!(partition.commit(partition.change()).await, range(1, 1));
    assert_eq!(partition.all().await, before);
}

/// Whatever it is refused for, and however much of it would have been in order.
pub async fn a_refused_change_changes_nothing(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a"]).await;
    partition.put(vec![row("k", "v")]).await;
    let before = partition.all().await;
    let whole = Change {
        appends: vec![append_of(&["b"])],
        puts: vec![row("k", "other"), row("l", "new")],
        deletes: vec![KeyRange::all()],
        trim: Some(Offset(1)),
        ..partition.change()
    };
    let refused = [
        Change { trim: Some(Offset(3)), ..whole.clone() },
        Change { expected_end: Offset(0), ..whole.clone() },
        Change { epoch: Epoch(partition.epoch.0 - 1), ..whole.clone() },
        Change { puts: vec![row("l", "new"), (vec![0; 2_000].into(), Bytes::new())], ..whole.clone() },
    ];
    for change in refused {
        let what = format!("{change:?}");
        partition.refusal(change).await;
        assert_eq!(partition.writer.end(), Offset(1), "{what}");
        assert_eq!(partition.all().await, before, "{what}");
    }
    // And the writer goes on as if nothing had been.
    assert_eq!(partition.commit(whole).await, range(1, 2));
    assert_eq!(partition.rows().await, [row("k", "other"), row("l", "new")]);
}

/// Before it takes offsets.
pub async fn a_change_that_is_too_large_is_refused(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a"]).await;
    let before = partition.all().await;
    let batch = batch_of_bytes(&mut Rng::with_seed(5), 1 << 20);
    let count = subject.change_bytes_max() / batch.len() as u64 + 1;
    let appends = (0..count).map(|_| Append::Batch(batch.clone())).collect();
    let change = Change { appends, puts: vec![row("k", "v")], ..partition.change() };
    assert_refused!(
        partition.refusal(change).await,
        StorageError::TooLarge { bytes, bytes_max } if bytes > bytes_max
    );
    assert_eq!(partition.all().await, before);
    assert_eq!(partition.append(&["b"]).await, range(1, 2));
}

/// While later commits are on their way, a resolved one is seen with all that it changed, and so is each before it.
pub async fn receipts_resolve_in_order_and_readers_see_their_changes(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let mut pending = Vec::new();
    for n in 0..64_u64 {
        let change = Change {
            appends: vec![append_of(&[&n.to_string()])],
            puts: vec![row(&format!("{n:02}"), "v")],
            ..partition.change()
        };
        pending.push(partition.start(change).await);
    }
    // The receipt of the middle first: by then the ones before it must have been resolved.
    let last_half = pending.split_off(32);
    let mut last_half = last_half.into_iter();
    last_half.next().expect("32 are left").durable().await.expect("the change gets durable");
    for (n, earlier) in pending.into_iter().enumerate() {
        let outcome = earlier.durable().now_or_never();
        assert!(matches!(outcome, Some(Ok(_))), "the receipt of commit {n} was not resolved before that of commit 32");
    }
    for (n, receipt) in (32_u64..).zip(std::iter::once(None).chain(last_half.map(Some))) {
        if let Some(receipt) = receipt {
            receipt.durable().await.expect("the change gets durable");
        }
        assert!(partition.reader.bounds().end > Offset(n), "commit {n} is not within the bounds");
        assert_eq!(partition.read(n, 1).await.len(), 1, "commit {n} cannot be read");
        assert!(partition.get(&key(&format!("{n:02}"))).await.is_some(), "the row of commit {n} is not there");
    }
}

/// A caller may go away at any moment; what it left is whole, and the writer knows which.
pub async fn a_dropped_commit_has_its_whole_effect_or_none(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let mut expected = Vec::new();
    for n in 0..20 {
        let body = n.to_string();
        let end = partition.writer.end();
        let change = Change { appends: vec![append_of(&[&body])], puts: vec![row(&body, "v")], ..partition.change() };
        // Polled once, then dropped.
        drop(partition.writer.commit(change).now_or_never());
        if partition.writer.end() > end {
            assert_eq!(partition.writer.end(), end.next());
            expected.push(body);
        }
        // A change behind it says when it is durable, if it is at all.
        partition.commit(partition.change()).await;
    }
    assert_eq!(partition.bodies().await, expected);
    let mut rows: Vec<_> = expected.iter().map(|body| row(body, "v")).collect();
    rows.sort();
    assert_eq!(partition.rows().await, rows);
}
