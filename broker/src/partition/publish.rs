//! Publishing: whatever waits goes into one change, and is answered when its receipt comes.

use stentor_core::storage::{Append, Change, StorageError};
use stentor_core::{Offset, RecordBatch};
use stentor_protocol::{ErrorCode, wire};
use tokio::sync::mpsc;

use super::command::{Answer, Publish};
use super::commit::Pending;
use super::dedup::{Admission, DedupError, Receipt};
use super::task::Task;
use crate::error::{refusal, refused_by_storage};

/// How many batches share a change.
const BATCHES_PER_CHANGE: usize = 256;

/// How many bytes share a change, beyond its last batch.
const BYTES_PER_CHANGE: usize = 4 << 20;

impl Task {
    /// Takes `first` and whatever waits behind it into one change.
    pub(super) async fn take_publishes(&mut self, first: Publish, publishes: &mut mpsc::Receiver<Publish>) {
        if let Some(error) = &self.failed {
            first.answer.refused(error.clone());
            return;
        }
        let mut pending = Pending::default();
        let mut bytes = 0;
        let start = self.log.as_ref().map_or(Offset::ZERO, |log| log.writer.end());
        let mut end = start;
        // The time of storing never steps back in a log, whatever the clock on the wall does.
        self.last_stored_at = self.last_stored_at.max(self.node.clock.now());
        let mut next = Some(first);
        while let Some(Publish { batch, answer }) = next {
            let receipt = Receipt { base: end, count: batch.count() };
            if let Some((answer, batch)) = self.admit(batch, answer, receipt, start, &mut pending) {
                bytes += batch.len();
                end = receipt.end();
                pending.batches.push(batch.stored(receipt.base, self.last_stored_at));
                pending.answers.push((answer, receipt, false));
            }
            let full = pending.batches.len() >= BATCHES_PER_CHANGE || bytes >= BYTES_PER_CHANGE;
            next = if full { None } else { publishes.try_recv().ok() };
        }
        if pending.batches.is_empty() {
            return;
        }
        self.append(pending, bytes).await;
    }

    /// Asks the deduplication; gives back what is to be stored, and answers the rest.
    fn admit(
        &mut self,
        batch: RecordBatch,
        answer: Answer,
        receipt: Receipt,
        start: Offset,
        gathered: &mut Pending,
    ) -> Option<(Answer, RecordBatch)> {
        let Some(sequenced) = batch.producer() else { return Some((answer, batch)) };
        match self.dedup.admit(sequenced, receipt, self.last_stored_at) {
            Ok(Admission::New) => return Some((answer, batch)),
            Ok(Admission::Repeat(first)) => {
                self.metrics.duplicates.inc();
                self.answer_repeat(answer, first, start, gathered);
            }
            Err(error) => answer.refused(refused_by_dedup(&error)),
        }
        None
    }

    /// A repeat is answered with the first receipt, and like the first not before that is durable.
    fn answer_repeat(&mut self, answer: Answer, first: Receipt, start: Offset, gathered: &mut Pending) {
        if first.base >= start {
            gathered.answers.push((answer, first, true));
            return;
        }
        let under_way = self.pending.iter_mut().find(|pending| {
            let holds = |batch: &RecordBatch| batch.offsets().contains(first.base);
            pending.batches.iter().any(holds)
        });
        match (under_way, &self.log) {
            (Some(pending), _) => pending.answers.push((answer, first, true)),
            (None, Some(log)) if first.end() <= *log.durable.get() => {
                answer.published(log.durable.map(|_| first), true);
            }
            // Neither durable nor under way: its receipt has failed, and with it the partition.
            _ => answer.refused(refusal(ErrorCode::OutcomeUnknown, "whether it was stored is not known")),
        }
    }

    async fn append(&mut self, pending: Pending, bytes: usize) {
        let batches = u32::try_from(pending.batches.len()).unwrap_or(u32::MAX);
        let change = self.appending(&pending);
        let mut outcome = self.commit(change, pending).await;
        if let Err((StorageError::StorageFull(_), pending)) = outcome {
            // What every group is done with is the first to go when space is short. That writes the deduplication's rows,
            // and these must not tell of what may be refused again.
            self.dedup.take_back();
            outcome = if self.make_room().await {
                self.admit_again(&pending);
                let change = self.appending(&pending);
                self.commit(change, *pending).await
            } else {
                Err((StorageError::StorageFull("nothing in it can be given up".to_owned()), pending))
            };
        }
        match outcome {
            Ok(()) => {
                self.dedup.settle();
                self.dedup_behind.0 = self.dedup_behind.0.saturating_add(batches);
                self.dedup_behind.1 = self.dedup_behind.1.saturating_add(bytes);
            }
            Err((StorageError::TooLarge { .. }, pending)) if pending.batches.len() > 1 => {
                self.dedup.take_back();
                self.append_apart(*pending).await;
            }
            Err((error, pending)) => {
                self.dedup.take_back();
                let refused = self.failed.clone().unwrap_or_else(|| refused_by_storage(&error));
                self.metrics.refused.inc_by(pending.answers.len() as u64);
                for (answer, ..) in pending.answers {
                    answer.refused(refused.clone());
                }
            }
        }
    }

    /// Notes the batches of a change once more whose admission was taken back. Nothing was admitted in between, so they
    /// are as new as they were.
    fn admit_again(&mut self, pending: &Pending) {
        for batch in &pending.batches {
            if let Some(sequenced) = batch.producer() {
                let receipt = Receipt { base: batch.base_offset(), count: batch.count() };
                let again = self.dedup.admit(sequenced, receipt, self.last_stored_at);
                debug_assert_eq!(again, Ok(Admission::New));
            }
        }
    }

    /// Stores the batches of a change that was too large one by one, so that a large one is refused alone.
    async fn append_apart(&mut self, pending: Pending) {
        let Pending { batches, mut answers, .. } = pending;
        for batch in batches {
            let end = self.log.as_ref().map_or(Offset::ZERO, |log| log.writer.end());
            let receipt = Receipt { base: end, count: batch.count() };
            // Its own answer, and those to repeats of it.
            let (own, others): (Vec<_>, Vec<_>) =
                answers.into_iter().partition(|(_, of, _)| of.base == batch.base_offset());
            answers = others;
            let admitted =
                batch.producer().map(|sequenced| self.dedup.admit(sequenced, receipt, self.last_stored_at)).transpose();
            if let Err(error) = admitted {
                // The one before it was refused.
                own.into_iter().for_each(|(answer, ..)| answer.refused(refused_by_dedup(&error)));
                continue;
            }
            let bytes = batch.len();
            let alone = Pending {
                batches: vec![batch.stored(end, self.last_stored_at)],
                answers: own.into_iter().map(|(answer, _, repeat)| (answer, receipt, repeat)).collect(),
                ..Pending::default()
            };
            // One batch is never taken apart again.
            Box::pin(self.append(alone, bytes)).await;
        }
    }

    fn appending(&self, pending: &Pending) -> Change {
        let appends = pending.batches.iter().cloned().map(Append::Batch).collect();
        Change { appends, ..self.change() }
    }
}

fn refused_by_dedup(error: &DedupError) -> wire::Error {
    let code = match error {
        DedupError::Gap { .. } => ErrorCode::SequenceGap,
        DedupError::Unknown { .. } => ErrorCode::ProducerUnknown,
        DedupError::Fenced { .. } => ErrorCode::ProducerFenced,
        DedupError::Forgotten { .. } => ErrorCode::OutcomeUnknown,
    };
    refusal(code, error.to_string())
}
