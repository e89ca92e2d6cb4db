//! Commits: what is handed to the storage, what waits for its receipt, and what happens when one fails.

use futures_util::FutureExt;
use stentor_core::storage::{Change, StorageError};
use stentor_core::{Durable, GroupName, Offset, OffsetRange, RecordBatch};
use stentor_protocol::{ErrorCode, wire};

use super::command::{Answer, Redriven, Reply, Unsettled};
use super::dedup::Receipt;
use super::groups::DurableWaiter;
use super::task::Task;
use crate::error::{outcome_unknown, refused_by_storage};

/// How a commit has ended.
pub(super) type Outcome = Result<Durable<OffsetRange>, StorageError>;

/// What a receipt sets off.
#[derive(Default)]
pub(super) struct Pending {
    /// The end of the log once the commit is durable.
    pub(super) end: Offset,
    /// What was appended, for the tail.
    pub(super) batches: Vec<RecordBatch>,
    pub(super) answers: Vec<(Answer, Receipt, bool)>,
    /// The horizons that become durable.
    pub(super) horizons: Vec<(GroupName, u64, Offset)>,
    /// Whether it is a commit of progress.
    pub(super) progress: bool,
    pub(super) afterwards: Vec<Afterwards>,
}

/// Who hears when a commit is durable.
pub(super) enum Afterwards {
    Reply(Reply<()>),
    Settled(DurableWaiter),
    Redriven(Reply<Redriven>, Redriven),
    Purged(Reply<u64>, u64),
    Nobody,
}

impl Afterwards {
    pub(super) fn done(self) {
        match self {
            Self::Reply(reply) => drop(reply.send(Ok(()))),
            Self::Settled(waiter) => drop(waiter.reply.send(waiter.unsettled)),
            Self::Redriven(reply, redriven) => drop(reply.send(Ok(redriven))),
            Self::Purged(reply, count) => drop(reply.send(Ok(count))),
            Self::Nobody => {}
        }
    }

    pub(super) fn failed(self, error: &wire::Error) {
        match self {
            Self::Reply(reply) => drop(reply.send(Err(error.clone()))),
            Self::Settled(DurableWaiter { reply, mut unsettled, spans }) => {
                unsettled.extend(spans.into_iter().map(|span| Unsettled { span, error: error.clone() }));
                drop(reply.send(unsettled));
            }
            Self::Redriven(reply, _) => drop(reply.send(Err(error.clone()))),
            Self::Purged(reply, _) => drop(reply.send(Err(error.clone()))),
            Self::Nobody => {}
        }
    }
}

impl Task {
    /// A commit has ended.
    pub(super) fn receipt(&mut self, outcome: Outcome) {
        let Some(pending) = self.pending.pop_front() else { return };
        if pending.progress {
            self.progress_pending -= 1;
            self.again = true;
        }
        match outcome {
            Ok(durable) => self.made_durable(pending, durable),
            Err(error) => {
                let unknown = outcome_unknown(&error);
                for (answer, ..) in pending.answers {
                    answer.refused(unknown.clone());
                }
                for afterwards in pending.afterwards {
                    afterwards.failed(&unknown);
                }
                self.fail(&error);
            }
        }
    }

    fn made_durable(&mut self, pending: Pending, durable: Durable<OffsetRange>) {
        if let Some(log) = &mut self.log {
            log.durable = durable.map(|_| pending.end.max(*log.durable.get()));
        }
        let now = self.node.clock.monotonic();
        for (answer, receipt, duplicate) in pending.answers {
            self.metrics.publish_seconds.observe(now.since(answer.since).as_secs_f64());
            answer.published(durable.map(|_| receipt), duplicate);
        }
        let grown = !pending.batches.is_empty();
        for batch in pending.batches {
            self.metrics.published.inc_by(u64::from(batch.count()));
            self.metrics.published_bytes.inc_by(batch.len() as u64);
            self.tail.push(batch);
        }
        for (group, generation, horizon) in pending.horizons {
            if let Some(slot) = self.slot_of(&group, generation) {
                slot.state.horizon_durable(horizon);
                slot.ready = true;
            }
        }
        if grown {
            // A storage in memory may have dropped its oldest to make room: its bound holds for the tail as well.
            self.tail.drop_below(self.log_bounds().start);
            for slot in self.groups.values_mut() {
                slot.ready |= !slot.consumers.is_empty();
            }
        }
        for afterwards in pending.afterwards {
            afterwards.done();
        }
    }

    /// Commits a change. A refusal that is no fault of the storage comes back with what waited for it; any other fails
    /// the partition as well.
    pub(super) async fn commit(
        &mut self,
        change: Change,
        mut pending: Pending,
    ) -> Result<(), (StorageError, Box<Pending>)> {
        // After a failure nothing more is written, whatever the storage would say.
        let Some(log) = self.log.as_mut().filter(|_| self.failed.is_none()) else {
            return Err((StorageError::Closed, Box::new(pending)));
        };
        match log.writer.commit(change).await {
            Ok(commit) => {
                pending.end = log.writer.end();
                self.progress_pending += u32::from(pending.progress);
                self.pending.push_back(pending);
                self.receipts.push_back(commit.durable().boxed());
                Ok(())
            }
            Err(error) => {
                if !matches!(error, StorageError::StorageFull(_) | StorageError::TooLarge { .. }) {
                    self.fail(&error);
                }
                Err((error, Box::new(pending)))
            }
        }
    }

    /// A change at the present end of the log.
    pub(super) fn change(&self) -> Change {
        self.log.as_ref().map_or_else(Change::default, |log| Change::new(log.epoch, log.writer.end()))
    }

    /// Nothing more is written to this partition.
    pub(super) fn fail(&mut self, error: &StorageError) {
        if self.failed.is_some() {
            return;
        }
        tracing::error!(topic = %self.topic, partition = %self.partition.index, %error, "the partition has failed");
        let mut refused = refused_by_storage(error);
        if refused.code() != ErrorCode::Deposed {
            refused.code = ErrorCode::Unavailable.into();
        }
        for slot in self.groups.values_mut() {
            for waiter in slot.waiters.drain(..) {
                Afterwards::Settled(waiter).failed(&refused);
            }
            for steering in slot.steering.drain(..) {
                steering.refuse(refused.clone());
            }
        }
        for (_, reply) in self.after_flush.drain(..) {
            drop(reply.send(Err(refused.clone())));
        }
        self.failed = Some(refused);
        self.flush_at = None;
        self.show();
    }
}
