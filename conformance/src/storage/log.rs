//! The log: appending, reading, trimming, truncating, and finding a time.

use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use stentor_core::storage::{Append, Change, StorageError};
use stentor_core::{Compression, Offset, RecordBatch};

use super::Subject;
use super::harness::{P, Partition, assert_refused, range};
use crate::fixtures::{STORED_AT, append_of, batch_at, batch_of, batch_of_bytes, batch_with, record, row};

/// More than a batch with a few short bodies takes, by some.
const ONE_READ: u32 = 1 << 20;

/// Base offset, time of storing, records: nothing but the base offset differs from what was appended.
pub async fn one_batch_reads_back_as_it_was(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let batch = batch_of(&["one", "two", "three"]);
    assert_eq!(partition.append_all(vec![Append::Batch(batch.clone())]).await, range(0, 3));
    assert_eq!(partition.reader.bounds(), range(0, 3));
    let read = partition.read(0, ONE_READ).await;
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].batch, batch.stored(Offset(0), STORED_AT));
    assert_eq!(read[0].place.count, 3);
}

/// Three hundred batches of one to four messages, each committed for itself.
pub async fn many_batches_read_back_in_order(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let mut expected = Vec::new();
    let mut receipts = Vec::new();
    for n in 0..300 {
        let bodies: Vec<String> = (0..=n % 4).map(|m| format!("{n}/{m}")).collect();
        let refs: Vec<&str> = bodies.iter().map(String::as_str).collect();
        let change = Change { appends: vec![append_of(&refs)], ..partition.change() };
        receipts.push(partition.start(change).await);
        expected.extend(bodies);
    }
    for receipt in receipts {
        receipt.durable().await.expect("the change gets durable");
    }
    assert_eq!(partition.bodies().await, expected);
}

/// The broker stores what the producer compressed, bit for bit.
pub async fn compressed_batches_keep_their_bytes(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let records: Vec<_> = (0..50).map(|n| record(format!("the same words over and over again, {n}"))).collect();
    let batches = [Compression::Lz4, Compression::Zstd, Compression::None].map(|how| batch_with(&records, how));
    assert!(batches[0].len() < batches[2].len() && batches[1].len() < batches[2].len(), "they were compressed");
    partition.append_all(batches.iter().cloned().map(Append::Batch).collect()).await;
    let expected: Vec<RecordBatch> =
        (0..).step_by(50).zip(batches).map(|(base, batch)| batch.stored(Offset(base), STORED_AT)).collect();
    assert_eq!(partition.batches().await, expected);
}

/// A message of the largest size by default, and two mebibytes beside it.
pub async fn a_large_batch_reads_back(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let rng = &mut Rng::with_seed(1);
    let (large, larger) = (batch_of_bytes(rng, 2 << 20), batch_of_bytes(rng, 4 << 20));
    for batch in [&large, &larger] {
        partition.append_all(vec![Append::Batch(batch.clone())]).await;
    }
    let expected = [large.stored(Offset(0), STORED_AT), larger.stored(Offset(1), STORED_AT)];
    assert!(partition.batches().await == expected, "the large batches differ");
}

/// A message may be empty.
pub async fn empty_bodies_read_back(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["", "", "x"]).await;
    partition.append(&[""]).await;
    assert_eq!(partition.bodies().await, ["", "", "x", ""]);
}

/// Batches are read whole, so the reader gets some messages before the one that it asked for.
pub async fn a_read_in_the_middle_of_a_batch_begins_with_that_batch(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a", "b"]).await;
    partition.append(&["c", "d", "e"]).await;
    partition.append(&["f"]).await;
    for (from, base) in [(0, 0), (1, 0), (2, 2), (3, 2), (4, 2), (5, 5)] {
        let read = partition.read(from, 1).await;
        assert_eq!(read.len(), 1, "from {from}");
        assert_eq!(read[0].batch.base_offset(), Offset(base), "from {from}");
    }
}

/// `bytes_max` bounds the answer, except that one batch always comes.
pub async fn a_read_takes_as_many_batches_as_fit_and_at_least_one(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let batch = batch_of(&["of the same length"]);
    let bytes = u32::try_from(batch.len()).expect("a short batch");
    partition.append_all(vec![Append::Batch(batch); 10]).await;
    for (bytes_max, batches) in
        [(1, 1), (bytes, 1), (2 * bytes - 1, 1), (2 * bytes, 2), (5 * bytes + 1, 5), (10 * bytes, 10), (u32::MAX, 10)]
    {
        assert_eq!(partition.read(0, bytes_max).await.len(), batches, "{bytes_max} bytes, a batch has {bytes}");
    }
    assert_eq!(partition.read(8, 5 * bytes).await.len(), 2, "two are left");
}

