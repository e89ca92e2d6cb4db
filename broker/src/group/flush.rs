//! Durability: which rows a `Change` must carry so that the group survives as it is.
//!
//! Invariants:
//! - a message's failures are deleted no earlier than its being done is written: a crash in between leaves it with its
//!   attempts, never without; and what is to be deleted goes before what is written anew;
//! - a row that a refused change carried stays to be written;
//! - the bits of a chunk's row below the floor mean nothing.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use stentor_core::storage::{Key, KeyRange};
use stentor_core::{GroupName, Offset};

use super::letters::{Moves, Purge, Redrive};
use super::ranges::RangeSet;
use super::rows::{self, CHUNK, Cursor, Failure};
use super::waiting::Waiting;
use super::{GroupState, HORIZON_STEP, Now, REASONS_MAX, UNFLUSHED_FAILURES_MAX, keys};

/// Rows for one `Change`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flush {
    pub puts: Vec<(Key, Bytes)>,
    pub deletes: Vec<KeyRange>,
    /// To be handed to [`GroupState::horizon_durable`] once the change is durable.
    pub horizon: Offset,
    /// Whether nothing dirty is left behind for want of room (`bytes_max`): then all that was settled before the flush
    /// is durable when the change is.
    pub complete: bool,
}

/// What is not written yet.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    pub(super) cursor: bool,
    /// The chunks whose rows lag behind.
    chunks: BTreeSet<u64>,
    /// The chunks that may have a row.
    stored: BTreeSet<u64>,
    /// The rows of all chunks are void: the group was sought.
    restarted: bool,
    /// By offset and attempt.
    failures: BTreeMap<(u64, u32), Failure>,
    /// The offsets whose failures are to be deleted.
    forget: RangeSet,
    /// The offsets whose redriven messages are to be deleted.
    pub(super) redriven: BTreeSet<u64>,
    in_doubt: Option<Box<InDoubt>>,
}

/// A flush that was handed out and whose fate is not known.
#[derive(Debug)]
struct InDoubt {
    /// What it took out of the unflushed: back it goes if the change is refused.
    taken: Unflushed,
    moves: Moves,
    horizon: u64,
    dead_letters: u64,
}

impl Unflushed {
    /// `start..end` of the log was marked done above the floor.
    pub(super) fn touch(&mut self, start: u64, end: u64) {
        self.chunks.extend(start / CHUNK..end.div_ceil(CHUNK));
    }

    pub(super) fn fail(&mut self, offset: u64, attempt: u32, failure: Failure) {
        self.failures.insert((offset, attempt), failure);
    }

    pub(super) fn failures(&self) -> usize {
        self.failures.len()
    }

