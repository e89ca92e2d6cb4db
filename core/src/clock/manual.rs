//! A clock that stands still until it is told to move.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::Clock;
use crate::{Monotonic, Timestamp};

/// A clock for tests and simulation. Clones share the same time.
#[derive(Clone, Debug)]
pub struct ManualClock {
    time: Arc<watch::Sender<(Timestamp, Monotonic)>>,
}

impl ManualClock {
    /// A clock that shows `now` on the wall and zero on the monotonic side.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { time: Arc::new(watch::Sender::new((now, Monotonic::default()))) }
    }

    /// Moves both clocks forward and wakes whoever's time has come.
    pub fn advance(&self, by: Duration) {
        self.time.send_modify(|(wall, monotonic)| {
            *wall = wall.after(by);
            *monotonic = monotonic.after(by);
        });
    }

    /// Sets the wall clock alone, as an administrator or NTP would: forwards or backwards.
    pub fn step_wall(&self, to: Timestamp) {
        self.time.send_modify(|(wall, _)| *wall = to);
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.time.borrow().0
    }

    fn monotonic(&self) -> Monotonic {
        self.time.borrow().1
    }

    async fn sleep_until(&self, at: Monotonic) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.time.subscribe().wait_for(|(_, monotonic)| *monotonic >= at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleeper_wakes_when_its_time_comes_and_not_before() {
        let clock = ManualClock::new(Timestamp(0));
        let wake = clock.monotonic().after(Duration::from_secs(2));
        let sleeper = clock.clone();
        let mut sleep = std::pin::pin!(sleeper.sleep_until(wake));
        clock.advance(Duration::from_secs(1));
        assert!(futures_poll(sleep.as_mut()).await.is_none());
        clock.advance(Duration::from_secs(1));
        assert!(futures_poll(sleep.as_mut()).await.is_some());
    }

    async fn futures_poll<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match std::pin::Pin::new(&mut future).poll(context) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
