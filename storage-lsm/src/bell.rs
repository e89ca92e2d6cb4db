//! Wakes a thread that otherwise sleeps.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One thread waits for it, any may ring it.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// A leaf: nothing is locked inside.
    state: Mutex<BellState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BellState {
    rung: bool,
    ended: bool,
}

impl Bell {
    fn state(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is something to do.
    pub(crate) fn ring(&self) {
        let mut state = self.state();
        if !state.rung {
            state.rung = true;
            self.changed.notify_one();
        }
    }

    /// Nothing is to be done any more.
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.changed.notify_one();
    }

    /// Waits for the bell, but not longer than this if it is given; false at the end.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> bool {
        let mut state = self.state();
        while !state.rung && !state.ended {
            match at_most {
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at_most) => {
                    let waited = self.changed.wait_timeout(state, at_most).unwrap_or_else(PoisonError::into_inner);
                    state = waited.0;
                    break;
                }
            }
        }
        state.rung = false;
        !state.ended
    }

    /// Waits for so long whether it rings or not; false at the end, which comes at once.
    pub(crate) fn pause(&self, duration: Duration) -> bool {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, duration, |state| !state.ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.ended
    }
}
