//! What waits to be accepted: streams of a connection, connections of a listener.
//!
//! Invariant: while something waits and someone waits for it, a permit of `arrived` is on its way.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A bounded queue that many may wait on.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    arrived: Notify,
    len_max: usize,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    closed: bool,
}

/// Why an item was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    Closed,
}

impl<T> Queue<T> {
    pub(crate) fn new(len_max: usize) -> Self {
        Self { state: Mutex::new(State { items: VecDeque::new(), closed: false }), arrived: Notify::new(), len_max }
    }

    pub(crate) fn push(&self, item: T) -> Result<(), Refused> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refused::Closed);
        }
        if state.items.len() >= self.len_max {
            return Err(Refused::Full);
        }
        state.items.push_back(item);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// The next item; `None` once closed. Cancel safe.
    pub(crate) async fn pop(&self) -> Option<T> {
        loop {
            {
                let mut state = self.lock();
                if let Some(item) = state.items.pop_front() {
                    // Two pushes may have left one permit: pass it on while anything waits.
                    if !state.items.is_empty() {
                        self.arrived.notify_one();
                    }
                    return Some(item);
                }
                if state.closed {
                    self.arrived.notify_one();
                    return None;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Takes nothing more, and gives back what waited.
    pub(crate) fn close(&self) -> VecDeque<T> {
        let mut state = self.lock();
        state.closed = true;
        let rest = std::mem::take(&mut state.items);
        drop(state);
        self.arrived.notify_one();
        rest
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Held for a few instructions that cannot panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
