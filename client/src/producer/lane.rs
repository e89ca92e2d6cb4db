//! What is under way to one partition, and what may be concluded about it.
//!
//! # The rules
//!
//! Batches to a partition carry sequences, contiguous from 0 within an *epoch*. The broker stores a batch only if the one
//! before it in the epoch is stored, answers a repeat with the first receipt, and refuses every batch of an epoch older
//! than one that it has seen.
//!
//! 1. *Doubt.* A batch is in doubt **here** once it was sent, in the present epoch, and the stream was lost before an
//!    answer, or the answer left it open. A refusal of a later try does not clear the doubt about an earlier one. Only a
//!    receipt does, or one of the next two rules.
//! 2. *Contiguity.* Behind a batch that is certainly not stored here, nothing of the epoch is stored here. So when a batch
//!    was refused without being in doubt, the doubt about those behind it is cleared.
//! 3. *Gap.* `SEQUENCE_GAP` for the first batch that is in doubt means that the broker has less than what lies before it,
//!    so it is not stored here either.
//! 4. *Forgotten.* `PRODUCER_UNKNOWN` for a batch in doubt means that the place can no longer tell. The doubt stays for
//!    ever (it is in doubt **elsewhere**), and sending it again may store it twice.
//! 5. *Settling.* After a refusal nothing more is sent until all that is under way is answered. Then: what is in doubt
//!    here stays, in front, with its sequences; what is not stored here leaves for another partition, or stays behind
//!    what is in doubt.
//! 6. *New epoch.* A sequence that has been on the wire is never given to another batch: whoever knows what might still
//!    come out of an old connection's buffers? When a batch has left the row, the rest waits until nothing is in doubt
//!    here, and starts a new epoch at 0; so the broker fences off whatever is left of the old one.
//!
//! Invariants: `unanswered` holds, in the order of their sequences, what was sent in the present epoch and is not known
//! to be stored; a batch in it is `Sent`, or `Queued` to be sent again under the same sequence, or `Refused` until the
//! lane settles.

use std::collections::VecDeque;
use std::time::Duration;

use stentor_core::batch::Sequenced;
use stentor_core::{Monotonic, ProducerId, RecordBatch};
use stentor_protocol::error::{ErrorCode, Verdict};

use super::pending::{Placed, Ticket};
use super::settings::InDoubt;
use crate::backoff::{Backoff, RETRY};
use crate::error::{BrokerError, SendError};

/// A batch on its way.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) batch: RecordBatch,
    pub(super) ticket: Ticket,
    /// Whether it may go to another partition.
    pub(super) movable: bool,
    /// When the producer gives it up.
    pub(super) expires_at: Monotonic,
    flight: Flight,
    /// Whether it may be stored in the partition and epoch that it is in.
    doubt_here: bool,
    /// Whether it may be stored in another partition, or epoch.
    doubt_elsewhere: bool,
    in_doubt_since: Option<Monotonic>,
    refused_since: Option<Monotonic>,
    last: Option<BrokerError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    /// To be sent.
    Queued,
    /// Sent under this request number, and not answered.
    Sent(u64),
    /// Answered with the error in `last`.
    Refused,
}

impl Entry {
    pub(super) const fn new(batch: RecordBatch, ticket: Ticket, movable: bool, expires_at: Monotonic) -> Self {
        Self {
            batch,
            ticket,
            movable,
            expires_at,
            flight: Flight::Queued,
            doubt_here: false,
            doubt_elsewhere: false,
            in_doubt_since: None,
            refused_since: None,
            last: None,
        }
    }

    fn doubt(&mut self, now: Monotonic) {
        self.doubt_here = true;
        self.in_doubt_since.get_or_insert(now);
    }

    /// It leaves the place where it may be stored.
    fn leave(&mut self) {
        self.doubt_elsewhere |= std::mem::take(&mut self.doubt_here);
        self.in_doubt_since = None;
        self.flight = Flight::Queued;
    }

