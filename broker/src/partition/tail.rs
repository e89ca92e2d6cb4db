//! Batches in memory: the tail of the log, shared by all groups, and what a group that lags has read ahead.
//!
//! Invariants: the tail is contiguous and ends where the durable log ends; it holds at least the last batch, and beyond
//! that as much as its own bound and the node's allow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stentor_core::batch::BatchError;
use stentor_core::{Offset, OffsetRange, RecordBatch};

use crate::filter::{Filter, Mask};

/// What one partition keeps of its tail.
const TAIL_BYTES_MAX: usize = 8 << 20;

/// What all partitions of a node keep, above their last batches.
pub(crate) const NODE_TAIL_BYTES_MAX: usize = 192 << 20;

/// A batch in memory, with what the groups wanted to know of it: found out once, whoever asks.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) batch: RecordBatch,
    masks: Vec<(Arc<Filter>, Arc<Mask>)>,
    keys: Option<Arc<[Option<u64>]>>,
}

/// What a group needs to see of a batch besides its header.
#[derive(Clone, Debug, Default)]
pub(crate) struct Insight {
    pub(crate) mask: Option<Arc<Mask>>,
    pub(crate) keys: Option<Arc<[Option<u64>]>>,
}

impl Held {
    pub(crate) fn new(batch: RecordBatch) -> Self {
        Self { batch, masks: Vec::new(), keys: None }
    }

    /// What `filter` lets through, and (when `ordered`) the hashes of the keys. Unpacks the batch if nobody asked before.
    pub(crate) fn insight(&mut self, filter: Option<&Arc<Filter>>, ordered: bool) -> Result<Insight, BatchError> {
        let known = filter.and_then(|filter| self.masks.iter().find(|(known, _)| Arc::ptr_eq(known, filter)));
        let mut insight = Insight { mask: known.map(|(_, mask)| Arc::clone(mask)), keys: None };
        if ordered {
            insight.keys.clone_from(&self.keys);
        }
        let mask_missing = filter.is_some() && insight.mask.is_none();
        let keys_missing = ordered && insight.keys.is_none();
        if !mask_missing && !keys_missing {
            return Ok(insight);
        }
        let mut mask = Mask::default();
        let mut keys = Vec::new();
        // It was checked against the limits of its topic when it was stored.
        for (index, record) in (0_u32..).zip(self.batch.records(u32::MAX)?) {
            let record = record?;
            if let Some(filter) = filter.filter(|_| mask_missing) {
                mask.push(index, filter.matches(&record));
            }
            if keys_missing {
                keys.push(record.key.as_deref().map(key_hash));
            }
        }
        if let Some(filter) = filter.filter(|_| mask_missing) {
            let mask = Arc::new(mask);
            self.masks.push((Arc::clone(filter), Arc::clone(&mask)));
            insight.mask = Some(mask);
        }
        if keys_missing {
            let keys: Arc<[_]> = keys.into();
            self.keys = Some(Arc::clone(&keys));
            insight.keys = Some(keys);
        }
        Ok(insight)
    }
}

/// What an ordered group knows a key by.
pub(crate) fn key_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// Contiguous batches, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Run {
    batches: VecDeque<Held>,
    bytes: usize,
}

