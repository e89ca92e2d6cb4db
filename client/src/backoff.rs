//! How long to wait before trying again: growing pauses with jitter, so that many who failed together do not come back
//! together.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// The shortest and the longest pause, before jitter (which adds up to as much again).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

/// Between two tries to connect.
pub(crate) const RECONNECT: Pauses = Pauses { min: Duration::from_millis(50), max: Duration::from_secs(5) };

/// Between two tries of what a partition or a subscription refused.
pub(crate) const RETRY: Pauses = Pauses { min: Duration::from_millis(20), max: Duration::from_secs(1) };

/// A schedule that starts over after a success.
#[derive(Debug)]
pub(crate) struct Backoff {
    pauses: Pauses,
    random: fastrand::Rng,
    schedule: Option<ExponentialBackoff>,
}

impl Backoff {
    pub(crate) fn new(pauses: Pauses, seed: u64) -> Self {
        Self { pauses, random: fastrand::Rng::with_seed(seed), schedule: None }
    }

    /// The pause after one more failure.
    pub(crate) fn failed(&mut self) -> Duration {
        let Self { pauses, random, schedule } = self;
        let schedule = schedule.get_or_insert_with(|| {
            ExponentialBuilder::new()
                .with_min_delay(pauses.min)
                .with_max_delay(pauses.max)
                .without_max_times()
                .with_jitter()
                .with_jitter_seed(random.u64(..))
                .build()
        });
        schedule.next().unwrap_or(pauses.max)
    }

    /// It worked: the next failure is the first again.
    pub(crate) fn succeeded(&mut self) {
        self.schedule = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_start_over_after_a_success() {
        let mut backoff = Backoff::new(RETRY, 1);
        let pauses: Vec<_> = (0..50).map(|_| backoff.failed()).collect();
        assert!(pauses[0] >= RETRY.min && pauses[0] <= RETRY.min * 2, "{:?}", pauses[0]);
        assert!(pauses[49] >= RETRY.max && pauses[49] <= RETRY.max * 2, "{:?}", pauses[49]);
        backoff.succeeded();
        assert!(backoff.failed() <= RETRY.min * 2);
    }

    #[test]
    fn the_same_seed_gives_the_same_pauses() {
        let run = |seed| {
            let mut backoff = Backoff::new(RECONNECT, seed);
            (0..10).map(|_| backoff.failed()).collect::<Vec<_>>()
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }
}
