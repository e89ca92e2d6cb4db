//! What is synced and waits for the indexer.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::format::payload::Frame;
use crate::journal::segments::Segment;
use crate::partition::{Location, Partition};
use crate::queue::Ending;

/// What may wait for the indexer. The committer waits beyond that: this much of the tail is in memory.
const BACKLOG_BYTES_MAX: u64 = 64 << 20;

/// A group that is synced, on its way to the index.
#[derive(Debug)]
pub(crate) struct SyncedGroup {
    pub(crate) segment: u64,
    /// Where the next group begins.
    pub(crate) end: u64,
    pub(crate) last_sequence: u64,
    pub(crate) bytes: u64,
    pub(crate) changes: Vec<SyncedChange>,
}

/// One frame of a synced group.
#[derive(Debug)]
pub(crate) struct SyncedChange {
    pub(crate) partition: Arc<Partition>,
    pub(crate) sequence: u64,
    pub(crate) location: Location,
    pub(crate) frame: Frame,
    #[expect(dead_code, reason = "held until the index knows of the references")]
    pub(crate) pins: Vec<Arc<Segment>>,
}

/// What waits for the indexer.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    state: Mutex<BacklogState>,
    /// Something came, or something was done.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BacklogState {
    groups: VecDeque<SyncedGroup>,
    bytes: u64,
    /// The last sequence that the index reflects.
    indexed: u64,
    ending: Option<Ending>,
    failed: bool,
}

/// What the indexer finds when it looks for work.
pub(crate) enum IndexWork {
    Groups(Vec<SyncedGroup>),
    /// There was none for as long as it was willing to wait.
    Idle,
    End(Ending),
}

impl Backlog {
    /// One of an index that reflects everything through `sequence`.
    pub(crate) fn after(sequence: u64) -> Self {
        let backlog = Self::default();
        backlog.state().indexed = sequence;
        backlog
    }

    fn state(&self) -> MutexGuard<'_, BacklogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a group; waits while there is too much already.
    pub(crate) fn push(&self, group: SyncedGroup) {
        let mut state = self.state();
        while state.bytes > BACKLOG_BYTES_MAX && !state.failed && state.ending.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.bytes += group.bytes;
        state.groups.push_back(group);
        self.changed.notify_all();
    }

    /// Takes what there is, at most `bytes_max` of it unless the first group alone is larger.
    pub(crate) fn take(&self, bytes_max: u64, idle: Option<Duration>) -> IndexWork {
        let mut state = self.state();
        loop {
            if state.ending == Some(Ending::Abandon) {
                return IndexWork::End(Ending::Abandon);
            }
            let mut bytes = 0;
            let mut taken = Vec::new();
            while let Some(group) = state.groups.front() {
                bytes += group.bytes;
                if bytes > bytes_max && !taken.is_empty() {
                    break;
                }
                taken.extend(state.groups.pop_front());
            }
            if !taken.is_empty() {
                return IndexWork::Groups(taken);
            }
            if let Some(ending) = state.ending {
                return IndexWork::End(ending);
            }
            state = match idle {
                Some(idle) => {
                    let (state, waited) =
                        self.changed.wait_timeout(state, idle).unwrap_or_else(PoisonError::into_inner);
                    if waited.timed_out() && state.groups.is_empty() && state.ending.is_none() {
                        return IndexWork::Idle;
                    }
                    state
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// The index reflects everything through `sequence`, and `bytes` of what waited are done.
    pub(crate) fn indexed(&self, sequence: u64, bytes: u64) {
        let mut state = self.state();
        state.indexed = sequence;
        state.bytes -= bytes;
        self.changed.notify_all();
    }

    pub(crate) fn end(&self, ending: Ending) {
        let mut state = self.state();
        state.ending.get_or_insert(ending);
        if ending == Ending::Abandon {
            state.ending = Some(ending);
        }
        self.changed.notify_all();
    }

    /// Waits for something to change, but not longer than this.
    pub(crate) fn wait_briefly(&self, at_most: Duration) {
        let state = self.state();
        if state.ending.is_none() {
            let _ = self.changed.wait_timeout(state, at_most);
        }
    }

    /// Nothing will be indexed any more.
    pub(crate) fn fail(&self) {
        self.state().failed = true;
        self.changed.notify_all();
    }

    pub(crate) fn wait_for(&self, sequence: u64) {
        let mut state = self.state();
        while state.indexed < sequence && !state.failed && state.ending.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
