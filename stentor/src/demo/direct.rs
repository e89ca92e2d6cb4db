//! What a registration costs without a broker: the ten steps performed by the publisher, in series and in parallel.

use std::time::Duration;

use futures_util::future::join_all;
use stentor_core::Clock;
use stentor_core::clock::SystemClock;

use super::services::{Health, SERVICES, Service};
use crate::bench::Latencies;
use crate::output::Failure;

/// Registrations that are performed in each way.
const REGISTRATIONS: usize = 12;

/// How long a registration took the publisher.
#[derive(Clone, Debug)]
pub(super) struct Direct {
    pub(super) series: Latencies,
    pub(super) parallel: Latencies,
    /// Registrations in which a step failed: all of them, as long as one service is broken.
    pub(super) failed: usize,
    pub(super) registrations: usize,
}

/// Performs registrations in both ways.
pub(super) async fn measure() -> Result<Direct, Failure> {
    let clock = SystemClock::new();
    let (mut series, mut parallel) = (Latencies::new()?, Latencies::new()?);
    let mut failed = 0;
    for _ in 0..REGISTRATIONS {
        let began = clock.monotonic();
        let mut all = true;
        for service in &SERVICES {
            all &= step(service, &clock).await;
        }
        series.record(clock.monotonic().since(began));
        failed += usize::from(!all);

        let began = clock.monotonic();
        let all = join_all(SERVICES.iter().map(|service| step(service, &clock))).await.into_iter().all(|done| done);
        parallel.record(clock.monotonic().since(began));
        failed += usize::from(!all);
    }
    Ok(Direct { series, parallel, failed, registrations: 2 * REGISTRATIONS })
}

/// One step: true if it was done.
async fn step(service: &Service, clock: &SystemClock) -> bool {
    clock.sleep_until(clock.monotonic().after(service.step)).await;
    service.health != Health::Broken
}

/// What the steps come to by their stated durations, in series and in parallel.
pub(super) fn stated() -> (Duration, Duration) {
    let steps = || SERVICES.iter().map(|service| service.step);
    (steps().sum(), steps().max().unwrap_or_default())
}
