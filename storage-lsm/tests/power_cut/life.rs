//! One life of the engine: from its opening to the moment when the power goes off.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use bytes::Bytes;
use fastrand::Rng;
use stentor_core::batch::{BatchBuilder, Compression};
use stentor_core::storage::{
    Append, Change, Key, KeyRange, OpenOptions, OpenPartition, PartitionReader, PendingCommit, Storage, StorageError,
    StoredBatch,
};
use stentor_core::{Durability, MessageId, Offset, PartitionId, Record, RecordBatch, Timestamp};

use crate::model::{ModelChange, Partition, State};

/// How many partitions share the journal.
const PARTITIONS: u64 = 3;

/// The most commits of one life.
const COMMITS_MAX: usize = 60;

/// The most commits that wait for their receipts at a time.
const PENDING_MAX: usize = 8;

const READ_BYTES: NonZeroU32 = NonZeroU32::new(16 << 10).unwrap();

/// The last partition is only buffered: a power cut may take what it acknowledged, but the order of the journal must hold
/// for it too, and segments are rolled with something unsynced in them.
fn durability(partition: PartitionId) -> Durability {
    if partition.0 == PARTITIONS { Durability::Buffered } else { Durability::Synced }
}

pub(crate) type Model = BTreeMap<PartitionId, Partition>;

/// Whether the error means nothing but that the power is off.
fn is_power(error: &StorageError) -> bool {
    !matches!(
        error,
        StorageError::Corrupt { .. }
            | StorageError::Damaged(_)
            | StorageError::Deposed { .. }
            | StorageError::Invalid(_)
    )
}

/// Reads all that a partition holds.
pub(crate) async fn read(reader: &dyn PartitionReader) -> Result<State, StorageError> {
    let bounds = reader.bounds();
    let mut state = State { bounds, ..State::default() };
    let mut from = bounds.start;
    while from < bounds.end {
        let batches = reader.read(from, READ_BYTES).await?;
        assert!(!batches.is_empty(), "nothing at {from} of {bounds}");
        for StoredBatch { batch, .. } in batches {
            from = batch.offsets().end;
            state.log.push(batch);
        }
    }
    let rows = reader.scan(KeyRange::all(), NonZeroU32::MAX).await?;
    state.rows.extend(rows);
    Ok(state)
}

/// Opens every partition and checks that what is there may be there. `Ok(None)` when the power went off meanwhile.
pub(crate) async fn wake(
    storage: &dyn Storage,
    model: &mut Model,
    power_is_off: impl Fn() -> bool,
) -> Result<Option<BTreeMap<PartitionId, OpenPartition>>, String> {
    let mut opened = BTreeMap::new();
    let mut found = Vec::new();
    for partition in (1..=PARTITIONS).map(PartitionId) {
        let options = OpenOptions { durability: durability(partition), first_offset: Offset::ZERO, bound: None };
        let open = match storage.open(partition, options).await {
            Ok(open) => open,
            Err(error) if is_power(&error) && power_is_off() => return Ok(None),
            Err(error) => return Err(format!("partition {partition} does not open: {error}")),
        };
        let state = read(open.reader.as_ref()).await;
        let state = state.map_err(|error| format!("partition {partition} cannot be read: {error}"))?;
        found.push((partition, state));
        opened.insert(partition, open);
    }
    for (partition, state) in found {
        model.entry(partition).or_default().settle(&state).map_err(|what| format!("partition {partition}: {what}"))?;
    }
    Ok(Some(opened))
}

/// Commits at random until the power goes off or enough was done; keeps the model's books.
pub(crate) async fn work(
    opened: &mut BTreeMap<PartitionId, OpenPartition>,
    model: &mut Model,
    rng: &mut Rng,
) -> Result<(), String> {
    let mut pending: Vec<(PartitionId, usize, PendingCommit)> = Vec::new();
    for _ in 0..rng.usize(1..=COMMITS_MAX) {
        let target = PartitionId(rng.u64(1..=PARTITIONS));
        let source = PartitionId(rng.u64(1..=PARTITIONS));
        let borrowed = if rng.u8(..6) == 0 { borrow(opened[&source].reader.as_ref(), rng).await } else { None };
        let books = model.entry(target).or_default();
        let Some(open) = opened.get_mut(&target) else { continue };
        let (change, as_model) = random_change(open, &books.latest(), borrowed, rng);
        match open.writer.commit(change).await {
            Ok(commit) => {
                books.changes.push(as_model);
                pending.push((target, books.changes.len(), commit));
            }
            // What was borrowed was moved and its segment released meanwhile: nothing was taken.
            Err(StorageError::Moved { .. }) => {}
            Err(error) if is_power(&error) => break,
            Err(error) => return Err(format!("partition {target} refused a commit: {error}")),
        }
        if pending.len() >= PENDING_MAX || rng.u8(..3) == 0 {
            settle(&mut pending, model).await?;
        }
    }
    settle(&mut pending, model).await
}

