//! The state of one group on one partition: what it owes, to whom it is leased, what waits to be tried again.
//!
//! Pure logic: no I/O, no clock, no tasks. The partition's task owns it, tells it the time, fetches the batches that it
//! [wants](GroupState::wants), hands them in by [`offer`](GroupState::offer), and writes the rows of
//! [`flush`](GroupState::flush).
//!
//! Every offset of the log is in exactly one state:
//!
//! | state | where |
//! |---|---|
//! | done: acknowledged, filtered out, dead-lettered, skipped | below `floor`, or in the done ranges above it |
//! | leased | a piece of a grant of one consumer |
//! | waiting: to be tried again, given back, or next of its key | the waiting table, by offset and by due time |
//! | held behind an earlier message of its key (ordered groups) | the queue of its key |
//! | dying: out of attempts or rejected, not yet in the dead letters | the deaths |
//! | untouched | `next` and above |
//!
//! A *redriven* message comes from the table instead of the log. Its offset is done as far as the log goes, so that an
//! offset never means two messages; apart from where its bytes come from it is like any waiting or leased one.
//!
//! Invariants:
//! - `floor ≤ next`, `floor ≤ end of the log`; `floor` itself is owed or untouched; nothing at or above the *durable*
//!   horizon is leased;
//! - at most one consumer holds a message; of an ordered group, at most one message of a key is leased, waiting or dying,
//!   and it is the oldest one owed;
//! - memory is bounded by [`IN_FLIGHT_MAX`], `retrying_max` and [`UNFLUSHED_FAILURES_MAX`], never by the backlog:
//!   between `floor` and `next` there are at most so many holes, and done is kept as ranges;
//! - what was flushed as done never returns; everything else does, whatever crashes.

use std::time::Duration;

use bytes::Bytes;
use stentor_core::storage::{Key, KeyRange};
use stentor_core::{GroupName, Monotonic, Offset, OffsetRange, Timestamp};

/// The most messages of one group and partition that consumers may hold together. Beyond it nothing new is leased.
pub(crate) const IN_FLIGHT_MAX: u64 = 1 << 18;

/// How many failures may wait to be written. Beyond it the group is offered nothing until a flush has caught up: a
/// group that refuses everything slows itself down, and its memory stays bounded.
pub(crate) const UNFLUSHED_FAILURES_MAX: usize = 1 << 16;

/// How far ahead of the cursor the horizon is written.
pub(crate) const HORIZON_STEP: u64 = 1 << 16;

/// The longest reason that is kept, in bytes of UTF-8; longer ones are cut.
pub(crate) const REASON_BYTES_MAX: usize = 256;

/// How many reasons of one message are kept: the latest ones.
pub(crate) const REASONS_MAX: u32 = 32;

/// A consumer, by its number on this node. Numbers are never used twice while the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConsumerId(pub u64);

/// Now, on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// Due times go by it.
    pub wall: Timestamp,
    /// Leases go by it.
    pub monotonic: Monotonic,
}

/// What the group's settings say about delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// How long a consumer holds a message before it comes back.
    pub lease: Duration,
    /// With so many failed attempts a message goes to the dead letters; at least 1.
    pub max_attempts: u32,
    /// The pause after the first failure; it doubles with each further one …
    pub retry_delay: Duration,
    /// … up to this.
    pub retry_delay_max: Duration,
    /// With so many messages waiting for another try or for their key, new ones stay in the log.
    pub retrying_max: u32,
    /// Whether messages of one key are delivered one at a time, in order.
    pub ordered: bool,
}

/// What the group would take next; see [`GroupState::wants`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// The batch of the log that holds this offset, for [`GroupState::offer`]: a message waiting there is due.
    Due(Offset),
    /// The redriven message at this offset (the row [`redriven_key`]), for [`GroupState::offer_redriven`]: it is due.
    Redriven(Offset),
    /// The batch of the log that holds this offset (or begins there), for [`GroupState::offer`]: new messages.
    Log(Offset),
    /// Nothing until time passes ([`GroupState::next_due`]), something is settled, a flush is done
    /// ([`GroupState::must_flush`]), or messages arrive.
    Nothing,
}

/// A batch as the group needs to see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    /// The offsets of its messages.
    pub offsets: OffsetRange,
    /// What it takes on the wire, in bytes; shared out evenly among its messages for the credit.
    pub bytes: u32,
    /// What the group's filter lets through; none: everything.
    pub matching: Option<&'a crate::filter::Mask>,
    /// Needed when the group is ordered: for each message the hash of its key, none for a message without one.
    pub keys: Option<&'a [Option<u64>]>,
}

