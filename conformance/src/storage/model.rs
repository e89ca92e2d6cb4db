//! Random histories, checked step by step against a model so simple that it can be seen to be right.
//!
//! Each step does one thing to one of a few partitions (a change of any kind, a truncation, a new epoch, a deletion, a
//! look, a reopening), often without waiting for the receipts of the steps before. The seed is the name of the test.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use stentor_core::storage::{Append, Change, Key, KeyRange, PartitionView, PendingCommit, Place, StorageError};
use stentor_core::{Offset, OffsetRange, PartitionId, RecordBatch, Timestamp};

use super::Subject;
use super::harness::{Partition, Seen, assert_refused, seen_of};
use crate::fixtures::{STORED_AT, batch_at, batch_of_bytes, random_bytes};

const STEPS: u32 = 400;
const PARTITIONS: u64 = 4;
/// At most this many receipts are left open.
const PENDING_MAX: usize = 12;
/// The rows of a partition have this many different keys.
const KEYS: u8 = 24;

/// See the module.
pub async fn a_random_history_matches_the_model_1(subject: &mut dyn Subject) {
    history(subject, 1).await;
}

/// See the module.
pub async fn a_random_history_matches_the_model_2(subject: &mut dyn Subject) {
    history(subject, 2).await;
}

/// See the module.
pub async fn a_random_history_matches_the_model_3(subject: &mut dyn Subject) {
    history(subject, 3).await;
}

/// See the module.
pub async fn a_random_history_matches_the_model_4(subject: &mut dyn Subject) {
    history(subject, 4).await;
}

/// What a partition must look like once all is durable.
#[derive(Clone, Default)]
struct Model {
    start: u64,
    end: u64,
    batches: Vec<RecordBatch>,
    rows: BTreeMap<Key, Bytes>,
}

impl Model {
    fn append(&mut self, batch: RecordBatch, stored_at: Timestamp) {
        let batch = batch.stored(Offset(self.end), stored_at);
        self.end = batch.offsets().end.0;
        self.batches.push(batch);
    }

    fn trim(&mut self, to: u64) {
        self.start = self.start.max(to);
        self.batches.retain(|batch| batch.offsets().end.0 > self.start);
    }

    fn truncate(&mut self, end: u64) {
        self.batches.retain(|batch| batch.base_offset().0 < end);
        self.end = self.end.min(end);
    }

    fn delete(&mut self, range: &KeyRange) {
        self.rows.retain(|key, _| !range.contains(key));
    }

    fn scan(&self, range: &KeyRange) -> Vec<(Key, Bytes)> {
        let rows = self.rows.iter().filter(|(key, _)| range.contains(key));
        rows.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn offset_at(&self, at: Timestamp) -> u64 {
        let found = self.batches.iter().find(|batch| batch.stored_at() >= at);
        found.map_or(self.end, |batch| batch.base_offset().0.max(self.start))
    }

    fn seen(&self) -> Seen {
        Seen {
            bounds: OffsetRange::new(Offset(self.start), Offset(self.end)),
            batches: self.batches.clone(),
            rows: self.scan(&KeyRange::all()),
        }
    }
}

/// A partition, what it should be, and what is still on its way.
struct Pair {
    id: PartitionId,
    real: Partition,
    model: Model,
    pending: Vec<PendingCommit>,
    view: Option<(Box<dyn PartitionView>, Seen)>,
}

impl Pair {
    async fn open(subject: &dyn Subject, id: PartitionId, model: Model) -> Self {
        let real = Partition::open_at(subject, id, Offset(model.end)).await;
        assert_eq!(real.writer.end(), Offset(model.end), "partition {id}");
        Self { id, real, model, pending: Vec::new(), view: None }
    }

    /// Waits until everything is durable.
    async fn settle(&mut self) {
        for receipt in self.pending.drain(..) {
            let offsets = receipt.offsets();
            let durable = receipt.durable().await.expect("the change gets durable");
            assert_eq!(durable.into_inner(), offsets);
        }
    }

    async fn commit(&mut self, change: Change) {
        self.pending.push(self.real.start(change).await);
        assert_eq!(self.real.writer.end(), Offset(self.model.end), "partition {}", self.id);
        if self.pending.len() > PENDING_MAX {
            self.settle().await;
        }
    }

