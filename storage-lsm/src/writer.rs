//! The writer of a partition.

use std::sync::Arc;

use async_trait::async_trait;
use stentor_core::batch::HEADER_BYTES;
use stentor_core::limits::TABLE_KEY_BYTES_MAX;
use stentor_core::storage::{
    Append, Change, Key, PartitionReader as _, PartitionWriter, PendingCommit, Place, StorageError,
};
use stentor_core::{Epoch, Offset, PartitionId, RecordBatch, Timestamp};

use crate::engine::{Engine, range_from};
use crate::format::group::FrameKind;
use crate::format::payload::{
    Encoded, Encoder, Origin, PART_HEADER_BYTES, StoredPart, batch_checksum, check_batch_part,
};
use crate::journal::segments::Segment;
use crate::partition::Partition;
use crate::queue::{Need, Request};
use crate::reader::Reader;

/// Writes to one partition.
pub(crate) struct Writer {
    engine: Arc<Engine>,
    partition: Arc<Partition>,
    epoch: Epoch,
    /// Whether receipts wait for a sync.
    synced: bool,
    end: Offset,
}

impl Writer {
    pub(crate) const fn new(
        engine: Arc<Engine>,
        partition: Arc<Partition>,
        epoch: Epoch,
        synced: bool,
        end: Offset,
    ) -> Self {
        Self { engine, partition, epoch, synced, end }
    }

    /// Looks at the references of a change; each is held against its segment's release from here on.
    async fn resolve(&self, change: &Change) -> Result<Vec<(StoredPart, Arc<Segment>)>, StorageError> {
        let references: Vec<(Place, Timestamp)> = change
            .appends
            .iter()
            .filter_map(|append| match append {
                Append::Stored { place, stored_at } => Some((*place, *stored_at)),
                Append::Batch(_) => None,
            })
            .collect();
        if references.is_empty() {
            return Ok(Vec::new());
        }
        let engine = self.engine.clone();
        let resolved = tokio::task::spawn_blocking(move || {
            references.into_iter().map(|(place, stored_at)| resolve(&engine, place, stored_at)).collect()
        });
        resolved.await.map_err(|_| StorageError::Closed)?
    }

    /// Commits and waits: for what a caller does not do in passing.
    async fn settled(&mut self, encoded: Encoded) -> Result<(), StorageError> {
        let permit = self.engine.permit(&encoded).await?;
        let (epoch, partition) = (self.epoch, self.partition.clone());
        let Some(end) = encoded.frame.parts.iter().find_map(|part| match part {
            crate::format::payload::Part::End(end) => Some(*end),
            _ => None,
        }) else {
            return Err(StorageError::Invalid("nothing to truncate".to_owned()));
        };
        let expected = encoded.frame.base;
        let request =
            Request { offsets: range_from(end, 0), encoded, synced: true, need: Need::Books, pins: Vec::new(), permit };
        let (_, pending) = self.engine.submit(&partition, request, |state| {
            if state.deleted || state.admitted.epoch != epoch || state.admitted.end != expected {
                return Err(partition.deposed(state.admitted));
            }
            state.admitted.end = end;
            Ok(())
        })?;
        self.end = end;
        pending.durable().await.map(|_| ())
    }

    /// Whether this writer still reigns.
    fn reigns(&self) -> Result<(), StorageError> {
        // A store that is closed or poisoned says so before it says who reigns.
        self.engine.is_open()?;
        let admitted = {
            let state = self.partition.state();
            if !state.deleted && state.admitted.epoch == self.epoch {
                return Ok(());
            }
            state.admitted
        };
        Err(self.partition.deposed(admitted))
    }
}

#[async_trait]
impl PartitionWriter for Writer {
    fn end(&self) -> Offset {
        self.end
    }

    async fn commit(&mut self, change: Change) -> Result<PendingCommit, StorageError> {
        check_keys(&change)?;
        let resolved = self.resolve(&change).await?;
        let need = if change.needs_room() { Need::Data } else { Need::Books };
        let (epoch, expected_end, trim) = (change.epoch, change.expected_end, change.trim);
        let (parts, pins): (Vec<StoredPart>, Vec<Arc<Segment>>) = resolved.into_iter().unzip();
        let (encoded, end) = encode(self.partition.id, change, parts)?;
        let bytes_max = self.engine.payload_bytes_max();
        if encoded.length > bytes_max {
            return Err(StorageError::TooLarge { bytes: encoded.length, bytes_max });
        }
        let permit = self.engine.permit(&encoded).await?;
        // From here on nothing waits: the change is taken with all its effects, or refused.
        let offsets = range_from(expected_end, end.0 - expected_end.0);
        let request = Request { encoded, offsets, synced: self.synced, need, pins, permit };
        let (partition, reign) = (&self.partition, self.epoch);
        let (_, pending) = self.engine.submit(partition, request, |state| {
            let admitted = &mut state.admitted;
            if state.deleted || admitted.epoch != epoch || epoch != reign || admitted.end != expected_end {
                return Err(partition.deposed(*admitted));
            }
            if let Some(trim) = trim {
                if trim > end {
                    return Err(StorageError::Invalid(format!("cannot trim to {trim}: the log ends at {end}")));
                }
                admitted.start = admitted.start.max(trim);
            }
            admitted.end = end;
            Ok(())
        })?;
        self.end = end;
        Ok(pending)
    }

