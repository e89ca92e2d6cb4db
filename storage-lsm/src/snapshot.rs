//! A partition as it stands at one moment, and how to read it: the tail and the overlay from memory, the rest by rows of
//! the index from the segments.
//!
//! Invariant: tail, overlay and the index's snapshot are taken together under the partition's lock, and the index is
//! never behind them: so the tail begins at or before the point where the index's rows end.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use stentor_core::storage::{Key, KeyRange, Place, StorageError, StoredBatch};
use stentor_core::{Offset, OffsetRange, PartitionId, RecordBatch, Timestamp};

use crate::disk::DiskFile;
use crate::format::payload::{PART_HEADER_BYTES, check_batch_part};
use crate::format::row::{LogRow, TableRow, key_of, last_of, log_key, table_key, table_range};
use crate::index::{IndexError, IndexView, Rows};
use crate::journal::segments::{Segment, Segments};
use crate::overlay::{Overlaid, Overlay};
use crate::partition::{PartitionState, TailEntry};

/// Batches that lie no further apart are read at once: what lies between is headers, and small changes of others.
const RUN_GAP_BYTES_MAX: u64 = 4 << 10;

/// How much is brought in beyond what a read asks for, so that the device works while the reader does …
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// … and of how many batches at most: looking their rows up costs too.
const AHEAD_ROWS_MAX: usize = 256;

/// Why a read of a snapshot failed.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// What a row points to has been released since the snapshot was taken: nobody owes it any more, so look again.
    Gone(StorageError),
    Storage(StorageError),
}

impl From<StorageError> for ReadError {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

impl ReadError {
    /// The error for a reader who will not look again.
    pub(crate) fn into_storage(self) -> StorageError {
        match self {
            Self::Gone(error) | Self::Storage(error) => error,
        }
    }
}

/// Where segments come from.
pub(crate) enum Source {
    /// From the table, each when it is needed.
    Live(Arc<Segments>),
    /// Held since the snapshot was taken.
    Held(BTreeMap<u64, Arc<Segment>>),
}

impl Source {
    fn get(&self, generation: u64) -> Option<Arc<Segment>> {
        match self {
            Self::Live(segments) => segments.get(generation),
            Self::Held(segments) => segments.get(&generation).cloned(),
        }
    }
}

/// A partition at one moment.
pub(crate) struct Snapshot {
    pub(crate) partition: PartitionId,
    incarnation: u64,
    bounds: OffsetRange,
    /// Where the tail begins.
    tail_start: Offset,
    tail: Vec<TailEntry>,
    overlay: Overlay,
    index: Arc<dyn IndexView>,
    source: Source,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("partition", &self.partition)
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

/// A batch's row, or the batch itself.
#[derive(Clone)]
struct Found {
    base: Offset,
    row: LogRow,
    batch: Option<RecordBatch>,
}

impl Found {
    fn of(entry: &TailEntry) -> Self {
        Self { base: entry.base, row: entry.row, batch: entry.batch.clone() }
    }

    const fn end(&self) -> Offset {
        self.base.advance(self.row.place.count as u64)
    }
}

/// Whether both lie in one segment, the second so close behind the first that they are read at once.
fn reaches(before: Place, next: Place) -> bool {
    let end = before.position + u64::from(before.length);
    let gap = next.position.checked_sub(end + PART_HEADER_BYTES as u64);
    before.segment == next.segment && gap.is_some_and(|gap| gap <= RUN_GAP_BYTES_MAX)
}

/// The batches behind those that are read: the next read is for them.
#[derive(Default)]
struct Ahead {
    places: Vec<Place>,
    bytes: u64,
}

impl Ahead {
    fn add(&mut self, place: Place) -> ControlFlow<()> {
        self.bytes += u64::from(place.length);
        self.places.push(place);
        let enough = self.bytes >= AHEAD_BYTES_MAX || self.places.len() == AHEAD_ROWS_MAX;
        if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Begins to bring in what is wanted and what comes behind it, unless the last of that is at hand: then all of it is.
    fn fetch(&self, wanted: &[Found], source: &Source) {
        let from_disk = wanted.iter().filter(|found| found.batch.is_none()).map(|found| found.row.place);
        let places: Vec<Place> = from_disk.chain(self.places.iter().copied()).collect();
        let Some(last) = places.last() else {
            return;
        };
        let at_hand =
            |place: &Place| source.get(place.segment).is_none_or(|segment| segment.file.is_at_hand(place.position));
        if at_hand(last) {
            return;
        }
        for run in places.chunk_by(|before, next| reaches(*before, *next)) {
            if let ([first, ..], [.., last]) = (run, run)
                && let Some(segment) = source.get(first.segment)
            {
                let start = first.position.saturating_sub(PART_HEADER_BYTES as u64);
                segment.file.will_need(start, last.position + u64::from(last.length) - start);
            }
        }
    }
}

impl Snapshot {
    /// Takes one of the partition whose state this is. `tail` and `overlay` say what of them is wanted.
    pub(crate) fn new(
        partition: PartitionId,
        state: &PartitionState,
        (tail, overlay): (Vec<TailEntry>, Overlay),
        index: Arc<dyn IndexView>,
        source: Source,
    ) -> Self {
        Self {
            partition,
            incarnation: state.incarnation,
            bounds: state.bounds(),
            tail_start: state.tail_start(),
            tail,
            overlay,
            index,
            source,
        }
    }

