//! What a benchmark counts: messages, bytes, time and latencies.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::output::Failure;

/// The longest latency that is told apart; longer ones count as this.
const LATENCY_MICROS_MAX: u64 = 3_600_000_000;

/// Latencies in microseconds, to three digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Latencies {
    /// None yet.
    pub(crate) fn new() -> Result<Self, Failure> {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MICROS_MAX, 3);
        histogram.map(Self).map_err(|error| Failure::new("internal", error.to_string()))
    }

    /// Adds one.
    pub(crate) fn record(&mut self, latency: Duration) {
        self.record_many(latency, 1);
    }

    /// Adds as many that are the same.
    pub(crate) fn record_many(&mut self, latency: Duration, count: u64) {
        // None of a latency would still become the longest.
        if count == 0 {
            return;
        }
        let micros = u64::try_from(latency.as_micros()).unwrap_or(LATENCY_MICROS_MAX);
        self.0.saturating_record_n(micros.clamp(1, LATENCY_MICROS_MAX), count);
    }

    /// Adds all of another's.
    pub(crate) fn merge(&mut self, other: &Self) {
        // Of the same bounds, so it cannot fail.
        let _ = self.0.add(&other.0);
    }

    /// The one that a share of all do not exceed.
    pub(crate) fn at(&self, share: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(share))
    }

    /// The percentiles that are reported.
    pub(crate) fn percentiles(&self) -> Percentiles {
        let at = |share| self.0.value_at_quantile(share);
        Percentiles { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: self.0.max() }
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

/// So many of something in so much time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Amount {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) time: Duration,
}

impl Amount {
    /// Messages a second.
    pub(crate) fn messages_per_second(&self) -> f64 {
        per_second(self.messages, self.time)
    }

    /// Megabytes (10^6 bytes) a second.
    pub(crate) fn megabytes_per_second(&self) -> f64 {
        per_second(self.bytes, self.time) / 1e6
    }
}

/// So many a second; none in no time.
#[expect(clippy::cast_precision_loss, reason = "a rate to 15 digits is enough")]
pub(crate) fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_everything_that_was_recorded() {
        let (mut some, mut others) = (Latencies::new().unwrap(), Latencies::new().unwrap());
        for micros in 1..=500 {
            some.record(Duration::from_micros(micros));
            others.record(Duration::from_micros(500 + micros));
        }
        some.merge(&others);
        assert_eq!(some.percentiles(), Percentiles { p50: 500, p99: 990, p999: 999, max: 1_000 });
    }

    #[test]
    fn none_of_a_latency_changes_nothing() {
        let mut latencies = Latencies::new().unwrap();
        latencies.record_many(Duration::from_micros(7), 3);
        latencies.record_many(Duration::from_secs(7), 0);
        assert_eq!(latencies.percentiles().max, 7);
    }

    #[test]
    fn rates_are_in_messages_and_in_millions_of_bytes() {
        let amount = Amount { messages: 500, bytes: 4_000_000, time: Duration::from_millis(500) };
        assert!((amount.messages_per_second() - 1_000.0).abs() < 1e-9);
        assert!((amount.megabytes_per_second() - 8.0).abs() < 1e-9);
        assert!(Amount::default().messages_per_second().abs() < 1e-9);
    }
}