/// How much a consumer still takes. Messages are exact; the last message may overdraw the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credit {
    pub messages: u32,
    pub bytes: u64,
}

/// Messages leased by one offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leased {
    /// The offsets, contiguous.
    pub offsets: OffsetRange,
    /// 1 for the first known delivery.
    pub attempt: u32,
    /// Whether it may have been delivered before.
    pub redelivered: bool,
}

/// How a consumer refuses a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Try again: after `delay`, or after the group's growing one.
    Retry { delay: Option<Duration> },
    /// Straight to the dead letters.
    Reject,
    /// It was never looked at: comes back at once, and the attempt does not count.
    Release,
}

/// The message is held by another consumer, or done with: `LEASE_LOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is held by another consumer, or done with")]
pub(crate) struct LeaseLost;

/// A message that is to go to the dead letters; see [`GroupState::deaths`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    pub offset: Offset,
    /// How often it was tried.
    pub attempts: u32,
    /// When the last attempt failed.
    pub at: Timestamp,
    /// Whether its bytes lie in the row [`redriven_key`] rather than in the log.
    pub redriven: bool,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    pub attempt: u32,
    pub at: Timestamp,
    pub text: String,
}

/// A dead letter, as it lies in the row [`dead_letter_key`] and, once redriven, in the row [`redriven_key`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadLetter {
    pub attempts: u32,
    pub dead_at: Timestamp,
    /// In the order of the attempts; those of earlier lives (before a redrive) first.
    pub reasons: Vec<Reason>,
    /// The message as a batch of one record, encoded, its base offset that of the message.
    pub batch: Bytes,
}

/// What moves between the group and its dead letters in one flush, in the same `Change` as the rows that belong to it.
/// It takes effect with [`GroupState::flushed`]; after [`GroupState::refused`] all is as before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moves {
    /// Deaths with the letter for each.
    pub bury: Vec<Burial>,
    /// Letters given back to the group. At most [`GroupState::redrive_room`].
    pub redrive: Vec<Redrive>,
    /// Drop all dead letters (not those redriven already).
    pub purge: bool,
}

/// A death that becomes a dead letter.
#[derive(Clone, Debug)]
pub(crate) struct Burial {
    pub offset: Offset,
    pub letter: DeadLetter,
    /// Whether the row [`dead_letter_key`] exists already (the group was sought back over it): it is replaced, so that
    /// the letters are counted right.
    pub replaces: bool,
}

/// A dead letter that goes back to the group.
#[derive(Clone, Debug)]
pub(crate) struct Redrive {
    pub offset: Offset,
    /// The hash of its key, as in [`Batch::keys`].
    pub key: Option<u64>,
    /// The value of its row, moved as it is.
    pub value: Bytes,
}

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

/// What is known of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// Not yet delivered; perhaps the filter will exclude it.
    Untouched,
    /// Held back: an earlier message of its key is not done.
    Held,
    Leased {
        consumer: ConsumerId,
        until: Monotonic,
        attempt: u32,
    },
    /// Waiting until `due`, after so many failed attempts.
    Waiting {
        due: Timestamp,
        attempts: u32,
    },
    /// On its way to the dead letters.
    Dying {
        attempts: u32,
    },
    /// Acknowledged, filtered out, dead-lettered or skipped.
    Done,
}

