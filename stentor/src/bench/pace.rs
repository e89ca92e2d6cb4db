//! Sending at a fixed rate, whatever the sender does.
//!
//! Invariant: a message carries the moment it was due, not the moment it went, so that a latency taken from it holds the
//! time that it waited for a sender that could not keep up (no coordinated omission).

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stentor_core::clock::SystemClock;
use stentor_core::{Clock, Monotonic};
use tokio::sync::Notify;

/// Above this rate several messages become due at a tick: a tick each would cost more than what is measured.
const TICKS_PER_SECOND_MAX: u64 = 10_000;

/// How exactly the thread that ticks is woken. Linux rounds to 50 µs unless told otherwise.
const TIMER_SLACK_NANOS: NonZeroU64 = NonZeroU64::MIN;

/// The moments at which messages are due.
pub(super) struct Pace {
    clock: SystemClock,
    began: Monotonic,
    rate: u64,
    /// Of the next message.
    number: u64,
    ticks: Arc<Notify>,
    over: Arc<AtomicBool>,
}

impl Pace {
    /// `rate` messages a second on this clock, from now on.
    pub(super) fn new(clock: &SystemClock, rate: u64) -> Self {
        let (ticks, over) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let pace = Self {
            clock: clock.clone(),
            began: clock.monotonic(),
            rate,
            number: 0,
            ticks: Arc::clone(&ticks),
            over: Arc::clone(&over),
        };
        let (clock, began) = (clock.clone(), pace.began);
        // A thread, since the runtime's timers are good to a millisecond only, which is more than what is measured.
        std::thread::spawn(move || {
            // Without it latencies hold a little more of this thread's waking; nothing is wrong.
            let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK_NANOS));
            for number in 0_u64.. {
                let due = began.after(distance(number, rate.min(TICKS_PER_SECOND_MAX)));
                let wait = due.since(clock.monotonic());
                if !wait.is_zero() {
                    #[expect(clippy::disallowed_methods, reason = "this thread is a clock")]
                    std::thread::sleep(wait);
                }
                if over.load(Ordering::Relaxed) {
                    return;
                }
                ticks.notify_one();
            }
        });
        pace
    }

    /// Waits for the next message to be due. Cancel safe.
    pub(super) async fn wait(&self) {
        while self.due() > self.clock.monotonic() {
            self.ticks.notified().await;
        }
    }

    /// When the next message is due.
    pub(super) fn due(&self) -> Monotonic {
        self.began.after(distance(self.number, self.rate))
    }

    /// Goes on to the message after it.
    pub(super) fn advance(&mut self) {
        self.number += 1;
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
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
    fn messages_are_due_at_even_distances_without_drift() {
        assert_eq!(distance(0, 3), Duration::ZERO);
        assert_eq!(distance(3_000_000, 3), Duration::from_secs(1_000_000));
        assert_eq!(distance(1, 5_000), Duration::from_micros(200));
    }

    #[tokio::test]
    async fn nothing_goes_before_it_is_due_and_a_late_sender_still_learns_the_moment() {
        let clock = SystemClock::new();
        for rate in [1_000, 1_000_000] {
            let mut pace = Pace::new(&clock, rate);
            let first = pace.due();
            for number in 0..20 {
                pace.wait().await;
                assert!(clock.monotonic() >= pace.due());
                assert_eq!(pace.due().since(first), distance(number, rate));
                pace.advance();
            }
        }
    }
}