async fn settle(pending: &mut Vec<(PartitionId, usize, PendingCommit)>, model: &mut Model) -> Result<(), String> {
    let mut failed = BTreeMap::new();
    for (partition, changes, commit) in pending.drain(..) {
        match commit.durable().await {
            Ok(_) if failed.contains_key(&partition) => {
                return Err(format!("partition {partition} acknowledged change {changes} behind one that failed"));
            }
            Ok(_) if durability(partition) == Durability::Buffered => {}
            Ok(_) => model.entry(partition).or_default().acknowledged = changes,
            Err(error) => {
                failed.insert(partition, error);
            }
        }
    }
    match failed.into_values().find(|error| !is_power(error)) {
        Some(error) => Err(format!("a receipt says {error}")),
        None => Ok(()),
    }
}

/// Some batch that the partition holds.
async fn borrow(reader: &dyn PartitionReader, rng: &mut Rng) -> Option<StoredBatch> {
    let bounds = reader.bounds();
    if bounds.is_empty() {
        return None;
    }
    let from = Offset(rng.u64(bounds.start.0..bounds.end.0));
    reader.read(from, READ_BYTES).await.ok()?.into_iter().next()
}

fn random_change(
    open: &OpenPartition,
    latest: &State,
    borrowed: Option<StoredBatch>,
    rng: &mut Rng,
) -> (Change, ModelChange) {
    let mut change = Change::new(open.epoch, open.writer.end());
    let mut appends = Vec::new();
    for _ in 0..rng.usize(..3) {
        let batch = random_batch(rng);
        appends.push(batch.clone());
        change.appends.push(Append::Batch(batch));
    }
    if let Some(StoredBatch { batch, place }) = borrowed {
        let stored_at = Timestamp(rng.u64(..1_000));
        appends.push(batch.stored(Offset::ZERO, stored_at));
        change.appends.push(Append::Stored { place, stored_at });
    }
    for _ in 0..rng.usize(..3) {
        // Small values lie in the index, large ones in the journal.
        let bytes = if rng.u8(..4) == 0 { rng.usize(..20_000) } else { rng.usize(..100) };
        change.puts.push((Key::copy_from(&[rng.u8(..20)]), random_bytes(bytes, rng)));
    }
    if rng.u8(..8) == 0 {
        let (a, b) = (rng.u8(..20), rng.u8(..20));
        change.deletes.push(KeyRange::new(Key::copy_from(&[a.min(b)]), Key::copy_from(&[a.max(b)])));
    }
    let end = latest.bounds.end.0 + appends.iter().map(|batch| u64::from(batch.count())).sum::<u64>();
    if rng.u8(..4) == 0 {
        change.trim = Some(Offset(rng.u64(latest.bounds.start.0..=end)));
    }
    let as_model = ModelChange::new(&change, appends);
    (change, as_model)
}

fn random_batch(rng: &mut Rng) -> RecordBatch {
    let mut builder = BatchBuilder::new(Compression::None);
    let at = Timestamp(rng.u64(..1_000));
    for _ in 0..rng.usize(1..4) {
        let bytes = rng.usize(..3_000);
        let record = Record {
            id: MessageId::generate(at, rng.u128(..)),
            timestamp: at,
            key: None,
            tag: None,
            headers: Vec::new(),
            body: random_bytes(bytes, rng),
            deliver_at: None,
            expires_at: None,
        };
        builder.push(&record).unwrap();
    }
    builder.finish(None).unwrap().stored(Offset::ZERO, at)
}

fn random_bytes(count: usize, rng: &mut Rng) -> Bytes {
    let mut bytes = vec![0; count];
    rng.fill(&mut bytes);
    bytes.into()
}
