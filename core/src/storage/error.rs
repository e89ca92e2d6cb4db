//! What can go wrong at the storage seam.

use std::sync::Arc;

use thiserror::Error;

use super::Place;
use crate::{Epoch, Offset, PartitionId};

/// Why a backend refused or failed. Cheap to clone: one failed sync answers many commits.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StorageError {
    /// Another writer has taken over, or the log does not end where the change expected.
    #[error("partition {partition} is in epoch {epoch} and ends at {end}: the writer was deposed")]
    Deposed {
        /// The partition.
        partition: PartitionId,
        /// Its present epoch.
        epoch: Epoch,
        /// Its present end.
        end: Offset,
    },
    /// There is no room for new data; acknowledgements and reads go on.
    #[error("the storage is full: {0}")]
    StorageFull(String),
    /// The change can never be taken, whatever the room.
    #[error("a change of {bytes} bytes is too large: at most {bytes_max}")]
    TooLarge {
        /// What it comes to.
        bytes: u64,
        /// What is allowed.
        bytes_max: u64,
    },
    /// The offset lies below the log's start.
    #[error("the log starts at {start}: what lay below is gone")]
    Trimmed {
        /// The present start.
        start: Offset,
    },
    /// What a reference of the change points to lies elsewhere by now, or nowhere any more. Nothing was taken: read the
    /// batch again, which tells its present place, and commit anew.
    #[error("the batch no longer lies at {place:?}: read it again")]
    Moved {
        /// Where it lay.
        place: Place,
    },
    /// A checksum or a length does not hold.
    // Said so that nobody takes the store's number for the topic's own: they stand side by side in `topic show`.
    #[error("damaged at offset {offset} (partition {partition} of the store): {detail}")]
    Corrupt {
        /// The partition.
        partition: PartitionId,
        /// The offset of the damaged batch, or the nearest one known.
        offset: Offset,
        /// What was found.
        detail: String,
    },
    /// The store as a whole is damaged in a way that no partition can be named for; it refuses to open.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// The backend does not keep what it was asked for.
    #[error("{0}")]
    Unsupported(String),
    /// The request itself makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// Another process holds the data folder.
    #[error("the data folder {0} is in use by another process")]
    Locked(String),
    /// A sync failed: nothing more can be promised until the store is opened anew.
    #[error("the storage takes no more writes: {0}")]
    Poisoned(String),
    /// The store was closed.
    #[error("the storage is closed")]
    Closed,
    /// The operating system said no.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: String,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
}

impl StorageError {
    /// Wraps what the operating system said while `context` was being done.
    #[must_use]
    pub fn io(context: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { context: context.into(), source: Arc::new(source) }
    }
}
