//! What a benchmark found.

use serde::Serialize;

use super::limit::Limit;
use super::stats::{Amount, Latencies, Percentiles};
use crate::output::{Table, bytes_text, count_text};

/// `bench … --json`; the field names are part of the contract with users.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(super) work: String,
    pub(super) storage: String,
    pub(super) durability: String,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) messages_per_second: f64,
    pub(super) megabytes_per_second: f64,
    pub(super) latency_us: Percentiles,
    /// Of the broker's process, during the run.
    pub(super) broker_cpu_seconds: f64,
    /// Of the broker's process, at its end.
    pub(super) broker_rss_bytes: u64,
    /// What holds this work up at best: the wire, or what the topic is kept in.
    pub(super) limit: Limit,
    /// All that were measured in this run.
    pub(super) limits: Vec<Limit>,
    /// Of a backlog: the way there in tenths.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tenths: Vec<Tenth>,
    /// Of a backlog: the way back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) drain: Option<Drain>,
}

/// A tenth of the way to a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Tenth {
    pub(super) messages: u64,
    pub(super) messages_per_second: f64,
    pub(super) broker_rss_bytes: u64,
}

/// How a backlog was drained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Drain {
    pub(super) messages: u64,
    pub(super) seconds: f64,
    pub(super) messages_per_second: f64,
    pub(super) megabytes_per_second: f64,
}

impl Drain {
    pub(super) fn of(amount: Amount) -> Self {
        Self {
            messages: amount.messages,
            seconds: amount.time.as_secs_f64(),
            messages_per_second: amount.messages_per_second(),
            megabytes_per_second: amount.megabytes_per_second(),
        }
    }
}

/// What a work gives to its report.
pub(super) struct Found {
    pub(super) amount: Amount,
    pub(super) latencies: Latencies,
    pub(super) tenths: Vec<Tenth>,
    pub(super) drain: Option<Drain>,
}

impl Report {
    /// For people.
    pub(crate) fn words(&self) -> String {
        let mut table = Table::new(&["", ">messages/s", ">MB/s", ">of limit"]);
        let mut row = |what: &str, messages: f64, megabytes: f64| {
            let share = if messages > 0.0 { self.messages_per_second / messages } else { 0.0 };
            table.row([
                what.to_owned(),
                rounded(messages),
                format!("{megabytes:.1}"),
                format!("{:.0} %", share * 100.0),
            ]);
        };
        row(
            &format!("{} ({}, {})", self.work, self.storage, self.durability),
            self.messages_per_second,
            self.megabytes_per_second,
        );
        for limit in &self.limits {
            row(limit.what, limit.messages_per_second, limit.megabytes_per_second);
        }
        let Percentiles { p50, p99, p999, max } = self.latency_us;
        let mut text = format!(
            "{}\n\n{} messages, {} in {:.2} s\nlatency µs   p50 {}   p99 {}   p99.9 {}   max {}\nbroker       {:.2} s of processor time ({:.2} s a million), {} resident",
            table.text(),
            count_text(self.messages),
            bytes_text(self.bytes),
            self.seconds,
            count_text(p50),
            count_text(p99),
            count_text(p999),
            count_text(max),
            self.broker_cpu_seconds,
            self.cpu_seconds_per_million(),
            bytes_text(self.broker_rss_bytes),
        );
        if !self.tenths.is_empty() {
            let mut table = Table::new(&[">backlog", ">messages/s", ">broker memory"]);
            for tenth in &self.tenths {
                table.row([
                    count_text(tenth.messages),
                    rounded(tenth.messages_per_second),
                    bytes_text(tenth.broker_rss_bytes),
                ]);
            }
            text += &format!("\n\n{}", table.text());
        }
        if let Some(drain) = &self.drain {
            text += &format!(
                "\n\ndrained {} messages in {:.2} s: {}/s, {:.1} MB/s",
                count_text(drain.messages),
                drain.seconds,
                rounded(drain.messages_per_second),
                drain.megabytes_per_second,
            );
        }
        text
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark fit a double")]
    fn cpu_seconds_per_million(&self) -> f64 {
        if self.messages == 0 { 0.0 } else { self.broker_cpu_seconds * 1e6 / self.messages as f64 }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate for people")]
fn rounded(rate: f64) -> String {
    count_text(rate.max(0.0).round() as u64)
}
