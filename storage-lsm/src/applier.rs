//! Applies frames to the index, live and in replay alike.
//!
//! Frames are gathered in a working set and go to the index as one atomic batch, together with the rows of the
//! partitions and segments that they touched and the marker that says how far the index reflects the journal.
//!
//! Invariants: the same frames on the same state make the same rows, so replay ends where the live run was; a batch of
//! the index holds whole groups; of a trim and a deletion only the bounds are applied at once, the rows behind them are
//! swept away a bounded number at a time, and `swept` says how far that is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use stentor_core::storage::{Key, KeyRange, Place};
use stentor_core::{Offset, PartitionId, Timestamp};
use thiserror::Error;

use crate::format::group::FrameKind;
use crate::format::payload::{BatchPart, Frame, Moved, MovedRow, Part, StoredPart};
use crate::format::row::{
    LARGE_VALUE_BYTES, LogRow, MARKER_KEY, Marker, Owed, PartitionRow, TableRow, chain_key, deleted_key, letter_range,
    log_end, log_key, number_of, partition_key, segment_key, table_key, table_range,
};
use crate::format::{Malformed, row};
use crate::index::{Index, IndexBatch, IndexError, Rows};
use crate::partition::Location;

/// How many rows of trimmed logs and deleted partitions one batch sweeps away.
const SWEEP_ROWS_MAX: usize = 4_096;

/// Why a frame cannot be applied, or an index not be used.
#[derive(Clone, Debug, Error)]
pub(crate) enum ApplyError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error("a row of the index: {0}")]
    Row(#[from] Malformed),
    #[error("journal and index contradict each other: {0}")]
    Inconsistent(String),
}

/// The state of the index, and what is to be changed in it.
#[derive(Debug)]
pub(crate) struct Applier {
    index: Arc<dyn Index>,
    marker: Marker,
    partitions: BTreeMap<PartitionId, PartitionRow>,
    /// What is owed in each segment.
    owed: BTreeMap<u64, Owed>,
    /// Incarnations whose rows are to be swept away.
    deleted: BTreeSet<u64>,
    /// Partitions with rows below their start.
    trimmed: BTreeSet<PartitionId>,
    /// Rows that the next batch writes, or deletes where there is none.
    working: BTreeMap<Vec<u8>, Option<Bytes>>,
    touched_partitions: BTreeSet<PartitionId>,
    touched_segments: BTreeSet<u64>,
}

impl Applier {
    /// Reads the state of the index. A new index gets `store` as the number of its store.
    pub(crate) fn load(index: Arc<dyn Index>, store: u64) -> Result<(Self, bool), ApplyError> {
        let marker = index.get(MARKER_KEY)?;
        let fresh = marker.is_none();
        let marker = match marker {
            Some(marker) => Marker::decode(&marker)?,
            None => Marker { store, ..Marker::default() },
        };
        let mut applier = Self {
            index,
            marker,
            partitions: BTreeMap::new(),
            owed: BTreeMap::new(),
            deleted: BTreeSet::new(),
            trimmed: BTreeSet::new(),
            working: BTreeMap::new(),
            touched_partitions: BTreeSet::new(),
            touched_segments: BTreeSet::new(),
        };
        applier.check_chain()?;
        for (key, value) in applier.all(b'P')? {
            let (partition, row) = (PartitionId(number_of(&key)?), PartitionRow::decode(&value)?);
            if row.swept < row.start {
                applier.trimmed.insert(partition);
            }
            applier.partitions.insert(partition, row);
        }
        for (key, value) in applier.all(b'S')? {
            applier.owed.insert(number_of(&key)?, Owed::decode(&value)?);
        }
        for (key, _) in applier.all(b'D')? {
            applier.deleted.insert(number_of(&key)?);
        }
        Ok((applier, fresh))
    }

