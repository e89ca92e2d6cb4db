//! What happened to a partition's table and is not in the index yet.
//!
//! Invariant: for every key that a change behind the indexed state touched, the overlay has the last word; for every
//! other key it has none. So a reader who looks here first and then at the index, of this or a later state, sees the
//! table as of the latest change that either knows.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use stentor_core::storage::{Key, KeyRange};

/// What the overlay says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Overlaid {
    /// It has this value.
    Value(Bytes),
    /// It is not there.
    Deleted,
    /// Nothing: ask the index.
    Unknown,
}

/// Rows and deletions, each with the sequence of its change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    rows: BTreeMap<Key, (u64, Option<Bytes>)>,
    ranges: VecDeque<(u64, KeyRange)>,
    /// Which rows to look at when a sequence is indexed, in order.
    order: VecDeque<(u64, Key)>,
    /// What the rows with a value take.
    bytes: u64,
}

fn row_bytes(key: &Key, value: Option<&Bytes>) -> u64 {
    value.map_or(0, |value| (key.0.len() + value.len()) as u64)
}

impl Overlay {
    /// What the rows with a value take, keys and values.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn put(&mut self, sequence: u64, key: Key, value: Bytes) {
        self.insert(sequence, key, Some(value));
    }

    fn insert(&mut self, sequence: u64, key: Key, value: Option<Bytes>) {
        self.remove(&key);
        self.bytes += row_bytes(&key, value.as_ref());
        self.order.push_back((sequence, key.clone()));
        self.rows.insert(key, (sequence, value));
    }

    fn remove(&mut self, key: &Key) {
        if let Some((_, value)) = self.rows.remove(key) {
            self.bytes -= row_bytes(key, value.as_ref());
        }
    }

    pub(crate) fn delete(&mut self, sequence: u64, range: KeyRange) {
        if range.is_empty() {
            return;
        }
        // The usual deletion is of one key; kept among the rows it costs a lookup nothing.
        if range.end.as_ref() == Some(&range.start.successor()) {
            self.insert(sequence, range.start, None);
            return;
        }
        let inside: Vec<Key> = keys_in(&self.rows, &range).map(|(key, _)| key.clone()).collect();
        for key in inside {
            self.remove(&key);
        }
        self.ranges.push_back((sequence, range));
    }

    /// Forgets what the index reflects now.
    pub(crate) fn indexed(&mut self, sequence: u64) {
        while self.ranges.front().is_some_and(|(of, _)| *of <= sequence) {
            self.ranges.pop_front();
        }
        while self.order.front().is_some_and(|(of, _)| *of <= sequence) {
            if let Some((of, key)) = self.order.pop_front()
                && self.rows.get(&key).is_some_and(|(latest, _)| *latest == of)
            {
                self.remove(&key);
            }
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Overlaid {
        match self.rows.get(key) {
            Some((_, Some(value))) => Overlaid::Value(value.clone()),
            Some((_, None)) => Overlaid::Deleted,
            None if self.ranges.iter().any(|(_, range)| range.contains(key)) => Overlaid::Deleted,
            None => Overlaid::Unknown,
        }
    }

    /// The part of it that concerns `range`.
    pub(crate) fn within(&self, range: &KeyRange) -> Self {
        let rows = keys_in(&self.rows, range).map(|(key, row)| (key.clone(), row.clone())).collect();
        Self { rows, ranges: self.ranges.clone(), order: VecDeque::new(), bytes: 0 }
    }

    /// The rows in `range` that it knows, in order; none stands for a deleted one.
    pub(crate) fn rows(&self, range: &KeyRange) -> impl Iterator<Item = (&Key, Option<&Bytes>)> {
        keys_in(&self.rows, range).map(|(key, (_, value))| (key, value.as_ref()))
    }
}

fn keys_in<'a, V>(rows: &'a BTreeMap<Key, V>, range: &KeyRange) -> impl Iterator<Item = (&'a Key, &'a V)> {
    // `BTreeMap::range` panics on a range whose end lies before its start.
    let empty = range.is_empty();
    let end = range.end.clone();
    rows.range(range.start.clone()..).take_while(move |(key, _)| !empty && end.as_ref().is_none_or(|end| *key < end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8),
        Delete(u8, u8),
        Indexed(u64),
    }

    fn key(of: u8) -> Key {
        Key::copy_from(&[of])
    }

    fn range(from: u8, length: u8) -> KeyRange {
        if length == 1 {
            KeyRange::single(&key(from))
        } else {
            KeyRange::new(key(from), key(from.saturating_add(length)))
        }
    }

    fn apply(table: &mut BTreeMap<Key, Bytes>, step: &Step, sequence: u64) {
        match step {
            Step::Put(of) => {
                table.insert(key(*of), Bytes::from(sequence.to_string()));
            }
            Step::Delete(from, length) => table.retain(|key, _| !range(*from, *length).contains(key)),
            Step::Indexed(_) => {}
        }
    }

    proptest! {
        /// Overlay over an index of any age between "indexed" and now is the table.
        #[test]
        fn the_overlay_and_an_index_at_or_behind_it_are_the_table(
            steps in proptest::collection::vec(
                prop_oneof![
                    (0_u8..12).prop_map(Step::Put),
                    (0_u8..12, 0_u8..5).prop_map(|(from, length)| Step::Delete(from, length)),
                    (0_u64..6).prop_map(Step::Indexed),
                ],
                0..60,
            ),
            ahead in 0_usize..4,
        ) {
            let mut overlay = Overlay::default();
            let mut table = BTreeMap::new();
            let mut history = vec![table.clone()];
            let mut indexed = 0_u64;
            for step in &steps {
                if let Step::Indexed(by) = step {
                    indexed = (indexed + by).min(history.len() as u64 - 1);
                    overlay.indexed(indexed);
                } else {
                    let sequence = history.len() as u64;
                    apply(&mut table, step, sequence);
                    history.push(table.clone());
                    match step {
                        Step::Put(of) => overlay.put(sequence, key(*of), Bytes::from(sequence.to_string())),
                        Step::Delete(from, length) => overlay.delete(sequence, range(*from, *length)),
                        Step::Indexed(_) => {}
                    }
                }
                // The index may already be ahead of what the overlay was told.
                let index = &history[(indexed as usize + ahead).min(history.len() - 1)];
                for of in 0..20 {
                    let found = match overlay.get(&key(of)) {
                        Overlaid::Value(value) => Some(value),
                        Overlaid::Deleted => None,
                        Overlaid::Unknown => index.get(&key(of)).cloned(),
                    };
                    prop_assert_eq!(found, table.get(&key(of)).cloned(), "key {}", of);
                }
            }
        }
    }
}
