//! The seam to the index: one ordered map of bytes to bytes, changed by atomic batches.
//!
//! What an implementation promises:
//! - a batch is seen as a whole or not at all, by readers and after a crash;
//! - batches come from one thread, in order. After a crash of the process or a power cut, what is there is the state
//!   after some batch, and at least after the last one that [`Index::flushed`] had named. Batches behind it may be gone,
//!   the latest first;
//! - damage is an error, never a missing row.
//!
//! Everything here blocks; the engine calls it from threads of its own or from blocking tasks.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

mod fjall;
mod guard;

pub use self::fjall::{FjallIndex, FjallOptions};
pub use self::guard::panics_are_caught;

/// An index: its present state, and the ways to change it.
pub trait Index: IndexView + fmt::Debug {
    /// Applies `batch` as a whole. Its own log is not synced. `token` grows from batch to batch and names the state for
    /// [`flushed`](Self::flushed). May block for a while when flushing falls behind.
    ///
    /// # Errors
    /// When it cannot be written. Nothing may be applied after that.
    fn apply(&self, batch: IndexBatch, token: u64) -> Result<(), IndexError>;

    /// The greatest token whose state is sure to survive a power cut and the loss of the index's own log; 0 if none
    /// since it was opened.
    fn flushed(&self) -> u64;

    /// Begins to flush what was applied, without waiting for it. Called by the thread that applies.
    ///
    /// # Errors
    /// When it cannot be written.
    fn begin_flush(&self) -> Result<(), IndexError>;

    /// Flushes all that was applied, and returns when it is safe. Called by the thread that applies.
    ///
    /// # Errors
    /// When it cannot be written.
    fn flush(&self) -> Result<(), IndexError>;

    /// The state as it is now, for as long as the view is held.
    fn snapshot(&self) -> Arc<dyn IndexView>;

    /// Bytes that it takes on disk, roughly.
    fn bytes(&self) -> u64;
}

/// A state of an index.
pub trait IndexView: Send + Sync + 'static {
    /// The value of `key`.
    ///
    /// # Errors
    /// When it cannot be read.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, IndexError>;

    /// Shows the rows from `start` up to, and without, `end` to `visit`, until that breaks.
    ///
    /// # Errors
    /// When it cannot be read.
    fn scan(&self, range: Rows<'_>, visit: &mut Visit<'_>) -> Result<(), IndexError>;
}

/// Is shown key and value of each row, and says whether to go on.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// A range of rows and the direction to go through it.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The first key inside.
    pub start: &'a [u8],
    /// The first key behind.
    pub end: &'a [u8],
    /// Whether to begin with the last row.
    pub backwards: bool,
}

/// One atomic change of an index. Of two operations on one key the later one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexBatch {
    /// The operations, in order.
    pub operations: Vec<IndexOperation>,
}

impl IndexBatch {
    /// Writes a row.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.operations.push(IndexOperation::Put(key.into(), value.into()));
    }

    /// Deletes a row.
    pub fn delete(&mut self, key: impl Into<Bytes>) {
        self.operations.push(IndexOperation::Delete(key.into()));
    }
}

/// One operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexOperation {
    /// Writes the row.
    Put(Bytes, Bytes),
    /// Deletes the row, if there is one.
    Delete(Bytes),
}

/// Why an index refused or failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum IndexError {
    /// It is damaged.
    #[error("the index is damaged: {0}")]
    Damaged(String),
    /// The system said no, or an earlier write failed.
    #[error("the index cannot be used: {0}")]
    Failed(String),
}
