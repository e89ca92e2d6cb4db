//! Burying: messages that are out of attempts, or rejected, move to the group's dead letters.
//!
//! The message is copied into its letter, so that the log can be trimmed, and its reasons with it. What a burial needs is
//! read beside the task while nothing of the group is flushed: so the rows that are read and what the group still holds
//! in memory together are all its failures.

use std::time::Duration;

use bytes::Bytes;
use stentor_core::GroupName;
use stentor_core::storage::StorageError;

use super::commit::Afterwards;
use super::groups::{Slot, Steering};
use super::jobs::{Grave, LETTERS_PER_CHANGE};
use super::task::Task;
use crate::group::{Burial, DeadLetter, Death, Moves};

/// How long a group waits after a burial was refused.
const BURY_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Task {
    /// Starts fetching what the groups' dead letters need, one move of a group at a time. Not while progress is being
    /// written: its rows would be neither in memory nor to be read.
    pub(super) fn start_moves(&mut self) {
        if self.progress_pending > 0 {
            return;
        }
        let idle = |slot: &Slot| !slot.moving && slot.retry_at.is_none() && slot.stopped.is_none();
        let wanting = |slot: &Slot| !slot.steering.is_empty() || slot.state.deaths().next().is_some();
        let groups: Vec<GroupName> = self
            .groups
            .iter()
            .filter(|(_, slot)| idle(slot) && wanting(slot))
            .map(|(group, _)| group.clone())
            .collect();
        for group in groups {
            let Some(slot) = self.groups.get_mut(&group) else { continue };
            slot.moving = true;
            let generation = slot.generation;
            // An operator's request first: a group that fails all the time would never come to it.
            match slot.steering.pop_front() {
                Some(Steering::Redrive { filter, limit, after, reply }) => {
                    let limit = (limit as usize).min(slot.state.redrive_room()).min(LETTERS_PER_CHANGE);
                    self.spawn_letters(&group, generation, filter, (limit, after), reply);
                }
                Some(Steering::Purge { reply }) => self.purges.push((group, generation, reply)),
                None => {
                    let deaths: Vec<Death> = slot.state.deaths().take(LETTERS_PER_CHANGE).collect();
                    self.spawn_graves(&group, generation, deaths);
                }
            }
        }
    }

    /// What a burial needs has been fetched.
    pub(super) async fn bury(&mut self, group: &GroupName, generation: u64, outcome: Result<Vec<Grave>, StorageError>) {
        let now = self.now();
        let Some(slot) = self.slot_of(group, generation) else { return };
        slot.moving = false;
        slot.ready = true;
        let graves = match outcome {
            Ok(graves) => graves,
            Err(error @ (StorageError::Corrupt { .. } | StorageError::Damaged(_))) => {
                return self.stop_group(group, &error.to_string());
            }
            Err(error) => {
                tracing::warn!(%group, %error, "a message cannot be buried yet");
                slot.retry_at = Some(now.monotonic.after(BURY_AGAIN_AFTER));
                return;
            }
        };
        let mut moves = Moves::default();
        for grave in graves {
            // A seek may have called it back to life meanwhile.
            if !slot.state.deaths().any(|death| death == grave.death) {
                continue;
            }
            match burial(slot, grave) {
                Ok(burial) => moves.bury.push(burial),
                Err(error) => return self.stop_group(group, &error.to_string()),
            }
        }
        if moves.is_empty() {
            return;
        }
        let count = moves.bury.len() as u64;
        let metrics = slot.order.metrics.clone();
        match self.flush_one(group, moves, Vec::new(), Afterwards::Nobody).await {
            Ok(()) => drop(metrics.dead_lettered.inc_by(count)),
            Err(error) => {
                tracing::warn!(%group, %error, "messages cannot be buried yet");
                if let Some(slot) = self.slot_of(group, generation) {
                    slot.retry_at = Some(now.monotonic.after(BURY_AGAIN_AFTER));
                }
            }
        }
    }
}

/// The letter of a death. A message that is gone from the log leaves a letter without a message behind: its reasons still
/// tell what happened.
fn burial(slot: &Slot, grave: Grave) -> Result<Burial, crate::group::RowError> {
    let Grave { death, batch, failures, earlier, replaces } = grave;
    let mut reasons = earlier;
    reasons.extend(slot.state.reasons(death.offset, &failures)?);
    let letter =
        DeadLetter { attempts: death.attempts, dead_at: death.at, reasons, batch: batch.unwrap_or_else(Bytes::new) };
    Ok(Burial { offset: death.offset, letter, replaces })
}
