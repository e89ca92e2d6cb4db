//! What names a partition: its number on the node, and its place in its topic.

use std::fmt;
use std::num::NonZeroU32;

use xxhash_rust::xxh3::xxh3_64;

/// A partition of a node's storage. Numbers are given out by the broker's catalogue and never used twice; number 0 is
/// the catalogue itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u64);

impl PartitionId {
    /// The internal partition whose table holds the node's topics and groups.
    pub const CATALOGUE: Self = Self(0);
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The place of a partition in its topic, from 0: what users see and write as the `P` of `P:OFFSET`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionIndex(pub u32);

impl fmt::Display for PartitionIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The partition of a topic that messages with this key go to. Part of the protocol: every client and every broker must
/// agree, for ever, so it is pinned by a test (XXH3-64 of the key, modulo the number of partitions).
#[must_use]
pub fn partition_for_key(key: &[u8], partitions: NonZeroU32) -> PartitionIndex {
    let index = xxh3_64(key) % u64::from(partitions.get());
    // The remainder is below a u32, so nothing is cut.
    #[expect(clippy::cast_possible_truncation, reason = "a remainder of a u32 fits a u32")]
    PartitionIndex(index as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partition_of_a_key_never_changes() {
        let four = NonZeroU32::new(4).unwrap();
        let placed: Vec<u32> =
            ["", "a", "order-17", "order-18"].iter().map(|key| partition_for_key(key.as_bytes(), four).0).collect();
        assert_eq!(placed, [2, 3, 2, 2]);
    }
}
