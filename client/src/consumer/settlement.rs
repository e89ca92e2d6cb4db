//! The answer to an acknowledgement, a refusal or an extension.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use stentor_core::{Offset, PartitionIndex};
use stentor_protocol::error::ErrorCode;
use stentor_protocol::wire::Unsettled;

use super::session::{SettleOutcome, Settled};
use crate::error::SettleError;

/// A future of the broker's answer. What it is about has been handed over already and is sent whether or not this is
/// awaited; so many of them can be kept and awaited later.
pub struct Settlement {
    partition: u32,
    /// Sorted as they came; never empty but for a settlement of nothing.
    offsets: Box<[u64]>,
    state: State,
}

enum State {
    Waiting { outcome: Arc<SettleOutcome>, slot: usize },
    Lost(String),
}

impl Settlement {
    pub(super) fn waiting(outcome: Arc<SettleOutcome>, slot: usize, partition: u32, offsets: &[u64]) -> Self {
        Self { partition, offsets: offsets.into(), state: State::Waiting { outcome, slot } }
    }

    pub(super) fn lost(partition: u32, offset: u64, reason: String) -> Self {
        Self { partition, offsets: [offset].into(), state: State::Lost(reason) }
    }

    fn lease_lost(&self, offset: Option<u64>, reason: String) -> SettleError {
        let offset = offset.or(self.offsets.first().copied()).unwrap_or_default();
        SettleError::LeaseLost { partition: PartitionIndex(self.partition), offset: Offset(offset), reason }
    }

    /// The first of our offsets that failed.
    fn failed(&self, failed: &[Unsettled]) -> Result<(), SettleError> {
        let ours = failed.iter().filter(|unsettled| unsettled.partition == self.partition).find_map(|unsettled| {
            let span = unsettled.span.unwrap_or_default();
            let inside = |offset: &&u64| **offset >= span.start && **offset - span.start < u64::from(span.count);
            Some((*self.offsets.iter().find(inside)?, unsettled))
        });
        let Some((offset, unsettled)) = ours else { return Ok(()) };
        let error = unsettled.error.clone().unwrap_or_default();
        Err(match error.code() {
            ErrorCode::LeaseLost => self.lease_lost(Some(offset), error.message),
            ErrorCode::OutcomeUnknown | ErrorCode::StorageFailed => {
                SettleError::OutcomeUnknown { reason: error.message }
            }
            _ => SettleError::Refused(error.into()),
        })
    }
}

impl Future for Settlement {
    type Output = Result<(), SettleError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let settled = match &self.state {
            State::Waiting { outcome, slot } => ready!(outcome.poll(*slot, context)),
            State::Lost(reason) => Settled::NotSent(reason.clone()),
        };
        Poll::Ready(match settled {
            Settled::Answered(failed) => self.failed(&failed),
            Settled::NotSent(reason) => Err(self.lease_lost(None, reason)),
            Settled::Lost(reason) => Err(SettleError::OutcomeUnknown { reason }),
        })
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlement")
            .field("partition", &self.partition)
            .field("offsets", &self.offsets)
            .finish_non_exhaustive()
    }
}