    pub(super) fn failures_of(&self, offset: u64) -> impl Iterator<Item = (u32, &Failure)> + '_ {
        self.failures.range((offset, 0)..=(offset, u32::MAX)).map(|((_, attempt), failure)| (*attempt, failure))
    }

    /// The failures of `start..end` no longer count.
    pub(super) fn forget(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.forget.insert(start, end);
        while let Some(key) = self.failures.range((start, 0)..(end, 0)).next().map(|(key, _)| *key) {
            self.failures.remove(&key);
        }
    }

    pub(super) fn forgets(&self, offset: u64) -> bool {
        self.forget.contains(offset)
    }

    /// The group was sought: no chunk is as it was.
    pub(super) fn restart(&mut self) {
        self.cursor = true;
        self.chunks.clear();
        self.restarted = true;
    }

    /// A row of this chunk was found.
    pub(super) fn found(&mut self, chunk: u64) {
        self.stored.insert(chunk);
    }

    /// Moves what is pending of `offset` over to `taken`: another part of the flush sees to it.
    fn set_aside(&mut self, offset: u64, taken: &mut Self) {
        if self.forget.contains(offset) {
            self.forget.remove(offset, offset + 1);
            taken.forget.insert(offset, offset + 1);
        }
        if self.redriven.remove(&offset) {
            taken.redriven.insert(offset);
        }
        while let Some(key) = self.failures.range((offset, 0)..=(offset, u32::MAX)).next().map(|(key, _)| *key) {
            taken.failures.extend(self.failures.remove(&key).map(|failure| (key, failure)));
        }
    }

    /// Takes back what a refused flush had taken.
    fn restore(&mut self, taken: Self) {
        self.cursor |= taken.cursor;
        self.chunks.extend(taken.chunks);
        self.stored.extend(taken.stored);
        self.restarted |= taken.restarted;
        self.redriven.extend(taken.redriven);
        for (key, failure) in taken.failures {
            if !self.forget.contains(key.0) {
                self.failures.entry(key).or_insert(failure);
            }
        }
        for (start, end) in taken.forget.iter() {
            self.forget.insert(start, end);
        }
    }

    fn write_failures(&mut self, group: &GroupName, mut left: usize, taken: &mut Self, flush: &mut Flush) {
        while let Some((start, end)) = self.forget.first() {
            if left == 0 {
                return;
            }
            let range = keys::failures(group, start, end);
            left = left.saturating_sub(2 * range.start.0.len());
            flush.deletes.push(range);
            self.forget.remove(start, end);
            taken.forget.insert(start, end);
        }
        while let Some(offset) = self.redriven.pop_first() {
            flush.deletes.push(KeyRange::single(&keys::redriven_key(group, Offset(offset))));
            taken.redriven.insert(offset);
        }
        while left > 0
            && let Some(((offset, attempt), failure)) = self.failures.pop_first()
        {
            // Attempt 0 marks a redriven message; the rows of later attempts say so too.
            if let Some(old) = attempt.checked_sub(REASONS_MAX) {
                flush.deletes.push(KeyRange::single(&keys::failure(group, offset, old)));
            }
            let (key, value) = (keys::failure(group, offset, attempt), failure.encode());
            left = left.saturating_sub(key.0.len() + value.len());
            flush.puts.push((key, value));
            taken.failures.insert((offset, attempt), failure);
        }
    }

    fn is_dirty(&self) -> bool {
        self.cursor
            || !self.chunks.is_empty()
            || self.restarted
            || !self.failures.is_empty()
            || !self.forget.is_empty()
            || !self.redriven.is_empty()
    }
}

impl GroupState {
    /// Whether there is anything to write.
    pub(crate) fn is_dirty(&self) -> bool {
        self.unflushed.is_dirty() || self.horizon() != self.reach.written
    }

    /// Whether dispatch waits for a flush (the horizon is used up, or too many failures are unwritten): flush at once,
    /// not at the next tick. `end` is the end of the readable log.
    pub(crate) fn must_flush(&self, end: Offset) -> bool {
        let from = self.first_untouched();
        let blocked = from < end.0 && from >= self.reach.durable && from >= self.reach.written;
        !self.sealed && (blocked || self.unflushed.failures() >= UNFLUSHED_FAILURES_MAX)
    }

    /// What the horizon should be: a step ahead of the cursor once half of the last step is used up, and never less than
    /// it was, but for an orderly shutdown.
    fn horizon(&self) -> u64 {
        if self.sealed {
            return self.reach.delivered.max(self.reach.redelivered_below);
        }
        let reached = self.next.max(self.reach.redelivered_below);
        let ahead = reached.saturating_add(HORIZON_STEP);
        if reached.saturating_add(HORIZON_STEP / 2) > self.reach.written { ahead } else { self.reach.written }
    }