    async fn check_all(&mut self) {
        self.settle().await;
        assert!(self.real.all().await == self.model.seen(), "partition {} differs from the model", self.id);
        if let Some((view, expected)) = self.view.take() {
            assert!(seen_of(&*view).await == expected, "a view of partition {} has changed", self.id);
        }
    }
}

async fn history(subject: &mut dyn Subject, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut pairs = Vec::new();
    for id in 0..PARTITIONS {
        pairs.push(Pair::open(subject, PartitionId(id), Model::default()).await);
    }
    let mut now = STORED_AT;
    for step in 0..STEPS {
        now = now.after(Duration::from_micros(rng.u64(0..3)));
        let at = rng.usize(0..pairs.len());
        match rng.u32(0..100) {
            0..60 => change(&mut rng, &mut pairs, at, now).await,
            60..64 => truncate(&mut rng, &mut pairs[at]).await,
            64..68 => depose(subject, &mut pairs[at]).await,
            68..70 => delete(subject, &mut rng, &mut pairs[at]).await,
            70..74 => {
                pairs[at].settle().await;
                let view = pairs[at].real.view().await;
                pairs[at].view = Some((view, pairs[at].model.seen()));
            }
            74..96 => look(&mut rng, &mut pairs[at], now).await,
            96..99 => pairs[at].check_all().await,
            _ => reopen(subject, &mut pairs).await,
        }
        if step % 100 == 99 {
            for pair in &mut pairs {
                pair.check_all().await;
            }
        }
    }
    reopen(subject, &mut pairs).await;
    for pair in &mut pairs {
        pair.check_all().await;
    }
}

/// A few appends, puts, deletes and a trim, any of them or none.
async fn change(rng: &mut Rng, pairs: &mut [Pair], at: usize, now: Timestamp) {
    let mut change = pairs[at].real.change();
    let mut model = pairs[at].model.clone();
    for _ in 0..rng.u32(0..3) {
        let stored = if rng.u32(0..4) == 0 { any_stored(rng, pairs).await } else { None };
        if let Some((place, batch)) = stored {
            model.append(batch, now);
            change.appends.push(Append::Stored { place, stored_at: now });
        } else {
            let batch = any_batch(rng, now);
            model.append(batch.clone(), now);
            change.appends.push(Append::Batch(batch));
        }
    }
    if rng.u32(0..6) == 0 {
        for _ in 0..rng.u32(1..3) {
            let range = any_range(rng);
            model.delete(&range);
            change.deletes.push(range);
        }
    }
    for _ in 0..rng.u32(0..4) {
        let (key, bytes) = (any_key(rng), if rng.u32(0..20) == 0 { 100_000 } else { rng.usize(0..200) });
        let value = random_bytes(rng, bytes);
        model.rows.insert(key.clone(), value.clone());
        change.puts.push((key, value));
    }
    if rng.u32(0..8) == 0 {
        let to = rng.u64(model.start.saturating_sub(3)..=model.end);
        model.trim(to);
        change.trim = Some(Offset(to));
    }
    pairs[at].model = model;
    pairs[at].commit(change).await;
}

fn any_batch(rng: &mut Rng, now: Timestamp) -> RecordBatch {
    if rng.u32(0..20) == 0 {
        return batch_of_bytes(rng, 150_000).stored(Offset::ZERO, now);
    }
    let bodies: Vec<String> = (0..rng.usize(1..6)).map(|_| "x".repeat(rng.usize(0..300))).collect();
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    batch_at(now, &bodies)
}

/// A batch that some partition holds, and that can be read there by now.
async fn any_stored(rng: &mut Rng, pairs: &mut [Pair]) -> Option<(Place, RecordBatch)> {
    let from = rng.usize(0..pairs.len());
    let pair = &mut pairs[from];
    pair.settle().await;
    let stored = pair.real.read(rng.u64(pair.model.start..=pair.model.end), 1).await.pop()?;
    Some((stored.place, stored.batch))
}

fn any_key(rng: &mut Rng) -> Key {
    // One or two bytes, so that some keys are prefixes of others.
    let byte = rng.u8(0..KEYS);
    if rng.bool() { Key::copy_from(&[byte]) } else { Key::copy_from(&[byte, rng.u8(0..2) * u8::MAX]) }
}

fn any_range(rng: &mut Rng) -> KeyRange {
    match rng.u32(0..4) {
        0 => KeyRange::single(&any_key(rng)),
        1 => KeyRange::prefix(&any_key(rng).0),
        2 => KeyRange { start: any_key(rng), end: None },
        _ => KeyRange::new(any_key(rng), any_key(rng)),
    }
}

/// At a border between batches, wherever that is.
async fn truncate(rng: &mut Rng, pair: &mut Pair) {
    let borders: Vec<u64> =
        pair.model.batches.iter().map(|batch| batch.base_offset().0).filter(|base| *base >= pair.model.start).collect();
    let Some(end) = rng.choice(borders) else { return };
    pair.model.truncate(end);
    pair.real.writer.truncate(Offset(end)).await.expect("a border of batches");
    assert_eq!(pair.real.writer.end(), Offset(end));
}

/// The old writer must find that out.
async fn depose(subject: &dyn Subject, pair: &mut Pair) {
    let successor = Pair::open(subject, pair.id, pair.model.clone()).await;
    let mut deposed = std::mem::replace(pair, successor);
    let late = Change { puts: vec![(any_key(&mut Rng::with_seed(0)), Bytes::new())], ..deposed.real.change() };
    assert_refused!(deposed.real.refusal(late).await, StorageError::Deposed { .. });
    // What it had committed before is kept, as the next look will see.
    deposed.settle().await;
}

async fn delete(subject: &dyn Subject, rng: &mut Rng, pair: &mut Pair) {
    // The receipts first: what becomes of a commit that is under way when its partition goes is nobody's business.
    pair.settle().await;
    subject.storage().delete(pair.id).await.expect("the partition can be deleted");
    let first = rng.u64(0..1_000);
    let model = Model { start: first, end: first, ..Model::default() };
    *pair = Pair::open(subject, pair.id, model).await;
}

/// One question of each kind.
async fn look(rng: &mut Rng, pair: &mut Pair, now: Timestamp) {
    pair.settle().await;
    let Pair { real, model, .. } = pair;
    let key = any_key(rng);
    assert_eq!(real.get(&key).await.as_ref(), model.rows.get(&key));

    let (range, limit) = (any_range(rng), rng.u32(1..10));
    let mut expected = model.scan(&range);
    expected.truncate(limit as usize);
    let limit = NonZeroU32::new(limit).expect("not zero");
    let found = real.reader.scan(range.clone(), limit).await.expect("the table can be read");
    assert!(found == expected, "a scan of {range:?} differs");

    let at = now.before(Duration::from_micros(rng.u64(0..500)));
    let found = real.reader.offset_at(at).await.expect("the log can be read");
    assert_eq!(found, Offset(model.offset_at(at)), "at {at:?}");

    let (from, bytes_max) = (rng.u64(model.start.saturating_sub(2)..=model.end), rng.u32(1..200_000));
    let found = real.reader.read(Offset(from), NonZeroU32::new(bytes_max).expect("not zero")).await;
    if from < model.start {
        assert_refused!(found, Err(StorageError::Trimmed { start }) if start == Offset(model.start));
        return;
    }
    let mut room = bytes_max as usize;
    let mut expected: Vec<&RecordBatch> = Vec::new();
    for batch in model.batches.iter().filter(|batch| batch.offsets().end.0 > from) {
        if batch.len() > room && !expected.is_empty() {
            break;
        }
        room = room.saturating_sub(batch.len());
        expected.push(batch);
    }
    let found = found.expect("the log can be read");
    let found: Vec<&RecordBatch> = found.iter().map(|stored| &stored.batch).collect();
    assert!(found == expected, "a read from {from} of {bytes_max} bytes differs");
}

/// Closing makes durable what was taken, so the receipts that are open must be good.
async fn reopen(subject: &mut dyn Subject, pairs: &mut Vec<Pair>) {
    if !subject.reopen().await {
        return;
    }
    for mut pair in std::mem::take(pairs) {
        pair.settle().await;
        pairs.push(Pair::open(subject, pair.id, pair.model).await);
    }
}
