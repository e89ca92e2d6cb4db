//! One partition: its state behind its lock, and what a change does to it.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use stentor_core::storage::{ByteBound, Key, KeyRange, Place, StorageError, StoredBatch, WhenFull};
use stentor_core::{Epoch, Offset, OffsetRange, PartitionId, Timestamp};

use crate::change::{Staged, StagedAppend};
use crate::held::Held;
use crate::ledger::{Dropped, Ledger};
use crate::log::{Entry, Log};
use crate::table::Table;

/// Whether a partition still takes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Open,
    /// Writers are deposed; readers find nothing.
    Deleted,
    Closed,
}

/// Invariant: what the table and the log's entries take is on the ledger, as `booked` says; batches book themselves.
#[derive(Debug)]
struct State {
    life: Life,
    epoch: Epoch,
    bound: ByteBound,
    log: Log,
    table: Table,
    booked: u64,
    /// The size of the change that was last refused for want of room, until there is room for it.
    refused: Option<u64>,
}

impl State {
    /// What counts against the bound.
    fn bytes(&self) -> u64 {
        self.log.bytes() + self.table.bytes()
    }
}

#[derive(Debug)]
pub(crate) struct Partition {
    id: PartitionId,
    ledger: Arc<Ledger>,
    /// One lock for log and table: a change must be seen whole. Readers share it, because there is one for each group
    /// of a topic against one writer. Held for the time of a few clones of shared bytes at most; what was dropped is
    /// freed after it.
    state: RwLock<State>,
}

impl Partition {
    pub(crate) fn new(id: PartitionId, first: Offset, bound: ByteBound, ledger: Arc<Ledger>) -> Self {
        let state = State {
            life: Life::Open,
            epoch: Epoch(0),
            bound,
            log: Log::new(first),
            table: Table::default(),
            booked: 0,
            refused: None,
        };
        Self { id, ledger, state: RwLock::new(state) }
    }

    // No critical section can end half way through a change: all that may fail or overflow is checked before the first
    // mutation. So a lock that some panic poisoned still guards a whole state.
    fn read_state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_state(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a new epoch under `bound`; none if the partition has been deleted meanwhile.
    pub(crate) fn open(&self, bound: ByteBound) -> Option<(Epoch, Offset)> {
        let mut state = self.write_state();
        if state.life != Life::Open {
            return None;
        }
        state.epoch = state.epoch.next();
        state.bound = bound;
        Some((state.epoch, state.log.bounds().end))
    }

    /// Ends it, with all it holds.
    pub(crate) fn delete(&self) {
        self.retire(Life::Deleted);
    }

    /// Ends it because the store is closed.
    pub(crate) fn close(&self) {
        self.retire(Life::Closed);
    }

    fn retire(&self, life: Life) {
        let mut state = self.write_state();
        if state.life != Life::Open {
            return;
        }
        state.life = life;
        let end = state.log.bounds().end;
        let log = std::mem::replace(&mut state.log, Log::new(end));
        let table = std::mem::take(&mut state.table);
        self.book(&mut state);
        self.set_refused(&mut state, None);
        drop(state);
        // Freeing much takes its time, so it comes after the lock.
        drop((log, table));
    }

    fn book(&self, state: &mut State) {
        let bytes = state.log.entry_bytes() + state.table.bytes();
        self.ledger.move_from(state.booked, bytes);
        state.booked = bytes;
    }

    /// Applies a change as a whole, or refuses it and leaves everything as it was.
    pub(crate) fn commit(&self, staged: Staged) -> Result<OffsetRange, StorageError> {
        let mut state = self.write_state();
        self.check_reign(&state, staged.epoch, Some(staged.expected_end))?;
        let bounds = state.log.bounds();
        let end = staged.end()?;
        let trim = staged.trim.unwrap_or(bounds.start).max(bounds.start);
        if trim > end {
            return Err(StorageError::Invalid(format!("cannot trim to {trim}: the log ends at {end}")));
        }
        let deleted = staged.deleted(&state.table);
        let start = match room_for(&state, &staged, &deleted, trim) {
            Ok(start) => start,
            Err(refusal) => {
                if matches!(refusal, StorageError::StorageFull(_)) {
                    self.set_refused(&mut state, Some(staged.log_bytes() + staged.row_bytes()));
                }
                return Err(refusal);
            }
        };

        // Nothing can fail from here on.
        for key in &deleted {
            state.table.remove(key);
        }
        for (key, value) in staged.puts {
            state.table.put(key, value);
        }
        for StagedAppend { number, held, stored_at } in staged.appends {
            state.log.push(number, held, stored_at);
        }
        let trimmed = state.log.trim(trim);
        let dropped = state.log.trim(start);
        self.book(&mut state);
        if staged.needs_room || state.refused.is_some_and(|bytes| state.bytes() + bytes <= state.bound.bytes_max) {
            self.set_refused(&mut state, None);
        }
        drop(state);

        if !dropped.is_empty() {
            self.ledger.count_dropped(Dropped {
                batches: dropped.len() as u64,
                messages: OffsetRange::new(trim, start).len(),
                bytes: dropped.iter().map(Entry::bytes).sum(),
            });
        }
        // Freeing a long tail takes its time, so it comes after the lock.
        drop((trimmed, dropped));
        Ok(OffsetRange::new(bounds.end, end))
    }

    /// Drops what lies at `end` and above.
    pub(crate) fn truncate(&self, epoch: Epoch, end: Offset) -> Result<Offset, StorageError> {
        let mut state = self.write_state();
        self.check_reign(&state, epoch, None)?;
        let start = state.log.bounds().start;
        if end < start {
            return Err(StorageError::Invalid(format!("cannot truncate to {end}: the log starts at {start}")));
        }
        let Some(gone) = state.log.truncate(end) else {
            return Err(StorageError::Invalid(format!("cannot truncate to {end}: it lies in the middle of a batch")));
        };
        self.book(&mut state);
        let end = state.log.bounds().end;
        drop(state);
        drop(gone);
        Ok(end)
    }

    fn check_reign(&self, state: &State, epoch: Epoch, expected_end: Option<Offset>) -> Result<(), StorageError> {
        let end = state.log.bounds().end;
        if state.life == Life::Closed {
            return Err(StorageError::Closed);
        }
        if state.life == Life::Deleted || state.epoch != epoch || expected_end.is_some_and(|expected| expected != end) {
            return Err(StorageError::Deposed { partition: self.id, epoch: state.epoch, end });
        }
        Ok(())
    }

    fn set_refused(&self, state: &mut State, refused: Option<u64>) {
        self.ledger.set_refusing(state.refused.is_some(), refused.is_some());
        state.refused = refused;
    }

    pub(crate) fn bounds(&self) -> OffsetRange {
        self.read_state().log.bounds()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.read_state().bytes()
    }

    /// The state, for a reader.
    fn look(&self) -> Result<RwLockReadGuard<'_, State>, StorageError> {
        let state = self.read_state();
        if state.life == Life::Closed { Err(StorageError::Closed) } else { Ok(state) }
    }

