//! Deduplication: which batches of which producers a partition holds already.
//!
//! Batches carry their producer, epoch and sequence in the log, so nothing is written per publish: a row per producer is
//! written now and then, with a row that says up to which offset the rows speak, and recovery reads the headers of the
//! log behind that ([`Dedup::replay`]).
//!
//! Invariants: per producer and epoch, sequences are accepted without a gap, each once; a new producer and a new epoch
//! begin at 0; an older epoch is never heard again; the receipts of the last [`RECEIPTS_MAX`] batches are kept, and at
//! most [`PRODUCERS_MAX`] producers, the longest idle ones forgotten first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use stentor_core::batch::Sequenced;
use stentor_core::storage::{Key, KeyRange};
use stentor_core::{Offset, ProducerId, Timestamp};
use thiserror::Error;

/// How many receipts of a producer are kept: more than a client has on its way to one partition.
pub(crate) const RECEIPTS_MAX: usize = 128;

/// How many producers of a partition are remembered.
pub(crate) const PRODUCERS_MAX: usize = 4_096;

/// A producer that has been silent for so long is forgotten. Far longer than a client keeps a batch in doubt.
pub(crate) const PRODUCER_IDLE_MAX: Duration = Duration::from_secs(15 * 60);

const ROWS_PREFIX: &[u8] = b"dedup/";
const POSITION_KEY: &[u8] = b"dedup-position";

/// How many bytes of rows go into one change: with the groups' progress beside it, that stays below what counts as new
/// data, so that it is taken from the reserve when the storage is full.
const ROWS_BYTES_MAX: usize = 96 << 10;

/// The version of both rows.
const VERSION: u8 = 1;

/// Where a batch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub(crate) base: Offset,
    pub(crate) count: u32,
}

impl Receipt {
    /// The first offset behind the batch.
    pub(crate) fn end(self) -> Offset {
        self.base.advance(u64::from(self.count))
    }
}

/// What becomes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is new, and noted as being at the given place.
    New,
    /// It was taken before, and lies there.
    Repeat(Receipt),
}

