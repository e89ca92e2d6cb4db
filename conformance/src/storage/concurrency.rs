//! Readers, views and writers at the same time.

use std::sync::Arc;

use stentor_core::storage::{Append, Change, KeyRange, PartitionReader};
use stentor_core::{Offset, PartitionId};
use tokio::task::JoinSet;

use super::Subject;
use super::harness::{ALL_ROWS, P, Partition, seen_of};
use crate::fixtures::{append_of, batch_of_bytes, bodies_of, row};

/// The commits of a writer in the tests with many readers.
const COMMITS: u64 = 200;

/// Log and table stand still together.
pub async fn a_view_stays_as_it_is_while_commits_go_on(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let mut views = Vec::new();
    for n in 0..50 {
        views.push((partition.view().await, partition.all().await));
        let body = format!("{n:02}");
        let change = Change {
            appends: vec![append_of(&[&body, "x"])],
            puts: vec![row(&body, "v"), row("always", &body)],
            deletes: if n % 7 == 0 { vec![KeyRange::all()] } else { Vec::new() },
            ..partition.change()
        };
        partition.commit(change).await;
    }
    for (n, (view, expected)) in views.into_iter().enumerate() {
        assert_eq!(seen_of(&*view).await, expected, "the view before commit {n}");
    }
}

/// It holds back the deletion of what it shows.
pub async fn a_view_keeps_what_is_trimmed_meanwhile(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let rng = &mut fastrand::Rng::with_seed(9);
    for _ in 0..10 {
        partition.append_all(vec![Append::Batch(batch_of_bytes(rng, 50_000))]).await;
    }
    let expected = partition.all().await;
    let view = partition.view().await;
    partition.trim(10).await;
    for _ in 0..10 {
        partition.append_all(vec![Append::Batch(batch_of_bytes(rng, 50_000))]).await;
    }
    assert!(seen_of(&*view).await == expected, "the view has changed");
}

/// Each change appends a message and writes two rows, so whoever looks at one view must find as many of each; and a
/// reader never sees the end go back.
pub async fn readers_see_every_change_whole(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        readers.spawn(watch_changes(Arc::clone(&partition.reader)));
    }
    let mut pending = Vec::new();
    for n in 0..COMMITS {
        let (body, end) = (n.to_string(), (n + 1).to_string());
        let change = Change {
            appends: vec![append_of(&[&body])],
            puts: vec![row(&format!("row/{n:06}"), "v"), row("end", &end)],
            ..partition.change()
        };
        pending.push(partition.start(change).await);
        if pending.len() == 8 {
            for receipt in pending.drain(..) {
                receipt.durable().await.expect("the change gets durable");
            }
        }
    }
    for receipt in pending {
        receipt.durable().await.expect("the change gets durable");
    }
    while let Some(done) = readers.join_next().await {
        done.expect("a reader saw a change in part");
    }
}

/// Looks at views until the last commit is there.
async fn watch_changes(reader: Arc<dyn PartitionReader>) {
    let mut last = Offset::ZERO;
    while last < Offset(COMMITS) {
        let view = reader.view().await.expect("a view");
        let end = view.bounds().end;
        assert!(end >= last, "the end went back from {last} to {end}");
        last = end;
        let rows = view.scan(KeyRange::prefix(b"row/"), ALL_ROWS).await.expect("the view can be read");
        assert_eq!(rows.len() as u64, end.0, "rows and messages are of different moments");
        let told = view.scan(KeyRange::single(&crate::fixtures::key("end")), ALL_ROWS).await;
        let told = told.expect("the view can be read").pop().map_or_else(|| "0".into(), |(_, end)| end);
        assert_eq!(told, end.to_string(), "a row and the log are of different moments");
        tokio::task::yield_now().await;
    }
}

/// Thirty-two partitions, each with a writer and two readers that follow it.
pub async fn many_writers_and_readers_do_not_meet(subject: &mut dyn Subject) {
    let mut tasks = JoinSet::new();
    for id in 0..32 {
        let partition = Partition::open(subject, PartitionId(id)).await;
        for _ in 0..2 {
            tasks.spawn(follow(id, Arc::clone(&partition.reader)));
        }
        tasks.spawn(write(id, partition));
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("a writer or a reader failed");
    }
}

/// What message `n` of partition `id` says.
fn body(id: u64, n: u64) -> String {
    format!("partition {id}, message {n}")
}

async fn write(id: u64, mut partition: Partition) {
    for n in 0..COMMITS / 2 {
        let (one, two) = (body(id, 2 * n), body(id, 2 * n + 1));
        let change =
            Change { appends: vec![append_of(&[&one, &two])], puts: vec![row("last", &one)], ..partition.change() };
        let offsets = partition.commit(change).await;
        assert_eq!(offsets.start, Offset(2 * n));
        assert!(partition.reader.bounds().end >= offsets.end, "durable and not seen");
    }
    let rows = partition.reader.scan(KeyRange::all(), ALL_ROWS).await.expect("the table can be read");
    assert_eq!(rows, [row("last", &body(id, COMMITS - 2))]);
}

/// Reads each message once, in order, as it appears.
async fn follow(id: u64, reader: Arc<dyn PartitionReader>) {
    let mut next = Offset::ZERO;
    while next < Offset(COMMITS) {
        let batches = reader.read(next, 2_000.try_into().expect("not zero")).await.expect("the log can be read");
        for stored in batches {
            assert_eq!(stored.batch.base_offset(), next);
            let expected = [body(id, next.0), body(id, next.0 + 1)];
            assert_eq!(bodies_of(&stored.batch), expected);
            next = stored.batch.offsets().end;
        }
        tokio::task::yield_now().await;
    }
}