    pub(crate) const fn bounds(&self) -> OffsetRange {
        self.bounds
    }

    fn corrupt(&self, offset: Offset, detail: impl Into<String>) -> StorageError {
        StorageError::Corrupt { partition: self.partition, offset, detail: detail.into() }
    }

    fn index_failed(&self, offset: Offset, error: &IndexError) -> StorageError {
        match error {
            IndexError::Damaged(detail) => self.corrupt(offset, format!("the index is damaged: {detail}")),
            failed @ IndexError::Failed(_) => {
                StorageError::io("reading the index", std::io::Error::other(failed.to_string()))
            }
        }
    }

    /// Shows the rows of the log in the index from the batch that holds `from` on, in order.
    fn log_rows(&self, from: Offset, mut visit: impl FnMut(Found) -> ControlFlow<()>) -> Result<(), StorageError> {
        // A batch that the tail holds may be in the index already; the tail's is the right one after a truncation.
        let (start, end) = (log_key(self.incarnation, from), log_key(self.incarnation, self.tail_start));
        if start >= end {
            return Ok(());
        }
        let mut bad = None;
        let scanned = self.index.scan(Rows { start: &start, end: &end, backwards: false }, &mut |key, value| {
            let found = last_of(key).and_then(|last| {
                let row = LogRow::decode(value)?;
                let base = Offset((last.0 + 1).saturating_sub(row.place.count.into()));
                Ok(Found { base, row, batch: None })
            });
            match found {
                Ok(found) => visit(found),
                Err(malformed) => {
                    bad = Some(malformed);
                    ControlFlow::Break(())
                }
            }
        });
        scanned.map_err(|error| self.index_failed(from, &error))?;
        bad.map_or(Ok(()), |malformed| Err(self.corrupt(from, format!("the index is damaged: {malformed}"))))
    }

    /// As [`PartitionReader::read`](stentor_core::storage::PartitionReader::read).
    pub(crate) fn read(&self, from: Offset, bytes_max: NonZeroU32) -> Result<Vec<StoredBatch>, ReadError> {
        if from < self.bounds.start {
            return Err(StorageError::Trimmed { start: self.bounds.start }.into());
        }
        if from >= self.bounds.end {
            return Ok(Vec::new());
        }
        let mut wanted: Vec<Found> = Vec::new();
        let mut bytes = 0_u64;
        let mut take = |found: &Found| {
            let follows = match wanted.last() {
                Some(before) => before.end() == found.base,
                None => found.base <= from && from < found.end(),
            };
            bytes += u64::from(found.row.place.length);
            if !follows || (bytes > u64::from(bytes_max.get()) && !wanted.is_empty()) {
                return ControlFlow::Break(());
            }
            wanted.push(found.clone());
            ControlFlow::Continue(())
        };
        let mut full = false;
        let mut ahead = Ahead::default();
        self.log_rows(from, |found| {
            full = full || take(&found).is_break();
            if full { ahead.add(found.row.place) } else { ControlFlow::Continue(()) }
        })?;
        if !full {
            for entry in self.tail.iter().filter(|entry| entry.end() > from) {
                if take(&Found::of(entry)).is_break() {
                    break;
                }
            }
        }
        if wanted.is_empty() {
            return Err(self.corrupt(from, "no row leads to the batch").into());
        }
        ahead.fetch(&wanted, &self.source);
        self.load_all(&wanted)
    }