    /// The rows that make the state and `moves` durable. Bookkeeping beyond about `bytes_max` stays for the next flush;
    /// `moves` are always whole. To be followed by [`flushed`](Self::flushed) once `commit` has taken the change, or by
    /// [`refused`](Self::refused) when it refused it, before anything else is done to the group.
    pub(crate) fn flush(&mut self, bytes_max: usize, moves: Moves, now: Now) -> Flush {
        // A flush whose fate was never told counts as refused.
        self.refused();
        let mut taken = Unflushed::default();
        let horizon = self.horizon();
        let mut flush = Flush { horizon: Offset(horizon), ..Flush::default() };

        let dead_letters = self.write_moves(&moves, now, &mut taken, &mut flush);
        taken.cursor = std::mem::take(&mut self.unflushed.cursor);
        if taken.cursor || horizon != self.reach.written || !moves.is_empty() {
            let Self { floor, paused, .. } = *self;
            let cursor = Cursor { floor, begun: self.reach.begun, horizon, dead_letters, paused };
            flush.puts.push((keys::cursor(&self.name), cursor.encode()));
        }
        let left = self.write_chunks(&moves, bytes_max, &mut taken, &mut flush);
        if self.unflushed.chunks.is_empty() {
            self.unflushed.write_failures(&self.name, left, &mut taken, &mut flush);
        }
        flush.complete = !self.unflushed.is_dirty();
        self.unflushed.in_doubt = Some(Box::new(InDoubt { taken, moves, horizon, dead_letters }));
        flush
    }

    /// The letters' rows; returns how many letters there are afterwards.
    fn write_moves(&mut self, moves: &Moves, now: Now, taken: &mut Unflushed, flush: &mut Flush) -> u64 {
        let mut dead_letters = self.dead_letters;
        if let Some(Purge { range, letters }) = &moves.purge {
            flush.deletes.push(range.clone());
            dead_letters = dead_letters.saturating_sub(*letters);
        }
        let purged = |key: &Key| moves.purge.as_ref().is_some_and(|purge| purge.range.contains(key));
        for Redrive { offset, key, value } in &moves.redrive {
            let letter = keys::dead_letter_key(&self.name, *offset);
            dead_letters = dead_letters.saturating_sub(u64::from(!purged(&letter)));
            flush.deletes.push(KeyRange::single(&letter));
            if self.takes_back(offset.0) {
                // The attempts of its earlier life are told by the reasons in the letter.
                flush.deletes.push(keys::failures_range(&self.name, *offset));
                self.unflushed.set_aside(offset.0, taken);
                flush.puts.push((keys::redriven_key(&self.name, *offset), value.clone()));
                flush.puts.push((keys::failure(&self.name, offset.0, 0), redriven_mark(*key, now).encode()));
            }
        }
        for burial in moves.bury.iter().filter(|burial| self.dying.contains_key(&burial.offset.0)) {
            flush.deletes.push(keys::failures_range(&self.name, burial.offset));
            self.unflushed.set_aside(burial.offset.0, taken);
            if self.redriven.contains(&burial.offset.0) {
                flush.deletes.push(KeyRange::single(&keys::redriven_key(&self.name, burial.offset)));
            }
            let letter = keys::dead_letter_key(&self.name, burial.offset);
            dead_letters += u64::from(!burial.replaces || purged(&letter));
            flush.puts.push((letter, burial.letter.encode()));
        }
        dead_letters
    }