/// A row of the group cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RowError {
    #[error("a row of group {group} ({row}) has version {version}, which this version of stentor does not know")]
    Version { group: String, row: &'static str, version: u8 },
    #[error("a row of group {group} ({row}) is damaged: {detail}")]
    Damaged { group: String, row: &'static str, detail: &'static str },
    #[error("group {0} has no cursor row")]
    NoCursor(String),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct GroupState {
    name: GroupName,
    rules: Rules,
}

/// Builds a [`GroupState`] from its rows: those of [`state_ranges`], each range scanned in ascending order, in pages of
/// any size.
#[derive(Debug)]
pub(crate) struct Loading {
    name: GroupName,
    rules: Rules,
}

impl Loading {
    pub(crate) fn new(name: GroupName, rules: Rules) -> Self {
        Self { name, rules }
    }

    /// Takes one row.
    pub(crate) fn row(&mut self, key: &Key, value: &Bytes) -> Result<(), RowError> {
        todo!()
    }

    /// All rows are in. `log` are the bounds of the log as it was opened. Messages that went below its start while owed
    /// are counted by [`GroupState::trimmed`], which is to be called next.
    pub(crate) fn finish(self, log: OffsetRange) -> Result<GroupState, RowError> {
        todo!()
    }
}

impl GroupState {
    /// A new group that begins at `at`. It exists once its first flush is durable.
    pub(crate) fn new(name: GroupName, rules: Rules, at: Offset) -> Self {
        todo!()
    }

    /// Other settings, from now on. `ordered` cannot change once messages are in flight: the rest is taken.
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        todo!()
    }

    // ---- what it is -----------------------------------------------------------------------------------------------

    pub(crate) fn name(&self) -> &GroupName {
        &self.name
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The first offset that is not done: nothing below is needed in the log.
    pub(crate) fn floor(&self) -> Offset {
        todo!()
    }

    /// Where new messages are taken from next; for read-ahead.
    pub(crate) fn next(&self) -> Offset {
        todo!()
    }

    /// Messages not done with, in a log that ends at `end`, and the redriven ones; in flight and retrying included.
    pub(crate) fn backlog(&self, end: Offset) -> u64 {
        todo!()
    }

    /// Messages held by consumers.
    pub(crate) fn in_flight(&self) -> u64 {
        todo!()
    }

    /// Messages that wait for another try after a failure.
    pub(crate) fn retrying(&self) -> u64 {
        todo!()
    }

    pub(crate) fn dead_letters(&self) -> u64 {
        todo!()
    }

    /// The oldest message of the log that is owed (the age of the group goes by its batch's time of storing).
    pub(crate) fn oldest_owed(&self, end: Offset) -> Option<Offset> {
        todo!()
    }

    pub(crate) fn whereabouts(&self, offset: Offset) -> Whereabouts {
        todo!()
    }

    // ---- serving --------------------------------------------------------------------------------------------------

    /// What the group would take next, given credit. What is due comes first. `end` is the end of the readable log.
    pub(crate) fn wants(&self, now: Now, end: Offset) -> Want {
        todo!()
    }

    /// When the next waiting message comes due, if that lies ahead or has come.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        todo!()
    }

    /// When the next lease runs out.
    pub(crate) fn next_deadline(&self) -> Option<Monotonic> {
        todo!()
    }

    /// Leases to `consumer` what is due in `batch` and then what is new in it, as far as `credit` goes; appends what was
    /// leased to `leased`, in the order of the offsets. Messages that the filter excludes are done with as the cursor
    /// passes them. Nothing happens when the batch is not (or no longer) wanted.
    pub(crate) fn offer(
        &mut self,
        batch: Batch<'_>,
        consumer: ConsumerId,
        credit: Credit,
        now: Now,
        leased: &mut Vec<Leased>,
    ) {
        todo!()
    }

    /// Leases the redriven message at `offset` to `consumer`, if it is still due.
    pub(crate) fn offer_redriven(&mut self, offset: Offset, consumer: ConsumerId, now: Now) -> Option<Leased> {
        todo!()
    }

    // ---- settling -------------------------------------------------------------------------------------------------

    /// `consumer` is done with the messages of `span`. Also taken for what is owed and held by nobody (its lease has run
    /// out, the broker was restarted). The parts that another consumer holds, that are done already or that were never
    /// delivered are appended to `lost`. Returns how many are newly done.
    pub(crate) fn ack(&mut self, consumer: ConsumerId, span: OffsetRange, lost: &mut Vec<OffsetRange>) -> u64 {
        todo!()
    }

    /// `consumer` refuses a message that it holds. The reason is cut to [`REASON_BYTES_MAX`].
    pub(crate) fn refuse(
        &mut self,
        consumer: ConsumerId,
        offset: Offset,
        refusal: &Refusal,
        reason: &str,
        now: Now,
        rng: &mut fastrand::Rng,
    ) -> Result<(), LeaseLost> {
        todo!()
    }

    /// `consumer` keeps what it holds of `span` until `until`; the rest is appended to `lost`.
    pub(crate) fn extend(
        &mut self,
        consumer: ConsumerId,
        span: OffsetRange,
        until: Monotonic,
        lost: &mut Vec<OffsetRange>,
    ) {
        todo!()
    }

    /// The consumer is gone: what it holds returns at once, and the attempt counts. Returns how many messages.
    pub(crate) fn remove_consumer(&mut self, consumer: ConsumerId, reason: &str, now: Now) -> u64 {
        todo!()
    }

    /// The consumer gives back all that it holds: it returns at once, and the attempt does not count. Returns how many.
    pub(crate) fn release_consumer(&mut self, consumer: ConsumerId) -> u64 {
        todo!()
    }

    /// Leases that have run out return at once, and the attempt counts. Returns how many messages.
    pub(crate) fn expire(&mut self, now: Now) -> u64 {
        todo!()
    }

    // ---- dead letters ---------------------------------------------------------------------------------------------

    /// What is to go to the dead letters: neither delivered nor done until a flush with its [`Burial`] is done. Its
    /// message and its reasons ([`reasons`](Self::reasons)) are for the caller to fetch.
    pub(crate) fn deaths(&self) -> impl Iterator<Item = Death> {
        std::iter::empty()
    }

    /// The reasons of the message at `offset`, in the order of the attempts: those in its rows ([`failures_range`]), and
    /// those that are not written yet.
    pub(crate) fn reasons(&self, offset: Offset, rows: &[(Key, Bytes)]) -> Result<Vec<Reason>, RowError> {
        todo!()
    }

    /// How many letters may be redriven right now.
    pub(crate) fn redrive_room(&self) -> usize {
        todo!()
    }

    // ---- steering -------------------------------------------------------------------------------------------------

    /// Everything below `to` is done, everything from there on is owed afresh, and what was delivered before says
    /// `redelivered`. Leases are taken back, retries forgotten, `to` is held inside `log`. Redriven messages below `to`
    /// stay; one from there on is dropped, since the log owes it again.
    pub(crate) fn seek(&mut self, to: Offset, log: OffsetRange) {
        todo!()
    }

    pub(crate) fn paused(&self) -> bool {
        todo!()
    }

    pub(crate) fn pause(&mut self, paused: bool) {
        todo!()
    }

    /// The log now starts at `start`: what lay below is done with. Returns how many messages were owed there.
    pub(crate) fn trimmed(&mut self, start: Offset) -> u64 {
        todo!()
    }

    // ---- durability -----------------------------------------------------------------------------------------------

    /// Whether there is anything to write.
    pub(crate) fn is_dirty(&self) -> bool {
        todo!()
    }

    /// Whether dispatch waits for a flush (the horizon is used up, or too many failures are unwritten): flush at once,
    /// not at the next tick. `end` is the end of the readable log.
    pub(crate) fn must_flush(&self, end: Offset) -> bool {
        todo!()
    }

    /// The rows that make the state and `moves` durable. Bookkeeping beyond about `bytes_max` stays for the next flush;
    /// `moves` are always whole. To be followed by [`flushed`](Self::flushed) once `commit` has taken the change, or by
    /// [`refused`](Self::refused) when it refused it, before anything else is done to the group.
    pub(crate) fn flush(&mut self, bytes_max: usize, moves: Moves, now: Now) -> Flush {
        todo!()
    }

    /// The change with the rows of the last flush was taken by `commit` (its receipt may still be out: if it fails, the
    /// partition fails as a whole).
    pub(crate) fn flushed(&mut self) {
        todo!()
    }

    /// The change was refused: all of it stays to be written, and the moves did not happen.
    pub(crate) fn refused(&mut self) {
        todo!()
    }

    /// The change that carried this horizon is durable: dispatch may go on up to there.
    pub(crate) fn horizon_durable(&mut self, to: Offset) {
        todo!()
    }

    /// Before an orderly shutdown: draws the horizon back to what was really delivered, so that nothing else says
    /// `redelivered` afterwards. Nothing is leased any more; a flush must follow.
    pub(crate) fn seal(&mut self) {
        todo!()
    }
}

