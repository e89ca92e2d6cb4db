//! Groups that damage keeps from going on.
//!
//! What a group would get next on a partition may be damaged. It is not skipped: the group stops there, on this partition
//! alone, and its consumers are told (`PartitionStopped`), those that come later too. What it holds can still be settled,
//! its dead letters can be purged, and it goes on once an operator has moved it. What would only wait there without end,
//! such as giving letters back to it, is refused with the same error.

use stentor_core::storage::StorageError;
use stentor_core::{GroupName, Offset};
use stentor_protocol::{ErrorCode, wire};

use super::task::Task;
use crate::error::advise;

/// What to do about it.
const HINT: &str =
    "run `stentor verify` on the stopped node's data folder; `stentor group seek` takes the group past the damage";

/// Why a group is not served any more on a partition.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    /// Where the damage lies in the log; none when it lies beside it.
    pub(super) offset: Option<Offset>,
    pub(super) error: wire::Error,
}

impl Stop {
    /// Something that belongs to the message at `offset` does not decode.
    pub(super) fn at(offset: Offset, why: &str) -> Self {
        Self { offset: Some(offset), error: advise(ErrorCode::Corrupt, why, HINT) }
    }

    /// The storage says so; none when its error is no damage, and may pass.
    pub(super) fn of(error: &StorageError) -> Option<Self> {
        let offset = match error {
            StorageError::Corrupt { offset, .. } => Some(*offset),
            StorageError::Damaged(_) => None,
            _ => return None,
        };
        Some(Self { offset, error: advise(ErrorCode::Corrupt, error.to_string(), HINT) })
    }

    pub(super) fn told(&self, partition: u32) -> wire::PartitionStopped {
        let offset = self.offset.map(|offset| offset.0);
        wire::PartitionStopped { partition, offset, error: Some(self.error.clone()) }
    }
}

impl Task {
    /// The group cannot go on here. Its consumers are told, and the partition says so in its state.
    pub(super) fn stop_group(&mut self, group: &GroupName, stop: Stop) {
        let why = &stop.error.message;
        let (topic, partition) = (&self.topic, self.partition.index);
        // The damage is news once; every group gets there some time.
        if self.damaged.as_ref() == Some(why) {
            tracing::info!(%topic, %partition, %group, why, "the group has stopped");
        } else {
            tracing::error!(%topic, %partition, %group, why, "the group has stopped");
        }
        self.metrics.corrupt.inc();
        self.damaged = Some(why.clone());
        if let Some(slot) = self.groups.get_mut(group) {
            let told = stop.told(self.partition.index.0);
            slot.consumers.iter().for_each(|consumer| consumer.stopped(told.clone()));
            slot.stopped = Some(stop);
        }
        self.show();
    }
}
