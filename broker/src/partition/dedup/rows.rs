//! The rows of the deduplication: one for each producer, and one that says up to which offset these speak.
//!
//! They are written in rounds, each in portions that need no room beyond the reserve. Each row begins with the version of
//! its format.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use prost::Message;
use stentor_core::storage::{Key, KeyRange};
use stentor_core::{Offset, ProducerId, Timestamp};
use thiserror::Error;

use super::{Dedup, Producer, Receipt};

const ROWS_PREFIX: &[u8] = b"dedup/";
const POSITION_KEY: &[u8] = b"dedup-position";

/// How many bytes of rows go into one change: with the groups' progress beside it, that stays below what counts as new
/// data, so that it is taken from the reserve when the storage is full.
pub(super) const ROWS_BYTES_MAX: usize = 96 << 10;

/// The version of both rows.
const VERSION: u8 = 1;

/// One round of writing all rows that were behind when it began, in portions. The position is written with the last of
/// them, and is that of the beginning: rows may be ahead of it, since a replay skips what they know already.
pub(super) struct Round {
    position: Offset,
    pub(super) left: BTreeSet<ProducerId>,
}

impl Dedup {
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

pub(super) fn key(producer: ProducerId) -> Key {
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

pub(super) fn decode(value: &Bytes) -> Result<Producer, RowError> {
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