/// Why a batch cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum DedupError {
    #[error("batch {found} of producer {producer} came where {expected} was expected")]
    Gap { producer: ProducerId, expected: u64, found: u64 },
    #[error("producer {producer} is not known here (any more): it has to begin a new epoch, at sequence 0")]
    Unknown { producer: ProducerId },
    #[error("producer {producer} has gone on to epoch {epoch}")]
    Fenced { producer: ProducerId, epoch: u32 },
    #[error("batch {sequence} of producer {producer} was stored so long ago that its receipt is forgotten")]
    Forgotten { producer: ProducerId, sequence: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Producer {
    epoch: u32,
    /// The sequence that comes next.
    next: u64,
    /// Of the batches before `next`, the latest at the back.
    receipts: VecDeque<Receipt>,
    last_used: Timestamp,
}

impl Producer {
    fn begin(epoch: u32, now: Timestamp) -> Self {
        Self { epoch, next: 0, receipts: VecDeque::new(), last_used: now }
    }

    fn receipt(&self, sequence: u64) -> Option<Receipt> {
        let back = usize::try_from(self.next.checked_sub(sequence)?).ok()?;
        self.receipts.get(self.receipts.len().checked_sub(back)?).copied()
    }

    fn push(&mut self, receipt: Receipt, now: Timestamp) {
        self.next += 1;
        self.receipts.push_back(receipt);
        self.last_used = now;
    }

    /// Drops the receipts beyond the bound; not while an admission may still be taken back.
    fn shrink(&mut self) {
        while self.receipts.len() > RECEIPTS_MAX {
            self.receipts.pop_front();
        }
    }
}

/// What an admission did, to be taken back when the change with its batch is refused.
enum Undo {
    /// The last receipt of the producer goes.
    Push(ProducerId),
    /// The producer is as it was.
    Begin(ProducerId, Option<Producer>),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Dedup {
    producers: BTreeMap<ProducerId, Producer>,
    undo: Vec<Undo>,
    /// Producers whose rows are behind.
    dirty: BTreeSet<ProducerId>,
    /// Producers whose rows are to go.
    forgotten: BTreeSet<ProducerId>,
    /// The round of writing that is under way.
    round: Option<Round>,
}

/// One round of writing all rows that were behind when it began, in portions. The position is written with the last of
/// them, and is that of the beginning: rows may be ahead of it, since a replay skips what they know already.
struct Round {
    position: Offset,
    left: BTreeSet<ProducerId>,
}

impl Dedup {
    /// Decides on a batch that would go to `receipt`. If it is new it is noted, until [`settle`](Self::settle) or
    /// [`take_back`](Self::take_back) says what became of it.
    pub(crate) fn admit(
        &mut self,
        batch: Sequenced,
        receipt: Receipt,
        now: Timestamp,
    ) -> Result<Admission, DedupError> {
        let Sequenced { producer, epoch, sequence } = batch;
        let known = self.producers.get_mut(&producer);
        if let Some(known) = known {
            if epoch < known.epoch {
                return Err(DedupError::Fenced { producer, epoch: known.epoch });
            }
            if epoch == known.epoch {
                if sequence == known.next {
                    known.push(receipt, now);
                    self.undo.push(Undo::Push(producer));
                    return Ok(Admission::New);
                }
                if sequence > known.next {
                    return Err(DedupError::Gap { producer, expected: known.next, found: sequence });
                }
                known.last_used = now;
                let found = known.receipt(sequence).map(Admission::Repeat);
                return found.ok_or(DedupError::Forgotten { producer, sequence });
            }
        }
        if sequence != 0 {
            return Err(DedupError::Unknown { producer });
        }
        let mut begun = Producer::begin(epoch, now);
        begun.push(receipt, now);
        let before = self.producers.insert(producer, begun);
        self.undo.push(Undo::Begin(producer, before));
        Ok(Admission::New)
    }

    /// The change with everything admitted since the last call was taken.
    pub(crate) fn settle(&mut self) {
        for undo in self.undo.drain(..) {
            let (Undo::Push(producer) | Undo::Begin(producer, _)) = undo;
            self.forgotten.remove(&producer);
            if let Some(known) = self.producers.get_mut(&producer) {
                known.shrink();
                self.dirty.insert(producer);
            }
        }
        if self.producers.len() > PRODUCERS_MAX {
            self.forget_longest_idle();
        }
    }

    /// The change with everything admitted since the last call was refused: nothing was admitted.
    pub(crate) fn take_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Push(producer) => {
                    if let Some(known) = self.producers.get_mut(&producer) {
                        known.next -= 1;
                        known.receipts.pop_back();
                    }
                }
                Undo::Begin(producer, Some(before)) => {
                    self.producers.insert(producer, before);
                }
                Undo::Begin(producer, None) => {
                    self.producers.remove(&producer);
                }
            }
        }
    }

    /// Takes a batch that the log holds behind the rows.
    pub(crate) fn replay(&mut self, batch: Sequenced, receipt: Receipt, stored_at: Timestamp) {
        let Sequenced { producer, epoch, sequence } = batch;
        let known = self.producers.entry(producer).or_insert_with(|| Producer::begin(epoch, stored_at));
        if epoch > known.epoch {
            *known = Producer::begin(epoch, stored_at);
        }
        if epoch < known.epoch || sequence < known.next {
            return;
        }
        if sequence > known.next {
            // The batches between were trimmed before a row spoke of them: their receipts are gone.
            known.receipts.clear();
            known.next = sequence;
        }
        known.push(receipt, stored_at);
        known.shrink();
        self.dirty.insert(producer);
    }

    /// Forgets the producers that have been silent for too long.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        let idle = |producer: &Producer| now.since(producer.last_used) >= PRODUCER_IDLE_MAX;
        let gone: Vec<_> = self.producers.iter().filter(|(_, known)| idle(known)).map(|(id, _)| *id).collect();
        for producer in gone {
            self.forget(producer);
        }
    }

    fn forget_longest_idle(&mut self) {
        // An eighth at once, so that the search is paid for by many admissions.
        let mut by_use: Vec<_> = self.producers.iter().map(|(id, known)| (known.last_used, *id)).collect();
        by_use.sort_unstable();
        for (_, producer) in by_use.into_iter().take(PRODUCERS_MAX / 8) {
            self.forget(producer);
        }
    }

    fn forget(&mut self, producer: ProducerId) {
        self.producers.remove(&producer);
        self.dirty.remove(&producer);
        if let Some(round) = &mut self.round {
            round.left.remove(&producer);
        }
        self.forgotten.insert(producer);
    }

    /// Whether the rows are behind.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() || !self.forgotten.is_empty() || self.round.is_some()
    }

    /// A portion of the rows that bring the table up to the end of the log, which is at `end` now. They count as written:
    /// a failed commit fails the partition as a whole, and after a refused one [`unwritten`](Self::unwritten) is to be
    /// called. Not while an admission is neither settled nor taken back: its receipt may be for what is never stored.
    pub(crate) fn rows(&mut self, end: Offset) -> Rows {
        debug_assert!(self.undo.is_empty(), "rows would speak of batches that may yet be refused");
        let begin = || Round { position: end, left: std::mem::take(&mut self.dirty) };
        let mut round = self.round.take().unwrap_or_else(begin);
        let forgotten = std::mem::take(&mut self.forgotten);
        let deletes = forgotten.iter().map(|id| KeyRange::single(&key(*id))).collect();
        let (mut puts, mut dirty, mut bytes) = (Vec::new(), BTreeSet::new(), 0);
        while bytes < ROWS_BYTES_MAX
            && let Some(id) = round.left.pop_first()
        {
            self.dirty.remove(&id);
            let Some(known) = self.producers.get(&id) else { continue };
            let row = encode(known);
            bytes += row.len();
            puts.push((key(id), row));
            dirty.insert(id);
        }
        let mut position = None;
        if round.left.is_empty() {
            position = Some(round.position);
            puts.push((Key::copy_from(POSITION_KEY), encode_position(round.position)));
        } else {
            self.round = Some(round);
        }
        Rows { puts, deletes, position, dirty, forgotten }
    }

    /// The change with `rows` was refused. What the round has written before stays written; the next one begins anew.
    pub(crate) fn unwritten(&mut self, rows: Rows) {
        let left = self.round.take().map(|round| round.left).unwrap_or_default();
        let behind = rows.dirty.into_iter().chain(left);
        self.dirty.extend(behind.filter(|id| self.producers.contains_key(id)));
        self.forgotten.extend(rows.forgotten.into_iter().filter(|id| !self.producers.contains_key(id)));
    }

    /// Takes a row of [`Dedup::range`].
    pub(crate) fn load(&mut self, key: &Key, value: &Bytes) -> Result<(), RowError> {
        let id = key.as_ref().strip_prefix(ROWS_PREFIX).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
        self.producers.insert(ProducerId(id.ok_or(RowError("the key"))?), decode(value)?);
        Ok(())
    }

    /// The rows of the producers.
    pub(crate) fn range() -> KeyRange {
        KeyRange::prefix(ROWS_PREFIX)
    }

    /// The row that says up to which offset those rows speak.
    pub(crate) fn position_key() -> Key {
        Key::copy_from(POSITION_KEY)
    }

    /// How many producers are remembered.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.producers.len()
    }
}

