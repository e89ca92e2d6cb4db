//! Dead letters: what is to become one, what one holds, and how it goes back.
//!
//! A message that is out of attempts is **dying**: it is not delivered any more and not done either. The partition's task
//! fetches its bytes and its reasons and has them buried by a flush: one `Change` writes the letter, deletes the rows of
//! its failures and marks the offset done. Whatever crashes, there is either a dying message or its letter.

use bytes::{Buf, BufMut, Bytes};
use stentor_core::storage::{Key, KeyRange};
use stentor_core::{GroupName, Offset, Timestamp};

use super::keys::{self, StateKey};
use super::rows::{self, BadValue, Failure, RowError};
use super::{Death, GroupState};

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    pub attempt: u32,
    pub at: Timestamp,
    pub text: String,
}

/// A dead letter, as it lies in the row [`dead_letter_key`](super::dead_letter_key) and, once redriven, in the row
/// [`redriven_key`](super::redriven_key).
///
/// Value, little-endian: version, attempts (u32), time of death (u64), number of reasons (u32), each with attempt (u32),
/// time (u64), length (u32) and text; then the batch.
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
    /// Drop dead letters (not those redriven or buried now).
    pub purge: Option<Purge>,
}

/// Dead letters to be dropped: a portion of them, so that the storage never has many rows to delete at once.
#[derive(Clone, Debug)]
pub(crate) struct Purge {
    pub range: KeyRange,
    /// How many letters lie in it.
    pub letters: u64,
}

impl Moves {
    pub(crate) fn is_empty(&self) -> bool {
        self.bury.is_empty() && self.redrive.is_empty() && self.purge.is_none()
    }
}

/// A death that becomes a dead letter.
#[derive(Clone, Debug)]
pub(crate) struct Burial {
    pub offset: Offset,
    pub letter: DeadLetter,
    /// Whether the row [`dead_letter_key`](super::dead_letter_key) exists already (the group was sought back over it): it
    /// is replaced, and must not be counted twice.
    pub replaces: bool,
}

/// A dead letter that goes back to the group.
#[derive(Clone, Debug)]
pub(crate) struct Redrive {
    pub offset: Offset,
    /// The hash of its key, as in [`Batch::keys`](super::Batch::keys).
    pub key: Option<u64>,
    /// The value of its row, moved as it is.
    pub value: Bytes,
}

impl DeadLetter {
    /// The value of its row.
    pub(crate) fn encode(&self) -> Bytes {
        let reasons: usize = self.reasons.iter().map(|reason| 16 + reason.text.len()).sum();
        let mut out = Vec::with_capacity(17 + reasons + self.batch.len());
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        out.put_u8(rows::VERSION);
        out.put_u32_le(self.attempts);
        out.put_u64_le(self.dead_at.0);
        out.put_u32_le(length(self.reasons.len()));
        for reason in &self.reasons {
            out.put_u32_le(reason.attempt);
            out.put_u64_le(reason.at.0);
            out.put_u32_le(length(reason.text.len()));
            out.put_slice(reason.text.as_bytes());
        }
        out.put_slice(&self.batch);
        out.into()
    }

    /// Reads the value of a row of `group`. The batch shares its bytes and is not checked here.
    pub(crate) fn decode(group: &GroupName, value: &Bytes) -> Result<Self, RowError> {
        Self::read(value).map_err(|bad| bad.of(group, "dead letter"))
    }

    fn read(value: &Bytes) -> Result<Self, BadValue> {
        let mut rest = rows::versioned(value)?;
        let attempts = rest.try_get_u32_le()?;
        let dead_at = Timestamp(rest.try_get_u64_le()?);
        let count = rest.try_get_u32_le()?;
        // Not reserved ahead: the count is only a claim.
        let mut reasons = Vec::new();
        for _ in 0..count {
            let attempt = rest.try_get_u32_le()?;
            let at = Timestamp(rest.try_get_u64_le()?);
            let length = rest.try_get_u32_le()? as usize;
            let (text, behind) = rest.split_at_checked(length).ok_or(BadValue::Damaged("it is too short"))?;
            let text = str::from_utf8(text).map_err(|_| BadValue::Damaged("a reason is not UTF-8"))?.to_owned();
            reasons.push(Reason { attempt, at, text });
            rest = behind;
        }
        Ok(Self { attempts, dead_at, reasons, batch: value.slice_ref(rest) })
    }
}