/// And beyond it too.
pub async fn a_read_at_the_end_gives_nothing(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    assert!(partition.read(0, ONE_READ).await.is_empty(), "the log is empty");
    partition.append(&["a", "b"]).await;
    for from in [2, 3, u64::MAX] {
        assert!(partition.read(from, ONE_READ).await.is_empty(), "from {from}");
    }
}

/// The offsets of a commit are known before it is durable.
pub async fn offsets_are_contiguous_over_pipelined_commits(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let mut pending = Vec::new();
    let mut end = 0;
    for n in 0..100_u64 {
        let count = 1 + n % 3;
        let change = Change { appends: vec![append_of(&vec!["x"; count as usize])], ..partition.change() };
        let commit = partition.start(change).await;
        assert_eq!(commit.offsets(), range(end, end + count));
        end += count;
        assert_eq!(partition.writer.end(), Offset(end));
        pending.push(commit);
    }
    for commit in pending {
        let offsets = commit.offsets();
        assert_eq!(commit.durable().await.expect("the change gets durable").into_inner(), offsets);
    }
    assert_eq!(partition.reader.bounds(), range(0, end));
}

/// Several batches of one change.
pub async fn several_appends_of_one_change_lie_in_their_order(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let appends = vec![append_of(&["a", "b"]), append_of(&["c"]), append_of(&["d", "e"])];
    assert_eq!(partition.append_all(appends).await, range(0, 5));
    assert_eq!(partition.bodies().await, ["a", "b", "c", "d", "e"]);
    assert_eq!(partition.batches().await.len(), 3);
}

/// At the border of a batch.
pub async fn trimming_moves_the_start(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a", "b"]).await;
    partition.append(&["c", "d"]).await;
    partition.trim(2).await;
    assert_eq!(partition.reader.bounds(), range(2, 4));
    assert_eq!(partition.bodies().await, ["c", "d"]);
    assert_eq!(partition.append(&["e"]).await, range(4, 5));
}

/// The batch is still read whole; the bounds say what counts.
pub async fn trimming_in_the_middle_of_a_batch_keeps_the_batch(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a", "b"]).await;
    partition.append(&["c", "d", "e"]).await;
    partition.trim(3).await;
    assert_eq!(partition.reader.bounds(), range(3, 5));
    let read = partition.read(3, ONE_READ).await;
    assert_eq!(read[0].batch.offsets(), range(2, 5));
    let below = partition.reader.read(Offset(2), 1.try_into().expect("not zero")).await;
    assert_refused!(below, Err(StorageError::Trimmed { start: Offset(3) }));
}

/// A trim that comes late does no harm.
pub async fn trimming_below_the_start_changes_nothing(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a"]).await;
    partition.append(&["b"]).await;
    partition.trim(1).await;
    let before = partition.all().await;
    for to in [0, 1] {
        partition.trim(to).await;
    }
    assert_eq!(partition.all().await, before);
}

/// What is not there cannot be done with.
pub async fn trimming_beyond_the_end_is_refused(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a", "b"]).await;
    let before = partition.all().await;
    let change = Change { trim: Some(Offset(3)), ..partition.change() };
    assert_refused!(partition.refusal(change).await, StorageError::Invalid(_));
    assert_eq!(partition.all().await, before);
}

/// Trimming comes last in a change.
pub async fn trimming_reaches_what_the_same_change_appends(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a"]).await;
    let change = Change {
        appends: vec![append_of(&["b", "c"]), append_of(&["d"])],
        trim: Some(Offset(3)),
        ..partition.change()
    };
    assert_eq!(partition.commit(change).await, range(1, 4));
    assert_eq!(partition.reader.bounds(), range(3, 4));
    assert_eq!(partition.bodies().await, ["d"]);
}

/// Nothing is left, but the offsets are not given again.
pub async fn a_log_trimmed_to_its_end_goes_on_from_there(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a", "b"]).await;
    partition.trim(2).await;
    assert_eq!(partition.reader.bounds(), range(2, 2));
    assert!(partition.bodies().await.is_empty());
    assert_eq!(partition.append(&["c"]).await, range(2, 3));
    assert_eq!(partition.bodies().await, ["c"]);
}

/// So that a consumer that fell behind knows where it can go on.
pub async fn a_read_below_the_start_says_where_the_log_starts(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    for body in ["a", "b", "c"] {
        partition.append(&[body]).await;
    }
    partition.trim(2).await;
    for from in [0, 1] {
        let read = partition.reader.read(Offset(from), 1_000.try_into().expect("not zero")).await;
        assert_refused!(read, Err(StorageError::Trimmed { start: Offset(2) }));
    }
}

