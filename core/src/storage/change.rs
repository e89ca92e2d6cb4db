//! The one write primitive.

use bytes::Bytes;

use super::{Key, KeyRange};
use crate::{Epoch, Offset, RecordBatch};

/// What one commit does to a partition, as a whole or not at all.
///
/// Order inside a change: `deletes`, then `puts` (so a range can be emptied and filled anew), then `appends`, then
/// `trim`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The reign of the writer; an older one than the partition's is refused as `Deposed`.
    pub epoch: Epoch,
    /// Where the writer believes the log ends; if it does not, the change is refused as `Deposed`.
    pub expected_end: Offset,
    /// Batches for the end of the log, in order. Their offsets follow from `expected_end`.
    pub appends: Vec<Append>,
    /// Rows to write. Of two with the same key the later one stays.
    pub puts: Vec<(Key, Bytes)>,
    /// Ranges of rows to delete.
    pub deletes: Vec<KeyRange>,
    /// The new start of the log; one below the present start changes nothing, one beyond the end is refused.
    pub trim: Option<Offset>,
}

impl Change {
    /// A change of nothing, to be filled.
    #[must_use]
    pub fn new(epoch: Epoch, expected_end: Offset) -> Self {
        Self { epoch, expected_end, ..Self::default() }
    }

    /// Whether it would change nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.appends.is_empty() && self.puts.is_empty() && self.deletes.is_empty() && self.trim.is_none()
    }

    /// Whether the change brings in new data, and so is refused while the store is full. What only acknowledges, trims
    /// or keeps the engine's books is small and goes on from the reserve.
    #[must_use]
    pub fn needs_room(&self) -> bool {
        !self.appends.is_empty() || self.puts.iter().map(|(_, value)| value.len()).sum::<usize>() > SMALL_PUTS_BYTES_MAX
    }
}

/// Up to here the rows of a change count as bookkeeping, which the reserve pays for. Acknowledged ranges of a busy group
/// stay well below it.
const SMALL_PUTS_BYTES_MAX: usize = 256 << 10;

/// What goes to the end of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Append {
    /// New bytes. The backend sets the base offset; the time of storing must be set already.
    Batch(RecordBatch),
    /// A batch that this node's store already holds: it enters another log without being copied, and lives while either
    /// owes it. It gets a base offset and a time of storing of its own there.
    Stored {
        /// Where it lies, as a read of the same backend said.
        place: Place,
        /// The time of storing in the log that it enters.
        stored_at: crate::Timestamp,
    },
}

/// Where a batch lies in its backend. Opaque to everyone else. It holds while some log owes the batch, unless the backend
/// moves the batch meanwhile: a commit is then refused as [`Moved`](super::StorageError::Moved). So it is for use at once
/// and not for keeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The segment file, by its generation; or the partition, for a backend without files.
    pub segment: u64,
    /// The position of the batch in it.
    pub position: u64,
    /// Its length in bytes.
    pub length: u32,
    /// How many messages it holds.
    pub count: u32,
}
