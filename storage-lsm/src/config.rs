//! What can be set.

use std::time::Duration;

/// The settings of the store. The defaults are safe ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LsmConfig {
    /// How large a segment of the journal is; a change must fit into one. On a small file system less is taken, so that
    /// a handful of segments fit. Rounded up to whole pages.
    pub segment_bytes: u64,
    /// Changes that need room are refused once this much of the file system is used, in percent.
    pub disk_watermark: u8,
    /// What is kept free for acknowledgements, compaction and recovery when the file system fills up all the same. On a
    /// small file system less is taken.
    pub disk_reserve: u64,
    /// Segments that are kept alive by little are rewritten once they hold so many segments' worth that nobody owes, and
    /// an eighth of what is owed.
    pub sparse_slack: u32,
    /// How long the committer is idle before it appends an empty group, which says that all before it is synced.
    pub idle_group_after: Duration,
    /// With so many bytes waiting the next group is written while the one before is being synced. With less it is better to
    /// let more gather: each group is padded to whole pages, and a sync costs about the same whatever it covers.
    pub write_ahead_bytes: u64,
    /// How much of what was written last stays in the page cache; more of it is given back to the kernel.
    pub warm_bytes: u64,
    /// The index rotates its memtable from this size on. Recovery of the index follows it.
    pub memtable_bytes: u64,
    /// The index's cache.
    pub cache_bytes: u64,
    /// Where the number comes from that a new store is known by.
    pub seed: u64,
}

impl Default for LsmConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 128 << 20,
            disk_watermark: 95,
            disk_reserve: 64 << 20,
            sparse_slack: 4,
            idle_group_after: Duration::from_millis(20),
            write_ahead_bytes: 1 << 20,
            warm_bytes: 256 << 20,
            memtable_bytes: 12 << 20,
            cache_bytes: 64 << 20,
            seed: 0,
        }
    }
}
