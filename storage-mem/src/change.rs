//! A change made ready outside the lock, so that what happens under it is short.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use stentor_core::limits::TABLE_KEY_BYTES_MAX;
use stentor_core::storage::{Change, Key, KeyRange, StorageError};
use stentor_core::{Epoch, Offset, Timestamp};

use crate::held::{Held, kept};
use crate::log::Log;
use crate::table::{Table, row_bytes};

/// A batch on its way into a log.
#[derive(Debug)]
pub(crate) struct StagedAppend {
    /// Its number in the log that it enters.
    pub(crate) number: u64,
    /// When it enters that log.
    pub(crate) stored_at: Timestamp,
    pub(crate) held: Arc<Held>,
}

/// A change whose batches are found or copied and whose rows are sorted.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) epoch: Epoch,
    pub(crate) expected_end: Offset,
    pub(crate) appends: Vec<StagedAppend>,
    /// Of two rows with the same key only the later one is here.
    pub(crate) puts: BTreeMap<Key, Bytes>,
    pub(crate) deletes: Vec<KeyRange>,
    pub(crate) trim: Option<Offset>,
    pub(crate) needs_room: bool,
}

impl Staged {
    /// `appends` are those of `change`, in their order.
    pub(crate) fn new(change: Change, appends: Vec<StagedAppend>) -> Result<Self, StorageError> {
        let needs_room = change.needs_room();
        for (key, _) in &change.puts {
            if key.0.len() > TABLE_KEY_BYTES_MAX {
                let bytes = key.0.len();
                return Err(StorageError::Invalid(format!("a key of {bytes} bytes: at most {TABLE_KEY_BYTES_MAX}")));
            }
        }
        let puts = change.puts.into_iter().map(|(key, value)| (Key(kept(key.0)), kept(value))).collect();
        let Change { epoch, expected_end, deletes, trim, .. } = change;
        Ok(Self { epoch, expected_end, appends, puts, deletes, trim, needs_room })
    }

    /// Where the log ends after it; an error if there are no offsets left.
    pub(crate) fn end(&self) -> Result<Offset, StorageError> {
        self.appends
            .iter()
            .try_fold(self.expected_end.0, |end, append| end.checked_add(append.held.batch().count().into()))
            .map(Offset)
            .ok_or_else(|| StorageError::Invalid("the log has no more offsets".to_owned()))
    }

    /// What it adds to the log.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.appends.iter().map(|append| Log::bytes_of(&append.held)).sum()
    }

    /// What its rows take.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.puts.iter().map(|(key, value)| row_bytes(key, value)).sum()
    }

    /// The rows of `table` that it deletes; ranges may overlap.
    pub(crate) fn deleted(&self, table: &Table) -> BTreeSet<Key> {
        self.deletes.iter().flat_map(|range| table.keys(range)).cloned().collect()
    }
}
