//! Sending at a fixed rate: a clock that ticks at even distances, whatever the sender does.
//!
//! Invariant: ticks carry the moment they were due, not the moment they came, so that a latency taken from them holds the
//! time that a message waited for a sender that could not keep up (no coordinated omission).

use std::time::Duration;

use stentor_core::clock::SystemClock;
use stentor_core::{Clock, Monotonic};
use tokio::sync::mpsc;

/// Ticks that may wait for the sender. A sender further behind holds up the ticks, which keep their due moments.
const TICKS_WAITING_MAX: usize = 4_096;

/// The moments at which messages are due.
pub(super) struct Pace {
    ticks: mpsc::Receiver<Monotonic>,
}

impl Pace {
    /// Ticks `rate` times a second on this clock, from now on.
    pub(super) fn new(clock: &SystemClock, rate: u64) -> Self {
        let (to_ticks, ticks) = mpsc::channel(TICKS_WAITING_MAX);
        let clock = clock.clone();
        // A thread, since the runtime's timers are good to a millisecond only, which is more than what is measured.
        std::thread::spawn(move || {
            let began = clock.monotonic();
            for number in 0_u64.. {
                let due = began.after(distance(number, rate));
                let wait = due.since(clock.monotonic());
                if !wait.is_zero() {
                    #[expect(clippy::disallowed_methods, reason = "this thread is a clock")]
                    std::thread::sleep(wait);
                }
                if to_ticks.blocking_send(due).is_err() {
                    return;
                }
            }
        });
        Self { ticks }
    }

    /// Waits for the next message to be due, and says when it was.
    pub(super) async fn next(&mut self) -> Monotonic {
        // The thread ends only when the receiver is gone.
        match self.ticks.recv().await {
            Some(due) => due,
            None => std::future::pending().await,
        }
    }
}

/// How long after the first the message of this number is due.
fn distance(number: u64, rate: u64) -> Duration {
    let rate = rate.max(1);
    let nanos = u128::from(number) * 1_000_000_000 / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_due_at_even_distances_without_drift() {
        assert_eq!(distance(0, 3), Duration::ZERO);
        assert_eq!(distance(3_000_000, 3), Duration::from_secs(1_000_000));
        assert_eq!(distance(1, 5_000), Duration::from_micros(200));
    }

    #[tokio::test]
    async fn a_late_taker_still_gets_the_moment_that_was_due() {
        let clock = SystemClock::new();
        let mut pace = Pace::new(&clock, 10_000);
        let first = pace.next().await;
        let second = pace.next().await;
        assert_eq!(second.since(first), Duration::from_micros(100));
    }
}
