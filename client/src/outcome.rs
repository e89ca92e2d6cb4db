//! An outcome that many wait for: the answer to one frame, and everything that was in it.
//!
//! A batch of a thousand messages has a thousand futures and one answer; so the futures share one cell instead of owning
//! a channel each. A waiter has a slot of its own, by its number, which keeps at most one waker.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A cell that is filled once.
#[derive(Debug)]
pub(crate) struct Outcome<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    value: Option<T>,
    wakers: Vec<Option<Waker>>,
    /// Of waiters that have no slot.
    others: Vec<Waker>,
}

impl<T: Clone> Outcome<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { value: None, wakers: Vec::new(), others: Vec::new() }) })
    }

    /// Fills the cell and wakes whoever waits. What was there first stays.
    pub(crate) fn fill(&self, value: T) {
        let mut state = self.lock();
        if state.value.is_some() {
            return;
        }
        state.value = Some(value);
        let (wakers, others) = (std::mem::take(&mut state.wakers), std::mem::take(&mut state.others));
        // Outside the lock, since who wakes wants it.
        drop(state);
        wakers.into_iter().flatten().chain(others).for_each(Waker::wake);
    }

    /// The value, or a wake-up for `slot` once it is there.
    pub(crate) fn poll(&self, slot: usize, context: &Context<'_>) -> Poll<T> {
        let mut state = self.lock();
        if let Some(value) = &state.value {
            return Poll::Ready(value.clone());
        }
        if state.wakers.len() <= slot {
            state.wakers.resize_with(slot + 1, || None);
        }
        match &mut state.wakers[slot] {
            Some(waker) => waker.clone_from(context.waker()),
            empty => *empty = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// The value, once it is there. For waiters that have no slot.
    pub(crate) async fn wait(&self) -> T {
        poll_fn(|context| {
            let mut state = self.lock();
            if let Some(value) = &state.value {
                return Poll::Ready(value.clone());
            }
            if !state.others.iter().any(|waker| waker.will_wake(context.waker())) {
                state.others.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing in here panics half-way, so a poisoned state is a good one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_waiters_get_the_first_value() {
        let cell = Outcome::new();
        let other = Arc::clone(&cell);
        let other = tokio::spawn(async move { other.wait().await });
        let waiters: Vec<_> = (0..3)
            .map(|slot| {
                let cell = Arc::clone(&cell);
                tokio::spawn(async move { poll_fn(|context| cell.poll(slot, context)).await })
            })
            .collect();
        tokio::task::yield_now().await;
        cell.fill(7);
        cell.fill(8);
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap(), 7);
        }
        assert_eq!(other.await.unwrap(), 7);
    }
}
