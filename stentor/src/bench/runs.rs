//! What several runs of the same work come to: the median of each figure, and how far the runs lay apart.

use serde::Serialize;

use super::report::{Asked, Report, rounded};
use crate::output::{Table, bytes_text, count_text};

/// A figure of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Of these; none of none.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Self { median, min, max })
    }

    /// How far the runs lay apart, as a share of the median.
    fn share(self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / self.median } else { 0.0 }
    }
}

/// What several runs found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Summary {
    work: String,
    storage: String,
    durability: String,
    asked: Asked,
    runs: usize,
    messages_per_second: Spread,
    megabytes_per_second: Spread,
    latency_p50_us: Spread,
    latency_p99_us: Spread,
    latency_p999_us: Spread,
    latency_max_us: Spread,
    broker_cpu_seconds_per_million: Spread,
    broker_rss_bytes: Spread,
    share_of_limit: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    fdatasync_p50_us: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drain_messages_per_second: Option<Spread>,
}

impl Summary {
    /// Of these; none unless there are several.
    #[expect(clippy::cast_precision_loss, reason = "figures of a benchmark fit a double")]
    pub(super) fn of(reports: &[Report]) -> Option<Self> {
        let [first, _, ..] = reports else { return None };
        let all = |figure: &dyn Fn(&Report) -> f64| Spread::of(reports.iter().map(figure));
        Some(Self {
            work: first.work.clone(),
            storage: first.storage.clone(),
            durability: first.durability.clone(),
            asked: first.asked.clone(),
            runs: reports.len(),
            messages_per_second: all(&|report| report.messages_per_second)?,
            megabytes_per_second: all(&|report| report.megabytes_per_second)?,
            latency_p50_us: all(&|report| report.latency_us.p50 as f64)?,
            latency_p99_us: all(&|report| report.latency_us.p99 as f64)?,
            latency_p999_us: all(&|report| report.latency_us.p999 as f64)?,
            latency_max_us: all(&|report| report.latency_us.max as f64)?,
            broker_cpu_seconds_per_million: all(&|report| report.broker_cpu_seconds_per_million)?,
            broker_rss_bytes: all(&|report| report.broker_rss_bytes as f64)?,
            share_of_limit: all(&|report| report.share_of_limit)?,
            fdatasync_p50_us: Spread::of(reports.iter().filter_map(|report| Some(report.fdatasync_us?.p50 as f64))),
            drain_messages_per_second: Spread::of(
                reports.iter().filter_map(|report| Some(report.drain.as_ref()?.messages_per_second)),
            ),
        })
    }

    /// For people.
    pub(super) fn words(&self) -> String {
        let mut table = Table::new(&[&format!("{} runs", self.runs), ">median", ">least", ">most", ">apart"]);
        let mut row = |what: &str, spread: Spread, text: &dyn Fn(f64) -> String| {
            let Spread { median, min, max } = spread;
            let apart = format!("{:.0} %", spread.share() * 100.0);
            table.row([what.to_owned(), text(median), text(min), text(max), apart]);
        };
        row("messages/s", self.messages_per_second, &rounded);
        row("MB/s", self.megabytes_per_second, &|value| format!("{value:.1}"));
        if let Some(drain) = self.drain_messages_per_second {
            row("drained, messages/s", drain, &rounded);
        }
        row("latency p50 µs", self.latency_p50_us, &rounded);
        row("latency p99 µs", self.latency_p99_us, &rounded);
        row("latency p99.9 µs", self.latency_p999_us, &rounded);
        row("latency max µs", self.latency_max_us, &rounded);
        row("broker s a million", self.broker_cpu_seconds_per_million, &|value| format!("{value:.2}"));
        row("broker memory", self.broker_rss_bytes, &whole_bytes);
        row("of limit", self.share_of_limit, &|value| format!("{:.0} %", value * 100.0));
        if let Some(sync) = self.fdatasync_p50_us {
            row("fdatasync p50 µs", sync, &|value| count_text(whole(value)));
        }
        table.text()
    }
}

fn whole_bytes(value: f64) -> String {
    bytes_text(whole(value))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures for people")]
fn whole(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_of_the_middle_and_the_spread_of_all() {
        assert_eq!(Spread::of([3.0, 1.0, 10.0]), Some(Spread { median: 3.0, min: 1.0, max: 10.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).map(|spread| spread.median), Some(2.5));
        assert_eq!(Spread::of([]), None);
    }
}