    /// Loads batches one behind the other up to the first that cannot be; an error if that is the first of all.
    fn load_all(&self, wanted: &[Found]) -> Result<Vec<StoredBatch>, ReadError> {
        let mut batches: Vec<StoredBatch> = Vec::with_capacity(wanted.len());
        let from_disk = |found: &Found| found.batch.is_none();
        for run in wanted
            .chunk_by(|before, next| from_disk(before) && from_disk(next) && reaches(before.row.place, next.row.place))
        {
            let pieces = self.read_run(run);
            for (at, found) in run.iter().enumerate() {
                let loaded = match &pieces {
                    Some(pieces) => self.check(found, pieces[at].clone()),
                    None => self.load(found),
                };
                match loaded {
                    Ok(batch) => batches.push(batch),
                    Err(error) if batches.is_empty() => return Err(error),
                    // Whoever reads on from there gets the error.
                    Err(_) => return Ok(batches),
                }
            }
        }
        Ok(batches)
    }

    /// Reads batches that lie behind one another at once, each with the header before it. None if there is just one, or if
    /// that fails: then each is read by itself, so that what is wrong is said of the right one.
    fn read_run(&self, run: &[Found]) -> Option<Vec<Bytes>> {
        let [first, .., last] = run else {
            return None;
        };
        let start = first.row.place.position.checked_sub(PART_HEADER_BYTES as u64)?;
        let end = last.row.place.position + u64::from(last.row.place.length);
        let mut bytes = vec![0; usize::try_from(end - start).ok()?];
        let segment = self.source.get(first.row.place.segment)?;
        let read = segment.file.read_at(start, &mut bytes).ok()?;
        let bytes = (read == bytes.len()).then(|| Bytes::from(bytes))?;
        let piece = |found: &Found| {
            let at = usize::try_from(found.row.place.position - start).ok()?;
            Some(bytes.slice(at - PART_HEADER_BYTES..at + found.row.place.length as usize))
        };
        run.iter().map(piece).collect()
    }

    fn check(&self, found: &Found, bytes: Bytes) -> Result<StoredBatch, ReadError> {
        let place = found.row.place;
        let batch = check_batch(bytes, self.partition, found.base, &found.row).map_err(|detail| {
            let at = format!("segment {:x}, position {}", place.segment, place.position);
            self.corrupt(found.base, format!("{at}: {detail}"))
        })?;
        Ok(StoredBatch { batch: batch.stored(found.base, found.row.stored_at), place })
    }

    fn load(&self, found: &Found) -> Result<StoredBatch, ReadError> {
        let place = found.row.place;
        if let Some(batch) = &found.batch {
            return Ok(StoredBatch { batch: batch.clone(), place });
        }
        let Some(segment) = self.source.get(place.segment) else {
            let detail = format!("its segment {:x} is missing", place.segment);
            return Err(ReadError::Gone(self.corrupt(found.base, detail)));
        };
        let bytes = read_part(&*segment.file, place)
            .map_err(|error| StorageError::io(format!("reading segment {:x}", place.segment), error))?;
        self.check(found, bytes)
    }

    /// As [`PartitionReader::get`](stentor_core::storage::PartitionReader::get).
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Bytes>, ReadError> {
        match self.overlay.get(key) {
            Overlaid::Value(value) => return Ok(Some(value)),
            Overlaid::Deleted => return Ok(None),
            Overlaid::Unknown => {}
        }
        let row = self
            .index
            .get(&table_key(self.incarnation, key))
            .map_err(|error| self.index_failed(self.bounds.start, &error))?;
        row.map(|row| self.value(key, &row)).transpose()
    }

