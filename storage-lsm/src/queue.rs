//! What waits for the committer.
//!
//! Invariants: what waits is bounded in bytes, by permits that writers take before and give back when their change is done;
//! sequences are given out under the queue's lock, so the order in the queue is the order in the journal.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stentor_core::OffsetRange;
use stentor_core::storage::CommitReceipt;
use tokio::sync::OwnedSemaphorePermit;

use crate::format::group::FRAME_HEADER_BYTES;
use crate::format::payload::Encoded;
use crate::journal::segments::Segment;
use crate::partition::Partition;
use crate::room::Room;

/// What may wait for the committer or be with it, over all partitions. Writers wait for room here.
pub(crate) const QUEUE_BYTES_MAX: usize = 64 << 20;

/// The unit of the queue's permits; a change takes at least one, which bounds their number too.
pub(crate) const PERMIT_BYTES: usize = 1 << 10;

/// The most that one group gathers, unless one change alone is larger.
pub(crate) const GROUP_BYTES_MAX: u64 = 8 << 20;

/// A change on its way to the journal.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) partition: Arc<Partition>,
    pub(crate) sequence: u64,
    pub(crate) encoded: Encoded,
    /// Whether the receipt waits for a sync.
    pub(crate) synced: bool,
    /// What of it counts as new data.
    pub(crate) room: u64,
    pub(crate) receipt: CommitReceipt,
    /// Segments that it refers to; held until the index knows.
    pub(crate) pins: Vec<Arc<Segment>>,
    #[expect(dead_code, reason = "makes room in the queue when it is dropped")]
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

impl Job {
    /// What it takes in a group.
    pub(crate) fn bytes(&self) -> u64 {
        frame_bytes(&self.encoded)
    }
}

/// What a payload takes in a group.
pub(crate) fn frame_bytes(encoded: &Encoded) -> u64 {
    FRAME_HEADER_BYTES as u64 + encoded.length
}

/// What a change needs room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// It keeps books, which always goes on.
    Books,
    /// It brings in new data.
    Data,
    /// It moves what is owed in a sparse segment.
    Rewriting,
}

/// What a writer asks for.
pub(crate) struct Request {
    pub(crate) encoded: Encoded,
    /// The offsets of what is appended.
    pub(crate) offsets: OffsetRange,
    pub(crate) synced: bool,
    pub(crate) need: Need,
    pub(crate) pins: Vec<Arc<Segment>>,
    pub(crate) permit: Option<OwnedSemaphorePermit>,
}

/// What the committer finds when it looks for work.
pub(crate) enum Work {
    Jobs(Vec<Job>),
    /// There was none for as long as it was willing to wait.
    Idle,
    End(Ending),
}

/// How the store ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// What was taken is made durable first.
    Close,
    /// At once, as if the process had been killed.
    Abandon,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    pub(crate) filled: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct QueueState {
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) next_sequence: u64,
    pub(crate) ending: Option<Ending>,
    /// Why nothing can be written any more.
    pub(crate) poisoned: Option<String>,
    pub(crate) room: Room,
}

impl Queue {
    pub(crate) fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether at least `bytes` wait.
    pub(crate) fn holds(&self, bytes: u64) -> bool {
        let mut sum = 0;
        self.state().jobs.iter().any(|job| {
            sum += job.bytes();
            sum >= bytes
        })
    }

    /// Waits for jobs, at most `bytes_max` of them together unless the first alone is larger; with `idle` no longer than
    /// that.
    pub(crate) fn take(&self, bytes_max: u64, idle: Option<Duration>) -> Work {
        let mut state = self.state();
        loop {
            if state.ending == Some(Ending::Abandon) {
                return Work::End(Ending::Abandon);
            }
            let mut bytes = 0;
            let mut taken = Vec::new();
            while let Some(job) = state.jobs.front() {
                bytes += job.bytes();
                if bytes > bytes_max && !taken.is_empty() {
                    break;
                }
                taken.extend(state.jobs.pop_front());
            }
            if !taken.is_empty() {
                return Work::Jobs(taken);
            }
            if let Some(ending) = state.ending {
                return Work::End(ending);
            }
            state = match idle {
                Some(idle) if state.poisoned.is_none() => {
                    let (state, waited) = self.filled.wait_timeout(state, idle).unwrap_or_else(PoisonError::into_inner);
                    if waited.timed_out() && state.jobs.is_empty() && state.ending.is_none() {
                        return Work::Idle;
                    }
                    state
                }
                _ => self.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}
