//! The table: rows, ranges, limits.

use std::num::NonZeroU32;

use bytes::Bytes;
use fastrand::Rng;
use stentor_core::limits::TABLE_KEY_BYTES_MAX;
use stentor_core::storage::{Change, Key, KeyRange, StorageError};

use super::Subject;
use super::harness::{P, Partition, Q, assert_refused};
use crate::fixtures::{key, random_bytes, row};

/// Written, overwritten, deleted.
pub async fn a_row_reads_back_until_it_is_deleted(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    assert_eq!(partition.get(&key("k")).await, None);
    for value in ["first", "second"] {
        partition.put(vec![row("k", value)]).await;
        assert_eq!(partition.get(&key("k")).await.as_deref(), Some(value.as_bytes()));
    }
    partition.delete(vec![KeyRange::single(&key("k"))]).await;
    assert_eq!(partition.get(&key("k")).await, None);
    assert!(partition.rows().await.is_empty());
}

/// Unsigned bytes, shorter first, whatever the order of writing; keys may hold anything, also nothing.
pub async fn rows_come_in_the_order_of_their_bytes(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let mut keys: Vec<Key> =
        [&b""[..], b"\0", b"\0\0", b"\0\xff", b"a", b"a\0", b"aa", b"b", b"\x7f", b"\x80", b"\xff", b"\xff\xff"]
            .into_iter()
            .map(Key::copy_from)
            .collect();
    Rng::with_seed(3).shuffle(&mut keys);
    for key in &keys {
        partition.put(vec![(key.clone(), key.0.clone())]).await;
    }
    keys.sort();
    let expected: Vec<_> = keys.iter().map(|key| (key.clone(), key.0.clone())).collect();
    assert_eq!(partition.rows().await, expected);
    for key in &keys {
        assert_eq!(partition.get(key).await.as_ref(), Some(&key.0));
    }
}

/// Half-open ranges, with and without a bound, and the limit counts from the front.
pub async fn a_scan_keeps_to_its_range_and_limit(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let keys: Vec<String> = (0..100).map(|n| format!("{n:02}")).collect();
    partition.put(keys.iter().map(|key| row(key, key)).collect()).await;
    let cases = [
        (KeyRange::all(), 1_000, 0..100),
        (KeyRange::all(), 7, 0..7),
        (KeyRange::new(key("10"), key("20")), 1_000, 10..20),
        (KeyRange::new(key("10"), key("20")), 10, 10..20),
        (KeyRange::new(key("10"), key("20")), 3, 10..13),
        (KeyRange::new(key("105"), key("205")), 1_000, 11..21),
        (KeyRange { start: key("95"), end: None }, 1_000, 95..100),
        (KeyRange { start: key("x"), end: None }, 1_000, 0..0),
        (KeyRange::single(&key("42")), 1, 42..43),
    ];
    for (range, limit, expected) in cases {
        let limit = NonZeroU32::new(limit).expect("not zero");
        let found = partition.reader.scan(range.clone(), limit).await.expect("the table can be read");
        let expected: Vec<_> = keys[expected].iter().map(|key| row(key, key)).collect();
        assert_eq!(found, expected, "{range:?} limit {limit}");
    }
}

/// Also with a prefix of bytes that cannot grow.
pub async fn a_prefix_finds_exactly_its_rows(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let keys = [&b"a"[..], b"a\xff", b"a\xff\0", b"a\xff\xff", b"b", b"\xff", b"\xff\xff"].map(Key::copy_from);
    partition.put(keys.iter().map(|key| (key.clone(), Bytes::new())).collect()).await;
    for prefix in [&b""[..], b"a", b"a\xff", b"b", b"\xff", b"\xff\xff", b"c"] {
        let found: Vec<Key> = partition.scan(KeyRange::prefix(prefix)).await.into_iter().map(|(key, _)| key).collect();
        let expected: Vec<Key> = keys.iter().filter(|key| key.0.starts_with(prefix)).cloned().collect();
        assert_eq!(found, expected, "{prefix:?}");
    }
}