/// A message between its last attempt and its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dying {
    pub(super) attempts: u32,
    pub(super) at: Timestamp,
}

impl GroupState {
    /// What is to go to the dead letters: neither delivered nor done until a flush with its [`Burial`] is done. Its
    /// message and its reasons ([`reasons`](Self::reasons)) are for the caller to fetch.
    pub(crate) fn deaths(&self) -> impl Iterator<Item = Death> + '_ {
        self.dying.iter().map(|(offset, dying)| Death {
            offset: Offset(*offset),
            attempts: dying.attempts,
            at: dying.at,
            redriven: self.redriven.contains(offset),
        })
    }

    /// Whether this death still stands: a seek may have called the message back to life.
    pub(crate) fn is_dead(&self, death: &Death) -> bool {
        let Offset(offset) = death.offset;
        self.dying.get(&offset).is_some_and(|dying| *dying == Dying { attempts: death.attempts, at: death.at })
            && self.redriven.contains(&offset) == death.redriven
    }

    /// The message of a death is gone: there is nothing to bury, and the message counts as done.
    pub(crate) fn lose(&mut self, death: &Death) {
        let Offset(offset) = death.offset;
        if self.dying.remove(&offset).is_none() {
            return;
        }
        if self.redriven.contains(&offset) {
            self.finish_redriven(offset);
        } else {
            self.finish(offset, offset + 1, true);
        }
    }

    /// The reasons of the message at `offset`, in the order of the attempts: those in its rows
    /// ([`failures_range`](super::failures_range)), and those that are not written yet.
    pub(crate) fn reasons(&self, offset: Offset, rows: &[(Key, Bytes)]) -> Result<Vec<Reason>, RowError> {
        let reason = |attempt: u32, failure: &Failure| Reason {
            attempt,
            at: failure.at,
            text: failure.reason.as_ref().to_owned(),
        };
        let mut reasons = std::collections::BTreeMap::new();
        for (key, value) in rows {
            let Some(StateKey::Failure { offset: at, attempt }) = keys::parse(&self.name, key) else { continue };
            // Rows that are to be deleted belong to an earlier life of the offset: before a seek.
            if at == offset.0 && !self.unflushed.forgets(at) {
                let failure = Failure::decode(value).map_err(|bad| bad.of(&self.name, "failure"))?;
                reasons.insert(attempt, reason(attempt, &failure));
            }
        }
        for (attempt, failure) in self.unflushed.failures_of(offset.0) {
            reasons.insert(attempt, reason(attempt, failure));
        }
        // The mark of a redriven message is no attempt.
        reasons.remove(&0);
        Ok(reasons.into_values().collect())
    }

    /// How many letters may be redriven right now.
    pub(crate) fn redrive_room(&self) -> usize {
        usize::try_from(u64::from(self.rules.retrying_max).saturating_sub(self.troubled())).unwrap_or(usize::MAX)
    }

    pub(crate) const fn dead_letters(&self) -> u64 {
        self.dead_letters
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_dead_letter_round_trips(
            numbers in any::<(u32, u64)>(), reasons in vec((any::<u32>(), any::<u64>(), "\\PC{0,20}"), 0..5), batch in vec(any::<u8>(), 0..50),
        ) {
            let reasons = reasons.into_iter().map(|(attempt, at, text)| Reason { attempt, at: Timestamp(at), text }).collect();
            let letter = DeadLetter { attempts: numbers.0, dead_at: Timestamp(numbers.1), reasons, batch: batch.into() };
            let group = GroupName::new("g").unwrap();
            prop_assert_eq!(DeadLetter::decode(&group, &letter.encode()), Ok(letter));
        }

        #[test]
        fn decoding_garbage_never_panics(garbage in vec(any::<u8>(), 0..100)) {
            let _ = DeadLetter::read(&[&[rows::VERSION], garbage.as_slice()].concat().into());
        }
    }
}