/// The ranges of rows that [`Loading`] wants: the state without the bodies of dead letters and redriven messages.
pub(crate) fn state_ranges(group: &GroupName) -> Vec<KeyRange> {
    todo!()
}

/// All rows of the group, to delete it.
pub(crate) fn group_range(group: &GroupName) -> KeyRange {
    todo!()
}

/// All dead letters of the group, in the order of their offsets.
pub(crate) fn dead_letters_range(group: &GroupName) -> KeyRange {
    todo!()
}

/// The row of a dead letter; the value is a [`DeadLetter`].
pub(crate) fn dead_letter_key(group: &GroupName, offset: Offset) -> Key {
    todo!()
}

/// The offset that a key of [`dead_letters_range`] is for.
pub(crate) fn dead_letter_offset(group: &GroupName, key: &Key) -> Option<Offset> {
    todo!()
}

/// The row of a redriven message; the value is a [`DeadLetter`].
pub(crate) fn redriven_key(group: &GroupName, offset: Offset) -> Key {
    todo!()
}

/// The rows that say why attempts at this message failed.
pub(crate) fn failures_range(group: &GroupName, offset: Offset) -> KeyRange {
    todo!()
}

impl DeadLetter {
    pub(crate) fn encode(&self) -> Bytes {
        todo!()
    }

    pub(crate) fn decode(group: &GroupName, value: &Bytes) -> Result<Self, RowError> {
        todo!()
    }
}
