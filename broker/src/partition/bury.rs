//! Burying: messages that are out of attempts, or rejected, move to the group's dead letters.
//!
//! The message is copied into its letter, so that the log can be trimmed, and its reasons with it. What a burial needs is
//! read beside the task while nothing of the group is flushed: so the rows that are read and what the group still holds
//! in memory together are all its failures.

use std::time::Duration;

use stentor_core::GroupName;
use stentor_core::storage::StorageError;

use super::commit::Afterwards;
use super::groups::{Slot, Steering};
use super::jobs::{Grave, LETTER_BYTES_PER_CHANGE, LETTER_BYTES_WHEN_FULL, LETTERS_PER_CHANGE};
use super::stop::Stop;
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
        let idle = |slot: &Slot| !slot.moving;
        let burying =
            |slot: &Slot| slot.stopped.is_none() && slot.bury_at.is_none() && slot.state.deaths().next().is_some();
        let wanting = |slot: &Slot| !slot.steering.is_empty() || burying(slot);
        let groups: Vec<GroupName> = self
            .groups
            .iter()
            .filter(|(_, slot)| idle(slot) && wanting(slot))
            .map(|(group, _)| group.clone())
            .collect();
        for group in groups {
            let bytes_max = self.letter_bytes_max();
            let Some(slot) = self.groups.get_mut(&group) else { continue };
            slot.refuse_redrives();
            if slot.steering.is_empty() && !burying(slot) {
                continue;
            }
            slot.moving = true;
            let generation = slot.generation;
            // An operator's request first: a group that fails all the time would never come to it.
            match slot.steering.pop_front() {
                Some(Steering::Redrive { filter, limit, after, reply }) => {
                    let limit = (limit as usize).min(slot.state.redrive_room()).min(LETTERS_PER_CHANGE);
                    self.spawn_letters(&group, generation, filter, (limit, bytes_max, after), reply);
                }
                Some(Steering::Purge { purged, reply }) => self.spawn_purge(&group, generation, purged, reply),
                None => {
                    let deaths: Vec<Death> = slot.state.deaths().take(LETTERS_PER_CHANGE).collect();
                    self.spawn_graves(&group, generation, deaths, bytes_max);
                }
            }
        }
    }

    /// How many bytes of letters go into one change, if it holds more than one. While the storage is full they have to
    /// be so few that the reserve pays for them.
    fn letter_bytes_max(&self) -> usize {
        let full = self.node.storages.get(&self.settings.storage).is_some_and(|storage| storage.usage().full);
        if full { LETTER_BYTES_WHEN_FULL } else { LETTER_BYTES_PER_CHANGE }
    }

    /// What a burial needs has been fetched.
    pub(super) async fn bury(&mut self, group: &GroupName, generation: u64, outcome: Result<Vec<Grave>, StorageError>) {
        let now = self.now();
        let Some(slot) = self.slot_of(group, generation) else { return };
        slot.moving = false;
        slot.ready = true;
        let graves = match outcome {
            Ok(graves) => graves,
            Err(error) => {
                if let Some(stop) = Stop::of(&error) {
                    return self.stop_group(group, stop);
                }
                tracing::warn!(%group, %error, "a message cannot be buried yet");
                slot.bury_at = Some(now.monotonic.after(BURY_AGAIN_AFTER));
                return;
            }
        };
        let mut moves = Moves::default();
        let mut lost = 0;
        for grave in graves.into_iter() {
            if !slot.state.is_dead(&grave.death) {
                continue;
            }
            match burial(slot, &grave) {
                Ok(Some(burial)) => moves.bury.push(burial),
                // A letter without a message would help nobody.
                Ok(None) => {
                    slot.state.lose(&grave.death);
                    lost += 1;
                }
                Err(error) => return self.stop_group(group, Stop::at(grave.death.offset, &error.to_string())),
            }
        }
        if lost > 0 {
            slot.order.metrics.expired.inc_by(lost);
            tracing::warn!(%group, lost, "messages that were out of attempts had gone from the log before their burial");
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
                    slot.bury_at = Some(now.monotonic.after(BURY_AGAIN_AFTER));
                }
            }
        }
    }
}

/// The letter of a death; none when the message is gone from the log.
fn burial(slot: &Slot, grave: &Grave) -> Result<Option<Burial>, crate::group::RowError> {
    let Grave { death, batch, failures, earlier, replaces } = grave;
    let Some(batch) = batch.clone() else { return Ok(None) };
    let mut reasons = earlier.clone();
    reasons.extend(slot.state.reasons(death.offset, failures)?);
    let letter = DeadLetter { attempts: death.attempts, dead_at: death.at, reasons, batch };
    Ok(Some(Burial { offset: death.offset, letter, replaces: *replaces }))
}
