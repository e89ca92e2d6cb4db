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

use stentor_core::batch::Sequenced;
use stentor_core::{Offset, ProducerId, Timestamp};
use thiserror::Error;

mod rows;
#[cfg(test)]
mod tests;

use rows::Round;
pub(crate) use rows::{RowError, decode_position};

/// How many receipts of a producer are kept: more than a client has on its way to one partition.
pub(crate) const RECEIPTS_MAX: usize = 128;

/// How many producers of a partition are remembered.
pub(crate) const PRODUCERS_MAX: usize = 4_096;

/// A producer that has been silent for so long is forgotten. Far longer than a client keeps a batch in doubt.
pub(crate) const PRODUCER_IDLE_MAX: Duration = Duration::from_secs(15 * 60);

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

    /// How many producers are remembered.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.producers.len()
    }
}
