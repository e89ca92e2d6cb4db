//! What a benchmark found.

use serde::Serialize;

use super::backlog::Tenth;
use super::limit::Limit;
use super::options::{Ack, Options};
use super::stats::{Amount, Latencies, Percentiles};
use crate::output::{Table, bytes_text, count_text};

/// `bench … --json`; the field names are part of the contract with users.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(super) work: String,
    pub(super) storage: String,
    pub(super) durability: String,
    pub(super) asked: Asked,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) messages_per_second: f64,
    pub(super) megabytes_per_second: f64,
    pub(super) latency_us: Percentiles,
    /// Of the broker's process, during the run.
    pub(super) broker_cpu_seconds: f64,
    pub(super) broker_cpu_seconds_per_million: f64,
    /// Of the broker's process, at its end.
    pub(super) broker_rss_bytes: u64,
    /// Of this process, with the producers and the consumers, during the run.
    pub(super) client_cpu_seconds: f64,
    /// What the broker synced during the run.
    pub(super) broker_syncs: u64,
    /// What everybody wrote to the device under the broker's folder during the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device_written_bytes: Option<u64>,
    /// What a sync of a page takes on this disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fdatasync_us: Option<Percentiles>,
    /// The rate over that of the limit.
    pub(super) share_of_limit: f64,
    /// What holds this work up at best: the wire, or what the topic is kept in.
    pub(super) limit: Limit,
    /// All that were measured in this run.
    pub(super) limits: Vec<Limit>,
    /// Of a backlog: the way there in tenths.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tenths: Vec<Tenth>,
    /// Of a backlog: the median rate of the last tenth over that of the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last_tenth_of_first: Option<f64>,
    /// Of a backlog: the way back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) drain: Option<Drain>,
}

/// What was asked for, as far as it tells one report from another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Asked {
    size: u64,
    partitions: u32,
    producers: u32,
    consumers: u32,
    groups: u32,
    in_flight: u32,
    awaited: bool,
    ack: Ack,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    linger_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u16>,
}

impl Asked {
    pub(super) fn of(options: &Options) -> Self {
        Self {
            size: options.size,
            partitions: options.partitions,
            producers: options.producers,
            consumers: options.consumers,
            groups: options.groups(),
            in_flight: options.in_flight(),
            awaited: options.awaited,
            ack: options.ack(),
            batch: options.batch,
            linger_seconds: options.linger.map(|linger| linger.as_secs_f64()),
            rate: options.rate(),
            mtu: options.mtu,
        }
    }
}

/// How a backlog was drained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Drain {
    pub(super) messages: u64,
    pub(super) seconds: f64,
    pub(super) messages_per_second: f64,
    pub(super) megabytes_per_second: f64,
    /// The median of the samples of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) median_messages_per_second: Option<f64>,
    /// What the broker's folder takes when it begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) disk_bytes_before: Option<u64>,
    /// What is left of it when no more is given back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) disk_bytes_after: Option<u64>,
}

impl Drain {
    pub(super) fn of(amount: Amount) -> Self {
        Self {
            messages: amount.messages,
            seconds: amount.time.as_secs_f64(),
            messages_per_second: amount.messages_per_second(),
            megabytes_per_second: amount.megabytes_per_second(),
            median_messages_per_second: None,
            disk_bytes_before: None,
            disk_bytes_after: None,
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

impl Found {
    /// Nothing but these.
    pub(super) const fn of(amount: Amount, latencies: Latencies) -> Self {
        Self { amount, latencies, tenths: Vec::new(), drain: None }
    }
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
            "{}\n\n{} messages, {} in {:.2} s\nlatency µs   p50 {}   p99 {}   p99.9 {}   max {}\nbroker       {:.2} s of processor time ({:.2} s a million), {} resident, {} syncs\nclients      {:.2} s of processor time ({:.2} s a million)",
            table.text(),
            count_text(self.messages),
            bytes_text(self.bytes),
            self.seconds,
            count_text(p50),
            count_text(p99),
            count_text(p999),
            count_text(max),
            self.broker_cpu_seconds,
            self.broker_cpu_seconds_per_million,
            bytes_text(self.broker_rss_bytes),
            count_text(self.broker_syncs),
            self.client_cpu_seconds,
            per_million(self.client_cpu_seconds, self.messages),
        );
        if let Some(sync) = &self.fdatasync_us {
            text +=
                &format!("\ndisk         fdatasync µs   p50 {}   p99 {}", count_text(sync.p50), count_text(sync.p99));
            if let Some(written) = self.device_written_bytes {
                text += &format!(
                    ", {} written to the device: {:.2} a byte of messages",
                    bytes_text(written),
                    ratio(written, self.bytes),
                );
            }
        }
        if !self.tenths.is_empty() {
            text += &format!("\n\n{}", self.tenths_table());
        }
        if let Some(share) = self.last_tenth_of_first {
            text += &format!("\nlast tenth   {:.0} % of the rate of the first (medians)", share * 100.0);
        }
        if let Some(drain) = &self.drain {
            text += &format!(
                "\n\ndrained {} messages in {:.2} s: {}/s, {:.1} MB/s",
                count_text(drain.messages),
                drain.seconds,
                rounded(drain.messages_per_second),
                drain.megabytes_per_second,
            );
            if let (Some(before), Some(after)) = (drain.disk_bytes_before, drain.disk_bytes_after) {
                text += &format!("\nthe disk     held {} before, {} after", bytes_text(before), bytes_text(after));
            }
        }
        text
    }

    fn tenths_table(&self) -> String {
        let columns =
            [">backlog", ">messages/s", ">broker memory", ">disk", ">tail p50 µs", ">tail p99 µs", ">tail max µs"];
        let mut table = Table::new(&columns);
        let none = || "–".to_owned();
        for tenth in &self.tenths {
            let tail =
                |of: fn(Percentiles) -> u64| tenth.tail.map_or_else(none, |tail| count_text(of(tail.latency_us)));
            table.row([
                count_text(tenth.messages),
                rounded(tenth.median_messages_per_second),
                bytes_text(tenth.broker_rss_bytes),
                tenth.disk_bytes.map_or_else(none, bytes_text),
                tail(|latency| latency.p50),
                tail(|latency| latency.p99),
                tail(|latency| latency.max),
            ]);
        }
        table.text()
    }
}

/// Seconds for each million of so many.
#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark fit a double")]
pub(super) fn per_million(seconds: f64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { seconds * 1e6 / count as f64 }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark fit a double")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate for people")]
pub(super) fn rounded(rate: f64) -> String {
    count_text(rate.max(0.0).round() as u64)
}
