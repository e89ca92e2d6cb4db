//! Giving dead letters back to their group, and dropping them.

use std::collections::VecDeque;

use stentor_core::GroupName;
use stentor_core::storage::{KeyRange, StorageError};
use stentor_protocol::{ErrorCode, wire};

use super::command::{Redriven, Reply};
use super::commit::Afterwards;
use super::groups::{Slot, Steering};
use super::jobs::{Letters, Portion};
use super::task::Task;
use crate::error::{refusal, refused_by_storage};
use crate::group::{self, Moves, Purge};

impl Steering {
    /// It cannot be done.
    pub(super) fn refuse(self, error: wire::Error) {
        match self {
            Self::Redrive { reply, .. } => drop(reply.send(Err(error))),
            Self::Purge { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

impl Slot {
    /// A group that has stopped would keep what is given back to it without end: who asks for it is told so at once.
    pub(super) fn refuse_redrives(&mut self) {
        let Some(stop) = &self.stopped else { return };
        let (redrives, others) =
            self.steering.drain(..).partition(|steering| matches!(steering, Steering::Redrive { .. }));
        self.steering = others;
        let redrives: VecDeque<Steering> = redrives;
        redrives.into_iter().for_each(|redrive| redrive.refuse(stop.error.clone()));
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
            return drop(reply.send(Err(group_deleted(group))));
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

    /// A portion of the letters that an operator wants dropped is known.
    pub(super) async fn purge(
        &mut self,
        group: &GroupName,
        generation: u64,
        outcome: Result<Portion, StorageError>,
        (purged, reply): (u64, Reply<u64>),
    ) {
        let Some(slot) = self.slot_of(group, generation) else {
            return drop(reply.send(Err(group_deleted(group))));
        };
        slot.moving = false;
        slot.ready = true;
        let Portion { rows, end, more } = match outcome {
            Ok(portion) => portion,
            Err(error) => return drop(reply.send(Err(refused_by_storage(&error)))),
        };
        let purged = purged + rows;
        if rows == 0 {
            return drop(reply.send(Ok(purged)));
        }
        let range = KeyRange { end: Some(end), ..group::dead_letters_range(group) };
        let moves = Moves { purge: Some(Purge { range, letters: rows }), ..Moves::default() };
        if !more {
            // A refusal has been sent to whoever asked.
            let _ = self.flush_one(group, moves, Vec::new(), Afterwards::Purged(reply, purged)).await;
            return;
        }
        match (self.flush_one(group, moves, Vec::new(), Afterwards::Nobody).await, self.slot_of(group, generation)) {
            (Ok(()), Some(slot)) => slot.steering.push_front(Steering::Purge { purged, reply }),
            (Ok(()), None) => drop(reply.send(Err(group_deleted(group)))),
            (Err(error), _) => drop(reply.send(Err(error))),
        }
    }
}

fn group_deleted(group: &GroupName) -> wire::Error {
    refusal(ErrorCode::GroupNotFound, format!("the group `{group}` was deleted meanwhile"))
}