/// By the broker's time of storing.
pub async fn a_time_finds_the_first_batch_stored_then_or_later(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let at = |second| STORED_AT.after(Duration::from_secs(second));
    for (second, bodies) in [(10, &["a", "b"][..]), (20, &["c"]), (20, &["d"]), (30, &["e", "f"])] {
        partition.append_all(vec![Append::Batch(batch_at(at(second), bodies))]).await;
    }
    for (second, offset) in [(0, 0), (10, 0), (11, 2), (20, 2), (21, 4), (30, 4), (31, 6)] {
        let found = partition.reader.offset_at(at(second)).await.expect("the log can be read");
        assert_eq!(found, Offset(offset), "second {second}");
    }
}

/// What was trimmed is not found, even in the middle of a batch; and an empty log gives its end.
pub async fn a_time_never_finds_an_offset_below_the_start(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    assert_eq!(partition.reader.offset_at(STORED_AT).await.expect("the log can be read"), Offset(0));
    partition.append(&["a", "b"]).await;
    partition.append(&["c", "d"]).await;
    for start in 1..=4 {
        partition.trim(start).await;
        assert_eq!(partition.reader.offset_at(STORED_AT).await.expect("the log can be read"), Offset(start));
    }
}

/// A replica sheds what was never committed; the table stays.
pub async fn truncating_drops_the_end_and_nothing_else(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a", "b"]).await;
    partition.append(&["c"]).await;
    partition.append(&["d", "e"]).await;
    partition.put(vec![row("k", "v")]).await;
    partition.writer.truncate(Offset(9)).await.expect("nothing lies there");
    assert_eq!(partition.bodies().await, ["a", "b", "c", "d", "e"]);

    partition.writer.truncate(Offset(2)).await.expect("a border of batches");
    assert_eq!(partition.writer.end(), Offset(2));
    assert_eq!(partition.reader.bounds(), range(0, 2));
    assert_eq!(partition.rows().await, [row("k", "v")]);
    assert_eq!(partition.append(&["new c"]).await, range(2, 3));
    assert_eq!(partition.bodies().await, ["a", "b", "new c"]);
    if subject.reopen().await {
        let partition = Partition::open(subject, P).await;
        assert_eq!(partition.bodies().await, ["a", "b", "new c"], "after reopening");
    }
}

/// A batch is stored whole or not at all.
pub async fn truncating_in_the_middle_of_a_batch_or_below_the_start_is_refused(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.append(&["a"]).await;
    partition.append(&["b", "c"]).await;
    partition.trim(1).await;
    let before = partition.all().await;
    for end in [0, 2] {
        assert_refused!(partition.writer.truncate(Offset(end)).await, Err(StorageError::Invalid(_)));
    }
    assert_eq!(partition.all().await, before);
    partition.writer.truncate(Offset(1)).await.expect("the start is no longer inside");
    assert_eq!(partition.reader.bounds(), range(1, 1));
}

/// Replicas and moved partitions begin elsewhere than at 0.
pub async fn a_log_begins_at_its_first_offset(subject: &mut dyn Subject) {
    let mut partition = Partition::open_at(subject, P, Offset(1_000)).await;
    assert_eq!(partition.writer.end(), Offset(1_000));
    assert_eq!(partition.reader.bounds(), range(1_000, 1_000));
    assert_eq!(partition.append(&["a"]).await, range(1_000, 1_001));
    assert_eq!(partition.bodies().await, ["a"]);
    let below = partition.reader.read(Offset(0), 1.try_into().expect("not zero")).await;
    assert_refused!(below, Err(StorageError::Trimmed { start: Offset(1_000) }));
}

/// Roughly: what goes in is in it, what is trimmed and deleted is not.
pub async fn the_bytes_of_a_partition_follow_what_it_holds(subject: &mut dyn Subject) {
    const MIB: u64 = 1 << 20;
    let mut partition = Partition::open(subject, P).await;
    let empty = partition.reader.bytes();
    let rng = &mut Rng::with_seed(2);
    partition.append_all((0..4).map(|_| Append::Batch(batch_of_bytes(rng, 1 << 20))).collect()).await;
    partition.put(vec![(crate::fixtures::key("k"), Bytes::from(vec![7; 1 << 20]))]).await;
    let full = partition.reader.bytes();
    assert!(full >= empty + 5 * MIB && full < empty + 6 * MIB, "{empty} to {full}");
    assert!(subject.storage().usage().bytes_live >= 5 * MIB, "{:?}", subject.storage().usage());
    partition.trim(4).await;
    partition.delete(vec![stentor_core::storage::KeyRange::all()]).await;
    let left = partition.reader.bytes();
    assert!(left < empty + MIB, "{empty} to {left}");
}