/// Rows for a change.
pub(crate) struct Rows {
    pub(crate) puts: Vec<(Key, Bytes)>,
    pub(crate) deletes: Vec<KeyRange>,
    /// Up to which offset the rows speak, if with these all are there; else there are more to come.
    pub(crate) position: Option<Offset>,
    dirty: BTreeSet<ProducerId>,
    forgotten: BTreeSet<ProducerId>,
}

/// A row of the deduplication cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a row of the deduplication is damaged: {0}")]
pub(crate) struct RowError(&'static str);

#[derive(Clone, PartialEq, Message)]
struct ProducerRow {
    #[prost(uint32, tag = "1")]
    epoch: u32,
    #[prost(uint64, tag = "2")]
    next: u64,
    #[prost(uint64, tag = "3")]
    last_used_micros: u64,
    /// Base offsets, each as the distance from the end of the batch before (the first: from 0).
    #[prost(uint64, repeated, tag = "4")]
    gaps: Vec<u64>,
    #[prost(uint32, repeated, tag = "5")]
    counts: Vec<u32>,
}

fn key(producer: ProducerId) -> Key {
    [ROWS_PREFIX, &producer.0.to_be_bytes()].concat().into()
}

fn encode(producer: &Producer) -> Bytes {
    let mut end = 0;
    let gaps = producer.receipts.iter().map(|receipt| {
        let gap = receipt.base.0.saturating_sub(end);
        end = receipt.end().0;
        gap
    });
    let row = ProducerRow {
        epoch: producer.epoch,
        next: producer.next,
        last_used_micros: producer.last_used.0,
        gaps: gaps.collect(),
        counts: producer.receipts.iter().map(|receipt| receipt.count).collect(),
    };
    versioned(&row)
}

fn decode(value: &Bytes) -> Result<Producer, RowError> {
    let row = ProducerRow::decode(unversioned(value)?).map_err(|_| RowError("a producer"))?;
    if row.gaps.len() != row.counts.len() || row.gaps.len() as u64 > row.next {
        return Err(RowError("the receipts"));
    }
    let mut end = 0_u64;
    let mut receipts = VecDeque::with_capacity(row.gaps.len());
    for (gap, count) in row.gaps.iter().zip(&row.counts) {
        let base = end.checked_add(*gap).ok_or(RowError("the receipts"))?;
        end = base.checked_add(u64::from(*count)).ok_or(RowError("the receipts"))?;
        receipts.push_back(Receipt { base: Offset(base), count: *count });
    }
    Ok(Producer { epoch: row.epoch, next: row.next, receipts, last_used: Timestamp(row.last_used_micros) })
}

#[derive(Clone, PartialEq, Message)]
struct PositionRow {
    #[prost(uint64, tag = "1")]
    position: u64,
}

fn encode_position(position: Offset) -> Bytes {
    versioned(&PositionRow { position: position.0 })
}

/// Reads the row at [`Dedup::position_key`].
pub(crate) fn decode_position(value: &Bytes) -> Result<Offset, RowError> {
    let row = PositionRow::decode(unversioned(value)?).map_err(|_| RowError("the position"))?;
    Ok(Offset(row.position))
}

fn versioned(row: &impl Message) -> Bytes {
    let mut bytes = Vec::with_capacity(1 + row.encoded_len());
    bytes.push(VERSION);
    bytes.extend_from_slice(&row.encode_to_vec());
    bytes.into()
}

fn unversioned(value: &Bytes) -> Result<Bytes, RowError> {
    match value.first() {
        Some(&VERSION) => Ok(value.slice(1..)),
        _ => Err(RowError("its version")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn batch(producer: u64, epoch: u32, sequence: u64) -> Sequenced {
        Sequenced { producer: ProducerId(producer), epoch, sequence }
    }

    fn at(base: u64) -> Receipt {
        Receipt { base: Offset(base), count: 10 }
    }

    fn filled(batches: u64) -> Dedup {
        let mut dedup = Dedup::default();
        for sequence in 0..batches {
            assert_eq!(dedup.admit(batch(1, 0, sequence), at(sequence * 10), NOW), Ok(Admission::New));
        }
        dedup.settle();
        dedup
    }

    #[test]
    fn a_repeat_gets_the_first_receipt_and_a_gap_is_refused() {
        let mut dedup = filled(3);
        assert_eq!(dedup.admit(batch(1, 0, 1), at(90), NOW), Ok(Admission::Repeat(at(10))));
        assert_eq!(
            dedup.admit(batch(1, 0, 4), at(90), NOW),
            Err(DedupError::Gap { producer: ProducerId(1), expected: 3, found: 4 })
        );
        assert_eq!(dedup.admit(batch(1, 0, 3), at(90), NOW), Ok(Admission::New));
    }

    #[test]
    fn a_later_epoch_begins_at_zero_and_fences_the_earlier_one() {
        let mut dedup = filled(3);
        assert_eq!(dedup.admit(batch(1, 2, 3), at(90), NOW), Err(DedupError::Unknown { producer: ProducerId(1) }));
        assert_eq!(dedup.admit(batch(1, 2, 0), at(90), NOW), Ok(Admission::New));
        assert_eq!(
            dedup.admit(batch(1, 1, 0), at(90), NOW),
            Err(DedupError::Fenced { producer: ProducerId(1), epoch: 2 })
        );
    }

    #[test]
    fn a_refused_change_leaves_no_trace() {
        let mut dedup = filled(2);
        let before = dedup.producers.clone();
        dedup.admit(batch(1, 0, 2), at(20), NOW).unwrap();
        dedup.admit(batch(1, 0, 3), at(30), NOW).unwrap();
        dedup.admit(batch(1, 1, 0), at(40), NOW).unwrap();
        dedup.admit(batch(2, 0, 0), at(50), NOW).unwrap();
        dedup.take_back();
        assert_eq!(dedup.producers, before);
    }

    #[test]
    fn the_rows_never_speak_of_a_batch_that_was_taken_back() {
        let (mut dedup, mut expected) = (filled(2), filled(2));
        dedup.admit(batch(1, 0, 2), at(20), NOW).unwrap();
        dedup.admit(batch(2, 0, 0), at(30), NOW).unwrap();
        dedup.take_back();
        assert_eq!(dedup.rows(Offset(20)).puts, expected.rows(Offset(20)).puts);
    }

    #[test]
    fn many_rows_are_written_in_small_portions_and_the_position_with_the_last() {
        let mut dedup = Dedup::default();
        for producer in 1..=1_000 {
            for sequence in 0..RECEIPTS_MAX as u64 {
                dedup.admit(batch(producer, 0, sequence), at(sequence << 20), NOW).unwrap();
            }
        }
        dedup.settle();
        let (mut rows, mut portions) = (BTreeMap::new(), 0);
        loop {
            let portion = dedup.rows(Offset(1 << 40).advance(portions));
            let bytes: usize = portion.puts.iter().map(|(_, value)| value.len()).sum();
            assert!(bytes < 2 * ROWS_BYTES_MAX, "{bytes} bytes in one portion");
            let last = portion.position;
            assert_eq!(last.is_some(), portion.puts.iter().any(|(key, _)| *key == Dedup::position_key()));
            rows.extend(portion.puts);
            portions += 1;
            // One that publishes all the time does not keep the round from ending.
            dedup.admit(batch(1, 0, RECEIPTS_MAX as u64 + portions - 1), at(1 << 40), NOW).unwrap();
            dedup.settle();
            if let Some(position) = last {
                assert_eq!(position, Offset(1 << 40), "the end of the log when the round began");
                break;
            }
        }
        assert!(portions > 2);
        assert_eq!(rows.len(), 1_001);
        assert!(dedup.is_dirty(), "the one that published meanwhile is behind again");
    }

    #[test]
    fn a_refused_portion_is_written_again() {
        let mut dedup = filled(3);
        let refused = dedup.rows(Offset(30));
        let puts = refused.puts.clone();
        dedup.unwritten(refused);
        assert_eq!(dedup.rows(Offset(30)).puts, puts);
    }

    #[test]
    fn a_receipt_is_kept_for_as_long_as_a_client_may_ask() {
        let kept = RECEIPTS_MAX as u64;
        let mut dedup = filled(kept + 5);
        assert_eq!(dedup.admit(batch(1, 0, 5), at(9), NOW), Ok(Admission::Repeat(at(50))));
        assert_eq!(
            dedup.admit(batch(1, 0, 4), at(9), NOW),
            Err(DedupError::Forgotten { producer: ProducerId(1), sequence: 4 })
        );
    }

    #[test]
    fn an_idle_producer_is_forgotten_with_its_row() {
        let mut dedup = filled(1);
        dedup.rows(Offset(10));
        dedup.expire(NOW.after(PRODUCER_IDLE_MAX));
        assert_eq!(dedup.len(), 0);
        assert_eq!(dedup.rows(Offset(10)).deletes, [KeyRange::single(&key(ProducerId(1)))]);
        assert_eq!(dedup.admit(batch(1, 0, 1), at(10), NOW), Err(DedupError::Unknown { producer: ProducerId(1) }));
    }

    #[test]
    fn there_are_never_more_producers_than_the_bound() {
        let mut dedup = Dedup::default();
        for producer in 1..=PRODUCERS_MAX as u64 + 1 {
            dedup.admit(batch(producer, 0, 0), at(producer), Timestamp(producer)).unwrap();
            dedup.settle();
        }
        assert!(dedup.len() <= PRODUCERS_MAX);
        assert!(dedup.producers.contains_key(&ProducerId(PRODUCERS_MAX as u64 + 1)), "the latest one stays");
    }

    proptest! {
        /// Rows written at some point and the log behind it bring back what was known.
        #[test]
        fn rows_and_the_log_behind_them_restore_everything(
            steps in proptest::collection::vec((1_u64..4, any::<bool>()), 1..300),
            written_after in 0_usize..300,
        ) {
            let mut live = Dedup::default();
            let mut next: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
            let mut log = Vec::new();
            let (mut rows, mut position) = (BTreeMap::new(), Offset(0));
            for (index, (producer, new_epoch)) in steps.iter().enumerate() {
                let (epoch, sequence) = next.entry(*producer).or_default();
                if *new_epoch && index % 7 == 0 {
                    (*epoch, *sequence) = (*epoch + 1, 0);
                }
                let (batch, receipt) = (batch(*producer, *epoch, *sequence), at(index as u64 * 10));
                prop_assert_eq!(live.admit(batch, receipt, NOW), Ok(Admission::New));
                live.settle();
                log.push((batch, receipt));
                *sequence += 1;
                if index == written_after {
                    position = receipt.end();
                    rows.extend(live.rows(position).puts);
                }
            }
            let mut restored = Dedup::default();
            if let Some(value) = rows.remove(&Dedup::position_key()) {
                prop_assert_eq!(decode_position(&value), Ok(position));
            }
            for (key, value) in &rows {
                restored.load(key, value).unwrap();
            }
            for (batch, receipt) in log.into_iter().filter(|(_, receipt)| receipt.base >= position) {
                restored.replay(batch, receipt, NOW);
            }
            prop_assert_eq!(restored.producers, live.producers);
        }

        #[test]
        fn garbage_is_an_error_and_no_panic(garbage in proptest::collection::vec(any::<u8>(), 0..64)) {
            let garbage = Bytes::from(garbage);
            let _ = decode(&garbage);
            let _ = decode_position(&garbage);
        }
    }
}