    fn code(&self) -> Option<ErrorCode> {
        self.last.as_ref().filter(|_| self.flight == Flight::Refused).map(|error| error.code)
    }

    /// The end of trying.
    fn given_up(&self, otherwise: impl FnOnce() -> BrokerError) -> SendError {
        let reason = self.last.clone().unwrap_or_else(otherwise);
        let doubt = self.doubt_here || self.doubt_elsewhere || matches!(self.flight, Flight::Sent(_));
        match reason.verdict() {
            _ if doubt => SendError::OutcomeUnknown { reason },
            Verdict::Refused => SendError::Refused(reason),
            _ => SendError::NotStored { reason },
        }
    }

    /// Gives it up if its time is over.
    pub(super) fn expire(&mut self, now: Monotonic, retry_for: Duration) {
        let tried_enough = self.refused_since.is_some_and(|since| since.after(retry_for) <= now)
            && !self.doubt_here
            && !self.doubt_elsewhere;
        if !self.ticket.is_resolved() && (self.expires_at <= now || tried_enough) {
            let error = self.given_up(|| BrokerError::new(ErrorCode::Timeout, "no answer in time"));
            self.ticket.resolve(Err(error));
        }
    }
}

/// How doubts and refusals are dealt with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) in_doubt: InDoubt,
    pub(super) in_doubt_timeout: Duration,
    pub(super) retry_for: Duration,
}

#[derive(Debug)]
pub(super) struct Lane {
    producer: ProducerId,
    epoch: u32,
    next_sequence: u64,
    unanswered: VecDeque<Entry>,
    /// Batches without a sequence here, which go before everything new.
    fresh: VecDeque<Entry>,
    /// How many are `Sent`.
    sent: usize,
    /// A refusal has come: nothing is sent until the rest is answered.
    settling: bool,
    /// A sequence is missing from the row: what is fresh waits for a new epoch.
    broken: bool,
    held_until: Option<Monotonic>,
    backoff: Backoff,
    /// Started over without a success since.
    restarted: bool,
}

impl Lane {
    pub(super) fn new(producer: ProducerId, seed: u64) -> Self {
        Self {
            producer,
            epoch: 0,
            next_sequence: 0,
            unanswered: VecDeque::new(),
            fresh: VecDeque::new(),
            sent: 0,
            settling: false,
            broken: false,
            held_until: None,
            backoff: Backoff::new(RETRY, seed),
            restarted: false,
        }
    }

    /// How many batches are under way.
    pub(super) const fn sent(&self) -> usize {
        self.sent
    }

    pub(super) fn is_idle(&self) -> bool {
        self.unanswered.is_empty() && self.fresh.is_empty()
    }

    /// The latest epoch that was used.
    pub(super) const fn epoch(&self) -> u32 {
        self.epoch
    }

    fn is_held(&self, now: Monotonic) -> bool {
        self.settling || self.held_until.is_some_and(|until| until > now)
    }

    /// Whether a new batch can be sent at once: nothing older waits.
    pub(super) fn takes_new(&self, now: Monotonic, window: usize) -> bool {
        !self.is_held(now)
            && self.fresh.is_empty()
            && self.sent < window
            && self.sent == self.unanswered.len()
            && (!self.broken || self.unanswered.is_empty())
    }

    /// Until when nothing is sent, after a refusal.
    pub(super) const fn held_until(&self) -> Option<Monotonic> {
        self.held_until
    }

    /// The sequence for the next new batch; it is used by the [`append`](Self::append) that follows.
    pub(super) fn next_sequenced(&mut self) -> Sequenced {
        if self.broken && self.unanswered.is_empty() {
            self.epoch += 1;
            self.next_sequence = 0;
            self.broken = false;
        }
        Sequenced { producer: self.producer, epoch: self.epoch, sequence: self.next_sequence }
    }

