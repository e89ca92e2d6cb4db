//! Building a group's state from its rows.

use std::collections::BTreeMap;

use bytes::Bytes;
use stentor_core::storage::Key;
use stentor_core::{GroupName, OffsetRange, Timestamp};

use super::keys::{self, StateKey};
use super::letters::Dying;
use super::ranges::RangeSet;
use super::rows::{self, CHUNK, Cursor, Failure, RowError};
use super::waiting::Waiting;
use super::{GroupState, Rules};

/// Builds a [`GroupState`] from its rows: those of [`state_ranges`](super::state_ranges), each range scanned in ascending
/// order, in pages of any size.
///
/// Memory: what the state takes. The messages that have failures are as many as `retrying_max` and
/// [`IN_FLIGHT_MAX`](super::IN_FLIGHT_MAX) allowed when they failed.
#[derive(Debug)]
pub(crate) struct Loading {
    name: GroupName,
    rules: Rules,
    cursor: Option<Cursor>,
    done: RangeSet,
    chunks: Vec<u64>,
    /// Of each message with failures the latest one; its reason is left in the row.
    latest: BTreeMap<u64, Latest>,
}

#[derive(Clone, Copy, Debug)]
struct Latest {
    attempts: u32,
    due: Timestamp,
    at: Timestamp,
    key: Option<u64>,
    rejected: bool,
    redriven: bool,
}

impl Loading {
    pub(crate) fn new(name: GroupName, rules: Rules) -> Self {
        Self { name, rules, cursor: None, done: RangeSet::default(), chunks: Vec::new(), latest: BTreeMap::new() }
    }

    /// Takes one row.
    pub(crate) fn row(&mut self, key: &Key, value: &Bytes) -> Result<(), RowError> {
        match keys::parse(&self.name, key) {
            Some(StateKey::Cursor) => {
                self.cursor = Some(Cursor::decode(value).map_err(|bad| bad.of(&self.name, "cursor"))?);
            }
            Some(StateKey::Chunk(chunk)) => {
                let damaged = || rows::BadValue::Damaged("its chunk lies beyond every log").of(&self.name, "chunk");
                let base = chunk.checked_add(1).and_then(|end| end.checked_mul(CHUNK)).ok_or_else(damaged)? - CHUNK;
                let ranges = rows::decode_chunk(base, value).map_err(|bad| bad.of(&self.name, "chunk"))?;
                ranges.into_iter().for_each(|(start, end)| self.done.insert(start, end));
                self.chunks.push(chunk);
            }
            Some(StateKey::Failure { offset, attempt }) => {
                let failure = Failure::decode(value).map_err(|bad| bad.of(&self.name, "failure"))?;
                let Failure { due, at, key, rejected, redriven, .. } = failure;
                // Rows come in the order of the attempts: the last one stays.
                self.latest.insert(offset, Latest { attempts: attempt, due, at, key, rejected, redriven });
            }
            None => {
                return Err(rows::BadValue::Damaged("its key is unknown").of(&self.name, "unknown"));
            }
        }
        Ok(())
    }

    /// All rows are in. `log` are the bounds of the log as it was opened. Messages that went below its start while owed
    /// are counted by [`GroupState::trimmed`], which is to be called next.
    pub(crate) fn finish(self, log: OffsetRange) -> Result<GroupState, RowError> {
        let Self { name, rules, cursor, mut done, chunks, latest } = self;
        let cursor = cursor.ok_or_else(|| RowError::NoCursor(name.clone()))?;
        let mut state = GroupState::empty(name, rules);
        // A log that lost its end (its durability allowed that) will give the same offsets to other messages, which must
        // not be taken for done.
        let end = log.end.0;
        let floor = cursor.floor.min(end);
        let beyond = done.last().is_some_and(|(_, until)| until > end);
        done.remove(0, floor);
        done.remove(end, u64::MAX);
        state.floor = floor;
        state.next = floor;
        state.done = done;
        state.paused = cursor.paused;
        state.dead_letters = cursor.dead_letters;
        let delivered = cursor.horizon.min(end);
        state.reach = super::Reach {
            begun: cursor.begun.min(floor),
            redelivered_from: cursor.begun,
            redelivered_below: delivered,
            delivered,
            ackable_below: delivered,
            durable: cursor.horizon,
            written: cursor.horizon,
        };
        state.unflushed.cursor = floor != cursor.floor;
        for chunk in chunks {
            state.unflushed.found(chunk);
            if beyond && chunk >= end / CHUNK {
                state.unflushed.touch(chunk * CHUNK, (chunk + 1) * CHUNK);
            }
        }
        // What a burial marked done at the floor moves it.
        if let Some(until) = state.done.end_of(floor) {
            state.mark_done(floor, until);
        }
        // Messages of the log before redriven ones, so that the former keep the order of their keys.
        let (redriven, of_log): (Vec<_>, Vec<_>) = latest.into_iter().partition(|(_, latest)| latest.redriven);
        for (offset, latest) in of_log.into_iter().chain(redriven) {
            state.found(offset, latest, end);
        }
        Ok(state)
    }
}

impl GroupState {
    /// Puts a message with failures (or a redriven one) where it belongs.
    fn found(&mut self, offset: u64, latest: Latest, end: u64) {
        let Latest { attempts, due, at, key, rejected, redriven } = latest;
        if redriven {
            self.redriven.insert(offset);
        } else if self.is_done(offset) || offset >= end {
            // It was done, or its end of the log was lost, before its failures could be deleted.
            self.unflushed.forget(offset, offset + 1);
            return;
        } else {
            self.taken.insert(offset, offset + 1);
        }
        let waiting = Waiting { attempts, due, redelivered: true };
        let dying = rejected || attempts >= self.rules.max_attempts;
        let key = key.filter(|_| self.rules.ordered);
        // Of the messages of one key only one of the log has failed, and it is current again. A redriven one that finds it
        // so is held, unless it is dying: then it is delivered no more.
        let held = key.is_some_and(|key| !self.order.admit(offset, key, waiting));
        if dying {
            if held {
                self.order.unhold(offset);
            }
            self.dying.insert(offset, Dying { attempts, at });
        } else if !held {
            self.waiting.insert(offset, waiting);
        }
    }
}
