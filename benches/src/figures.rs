//! The table of `docs/figures.md`, out of what `stentor bench … --json` printed.
//!
//! The input is a JSON object a line: `{"row", "reach"}` says what the lines up to the next such object are of; then come
//! the reports of the runs, and after several runs their summary. `script/bench-table` writes it.
//!
//! Invariants: a figure is the median of its runs and stands next to the least and the most of them; a share is that of
//! the limit measured in the same run.

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::host::Host;

/// Why there is no table.
#[derive(Debug, Error)]
pub enum FiguresError {
    /// A line is not what it should be.
    #[error("line {line}: {source}")]
    Line {
        /// Which one, the first being 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A report before any row was begun.
    #[error("line {0} belongs to no row")]
    NoRow(usize),
    /// Nothing was measured.
    #[error("there is no report")]
    Nothing,
}

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Row {
    row: String,
    reach: String,
}

/// A report of a run, as far as the table needs it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Run {
    messages_per_second: f64,
    latency_us: Latency,
    broker_cpu_seconds_per_million: f64,
    broker_rss_bytes: u64,
    share_of_limit: f64,
    limit: Limit,
    fdatasync_us: Option<Latency>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct Latency {
    p50: u64,
    p99: u64,
    p999: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Limit {
    what: String,
}

/// The table, with what has to stand next to it.
///
/// # Errors
/// When the lines are not what they should be.
pub fn render(lines: &str, host: &Host, day: &str, load: &str) -> Result<String, FiguresError> {
    let rows = read(lines)?;
    let syncs = rows.iter().flat_map(|(_, runs)| runs).filter_map(|run| Some(run.fdatasync_us?.p50));
    let mut text = format!(
        "{day}: {} cores ({}), {} GiB, Linux {}, {}; clients and broker share them. The load of the minute before was {load}.\n",
        host.cores, host.cpu, host.memory_gib, host.kernel, host.file_system,
    );
    if let Some(sync) = median(syncs.map(|micros| micros as f64)) {
        let _ = writeln!(text, "fdatasync of a page took {sync:.0} µs (the median of the runs' medians).");
    }
    text.push_str(
        "\n| work | reach | messages/s (least – most) | of limit | p50 / p99 / p99.9 µs | broker, CPU s a million | broker, MiB |\n|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for (row, runs) in &rows {
        text.push_str(&line(row, runs));
    }
    text.push_str("\nThe limit of a row is the lowest of the machine's that it meets, measured in the same run:\n\n");
    let mut limits: Vec<&str> = rows.iter().flat_map(|(_, runs)| runs).map(|run| run.limit.what.as_str()).collect();
    limits.sort_unstable();
    limits.dedup();
    for limit in limits {
        let of = rows.iter().filter(|(_, runs)| runs.iter().any(|run| run.limit.what == limit));
        let of: Vec<&str> = of.map(|(row, _)| row.row.as_str()).collect();
        let _ = writeln!(text, "- {limit}: {}", of.join("; "));
    }
    Ok(text)
}

fn read(lines: &str) -> Result<Vec<(Row, Vec<Run>)>, FiguresError> {
    let mut rows: Vec<(Row, Vec<Run>)> = Vec::new();
    for (at, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |source| FiguresError::Line { line: at + 1, source };
        let value: Value = serde_json::from_str(line).map_err(wrong)?;
        if value.get("row").is_some() {
            rows.push((serde_json::from_value(value).map_err(wrong)?, Vec::new()));
        } else if value.get("runs").is_none() {
            let run = serde_json::from_value(value).map_err(wrong)?;
            rows.last_mut().ok_or(FiguresError::NoRow(at + 1))?.1.push(run);
        }
    }
    rows.retain(|(_, runs)| !runs.is_empty());
    if rows.is_empty() { Err(FiguresError::Nothing) } else { Ok(rows) }
}

fn line(row: &Row, runs: &[Run]) -> String {
    let middle = |value: &dyn Fn(&Run) -> f64| median(runs.iter().map(value)).unwrap_or_default();
    let rates = || runs.iter().map(|run| run.messages_per_second);
    let spread = match runs {
        [_] => String::new(),
        _ => {
            let (least, most) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
            format!(" ({} – {})", thousands(least), thousands(most))
        }
    };
    format!(
        "| {} | {} | {}{spread} | {:.2} | {} / {} / {} | {:.2} | {:.0} |\n",
        row.row,
        row.reach,
        thousands(middle(&|run| run.messages_per_second)),
        middle(&|run| run.share_of_limit),
        thousands(middle(&|run| run.latency_us.p50 as f64)),
        thousands(middle(&|run| run.latency_us.p99 as f64)),
        thousands(middle(&|run| run.latency_us.p999 as f64)),
        middle(&|run| run.broker_cpu_seconds_per_million),
        middle(&|run| run.broker_rss_bytes as f64) / f64::from(1 << 20),
    )
}

/// The middle one, or the mean of the two in the middle.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len().is_multiple_of(2) { f64::midpoint(values[middle - 1], upper) } else { upper })
}

/// A whole number, thousands set apart.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        Host {
            cpu: "a processor".to_owned(),
            cores: 2,
            memory_gib: 24,
            kernel: "6.1".to_owned(),
            file_system: "ext4".to_owned(),
        }
    }

    fn run(rate: f64, sync: u64) -> String {
        format!(
            r#"{{"work":"publish","messages_per_second":{rate},"latency_us":{{"p50":1200,"p99":2000,"p999":3000,"max":9}},"broker_cpu_seconds_per_million":2.5,"broker_rss_bytes":104857600,"share_of_limit":0.5,"limit":{{"what":"the wire","messages_per_second":1.0}},"fdatasync_us":{{"p50":{sync},"p99":1,"p999":1,"max":1}}}}"#
        )
    }

    #[test]
    fn a_row_is_the_median_of_its_runs_between_the_least_and_the_most() {
        let row = r#"{"row":"publish 1 KiB","reach":"350,000"}"#;
        let (slow, fast, middle) = (run(100_000.0, 90), run(400_000.0, 150), run(350_000.0, 120));
        let summary = r#"{"work":"publish","runs":3}"#;
        let text = render(&format!("{row}\n{slow}\n{fast}\n{middle}\n{summary}\n"), &host(), "a day", "0.10").unwrap();
        let line =
            "| publish 1 KiB | 350,000 | 350,000 (100,000 – 400,000) | 0.50 | 1,200 / 2,000 / 3,000 | 2.50 | 100 |";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("fdatasync of a page took 120 µs"), "{text}");
        assert!(text.contains("- the wire: publish 1 KiB"), "{text}");
    }

    #[test]
    fn what_belongs_to_no_row_and_what_is_no_report_is_refused() {
        assert!(matches!(render(&run(1.0, 1), &host(), "", ""), Err(FiguresError::NoRow(1))));
        assert!(matches!(render("{", &host(), "", ""), Err(FiguresError::Line { line: 1, .. })));
        assert!(matches!(render(r#"{"row":"a","reach":""}"#, &host(), "", ""), Err(FiguresError::Nothing)));
    }
}