    /// Takes on a batch that carries [`next_sequenced`](Self::next_sequenced) and is sent as `request` now.
    pub(super) fn append(&mut self, mut entry: Entry, request: u64) {
        entry.flight = Flight::Sent(request);
        self.next_sequence += 1;
        self.sent += 1;
        self.unanswered.push_back(entry);
    }

    /// What waits to be sent again, or here for the first time: it is sent as `request` now.
    pub(super) fn resend(&mut self, now: Monotonic, window: usize, request: u64) -> Option<RecordBatch> {
        if self.is_held(now) || self.sent >= window {
            return None;
        }
        if let Some(entry) = self.unanswered.iter_mut().find(|entry| entry.flight == Flight::Queued) {
            entry.flight = Flight::Sent(request);
            self.sent += 1;
            return Some(entry.batch.clone());
        }
        if self.broken && !self.unanswered.is_empty() {
            return None;
        }
        let mut entry = self.fresh.pop_front()?;
        entry.batch = entry.batch.sequenced(self.next_sequenced());
        let batch = entry.batch.clone();
        self.append(entry, request);
        Some(batch)
    }

    /// The broker has stored a batch. Returns its size, if it is one of ours.
    pub(super) fn stored(&mut self, request: u64, placed: Placed) -> Option<usize> {
        let at = self.unanswered.iter().position(|entry| entry.flight == Flight::Sent(request))?;
        let mut entry = self.unanswered.remove(at)?;
        self.sent -= 1;
        self.backoff.succeeded();
        self.restarted = false;
        self.held_until = None;
        entry.ticket.resolve(Ok(placed));
        Some(entry.batch.len())
    }

    /// The broker has refused a batch. Returns its size, if it is one of ours.
    pub(super) fn refused(&mut self, request: u64, error: BrokerError, now: Monotonic) -> Option<usize> {
        let entry = self.unanswered.iter_mut().find(|entry| entry.flight == Flight::Sent(request))?;
        self.sent -= 1;
        entry.flight = Flight::Refused;
        match error.verdict() {
            Verdict::Unknown => entry.doubt(now),
            Verdict::NotDone | Verdict::Refused => {
                entry.refused_since.get_or_insert(now);
            }
        }
        entry.last = Some(error);
        self.settling = true;
        Some(entry.batch.len())
    }

    /// The stream is gone: whatever was under way is in doubt, and is sent again on the next one.
    pub(super) fn stream_lost(&mut self, now: Monotonic) {
        let before = self.unanswered.len();
        // Somebody has been told already that their outcome is unknown.
        self.unanswered.retain(|entry| !(matches!(entry.flight, Flight::Sent(_)) && entry.ticket.is_resolved()));
        self.broken |= self.unanswered.len() < before;
        for entry in &mut self.unanswered {
            if matches!(entry.flight, Flight::Sent(_)) {
                entry.flight = Flight::Queued;
                entry.doubt(now);
                entry.last = Some(BrokerError::new(ErrorCode::OutcomeUnknown, "the connection was lost"));
            }
        }
        self.sent = 0;
    }

    /// Whether it is time to [`settle`](Self::settle).
    pub(super) const fn is_to_settle(&self) -> bool {
        self.settling && self.sent == 0
    }

