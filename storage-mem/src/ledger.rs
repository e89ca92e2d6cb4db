//! What the partitions of a store share: how much memory they take, and where batches lie that entered several logs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use dashmap::DashMap;
use stentor_core::storage::Place;
use xxhash_rust::xxh3::Xxh3DefaultBuilder;

use crate::held::Held;

/// What [`WhenFull::DropOldest`](stentor_core::storage::WhenFull::DropOldest) has dropped since the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Batches.
    pub batches: u64,
    /// Messages in them that were not trimmed yet.
    pub messages: u64,
    /// Bytes that were freed, as far as no other log holds them.
    pub bytes: u64,
}

/// The counters are independent of each other: each is read for itself, so relaxed ordering is enough.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    bytes: AtomicU64,
    next_number: AtomicU64,
    refusing: AtomicU64,
    dropped_batches: AtomicU64,
    dropped_messages: AtomicU64,
    dropped_bytes: AtomicU64,
    /// Batches that were appended by reference, by their number. Few are, so the way of all others is spared this map.
    listed: DashMap<u64, Weak<Held>, Xxh3DefaultBuilder>,
}

impl Ledger {
    /// A number that was never given before, greater than all before. Within one log they ascend: a writer takes them in
    /// the order of its appends, and the next writer of the partition begins after the last change of the one before.
    pub(crate) fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn take(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Books the change from `before` to `after`.
    pub(crate) fn move_from(&self, before: u64, after: u64) {
        if after >= before {
            self.take(after - before);
        } else {
            self.give_back(before - after);
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Books that a partition began or ceased to refuse appends.
    pub(crate) fn set_refusing(&self, was: bool, is: bool) {
        match (was, is) {
            (false, true) => self.refusing.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.refusing.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }

    pub(crate) fn any_refusing(&self) -> bool {
        self.refusing.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn count_dropped(&self, dropped: Dropped) {
        self.dropped_batches.fetch_add(dropped.batches, Ordering::Relaxed);
        self.dropped_messages.fetch_add(dropped.messages, Ordering::Relaxed);
        self.dropped_bytes.fetch_add(dropped.bytes, Ordering::Relaxed);
    }

    pub(crate) fn dropped(&self) -> Dropped {
        Dropped {
            batches: self.dropped_batches.load(Ordering::Relaxed),
            messages: self.dropped_messages.load(Ordering::Relaxed),
            bytes: self.dropped_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn list(&self, held: &Arc<Held>) {
        self.listed.insert(held.place().position, Arc::downgrade(held));
    }

    pub(crate) fn unlist(&self, place: Place) {
        self.listed.remove(&place.position);
    }

    /// The batch at `place`, if it was listed and somebody still holds it.
    pub(crate) fn find(&self, place: Place) -> Option<Arc<Held>> {
        // The guard must be gone before the batch can be dropped, which would want the same shard: so nothing else
        // happens in this statement.
        let held = self.listed.get(&place.position).and_then(|held| held.upgrade());
        held.filter(|held| held.place() == place)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use stentor_core::batch::BatchBuilder;
    use stentor_core::{Compression, MessageId, PartitionId, Record, Timestamp};

    use super::*;

    #[test]
    fn a_listed_batch_is_found_by_its_place_until_it_is_dropped() {
        let ledger = Arc::new(Ledger::default());
        let mut builder = BatchBuilder::new(Compression::None);
        let record = Record {
            id: MessageId::generate(Timestamp(0), 1),
            timestamp: Timestamp(0),
            key: None,
            tag: None,
            headers: Vec::new(),
            body: Bytes::from_static(b"x"),
            deliver_at: None,
            expires_at: None,
        };
        builder.push(&record).unwrap();
        let held = Held::new(builder.finish(None).unwrap(), PartitionId(1), &ledger);
        let place = held.place();
        assert!(ledger.find(place).is_none(), "few batches are listed");
        held.list();
        held.list();
        assert!(ledger.find(place).is_some());
        assert!(ledger.find(Place { count: 2, ..place }).is_none(), "another batch");
        drop(held);
        assert!(ledger.find(place).is_none());
        assert!(ledger.listed.is_empty() && ledger.bytes() == 0, "nothing is left of it");
    }
}