    fn all(&self, letter: u8) -> Result<Vec<(Bytes, Bytes)>, ApplyError> {
        let (start, end) = letter_range(letter);
        let mut rows = Vec::new();
        self.index.scan(Rows { start: &start, end: &end, backwards: false }, &mut |key, value| {
            rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            ControlFlow::Continue(())
        })?;
        Ok(rows)
    }

    /// Every batch since the last flush left a row; a missing one means that the index lost something in its middle.
    fn check_chain(&self) -> Result<(), ApplyError> {
        let mut expected = self.marker.chain_first;
        for (key, _) in self.all(b'C')? {
            let batch = number_of(&key)?;
            if batch != expected {
                return Err(lost(expected));
            }
            expected += 1;
        }
        let behind = if self.marker.batch == 0 { 0 } else { self.marker.batch + 1 };
        if expected == behind { Ok(()) } else { Err(lost(expected)) }
    }

    /// Says which store the index belongs to.
    pub(crate) const fn belongs_to(&mut self, store: u64) {
        self.marker.store = store;
    }

    pub(crate) const fn marker(&self) -> &Marker {
        &self.marker
    }

    pub(crate) const fn partitions(&self) -> &BTreeMap<PartitionId, PartitionRow> {
        &self.partitions
    }

    pub(crate) const fn owed(&self) -> &BTreeMap<u64, Owed> {
        &self.owed
    }

    /// Whether there are rows to be swept away.
    pub(crate) fn sweeping(&self) -> bool {
        !self.trimmed.is_empty() || !self.deleted.is_empty()
    }