    /// The chunks that lag behind, and in any case those of the burials: what is buried is done in the same change. The
    /// floor is left to the next flush, since a refused change must be undone by doing nothing. Returns what is left of
    /// `bytes_max`.
    fn write_chunks(&mut self, moves: &Moves, bytes_max: usize, taken: &mut Unflushed, flush: &mut Flush) -> usize {
        let mut buried = RangeSet::default();
        for offset in moves.bury.iter().map(|burial| burial.offset.0) {
            if self.dying.contains_key(&offset) && !self.redriven.contains(&offset) {
                buried.insert(offset, offset + 1);
            }
        }
        let unflushed = &mut self.unflushed;
        let group: &GroupName = &self.name;
        taken.restarted = std::mem::take(&mut unflushed.restarted);
        if taken.restarted {
            flush.deletes.push(keys::all_chunks(group));
            taken.stored.append(&mut unflushed.stored);
        }
        // Rows that the floor has left behind.
        let lowest = self.floor / CHUNK;
        if unflushed.stored.first().is_some_and(|first| *first < lowest) {
            flush.deletes.push(keys::chunks(group, 0, lowest));
            let above = unflushed.stored.split_off(&lowest);
            taken.stored.append(&mut unflushed.stored);
            unflushed.stored = above;
        }
        unflushed.chunks = unflushed.chunks.split_off(&lowest);

        let urgent: BTreeSet<u64> = buried.iter().flat_map(|(start, end)| start / CHUNK..end.div_ceil(CHUNK)).collect();
        let others: Vec<u64> = unflushed.chunks.difference(&urgent).copied().collect();
        let mut left = bytes_max;
        for (chunk, urgent) in urgent.iter().map(|chunk| (*chunk, true)).chain(others.into_iter().map(|c| (c, false))) {
            if !urgent && left == 0 {
                break;
            }
            unflushed.chunks.remove(&chunk);
            taken.chunks.insert(chunk);
            let (start, end) = (chunk.saturating_mul(CHUNK), chunk.saturating_add(1).saturating_mul(CHUNK));
            let done = self.done.within(start.max(self.floor), end).chain(buried.within(start, end));
            if let Some(value) = rows::encode_chunk(start, done) {
                left = left.saturating_sub(value.len());
                flush.puts.push((keys::chunk(group, chunk), value));
                unflushed.stored.insert(chunk);
            } else if unflushed.stored.remove(&chunk) {
                taken.stored.insert(chunk);
                flush.deletes.push(KeyRange::single(&keys::chunk(group, chunk)));
            }
        }
        left
    }

    /// Whether the letter of `offset`, redriven, becomes a message of the group again. The log may owe the message
    /// anyway, once the group was sought back over it; then there is nothing but the letter to be taken away.
    fn takes_back(&self, offset: u64) -> bool {
        self.is_done(offset) && !self.redriven.contains(&offset)
    }

    /// A letter has become a message of the group again.
    fn take_back(&mut self, offset: u64, key: Option<u64>) {
        self.redriven.insert(offset);
        let waiting = Waiting { attempts: 0, due: Waiting::AT_ONCE, redelivered: true };
        let key = key.filter(|_| self.rules.ordered);
        if key.is_none_or(|key| self.order.admit(offset, key, waiting)) {
            self.waiting.insert(offset, waiting);
        }
    }

    /// The change with the rows of the last flush was taken by `commit` (its receipt may still be out: if it fails, the
    /// partition fails as a whole).
    pub(crate) fn flushed(&mut self) {
        let Some(told) = self.unflushed.in_doubt.take() else { return };
        self.reach.written = told.horizon;
        self.dead_letters = told.dead_letters;
        for redrive in told.moves.redrive {
            if self.takes_back(redrive.offset.0) {
                self.take_back(redrive.offset.0, redrive.key);
            }
        }
        for Offset(offset) in told.moves.bury.iter().map(|burial| burial.offset) {
            if self.dying.remove(&offset).is_none() {
                continue;
            }
            // The rows of its failures went with the change.
            if self.redriven.remove(&offset) {
                self.pass_on(offset, offset + 1);
            } else {
                self.finish(offset, offset + 1, false);
            }
        }
    }

    /// The change was refused: all of it stays to be written, and the moves did not happen.
    pub(crate) fn refused(&mut self) {
        if let Some(told) = self.unflushed.in_doubt.take() {
            self.unflushed.restore(told.taken);
        }
    }

    /// The change that carried this horizon is durable: dispatch may go on up to there.
    pub(crate) fn horizon_durable(&mut self, to: Offset) {
        // What was committed before a seek says nothing about the time after it.
        self.reach.durable = self.reach.durable.max(to.0.min(self.reach.written));
    }

    /// Before an orderly shutdown: draws the horizon back to what was really delivered, so that nothing else says
    /// `redelivered` afterwards. Nothing is leased any more; a flush must follow.
    pub(crate) const fn seal(&mut self) {
        self.sealed = true;
    }
}

/// The row that marks a redriven message before its first new failure.
fn redriven_mark(key: Option<u64>, now: Now) -> Failure {
    Failure { due: Waiting::AT_ONCE, at: now.wall, key, rejected: false, redriven: true, reason: "".into() }
}
