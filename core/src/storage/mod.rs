//! The storage contract: what the engine asks of a backend, and all that it asks.
//!
//! A **partition** is one append-only log of record batches and one small ordered table (key → bytes). The engine keeps
//! *all* its durable state in those two, and changes both atomically by one [`Change`]. A backend knows nothing of
//! groups, delivery or transactions.
//!
//! Invariants that every backend keeps (`stentor-conformance` checks them):
//! - offsets are contiguous; `start ≤ end`; a [`Change`] takes effect as a whole or not at all, across a crash too;
//! - once [`PartitionWriter::commit`] has returned, the offsets are fixed; receipts resolve in the order of the commits
//!   and without holes: if one fails, so does every later one;
//! - readers see only what has reached the partition's durability, and when a receipt has resolved they see what it
//!   changed;
//! - a batch that fails its checksum is never handed out: the reader gets [`StorageError::Corrupt`], which names the
//!   partition and the offset;
//! - a failed sync poisons the store for writing; running out of space does not.

use std::num::NonZeroU32;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use crate::{Durability, Epoch, Offset, OffsetRange, PartitionId, RecordBatch, Timestamp};

mod change;
mod commit;
mod error;
mod key;

pub use change::{Append, Change, Place};
pub use commit::{CommitReceipt, PendingCommit};
pub use error::StorageError;
pub use key::{Key, KeyRange};

/// A backend: opens, lists and deletes partitions.
#[async_trait]
pub trait Storage: Send + Sync + 'static {
    /// The durabilities that this backend keeps, the default first. Opening with another is refused as
    /// [`Unsupported`](StorageError::Unsupported).
    fn keeps(&self) -> &'static [Durability];

    /// Opens the partition, creating it if there is none, and begins a new epoch: an earlier writer is deposed. The
    /// options' `first_offset` counts only when the partition is created.
    ///
    /// # Errors
    /// [`Unsupported`](StorageError::Unsupported) when an option cannot be kept; whatever went wrong otherwise.
    async fn open(&self, partition: PartitionId, options: OpenOptions) -> Result<OpenPartition, StorageError>;

    /// The partitions there are, in ascending order.
    ///
    /// # Errors
    /// When the backend cannot be read.
    async fn list(&self) -> Result<Vec<PartitionId>, StorageError>;

    /// Deletes the partition with all it holds, durably: after a crash it does not come back. A writer of it is deposed.
    /// Deleting what does not exist is done already.
    ///
    /// # Errors
    /// When the backend cannot be written.
    async fn delete(&self, partition: PartitionId) -> Result<(), StorageError>;

    /// Who leads the partition, now and whenever that changes. A local backend always leads.
    fn watch(&self, partition: PartitionId) -> watch::Receiver<Leadership>;

    /// What the whole backend uses, for metrics and for admission.
    fn usage(&self) -> Usage;

    /// Stops taking changes, makes durable what was taken, and releases the files. Every later call is refused as
    /// [`Closed`](StorageError::Closed). Closing twice is harmless.
    ///
    /// # Errors
    /// When what was taken could not be made durable.
    async fn close(&self) -> Result<(), StorageError>;
}

/// How a partition is to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// What a resolved receipt promises.
    pub durability: Durability,
    /// Where the log of a new partition begins; replicas and moved partitions begin elsewhere than at 0.
    pub first_offset: Offset,
    /// How many bytes log and table may take together, and what happens there. A backend in memory needs one, others
    /// refuse it.
    pub bound: Option<ByteBound>,
}

/// A bound on the bytes of a partition and the policy at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteBound {
    /// The most that log and table may take.
    pub bytes_max: u64,
    /// What an append that would go beyond meets.
    pub when_full: WhenFull,
}

/// What happens at a [`ByteBound`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The append is refused as [`StorageFull`](StorageError::StorageFull).
    Reject,
    /// The oldest batches make room, whoever still owes them.
    DropOldest,
}

/// An opened partition: one writer by ownership, and a reader to share.
pub struct OpenPartition {
    /// The reign that this opening began.
    pub epoch: Epoch,
    /// The one writer.
    pub writer: Box<dyn PartitionWriter>,
    /// As many readers as are wanted.
    pub reader: Arc<dyn PartitionReader>,
}

impl std::fmt::Debug for OpenPartition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenPartition").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Who leads a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// This node leads, in this epoch.
    Leader(Epoch),
    /// Another node does, or none.
    Follower,
}