    fn value(&self, key: &Key, row: &[u8]) -> Result<Bytes, ReadError> {
        let row = TableRow::decode(row)
            .map_err(|malformed| self.corrupt(self.bounds.start, format!("row {key:?} of the table: {malformed}")))?;
        let (place, checksum) = match row {
            TableRow::Inline(value) => return Ok(value),
            TableRow::Placed { place, checksum } => (place, checksum),
        };
        let Some(segment) = self.source.get(place.segment) else {
            let detail = format!("row {key:?} of the table: its segment {:x} is missing", place.segment);
            return Err(ReadError::Gone(self.corrupt(self.bounds.start, detail)));
        };
        let value = read_value(&*segment.file, place, checksum)
            .map_err(|error| StorageError::io(format!("reading segment {:x}", place.segment), error))?
            .map_err(|detail| {
                let at = format!("segment {:x}, position {}", place.segment, place.position);
                self.corrupt(self.bounds.start, format!("row {key:?} of the table at {at}: {detail}"))
            })?;
        Ok(value)
    }

    /// As [`PartitionReader::scan`](stentor_core::storage::PartitionReader::scan).
    pub(crate) fn scan(&self, range: &KeyRange, limit: NonZeroU32) -> Result<Vec<(Key, Bytes)>, ReadError> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let limit = limit.get() as usize;
        let mut rows: Vec<(Key, Result<Bytes, Bytes>)> = Vec::new();
        let mut overlaid = self.overlay.rows(range).peekable();
        let mut bad = None;
        let (start, end) = table_range(self.incarnation, range);
        let scanned = self.index.scan(Rows { start: &start, end: &end, backwards: false }, &mut |row_key, value| {
            let key = match key_of(row_key) {
                Ok(key) => key,
                Err(malformed) => {
                    bad = Some(malformed);
                    return ControlFlow::Break(());
                }
            };
            while rows.len() < limit
                && let Some((before, value)) = overlaid.next_if(|(before, _)| **before < key)
            {
                rows.extend(value.map(|value| (before.clone(), Ok(value.clone()))));
            }
            if rows.len() == limit {
                return ControlFlow::Break(());
            }
            if self.overlay.get(&key) == Overlaid::Unknown {
                rows.push((key, Err(Bytes::copy_from_slice(value))));
            }
            if rows.len() == limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        scanned.map_err(|error| self.index_failed(self.bounds.start, &error))?;
        if let Some(malformed) = bad {
            return Err(self.corrupt(self.bounds.start, format!("the index is damaged: {malformed}")).into());
        }
        while rows.len() < limit
            && let Some((key, value)) = overlaid.next()
        {
            rows.extend(value.map(|value| (key.clone(), Ok(value.clone()))));
        }
        rows.into_iter()
            .map(|(key, value)| {
                let value = match value {
                    Ok(value) => value,
                    Err(row) => self.value(&key, &row)?,
                };
                Ok((key, value))
            })
            .collect()
    }

    /// As [`PartitionReader::offset_at`](stentor_core::storage::PartitionReader::offset_at).
    pub(crate) fn offset_at(&self, at: Timestamp) -> Result<Offset, StorageError> {
        let (mut low, mut high) = (self.bounds.start, self.tail_start.max(self.bounds.start));
        // `stored_max` never falls, so the first batch that reaches `at` by it is found by bisection. The first one
        // stored at `at` or later is that one or, where the clock stepped back or a truncation took batches, behind it.
        while low < high {
            let middle = Offset(low.0 + (high.0 - low.0) / 2);
            let mut found = None;
            self.log_rows(middle, |row| {
                found = Some(row);
                ControlFlow::Break(())
            })?;
            match found {
                Some(found) if found.row.stored_max < at => low = found.end(),
                // A batch that begins before `low` holds it: then there is nothing left to halve.
                Some(found) => high = if found.base <= low { low } else { found.base },
                None => high = middle,
            }
        }
        let mut answer = None;
        self.log_rows(low, |found| {
            if found.row.stored_at >= at {
                answer = Some(found.base);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        let answer = answer
            .or_else(|| {
                self.tail
                    .iter()
                    .find(|entry| entry.row.stored_at >= at && entry.end() > self.bounds.start)
                    .map(|entry| entry.base)
            })
            .unwrap_or(self.bounds.end);
        Ok(answer.max(self.bounds.start))
    }

    /// Whether a batch ends at `offset`, so that a log can be truncated there.
    pub(crate) fn is_boundary(&self, offset: Offset) -> Result<bool, StorageError> {
        if offset >= self.bounds.end {
            return Ok(offset == self.bounds.end);
        }
        if let Some(entry) = self.tail.iter().find(|entry| entry.base <= offset && offset < entry.end()) {
            return Ok(entry.base == offset);
        }
        let mut boundary = false;
        self.log_rows(offset, |found| {
            boundary = found.base == offset;
            ControlFlow::Break(())
        })?;
        Ok(boundary)
    }

    /// Looks at every row of the log and every row of the table, batches and values included, and shows what is damaged.
    pub(crate) fn verify(&self, mut damaged: impl FnMut(StorageError)) -> (u64, u64) {
        let (mut batches, mut rows) = (0, 0);
        let mut expected = None;
        let scanned = self.log_rows(self.bounds.start, |found| {
            let reaches = match expected {
                None => found.base <= self.bounds.start,
                Some(expected) => found.base == expected,
            };
            if !reaches {
                let from = expected.unwrap_or(self.bounds.start);
                damaged(self.corrupt(from, format!("no row leads to the batches before {}", found.base)));
            }
            expected = Some(found.end());
            batches += 1;
            if let Err(error) = self.load(&found) {
                damaged(error.into_storage());
            }
            ControlFlow::Continue(())
        });
        match scanned {
            Err(error) => damaged(error),
            Ok(()) => {
                let reached = expected.unwrap_or(self.bounds.start);
                if reached != self.bounds.end {
                    damaged(self.corrupt(reached, format!("no row leads to the batches before {}", self.bounds.end)));
                }
            }
        }
        let (start, end) = table_range(self.incarnation, &KeyRange::all());
        let scanned = self.index.scan(Rows { start: &start, end: &end, backwards: false }, &mut |key, row| {
            rows += 1;
            match key_of(key) {
                Ok(key) => {
                    if let Err(error) = self.value(&key, row) {
                        damaged(error.into_storage());
                    }
                }
                Err(malformed) => damaged(self.corrupt(self.bounds.start, malformed.0)),
            }
            ControlFlow::Continue(())
        });
        if let Err(error) = scanned {
            damaged(self.index_failed(self.bounds.start, &error));
        }
        (batches, rows)
    }
}

/// Reads the batch that a row of `partition` at `base` points to, as it lies there, and checks that it is that batch:
/// whose it is, which offset it has, and both its checksum and the row's.
pub(crate) fn read_batch(
    file: &dyn DiskFile,
    partition: PartitionId,
    base: Offset,
    row: &LogRow,
) -> std::io::Result<Result<RecordBatch, String>> {
    Ok(check_batch(read_part(file, row.place)?, partition, base, row))
}

/// Reads what lies at a place with the header before it; less if the segment ends before.
fn read_part(file: &dyn DiskFile, place: Place) -> std::io::Result<Bytes> {
    let position = place.position.saturating_sub(PART_HEADER_BYTES as u64);
    let mut bytes = vec![0; PART_HEADER_BYTES + place.length as usize];
    let read = file.read_at(position, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes.into())
}

fn check_batch(bytes: Bytes, partition: PartitionId, base: Offset, row: &LogRow) -> Result<RecordBatch, String> {
    let written_for = row.origin.map_or((partition, base), |origin| (origin.partition, origin.base));
    let header = bytes.first_chunk().ok_or("the segment ends before it")?;
    check_batch_part(header, written_for.0, row.place.length).map_err(|malformed| malformed.to_string())?;
    let batch = RecordBatch::decode(bytes.slice(PART_HEADER_BYTES..)).map_err(|error| error.to_string())?;
    let checksum = crate::format::payload::batch_checksum(&batch.header_bytes());
    if checksum != row.checksum || batch.count() != row.place.count || batch.base_offset() != written_for.1 {
        return Err("another batch lies at its place".to_owned());
    }
    if row.origin.is_none() && batch.stored_at() != row.stored_at {
        return Err("its time of storing is not what the index says".to_owned());
    }
    Ok(batch)
}

pub(crate) fn read_value(file: &dyn DiskFile, place: Place, checksum: u32) -> std::io::Result<Result<Bytes, String>> {
    let mut bytes = vec![0; place.length as usize];
    if file.read_at(place.position, &mut bytes)? < bytes.len() {
        return Ok(Err("the segment ends before it".to_owned()));
    }
    let found = crc32c::crc32c(&bytes);
    if found != checksum {
        return Ok(Err(format!("its checksum is {found:#010x} and should be {checksum:#010x}")));
    }
    Ok(Ok(bytes.into()))
}
