//! A partition in memory: what its writer has been promised, what readers see, what the index does not have yet, and the
//! last of what it has.
//!
//! Invariants: `start ≤ end ≤ admitted_end`; what readers see has reached the partition's durability; the tail holds
//! exactly the visible batches that the index may not have, contiguous up to `end`.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stentor_core::storage::{Place, StorageError};
use stentor_core::{Epoch, Offset, OffsetRange, PartitionId, RecordBatch, Timestamp};

use crate::format::group::FrameKind;
use crate::format::payload::{Frame, Part};
use crate::format::row::{LogRow, PartitionRow};
use crate::overlay::Overlay;
use crate::recent::Recent;

/// A partition of the node.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) id: PartitionId,
    /// Held briefly and never across I/O or an await; the queue of the committer may be locked inside.
    state: Mutex<PartitionState>,
}

/// What changes about a partition.
#[derive(Debug, Default)]
pub(crate) struct PartitionState {
    /// Which life of the partition this is; 0 until it has been created.
    pub(crate) incarnation: u64,
    pub(crate) deleted: bool,
    /// The epoch, the start and the end behind everything that was taken, durable or not.
    pub(crate) admitted: Admitted,
    /// The start that readers see.
    pub(crate) start: Offset,
    /// The end that readers see.
    pub(crate) end: Offset,
    stored_max: Timestamp,
    pub(crate) tail: VecDeque<TailEntry>,
    /// What came before the tail, for readers close behind.
    pub(crate) recent: Recent,
    pub(crate) overlay: Overlay,
    tail_bytes: u64,
    indexed: IndexedBytes,
    /// The change that emptied the table, until the index knows of it.
    table_emptied: Option<u64>,
}

/// What log and table take, as the index has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IndexedBytes {
    log: u64,
    table: u64,
    /// What of the log is counted begins here.
    from: Offset,
}

impl IndexedBytes {
    const fn of(row: &PartitionRow) -> Self {
        Self { log: row.log_bytes, table: row.table_bytes, from: row.swept }
    }
}

/// What the writer has been promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) epoch: Epoch,
    pub(crate) start: Offset,
    pub(crate) end: Offset,
}

/// A batch that the index may not have yet.
#[derive(Clone, Debug)]
pub(crate) struct TailEntry {
    pub(crate) sequence: u64,
    pub(crate) base: Offset,
    pub(crate) row: LogRow,
    /// None for a batch that was appended by reference.
    pub(crate) batch: Option<RecordBatch>,
}

impl TailEntry {
    pub(crate) const fn end(&self) -> Offset {
        self.base.advance(self.row.place.count as u64)
    }
}

/// Where a frame's payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) segment: u64,
    pub(crate) payload_position: u64,
}

impl Location {
    /// The place of `length` bytes that begin `at` bytes into the payload.
    pub(crate) const fn place(&self, at: u32, length: u32, count: u32) -> Place {
        Place { segment: self.segment, position: self.payload_position + at as u64, length, count }
    }
}

impl Partition {
    /// A partition that does not exist yet.
    pub(crate) fn new(id: PartitionId) -> Self {
        Self { id, state: Mutex::default() }
    }