    pub(crate) fn read(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Vec<StoredBatch>, StorageError> {
        self.look()?.log.read(from, bytes_max)
    }

    pub(crate) fn get(&self, key: &Key) -> Result<Option<Bytes>, StorageError> {
        Ok(self.look()?.table.get(key).cloned())
    }

    pub(crate) fn scan(&self, range: &KeyRange, limit: NonZeroU32) -> Result<Vec<(Key, Bytes)>, StorageError> {
        Ok(self.look()?.table.scan(range, limit))
    }

    pub(crate) fn offset_at(&self, at: Timestamp) -> Result<Offset, StorageError> {
        Ok(self.look()?.log.offset_at(at))
    }

    /// A copy of log and table; the bytes are shared.
    pub(crate) fn snapshot(&self) -> Result<(Log, Table), StorageError> {
        let state = self.look()?;
        Ok((state.log.clone(), state.table.clone()))
    }

    /// The batch that entered this log first at `place`, if it still holds it.
    pub(crate) fn find(&self, place: Place) -> Option<Arc<Held>> {
        self.read_state().log.find(place)
    }
}

/// Where the log must start for the change to fit: at `trim`, or further on if the oldest batches make room. `deleted`
/// are the rows that the change deletes, once each.
fn room_for(state: &State, staged: &Staged, deleted: &BTreeSet<Key>, trim: Offset) -> Result<Offset, StorageError> {
    let State { log, table, bound: ByteBound { bytes_max, when_full }, .. } = state;
    let bytes_added = staged.log_bytes() + staged.row_bytes();
    if staged.needs_room && bytes_added > *bytes_max {
        return Err(StorageError::TooLarge { bytes: bytes_added, bytes_max: *bytes_max });
    }
    let replaced = staged.puts.keys().filter(|key| !deleted.contains(key));
    let bytes_rows: u64 = deleted.iter().chain(replaced).map(|key| table.row_bytes(key)).sum();
    let bytes_trimmed = log.bytes_below(trim);
    let bytes = state.bytes() + bytes_added - bytes_rows - bytes_trimmed;
    // What makes nothing grow needs no room, even beyond the bound, where bookkeeping may have led: a half message that
    // moves into the log, or a retry into the dead letters.
    if bytes <= (*bytes_max).max(state.bytes()) {
        return Ok(trim);
    }
    let bytes_to_free = bytes_trimmed + (bytes - bytes_max);
    match when_full {
        WhenFull::DropOldest if bytes_to_free <= log.bytes() || !staged.needs_room => {
            Ok(log.start_to_free(bytes_to_free).max(trim))
        }
        WhenFull::Reject if !staged.needs_room => Ok(trim),
        WhenFull::DropOldest | WhenFull::Reject => Err(StorageError::StorageFull(format!(
            "a change of {bytes_added} bytes has no room beside the {} bytes in memory: at most {bytes_max}",
            state.bytes()
        ))),
    }
}