impl Run {
    pub(crate) fn range(&self) -> Option<OffsetRange> {
        let (first, last) = (self.batches.front()?, self.batches.back()?);
        Some(OffsetRange::new(first.batch.offsets().start, last.batch.offsets().end))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The batch that holds `offset`.
    pub(crate) fn get(&mut self, offset: Offset) -> Option<&mut Held> {
        let behind = self.batches.partition_point(|held| held.batch.offsets().end <= offset);
        self.batches.get_mut(behind).filter(|held| held.batch.offsets().contains(offset))
    }

    /// Adds a batch at the end. What does not follow on replaces all there was.
    pub(crate) fn push(&mut self, batch: RecordBatch) {
        if self.range().is_some_and(|range| range.end != batch.offsets().start) {
            self.clear();
        }
        self.bytes += batch.len();
        self.batches.push_back(Held::new(batch));
    }

    pub(crate) fn pop_front(&mut self) -> Option<usize> {
        let bytes = self.batches.pop_front()?.batch.len();
        self.bytes -= bytes;
        Some(bytes)
    }

    /// Drops the batches that lie wholly below `offset`.
    pub(crate) fn drop_below(&mut self, offset: Offset) {
        while self.batches.front().is_some_and(|held| held.batch.offsets().end <= offset) {
            self.pop_front();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(crate) fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }
}

/// The end of a partition's log.
#[derive(Debug)]
pub(crate) struct Tail {
    run: Run,
    /// What all tails of the node hold.
    node_bytes: Arc<AtomicUsize>,
}

impl Tail {
    pub(crate) fn new(node_bytes: Arc<AtomicUsize>) -> Self {
        Self { run: Run::default(), node_bytes }
    }

    /// Where the tail starts, if there is any.
    pub(crate) fn start(&self) -> Option<Offset> {
        self.run.range().map(|range| range.start)
    }

    pub(crate) fn get(&mut self, offset: Offset) -> Option<&mut Held> {
        self.run.get(offset)
    }

    /// Takes a batch that has become durable at the end of the log.
    pub(crate) fn push(&mut self, batch: RecordBatch) {
        let before = self.run.bytes();
        self.run.push(batch);
        let mut node = self.node_bytes.fetch_add(self.run.bytes(), Ordering::Relaxed) + self.run.bytes() - before;
        self.node_bytes.fetch_sub(before, Ordering::Relaxed);
        while self.run.len() > 1 && (self.run.bytes() > TAIL_BYTES_MAX || node > NODE_TAIL_BYTES_MAX) {
            let bytes = self.run.pop_front().unwrap_or(0);
            node = self.node_bytes.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        }
    }

    pub(crate) fn drop_below(&mut self, offset: Offset) {
        let before = self.run.bytes();
        self.run.drop_below(offset);
        self.node_bytes.fetch_sub(before - self.run.bytes(), Ordering::Relaxed);
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.node_bytes.fetch_sub(self.run.bytes(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use stentor_core::batch::BatchBuilder;
    use stentor_core::{Compression, MessageId, Record, Timestamp};

    use super::*;

    fn batch(base: u64, count: u64, body: usize) -> RecordBatch {
        let mut builder = BatchBuilder::new(Compression::None);
        for index in 0..count {
            let record = Record {
                id: MessageId::generate(Timestamp(0), u128::from(base + index)),
                timestamp: Timestamp(0),
                key: Some(Bytes::from(format!("key-{}", index % 2))),
                tag: None,
                headers: Vec::new(),
                body: Bytes::from(vec![0; body]),
                deliver_at: None,
                expires_at: None,
            };
            builder.push(&record).unwrap();
        }
        builder.finish(None).unwrap().stored(Offset(base), Timestamp(1))
    }

    #[test]
    fn a_batch_is_found_by_any_of_its_offsets() {
        let mut run = Run::default();
        run.push(batch(10, 5, 1));
        run.push(batch(15, 5, 1));
        for (offset, base) in [(9, None), (10, Some(10)), (14, Some(10)), (15, Some(15)), (19, Some(15)), (20, None)] {
            let found = run.get(Offset(offset)).map(|held| held.batch.base_offset().0);
            assert_eq!(found, base, "{offset}");
        }
        run.drop_below(Offset(16));
        assert_eq!(run.range(), Some(OffsetRange::new(Offset(15), Offset(20))));
    }

    #[test]
    fn the_tail_keeps_to_its_bound_and_gives_back_its_share_of_the_node() {
        let node = Arc::new(AtomicUsize::new(0));
        let mut tail = Tail::new(Arc::clone(&node));
        for base in 0..40 {
            tail.push(batch(base, 1, 1 << 20));
        }
        assert!(tail.run.bytes() <= TAIL_BYTES_MAX);
        assert_eq!(node.load(Ordering::Relaxed), tail.run.bytes());
        tail.push(batch(40, 1, 2 * TAIL_BYTES_MAX));
        assert_eq!(tail.run.len(), 1, "the last batch stays, however large");
        drop(tail);
        assert_eq!(node.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_full_node_leaves_a_partition_its_last_batch() {
        let node = Arc::new(AtomicUsize::new(NODE_TAIL_BYTES_MAX));
        let mut tail = Tail::new(Arc::clone(&node));
        tail.push(batch(0, 1, 100));
        tail.push(batch(1, 1, 100));
        assert_eq!(tail.run.len(), 1);
        assert!(tail.get(Offset(1)).is_some());
    }

    #[test]
    fn equal_keys_have_equal_hashes() {
        let keys = Held::new(batch(0, 4, 1)).insight(None, true).unwrap().keys.unwrap();
        assert_eq!(keys[0], keys[2]);
        assert_ne!(keys[0], keys[1]);
    }
}