    /// Draws the conclusions from refusals, once everything is answered. Returns what leaves this partition.
    ///
    /// `elsewhere`: whether another partition can take something now.
    pub(super) fn settle(&mut self, now: Monotonic, rules: &Rules, elsewhere: bool) -> Vec<Entry> {
        self.settling = false;
        let restart = |code: ErrorCode| matches!(code, ErrorCode::SequenceGap | ErrorCode::ProducerUnknown);
        let mut entries = std::mem::take(&mut self.unanswered);
        let before = entries.len();

        // A refusal with a cause of its own holds the lane. Gaps are only what follows from one, or from lost state.
        let held =
            entries.iter().filter_map(Entry::code).any(|code| !restart(code) && code.verdict() != Verdict::Refused);

        // Rules 3 and 4, then 2.
        let (mut doubt_before, mut forgotten, mut certain) = (false, false, false);
        for entry in &mut entries {
            forgotten |= entry.doubt_here && entry.code() == Some(ErrorCode::ProducerUnknown);
            if forgotten {
                entry.doubt_elsewhere |= std::mem::take(&mut entry.doubt_here);
                continue;
            }
            if entry.code() == Some(ErrorCode::SequenceGap) && !doubt_before {
                entry.doubt_here = false;
            }
            if certain {
                entry.doubt_here = false;
            } else if entry.flight == Flight::Refused && !entry.doubt_here {
                certain = true;
            }
            doubt_before |= entry.doubt_here;
        }

        for entry in &mut entries {
            // Not to be stored twice, and there is nobody left who would notice.
            let lost_for_good = rules.in_doubt == InDoubt::Wait && entry.doubt_elsewhere;
            let refused = entry.code().is_some_and(|code| code.verdict() == Verdict::Refused);
            if (refused || lost_for_good) && !entry.ticket.is_resolved() {
                let error = entry.given_up(|| BrokerError::new(ErrorCode::Internal, "refused"));
                entry.ticket.resolve(Err(error));
            }
            entry.expire(now, rules.retry_for);
        }
        entries.retain(|entry| !entry.ticket.is_resolved());

        // One that has been in doubt for long takes the others with it: they wait for the same partition.
        let overdue =
            |entry: &Entry| entry.in_doubt_since.is_some_and(|since| since.after(rules.in_doubt_timeout) <= now);
        let give_up_waiting = rules.in_doubt == InDoubt::Move
            && elsewhere
            && entries.iter().any(|entry| entry.doubt_here && entry.movable && overdue(entry));

        let mut leaving = Vec::new();
        let mut behind = VecDeque::new();
        for mut entry in entries {
            if entry.doubt_here && !(give_up_waiting && entry.movable) {
                entry.flight = Flight::Queued;
                self.unanswered.push_back(entry);
            } else {
                let leaves = entry.movable && (entry.doubt_here || held);
                entry.leave();
                if leaves { leaving.push(entry) } else { behind.push_back(entry) }
            }
        }
        self.broken |= self.unanswered.len() < before;
        behind.append(&mut self.fresh);
        self.fresh = behind;

        // Starting over costs nothing the first time; after that something is wrong with more than the row.
        if held || std::mem::replace(&mut self.restarted, true) {
            self.held_until = Some(now.after(self.backoff.failed()));
        }
        leaving
    }

    /// Gives up what has been tried for long enough.
    pub(super) fn expire(&mut self, now: Monotonic, rules: &Rules) {
        for entry in self.unanswered.iter_mut().chain(&mut self.fresh) {
            entry.expire(now, rules.retry_for);
        }
        let before = self.unanswered.len();
        // What is under way keeps its place until it is answered: those behind it build on it.
        self.unanswered.retain(|entry| !(entry.flight == Flight::Queued && entry.ticket.is_resolved()));
        self.broken |= self.unanswered.len() < before;
        self.fresh.retain(|entry| !entry.ticket.is_resolved());
    }

    /// Takes on a batch that has no sequence here.
    pub(super) fn put_back(&mut self, entry: Entry) {
        self.fresh.push_back(entry);
    }

    /// Gives up everything: the producer is over, or its topic.
    pub(super) fn abandon(&mut self, reason: &BrokerError) {
        for mut entry in self.unanswered.drain(..).chain(self.fresh.drain(..)) {
            entry.last = Some(reason.clone());
            let error = entry.given_up(|| reason.clone());
            entry.ticket.resolve(Err(error));
        }
        self.sent = 0;
    }
}

#[cfg(test)]
mod tests;
