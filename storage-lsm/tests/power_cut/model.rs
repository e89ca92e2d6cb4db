//! What a partition must hold: a naive copy of it, change by change.

use std::collections::BTreeMap;

use bytes::Bytes;
use stentor_core::storage::{Change, Key, KeyRange};
use stentor_core::{Offset, OffsetRange, RecordBatch};

/// A partition as it stands after some change.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct State {
    pub(crate) bounds: OffsetRange,
    /// Every batch of which something is left.
    pub(crate) log: Vec<RecordBatch>,
    pub(crate) rows: BTreeMap<Key, Bytes>,
}

/// A change in the terms of the model: what is appended by reference is a batch as well.
#[derive(Clone, Debug)]
pub(crate) struct ModelChange {
    pub(crate) appends: Vec<RecordBatch>,
    pub(crate) puts: Vec<(Key, Bytes)>,
    pub(crate) deletes: Vec<KeyRange>,
    pub(crate) trim: Option<Offset>,
}

impl ModelChange {
    pub(crate) fn new(change: &Change, appends: Vec<RecordBatch>) -> Self {
        Self { appends, puts: change.puts.clone(), deletes: change.deletes.clone(), trim: change.trim }
    }
}

impl State {
    pub(crate) fn apply(&mut self, change: &ModelChange) {
        self.rows.retain(|key, _| !change.deletes.iter().any(|range| range.contains(key)));
        self.rows.extend(change.puts.iter().cloned());
        for batch in &change.appends {
            let batch = batch.clone().stored(self.bounds.end, batch.stored_at());
            self.bounds.end = batch.offsets().end;
            self.log.push(batch);
        }
        if let Some(start) = change.trim {
            self.bounds.start = self.bounds.start.max(start);
            self.log.retain(|batch| batch.offsets().end > self.bounds.start);
        }
    }
}

/// A partition over one life of the engine: where it began, what was committed since in order, and how much of that was
/// acknowledged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Partition {
    pub(crate) began: State,
    pub(crate) changes: Vec<ModelChange>,
    pub(crate) acknowledged: usize,
}

impl Partition {
    /// The state after all that was committed.
    pub(crate) fn latest(&self) -> State {
        let mut state = self.began.clone();
        self.changes.iter().for_each(|change| state.apply(change));
        state
    }

    /// Whether `found` is what a power cut may leave: all that was acknowledged, and perhaps more, but without holes.
    /// The partition then goes on from there.
    pub(crate) fn settle(&mut self, found: &State) -> Result<(), String> {
        let mut state = self.began.clone();
        let mut closest = None;
        for taken in 0..=self.changes.len() {
            if taken > 0 {
                state.apply(&self.changes[taken - 1]);
            }
            if state == *found {
                if taken >= self.acknowledged {
                    *self = Self { began: state, ..Self::default() };
                    return Ok(());
                }
                closest = Some(taken);
            }
        }
        Err(match closest {
            Some(taken) => format!("{} changes were acknowledged, {taken} are left", self.acknowledged),
            None => format!("it is in no state that it ever was in: {found:?}\nlast: {:?}", self.latest()),
        })
    }
}
