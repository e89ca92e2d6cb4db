//! Giving dead letters back to their group, and dropping them.

use stentor_core::GroupName;
use stentor_protocol::{ErrorCode, wire};

use super::command::{Redriven, Reply};
use super::commit::Afterwards;
use super::groups::Steering;
use super::jobs::Letters;
use super::task::Task;
use crate::error::refusal;
use crate::group::Moves;

impl Steering {
    /// It cannot be done.
    pub(super) fn refuse(self, error: wire::Error) {
        match self {
            Self::Redrive { reply, .. } => drop(reply.send(Err(error))),
            Self::Purge { reply } => drop(reply.send(Err(error))),
        }
    }
}

impl Task {
    /// The letters of a redrive have been fetched: each moves to the group, alone, in one change with the others.
    pub(super) async fn redrive(
        &mut self,
        group: &GroupName,
        generation: u64,
        outcome: Result<Letters, wire::Error>,
        reply: Reply<Redriven>,
    ) {
        let Some(slot) = self.slot_of(group, generation) else {
            let error = refusal(ErrorCode::GroupNotFound, format!("the group `{group}` was deleted meanwhile"));
            drop(reply.send(Err(error)));
            return;
        };
        slot.moving = false;
        slot.ready = true;
        let Letters { after, mut letters, mut next } = match outcome {
            Ok(letters) => letters,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let room = slot.state.redrive_room();
        if letters.len() > room {
            letters.truncate(room);
            // Those left out are where the next request begins, also when all are.
            next = letters.last().map(|letter| letter.offset).or(Some(after.unwrap_or_default()));
        }
        let redriven = Redriven { messages: letters.len() as u64, next };
        if letters.is_empty() {
            return drop(reply.send(Ok(redriven)));
        }
        let moves = Moves { redrive: letters, ..Moves::default() };
        // A refusal has been sent to whoever asked.
        let _ = self.flush_one(group, moves, Vec::new(), Afterwards::Redriven(reply, redriven)).await;
    }

    /// Drops the dead letters that operators asked to be dropped.
    pub(super) async fn purge(&mut self) {
        for (group, generation, reply) in std::mem::take(&mut self.purges) {
            let Some(slot) = self.slot_of(&group, generation) else { continue };
            slot.moving = false;
            let count = slot.state.dead_letters();
            let moves = Moves { purge: true, ..Moves::default() };
            let _ = self.flush_one(&group, moves, Vec::new(), Afterwards::Purged(reply, count)).await;
        }
    }
}