/// What a backend uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes taken: files on disk, or memory.
    pub bytes: u64,
    /// Bytes of it that some partition still holds.
    pub bytes_live: u64,
    /// Syncs done since the start.
    pub syncs: u64,
    /// Damaged places met since the start.
    pub corruptions: u64,
    /// Whether appends are being refused for want of space.
    pub full: bool,
    /// Whether a failed sync has ended writing.
    pub poisoned: bool,
}

/// The one writer of a partition.
#[async_trait]
pub trait PartitionWriter: Send {
    /// The offset that the next appended message gets: behind every commit that has returned.
    fn end(&self) -> Offset;

    /// Takes all of `change` or none of it. A refusal ([`StorageFull`](StorageError::StorageFull),
    /// [`Deposed`](StorageError::Deposed), [`TooLarge`](StorageError::TooLarge), …) comes from this call, before
    /// offsets are fixed. Once it returns the offsets are fixed; durability comes with the receipt.
    ///
    /// Commits may be made without waiting for earlier receipts. Cancel safe: a dropped call has either had its whole
    /// effect or none; [`end`](Self::end) tells which.
    ///
    /// # Errors
    /// See above; after a failed sync, [`Poisoned`](StorageError::Poisoned).
    async fn commit(&mut self, change: Change) -> Result<PendingCommit, StorageError>;

    /// Durably drops the messages at `end` and above. Only for a layer that owns visibility: a replica that sheds what
    /// was never committed. The table stays as it is. Nothing lies beyond the present end, so an `end` there changes
    /// nothing.
    ///
    /// # Errors
    /// [`Invalid`](StorageError::Invalid) when `end` lies below the log's start or in the middle of a batch, since a
    /// batch is stored and delivered whole; [`Deposed`](StorageError::Deposed); or the backend cannot be written.
    async fn truncate(&mut self, end: Offset) -> Result<(), StorageError>;
}

/// A reader of a partition. It sees only what has reached the partition's durability.
#[async_trait]
pub trait PartitionReader: Send + Sync {
    /// Where the readable log starts and ends.
    fn bounds(&self) -> OffsetRange;

    /// Bytes that the partition's log and table take, roughly.
    fn bytes(&self) -> u64;

    /// The batches from the one that holds `from`, in order, as many as fit into `bytes_max` together; at least one if
    /// there is any, however large. Nothing at the end of the log and beyond. The first batch may begin before `from`,
    /// and before the log's start, when they lie in its middle.
    ///
    /// # Errors
    /// [`Trimmed`](StorageError::Trimmed) below the start, [`Corrupt`](StorageError::Corrupt) when the first batch is
    /// damaged (a damaged later one ends the result before it).
    async fn read(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Vec<StoredBatch>, StorageError>;

    /// The value of a row of the table.
    ///
    /// # Errors
    /// When the backend cannot be read.
    async fn get(&self, key: &Key) -> Result<Option<Bytes>, StorageError>;

    /// The rows of `range` in ascending order of their keys, at most `limit` of them.
    ///
    /// # Errors
    /// When the backend cannot be read.
    async fn scan(&self, range: KeyRange, limit: NonZeroU32) -> Result<Vec<(Key, Bytes)>, StorageError>;

    /// The first offset of the first batch that was stored at `at` or later, but never one below the log's start; the end
    /// of the log if there is none.
    ///
    /// # Errors
    /// When the backend cannot be read.
    async fn offset_at(&self, at: Timestamp) -> Result<Offset, StorageError>;

    /// One consistent view of table and log, for snapshots and moves. It stays as it is while commits go on, and holds
    /// back the deletion of what it shows, so keep it briefly.
    ///
    /// # Errors
    /// When the backend cannot be read.
    async fn view(&self) -> Result<Box<dyn PartitionView>, StorageError>;
}

/// A partition as it stood at one moment.
#[async_trait]
pub trait PartitionView: Send + Sync {
    /// Where the log of the view starts and ends.
    fn bounds(&self) -> OffsetRange;

    /// As [`PartitionReader::read`].
    ///
    /// # Errors
    /// As there.
    async fn read(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Vec<StoredBatch>, StorageError>;

    /// As [`PartitionReader::scan`].
    ///
    /// # Errors
    /// As there.
    async fn scan(&self, range: KeyRange, limit: NonZeroU32) -> Result<Vec<(Key, Bytes)>, StorageError>;
}

/// A batch as it lies in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBatch {
    /// The batch, its base offset and time of storing filled in.
    pub batch: RecordBatch,
    /// Where it lies, to append it elsewhere by reference.
    pub place: Place,
}