    async fn truncate(&mut self, end: Offset) -> Result<(), StorageError> {
        self.reigns()?;
        // Everything before must be in place before it can be seen where batches begin.
        let barrier = self.commit(Change::new(self.epoch, self.end)).await?;
        barrier.durable().await?;
        let reader = Reader::new(self.engine.clone(), self.partition.clone());
        let start = reader.bounds().start;
        if end < start {
            return Err(StorageError::Invalid(format!("cannot truncate to {end}: the log starts at {start}")));
        }
        if end >= self.end {
            return Ok(());
        }
        if !reader.is_boundary(end).await? {
            return Err(StorageError::Invalid(format!("cannot truncate to {end}: it lies in the middle of a batch")));
        }
        let mut encoder = Encoder::new(FrameKind::Truncation, self.partition.id, self.epoch, self.end);
        encoder.end(end);
        self.settled(encoder.finish()).await
    }
}

fn check_keys(change: &Change) -> Result<(), StorageError> {
    let too_long = |key: &Key| key.0.len() > TABLE_KEY_BYTES_MAX;
    if let Some((key, _)) = change.puts.iter().find(|(key, _)| too_long(key)) {
        return Err(StorageError::Invalid(format!("a key of {} bytes: at most {TABLE_KEY_BYTES_MAX}", key.0.len())));
    }
    // A bound may be the successor of the longest key.
    let bound_too_long = |key: &Key| key.0.len() > TABLE_KEY_BYTES_MAX + 1;
    let bounds = |range: &stentor_core::storage::KeyRange| {
        bound_too_long(&range.start) || range.end.as_ref().is_some_and(bound_too_long)
    };
    if change.deletes.iter().any(bounds) {
        return Err(StorageError::Invalid(format!("a bound of a range is longer than {TABLE_KEY_BYTES_MAX} bytes")));
    }
    Ok(())
}

/// Builds the payload of a change, in the order in which it takes effect: deletes, puts, appends, trim. Returns where the
/// log ends behind it.
fn encode(partition: PartitionId, change: Change, stored: Vec<StoredPart>) -> Result<(Encoded, Offset), StorageError> {
    let mut encoder = Encoder::new(FrameKind::Change, partition, change.epoch, change.expected_end);
    for range in change.deletes {
        encoder.delete(range);
    }
    for (key, value) in change.puts {
        encoder.put(key, value);
    }
    let mut end = change.expected_end;
    let mut stored = stored.into_iter();
    for append in change.appends {
        let count = match append {
            Append::Batch(batch) => {
                let at = batch.stored_at();
                let batch: RecordBatch = batch.stored(end, at);
                let count = batch.count();
                encoder.batch(batch);
                count
            }
            Append::Stored { place, .. } => {
                let part = stored.next().ok_or_else(|| nothing_lies(place))?;
                encoder.stored(part);
                part.count
            }
        };
        let behind = end.0.checked_add(count.into());
        end = Offset(behind.ok_or_else(|| StorageError::Invalid("the log has no more offsets".to_owned()))?);
    }
    if let Some(start) = change.trim {
        encoder.trim(start);
    }
    Ok((encoder.finish(), end))
}

fn nothing_lies(place: Place) -> StorageError {
    StorageError::Invalid(format!("no log holds a batch at {place:?}"))
}

/// Looks at the headers of the batch at a place.
fn resolve(engine: &Engine, place: Place, stored_at: Timestamp) -> Result<(StoredPart, Arc<Segment>), StorageError> {
    let Some(segment) = engine.segments.get(place.segment) else {
        // A segment of this generation may have been there, and what was owed in it may lie elsewhere now.
        return Err(if engine.was_used(place.segment) { StorageError::Moved { place } } else { nothing_lies(place) });
    };
    let position = place.position.checked_sub(PART_HEADER_BYTES as u64).ok_or_else(|| nothing_lies(place))?;
    let mut bytes = [0; PART_HEADER_BYTES + HEADER_BYTES];
    let read = segment
        .file
        .read_at(position, &mut bytes)
        .map_err(|error| StorageError::io(format!("reading segment {:x}", place.segment), error))?;
    let (part, header) = bytes.split_at(PART_HEADER_BYTES);
    let (Some(part), Some(header)) = (part.first_chunk::<PART_HEADER_BYTES>(), header.first_chunk()) else {
        return Err(nothing_lies(place));
    };
    let u64_at = |bytes: &[u8], at: usize| {
        let mut field = [0; 8];
        field.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(field)
    };
    let origin = Origin { partition: PartitionId(u64_at(part, 8)), base: Offset(u64_at(header, 0)) };
    let encoded = RecordBatch::encoded_bytes(header).ok();
    let count = u32::from_le_bytes([header[28], header[29], header[30], header[31]]);
    if read < bytes.len()
        || check_batch_part(part, origin.partition, place.length).is_err()
        || encoded != Some(place.length as usize)
        || count != place.count
    {
        return Err(nothing_lies(place));
    }
    let part = StoredPart {
        segment: place.segment,
        position: place.position,
        length: place.length,
        count: place.count,
        checksum: batch_checksum(header),
        origin,
        stored_at,
    };
    Ok((part, segment))
}