    /// A partition as the index has it.
    pub(crate) fn recovered(id: PartitionId, row: &PartitionRow) -> Self {
        let state = PartitionState {
            incarnation: row.incarnation,
            admitted: Admitted { epoch: row.epoch, start: row.start, end: row.end },
            start: row.start,
            end: row.end,
            stored_max: row.stored_max,
            indexed: IndexedBytes::of(row),
            ..PartitionState::default()
        };
        Self { id, state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, PartitionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a writer is told that is none any more.
    pub(crate) fn deposed(&self, admitted: Admitted) -> StorageError {
        StorageError::Deposed { partition: self.id, epoch: admitted.epoch, end: admitted.end }
    }
}

impl PartitionState {
    pub(crate) const fn bounds(&self) -> OffsetRange {
        OffsetRange::new(self.start, self.end)
    }

    /// What log and table take, roughly: of a log that was trimmed a moment ago the share of the offsets that are left.
    pub(crate) fn bytes(&self) -> u64 {
        let counted = u128::from(self.indexed.log + self.tail_bytes);
        let from = self.indexed.from.min(self.start);
        let (left, all) = (self.end.0 - self.start.0, self.end.0 - from.0);
        let log = if all == 0 { 0 } else { counted * u128::from(left) / u128::from(all) };
        let table = if self.table_emptied.is_some() { 0 } else { self.indexed.table };
        u64::try_from(log).unwrap_or(u64::MAX).saturating_add(table + self.overlay.bytes())
    }

    /// Up to here the log is in the index; from here on it is in the tail.
    pub(crate) fn tail_start(&self) -> Offset {
        self.tail.front().map_or(self.end, |entry| entry.base)
    }

    /// Lets readers see what a frame did, which has reached the partition's durability.
    pub(crate) fn publish(&mut self, sequence: u64, location: Location, frame: &Frame) {
        match frame.kind {
            FrameKind::Deletion => {
                let admitted = self.admitted;
                // It is emptied and not dropped, since the node counts what was in it.
                self.recent.truncate(Offset::ZERO);
                let recent = std::mem::take(&mut self.recent);
                // Without its incarnation it finds no row either.
                *self = Self { deleted: true, admitted, recent, ..Self::default() };
                return;
            }
            // Rows change places, which nobody sees.
            FrameKind::Relocation => return,
            FrameKind::Change | FrameKind::Truncation => {}
        }
        for part in &frame.parts {
            match part {
                Part::Batch(part) => {
                    let row = LogRow {
                        place: location.place(part.at, part.length, part.count),
                        checksum: part.checksum,
                        stored_at: part.stored_at,
                        stored_max: self.stored_max.max(part.stored_at),
                        origin: None,
                    };
                    self.append(sequence, row, part.batch.clone());
                }
                Part::Stored(part) => {
                    let row = LogRow {
                        place: Place {
                            segment: part.segment,
                            position: part.position,
                            length: part.length,
                            count: part.count,
                        },
                        checksum: part.checksum,
                        stored_at: part.stored_at,
                        stored_max: self.stored_max.max(part.stored_at),
                        origin: Some(part.origin),
                    };
                    self.append(sequence, row, None);
                }
                Part::Put { key, value, .. } => self.overlay.put(sequence, key.clone(), value.clone()),
                Part::Delete(range) => {
                    if range.start.0.is_empty() && range.end.is_none() {
                        self.table_emptied = Some(sequence);
                    }
                    self.overlay.delete(sequence, range.clone());
                }
                Part::Trim(start) => {
                    self.start = self.start.max(*start);
                    self.recent.trim(self.start);
                }
                Part::Open { created_at, .. } => {
                    if let Some(first) = created_at {
                        self.incarnation = sequence;
                        self.start = *first;
                        self.end = *first;
                    }
                }
                Part::End(end) => {
                    while self.tail.back().is_some_and(|entry| entry.base >= *end) {
                        self.forget(VecDeque::pop_back);
                    }
                    self.recent.truncate(*end);
                    self.end = self.end.min(*end);
                }
                Part::Moved(_) | Part::Value { .. } => {}
            }
        }
    }

    fn append(&mut self, sequence: u64, row: LogRow, batch: Option<RecordBatch>) {
        self.stored_max = row.stored_max;
        self.tail_bytes += u64::from(row.place.length);
        let entry = TailEntry { sequence, base: self.end, row, batch };
        self.end = entry.end();
        self.tail.push_back(entry);
    }

    fn forget(&mut self, pop: impl FnOnce(&mut VecDeque<TailEntry>) -> Option<TailEntry>) -> Option<TailEntry> {
        let entry = pop(&mut self.tail)?;
        self.tail_bytes -= u64::from(entry.row.place.length);
        Some(entry)
    }

    /// Where what is in memory begins.
    pub(crate) fn memory_start(&self) -> Offset {
        self.recent.start().unwrap_or_else(|| self.tail_start())
    }

    /// The batches in memory from the one that holds `from` on.
    pub(crate) fn memory_from(&self, from: Offset) -> impl Iterator<Item = &TailEntry> {
        let first = self.tail.partition_point(|entry| entry.end() <= from);
        self.recent.from(from).chain(self.tail.range(first..))
    }

    /// Lets go of what the index reflects now: everything through `sequence`.
    pub(crate) fn indexed(&mut self, sequence: u64, row: Option<&PartitionRow>) {
        while self.tail.front().is_some_and(|entry| entry.sequence <= sequence) {
            if let Some(entry) = self.forget(VecDeque::pop_front).filter(|entry| entry.end() > self.start) {
                self.recent.push(entry);
            }
        }
        self.overlay.indexed(sequence);
        if self.table_emptied.is_some_and(|of| of <= sequence) {
            self.table_emptied = None;
        }
        if let Some(row) = row {
            self.indexed = IndexedBytes::of(row);
        }
    }
}