    /// How many rows the next batch has so far.
    pub(crate) fn pending_rows(&self) -> usize {
        self.working.len()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ApplyError> {
        match self.working.get(key) {
            Some(value) => Ok(value.clone()),
            None => Ok(self.index.get(key)?),
        }
    }

    /// The keys from `start` up to `end`, at most `limit` of them, in order.
    fn keys(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<Vec<u8>>, ApplyError> {
        if start >= end {
            return Ok(Vec::new());
        }
        let mut keys = BTreeSet::new();
        self.index.scan(Rows { start, end, backwards: false }, &mut |key, _| {
            if self.working.get(key).is_none_or(Option::is_some) {
                keys.insert(key.to_vec());
            }
            if keys.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let working = self.working.range(start.to_vec()..end.to_vec());
        keys.extend(working.filter(|(_, value)| value.is_some()).take(limit).map(|(key, _)| key.clone()));
        Ok(keys.into_iter().take(limit).collect())
    }

    fn owe(&mut self, place: Place) {
        self.owed.entry(place.segment).or_default().add(place.length);
        self.touched_segments.insert(place.segment);
    }

    fn settle(&mut self, place: Place) -> Result<(), ApplyError> {
        if !self.owed.entry(place.segment).or_default().subtract(place.length) {
            let what = format!("segment {:x} owes less than its rows say", place.segment);
            return Err(ApplyError::Inconsistent(what));
        }
        self.touched_segments.insert(place.segment);
        Ok(())
    }

    fn row(&mut self, partition: PartitionId) -> Result<&mut PartitionRow, ApplyError> {
        self.touched_partitions.insert(partition);
        self.partitions
            .get_mut(&partition)
            .ok_or_else(|| ApplyError::Inconsistent(format!("partition {partition} is changed but not there")))
    }

    /// Applies a frame to the working set.
    pub(crate) fn apply(&mut self, sequence: u64, location: Location, frame: &Frame) -> Result<(), ApplyError> {
        match frame.kind {
            FrameKind::Change => self.change(sequence, location, frame),
            FrameKind::Relocation => self.relocate(location, frame),
            FrameKind::Truncation => self.truncate(frame),
            FrameKind::Deletion => self.delete_partition(frame.partition),
        }
    }

    fn change(&mut self, sequence: u64, location: Location, frame: &Frame) -> Result<(), ApplyError> {
        let partition = frame.partition;
        for part in &frame.parts {
            if let Part::Open { created_at: Some(first), .. } = part {
                let row = PartitionRow {
                    incarnation: sequence,
                    start: *first,
                    end: *first,
                    swept: *first,
                    ..PartitionRow::default()
                };
                self.partitions.insert(partition, row);
            }
        }
        let row = self.row(partition)?;
        if row.end != frame.base || row.epoch != frame.epoch {
            return Err(ApplyError::Inconsistent(format!(
                "a change of epoch {} expects partition {partition} to end at {}, which is in epoch {} and ends at {}",
                frame.epoch, frame.base, row.epoch, row.end
            )));
        }
        for part in &frame.parts {
            match part {
                Part::Open { epoch, .. } => self.row(partition)?.epoch = *epoch,
                Part::Delete(range) => self.delete_rows(partition, range)?,
                Part::Put { key, value, at } => self.put(partition, location, key, value, *at)?,
                Part::Batch(part) => self.batch(partition, location, part)?,
                Part::Stored(part) => self.stored(partition, part)?,
                Part::Trim(start) => {
                    let row = self.row(partition)?;
                    row.start = row.start.max(*start);
                    if row.swept < row.start {
                        self.trimmed.insert(partition);
                    }
                }
                Part::End(_) | Part::Moved(_) | Part::Value { .. } => return Err(misplaced()),
            }
        }
        Ok(())
    }

    fn append(&mut self, partition: PartitionId, make: impl FnOnce(Timestamp) -> LogRow) -> Result<(), ApplyError> {
        let row = self.row(partition)?;
        let log_row = make(row.stored_max);
        let last = row.end.advance(u64::from(log_row.place.count).saturating_sub(1));
        row.end = last.next();
        row.stored_max = log_row.stored_max;
        row.log_bytes += u64::from(log_row.place.length);
        let key = log_key(row.incarnation, last);
        self.working.insert(key, Some(log_row.encode()));
        self.owe(log_row.place);
        Ok(())
    }

    fn batch(&mut self, partition: PartitionId, location: Location, part: &BatchPart) -> Result<(), ApplyError> {
        self.append(partition, |stored_max| LogRow {
            place: location.place(part.at, part.length, part.count),
            checksum: part.checksum,
            stored_at: part.stored_at,
            stored_max: stored_max.max(part.stored_at),
            origin: None,
        })
    }

    fn stored(&mut self, partition: PartitionId, part: &StoredPart) -> Result<(), ApplyError> {
        let place = Place { segment: part.segment, position: part.position, length: part.length, count: part.count };
        self.append(partition, |stored_max| LogRow {
            place,
            checksum: part.checksum,
            stored_at: part.stored_at,
            stored_max: stored_max.max(part.stored_at),
            origin: Some(part.origin),
        })
    }

    fn put(
        &mut self,
        partition: PartitionId,
        location: Location,
        key: &Key,
        value: &Bytes,
        at: u32,
    ) -> Result<(), ApplyError> {
        let row_key = table_key(self.row(partition)?.incarnation, key);
        self.remove_table_row(partition, &row_key)?;
        let row = if value.len() >= LARGE_VALUE_BYTES {
            let length = u32::try_from(value.len()).map_err(|_| misplaced())?;
            let place = location.place(at, length, 0);
            self.owe(place);
            TableRow::Placed { place, checksum: crc32c::crc32c(value) }
        } else {
            TableRow::Inline(value.clone())
        };
        self.row(partition)?.table_bytes += key.0.len() as u64 + row.length();
        self.working.insert(row_key, Some(row.encode()));
        Ok(())
    }

    /// Gives back what a row of a table owes, if there is one. The row itself stays for the caller to write or delete.
    fn remove_table_row(&mut self, partition: PartitionId, row_key: &[u8]) -> Result<(), ApplyError> {
        let Some(old) = self.get(row_key)? else {
            return Ok(());
        };
        let old = TableRow::decode(&old)?;
        if let TableRow::Placed { place, .. } = &old {
            self.settle(*place)?;
        }
        let row = self.row(partition)?;
        row.table_bytes = row.table_bytes.saturating_sub(row::key_of(row_key)?.0.len() as u64 + old.length());
        Ok(())
    }

    fn delete_rows(&mut self, partition: PartitionId, range: &KeyRange) -> Result<(), ApplyError> {
        let (start, end) = table_range(self.row(partition)?.incarnation, range);
        for key in self.keys(&start, &end, usize::MAX)? {
            self.remove_table_row(partition, &key)?;
            self.working.insert(key, None);
        }
        Ok(())
    }

    fn truncate(&mut self, frame: &Frame) -> Result<(), ApplyError> {
        let [Part::End(end)] = frame.parts[..] else {
            return Err(misplaced());
        };
        let row = self.row(frame.partition)?;
        row.end = row.end.min(end);
        let (first, behind) = (log_key(row.incarnation, end), log_end(row.incarnation));
        for key in self.keys(&first, &behind, usize::MAX)? {
            self.remove_log_row(frame.partition, key)?;
        }
        Ok(())
    }

    fn remove_log_row(&mut self, partition: PartitionId, key: Vec<u8>) -> Result<(), ApplyError> {
        if let Some(old) = self.get(&key)? {
            let place = LogRow::decode(&old)?.place;
            self.settle(place)?;
            let row = self.row(partition)?;
            row.log_bytes = row.log_bytes.saturating_sub(place.length.into());
        }
        self.working.insert(key, None);
        Ok(())
    }

    fn delete_partition(&mut self, partition: PartitionId) -> Result<(), ApplyError> {
        if let Some(row) = self.partitions.remove(&partition) {
            self.touched_partitions.remove(&partition);
            self.trimmed.remove(&partition);
            self.working.insert(partition_key(partition), None);
            self.working.insert(deleted_key(row.incarnation), Some(Bytes::new()));
            self.deleted.insert(row.incarnation);
        }
        Ok(())
    }

    /// Lets the rows that still hold the old places hold the new ones.
    fn relocate(&mut self, location: Location, frame: &Frame) -> Result<(), ApplyError> {
        let mut moved = Vec::new();
        for part in &frame.parts {
            let place = match part {
                Part::Moved(from) => {
                    moved.push(from);
                    continue;
                }
                Part::Batch(part) => location.place(part.at, part.length, part.count),
                Part::Value { value, at } => {
                    location.place(*at, u32::try_from(value.len()).map_err(|_| misplaced())?, 0)
                }
                _ => return Err(misplaced()),
            };
            for from in moved.drain(..) {
                self.move_row(from, place)?;
            }
        }
        Ok(())
    }

    fn move_row(&mut self, from: &Moved, to: Place) -> Result<(), ApplyError> {
        let holds = |place: &Place| (place.segment, place.position) == (from.segment, from.position);
        let key = match &from.row {
            MovedRow::Log { last } => log_key(from.incarnation, *last),
            MovedRow::Table { key } => table_key(from.incarnation, key),
        };
        let Some(row) = self.get(&key)? else {
            return Ok(());
        };
        let (old, row) = match &from.row {
            MovedRow::Log { .. } => {
                let row = LogRow::decode(&row)?;
                (row.place, LogRow { place: to, ..row }.encode())
            }
            MovedRow::Table { .. } => match TableRow::decode(&row)? {
                TableRow::Placed { place, checksum } => (place, TableRow::Placed { place: to, checksum }.encode()),
                TableRow::Inline(_) => return Ok(()),
            },
        };
        if holds(&old) {
            self.settle(old)?;
            self.owe(to);
            self.working.insert(key, Some(row));
        }
        Ok(())
    }

    /// Sweeps away a bounded number of rows that nobody can see any more.
    fn sweep(&mut self) -> Result<(), ApplyError> {
        let mut budget = SWEEP_ROWS_MAX;
        while budget > 0
            && let Some(partition) = self.trimmed.first().copied()
        {
            let row = *self.row(partition)?;
            let (first, behind) = (log_key(row.incarnation, row.swept), log_key(row.incarnation, row.start));
            let keys = self.keys(&first, &behind, budget)?;
            let done = keys.len() < budget;
            budget -= keys.len();
            let mut swept = row.start;
            for key in keys {
                swept = row::last_of(&key)?.next();
                self.remove_log_row(partition, key)?;
            }
            self.row(partition)?.swept = if done { row.start } else { swept };
            if done {
                self.trimmed.remove(&partition);
            }
        }
        while budget > 0
            && let Some(incarnation) = self.deleted.first().copied()
        {
            let mut keys = self.keys(&log_key(incarnation, Offset::ZERO), &log_end(incarnation), budget)?;
            for key in &keys {
                if let Some(row) = self.get(key)? {
                    self.settle(LogRow::decode(&row)?.place)?;
                }
            }
            let (first, behind) = table_range(incarnation, &KeyRange::all());
            let rows = self.keys(&first, &behind, budget - keys.len())?;
            for key in &rows {
                if let Some(row) = self.get(key)?
                    && let TableRow::Placed { place, .. } = TableRow::decode(&row)?
                {
                    self.settle(place)?;
                }
            }
            keys.extend(rows);
            let done = keys.len() < budget;
            budget -= keys.len();
            for key in keys {
                self.working.insert(key, None);
            }
            if done {
                self.deleted.remove(&incarnation);
                self.working.insert(deleted_key(incarnation), None);
            }
        }
        Ok(())
    }

    /// Writes the working set as one batch, which reflects the journal through `sequence`; the next group begins at
    /// `segment` and `position`. Returns what is owed now in the segments that were touched.
    pub(crate) fn commit(
        &mut self,
        (segment, position): (u64, u64),
        sequence: u64,
    ) -> Result<Vec<(u64, Owed)>, ApplyError> {
        self.sweep()?;
        let batch = self.marker.batch + 1;
        let flushed = self.index.flushed();
        let first = if self.marker.chain_first == 0 { batch } else { self.marker.chain_first };
        let chain_first = first.max(flushed.saturating_add(1)).min(batch);
        let marker = Marker { store: self.marker.store, segment, position, sequence, batch, chain_first };
        let mut write = IndexBatch::default();
        for (key, value) in std::mem::take(&mut self.working) {
            match value {
                Some(value) => write.put(key, value),
                None => write.delete(key),
            }
        }
        for partition in std::mem::take(&mut self.touched_partitions) {
            if let Some(row) = self.partitions.get(&partition) {
                write.put(partition_key(partition), row.encode());
            }
        }
        let mut touched = Vec::new();
        for generation in std::mem::take(&mut self.touched_segments) {
            let owed = self.owed.get(&generation).copied().unwrap_or_default();
            touched.push((generation, owed));
            if owed.is_none() {
                self.owed.remove(&generation);
                write.delete(segment_key(generation));
            } else {
                write.put(segment_key(generation), owed.encode());
            }
        }
        // What is flushed lies in tables, where a hole cannot go unnoticed.
        for old in first..chain_first {
            write.delete(chain_key(old));
        }
        write.put(chain_key(batch), Bytes::new());
        write.put(MARKER_KEY, marker.encode());
        self.index.apply(write, batch)?;
        self.marker = marker;
        Ok(touched)
    }
}

fn misplaced() -> ApplyError {
    ApplyError::Inconsistent("a frame has a part that does not belong there".to_owned())
}

fn lost(batch: u64) -> ApplyError {
    ApplyError::Index(IndexError::Damaged(format!("its batch {batch} is lost, though later ones are there")))
}

#[cfg(test)]
mod tests;