/// Also one whose end lies before its start.
pub async fn an_empty_range_finds_and_deletes_nothing(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.put(vec![row("a", "1"), row("b", "2"), row("c", "3")]).await;
    let before = partition.rows().await;
    for range in [KeyRange::new(key("b"), key("b")), KeyRange::new(key("c"), key("a"))] {
        assert!(partition.scan(range.clone()).await.is_empty(), "{range:?}");
        partition.delete(vec![range]).await;
        assert_eq!(partition.rows().await, before);
    }
}

/// Half and delayed messages are values, so they may be as large as a message.
pub async fn large_values_read_back(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let rng = &mut Rng::with_seed(4);
    let rows: Vec<_> = [64 << 10, 1 << 20, 5 << 20]
        .into_iter()
        .enumerate()
        .map(|(n, bytes)| (key(&n.to_string()), random_bytes(rng, bytes)))
        .collect();
    partition.put(rows.clone()).await;
    assert!(partition.rows().await == rows, "the large values differ");
    assert!(partition.get(&rows[2].0).await.as_ref() == Some(&rows[2].1), "the largest value differs");
    partition.put(vec![(rows[2].0.clone(), Bytes::from_static(b"small"))]).await;
    assert_eq!(partition.get(&rows[2].0).await.as_deref(), Some(&b"small"[..]));
}

/// A row can be a mark alone.
pub async fn an_empty_value_is_not_a_missing_row(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.put(vec![row("k", ""), row("", "the empty key")]).await;
    assert_eq!(partition.get(&key("k")).await, Some(Bytes::new()));
    assert_eq!(partition.rows().await, [row("", "the empty key"), row("k", "")]);
}

/// And the longest one can be deleted by a range that ends right behind it.
pub async fn the_longest_key_is_taken_and_a_longer_one_refused(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    let longest = Key::from(vec![b'k'; TABLE_KEY_BYTES_MAX]);
    partition.put(vec![(longest.clone(), Bytes::from_static(b"v"))]).await;
    let change = Change { puts: vec![row("a", "1"), (longest.successor(), Bytes::new())], ..partition.change() };
    assert_refused!(partition.refusal(change).await, StorageError::Invalid(_));
    assert_eq!(partition.rows().await, [(longest.clone(), Bytes::from_static(b"v"))]);
    partition.delete(vec![KeyRange::single(&longest)]).await;
    assert!(partition.rows().await.is_empty());
}

/// Several ranges at once, overlapping ones too.
pub async fn deleting_a_range_leaves_its_neighbours(subject: &mut dyn Subject) {
    let mut partition = Partition::open(subject, P).await;
    partition.put((0..50).map(|n| row(&format!("{n:02}"), "v")).collect()).await;
    let deletes = vec![
        KeyRange::new(key("05"), key("10")),
        KeyRange::new(key("08"), key("20")),
        KeyRange::prefix(b"3"),
        KeyRange { start: key("48"), end: None },
    ];
    partition.delete(deletes).await;
    let expected: Vec<_> = (0..5).chain(20..30).chain(40..48).map(|n: u32| row(&format!("{n:02}"), "v")).collect();
    assert_eq!(partition.rows().await, expected);
}

/// Whatever the numbers of the partitions and the keys: no row of one is seen in, or deleted from, the other.
pub async fn tables_of_partitions_are_apart(subject: &mut dyn Subject) {
    let (mut one, mut other) = (Partition::open(subject, P).await, Partition::open(subject, Q).await);
    one.put(vec![row("", "p"), row("k", "p"), row("\u{7f}", "p")]).await;
    other.put(vec![row("", "q"), row("k", "q")]).await;
    one.delete(vec![KeyRange::all()]).await;
    assert!(one.rows().await.is_empty());
    assert_eq!(other.rows().await, [row("", "q"), row("k", "q")]);
}
