//! The tables of `benches/README.md`, out of the estimates that criterion left.
//!
//! Invariants: a figure is a median of one run; a share is that of the limit measured in the same run; what was not
//! measured is a dash.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::host::Host;
use crate::machine;
use crate::table::{Limit, Table};

/// Where the tables begin in the README.
pub const BEGIN: &str = "<!-- measured: begin (script/bench-report writes what follows) -->";

/// Where they end.
pub const END: &str = "<!-- measured: end -->";

/// Samples that deviate by more than this part of their median make a figure unsteady.
const UNSTEADY: f64 = 0.2;

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ReportError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of criterion's is not what it was.
    #[error("{path}: {source}")]
    Format {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Nothing was measured.
    #[error("there are no estimates under {0}: run the benches first")]
    Nothing(PathBuf),
    /// The README has no place for the tables.
    #[error("{0} has no lines `{BEGIN}` and `{END}` in this order")]
    NoPlace(PathBuf),
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ReportError + '_ {
    |source| ReportError::Io { path: path.to_owned(), source }
}

/// What was measured at one point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The time of an iteration, in nanoseconds.
    median: f64,
    /// How far samples lie from it, in nanoseconds: the median of that.
    deviation: f64,
    /// What an iteration does.
    work: Work,
}

/// What an iteration does.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
enum Work {
    BytesDecimal(u64),
    Elements(u64),
}

impl Figure {
    /// Megabytes, or changes, in a second.
    fn rate(&self) -> f64 {
        match self.work {
            Work::BytesDecimal(bytes) => bytes as f64 * 1e3 / self.median,
            Work::Elements(count) => count as f64 * 1e9 / self.median,
        }
    }

    fn spread(&self) -> f64 {
        self.deviation / self.median
    }

    fn show(&self) -> String {
        let unsteady = if self.spread() > UNSTEADY { "~" } else { "" };
        format!("{unsteady}{}", number(self.rate()))
    }
}

/// When it was measured, and beside what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occasion<'a> {
    /// The day.
    pub day: &'a str,
    /// The load of the machine before the benches ran, as the kernel counts it. They share it with whatever made that.
    pub load: &'a str,
}

/// Group, function and point.
type Name = (String, String, String);

/// Everything that was measured.
pub type Figures = BTreeMap<Name, Figure>;

#[derive(Deserialize)]
struct Benchmark {
    group_id: String,
    function_id: Option<String>,
    value_str: Option<String>,
    throughput: Option<Work>,
}

#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
    median_abs_dev: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

/// Reads what criterion left under `home`.
///
/// # Errors
/// When a file cannot be read, or there is none.
pub fn read(home: &Path) -> Result<Figures, ReportError> {
    let mut figures = Figures::new();
    let mut folders = vec![home.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(at(&folder))?,
        };
        for entry in entries {
            let path = entry.map_err(at(&folder))?.path();
            if path.is_dir() {
                folders.push(path);
            }
        }
        // `base` holds the run before, `change` the difference.
        if folder.file_name().is_some_and(|name| name == "new") {
            figures.extend(figure(&folder)?);
        }
    }
    if figures.is_empty() { Err(ReportError::Nothing(home.to_owned())) } else { Ok(figures) }
}

fn figure(folder: &Path) -> Result<Option<(Name, Figure)>, ReportError> {
    let benchmark: Benchmark = json(&folder.join("benchmark.json"))?;
    let estimates: Estimates = json(&folder.join("estimates.json"))?;
    let (Some(function), Some(point), Some(work)) = (benchmark.function_id, benchmark.value_str, benchmark.throughput)
    else {
        return Ok(None);
    };
    let figure =
        Figure { median: estimates.median.point_estimate, deviation: estimates.median_abs_dev.point_estimate, work };
    Ok(Some(((benchmark.group_id, function, point), figure)))
}

fn json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, ReportError> {
    let text = fs::read(path).map_err(at(path))?;
    serde_json::from_slice(&text).map_err(|source| ReportError::Format { path: path.to_owned(), source })
}

/// Puts the tables in their place in the README.
///
/// # Errors
/// When the README cannot be read or written, or has no place for them.
pub fn renew(readme: &Path, figures: &Figures, host: &Host, occasion: &Occasion<'_>) -> Result<(), ReportError> {
    let before = fs::read_to_string(readme).map_err(at(readme))?;
    let placed = place(&before, &render(&crate::tables(), figures, host, occasion));
    let after = placed.ok_or_else(|| ReportError::NoPlace(readme.to_owned()))?;
    fs::write(readme, after).map_err(at(readme))
}

/// `text` with what stands between the markers replaced.
fn place(text: &str, tables: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{tables}\n{END}{after}"))
}

/// All tables, in Markdown.
#[must_use]
pub fn render(tables: &[Table], figures: &Figures, host: &Host, occasion: &Occasion<'_>) -> String {
    let mut out = introduction(figures, host, occasion);
    for table in tables {
        // Writing into a string does not fail.
        let _ = write!(out, "\n### {}, {}\n\n{}", table.title, unit(table, figures), rows(table, figures));
    }
    out
}

fn introduction(figures: &Figures, host: &Host, occasion: &Occasion<'_>) -> String {
    let Host { cpu, cores, memory_gib, kernel, file_system } = host;
    let Occasion { day, load } = occasion;
    let mut out = format!("{day}: {cores} cores ({cpu}), {memory_gib} GiB, Linux {kernel}, {file_system}");
    let sync = (machine::GROUP.to_owned(), Limit::Sync.id().to_owned(), machine::SYNC_ROW.to_owned());
    if let Some(sync) = figures.get(&sync) {
        let _ = write!(out, ", write + fdatasync of 4 KiB {:.0} µs", sync.median / 1e3);
    }
    let _ = writeln!(out, ". The load of the minute before the run was {load}.");
    let mut spreads: Vec<f64> = figures.values().map(Figure::spread).collect();
    spreads.sort_by(f64::total_cmp);
    if let (Some(middle), Some(worst)) = (spreads.get(spreads.len() / 2), spreads.last()) {
        let _ = writeln!(
            out,
            "The samples of a figure lay {:.0} % from it in the middle of all {} figures, {:.0} % at worst.",
            middle * 100.0,
            spreads.len(),
            worst * 100.0
        );
    }
    out
}

fn unit(table: &Table, figures: &Figures) -> &'static str {
    let first = figures.iter().find(|((group, ..), _)| group == table.group);
    match first.map(|(_, figure)| figure.work) {
        Some(Work::Elements(_)) => "changes/s",
        Some(Work::BytesDecimal(_)) | None => "MB/s",
    }
}

fn rows(table: &Table, figures: &Figures) -> String {
    let limits = table.all_limits();
    let mut out = format!("| {} |", table.point);
    for (backend, _) in &table.columns {
        let _ = write!(out, " {} |", backend.id());
    }
    for limit in &limits {
        let _ = write!(out, " *{}* |", limit.label());
    }
    out.push_str("\n|---|");
    out.push_str(&"--:|".repeat(table.columns.len() + limits.len()));
    out.push('\n');
    for row in &table.rows {
        let find = |function: &str| figures.get(&(table.group.to_owned(), function.to_owned(), row.id.clone()));
        let _ = write!(out, "| {} |", row.label);
        for (backend, limit) in &table.columns {
            let cell = match (find(backend.id()), find(limit.id())) {
                (Some(figure), Some(limit)) => {
                    format!("{} ({:.2})", figure.show(), figure.rate() / limit.rate())
                }
                (Some(figure), None) => figure.show(),
                (None, _) => "–".to_owned(),
            };
            let _ = write!(out, " {cell} |");
        }
        for limit in &limits {
            let _ = write!(out, " {} |", find(limit.id()).map_or_else(|| "–".to_owned(), Figure::show));
        }
        out.push('\n');
    }
    out
}

/// Three digits that count, thousands apart: `0.12`, `12.3`, `1,230`.
fn number(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.2}");
    }
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let step = 10_f64.powi(value.log10().floor() as i32 - 2);
    let digits = format!("{:.0}", (value / step).round() * step);
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Backend;
    use crate::table::Row;

    fn host() -> Host {
        let (cpu, kernel, file_system) = ("A CPU".to_owned(), "6.1".to_owned(), "ext4".to_owned());
        Host { cpu, cores: 2, memory_gib: 24, kernel, file_system }
    }

    fn table() -> Table {
        Table {
            group: "append",
            title: "Append",
            point: "batch",
            rows: vec![
                Row { id: "a".to_owned(), label: "small".to_owned() },
                Row { id: "b".to_owned(), label: "large".to_owned() },
            ],
            columns: vec![(Backend::Synced, Limit::Sync)],
            limits: Vec::new(),
        }
    }

    fn leave(home: &Path, folder: &str, function: &str, point: &str, median: f64, deviation: f64) {
        let folder = home.join(folder);
        fs::create_dir_all(&folder).unwrap();
        let benchmark = format!(
            r#"{{"group_id":"append","function_id":"{function}","value_str":"{point}","throughput":{{"BytesDecimal":65536}},"full_id":"x"}}"#
        );
        let estimates = format!(
            r#"{{"mean":{{"point_estimate":1.0}},"median":{{"point_estimate":{median}}},"median_abs_dev":{{"point_estimate":{deviation}}},"slope":null}}"#
        );
        fs::write(folder.join("benchmark.json"), benchmark).unwrap();
        fs::write(folder.join("estimates.json"), estimates).unwrap();
    }

    #[test]
    fn a_row_shows_the_rate_and_its_share_of_the_limit_of_the_same_run() {
        let home = tempfile::tempdir().unwrap();
        leave(home.path(), "append/lsm-synced/a/new", "lsm-synced", "a", 131_072.0, 1.0);
        leave(home.path(), "append/limit-sync/a/new", "limit-sync", "a", 65_536.0, 30_000.0);
        // The run before is no part of it.
        leave(home.path(), "append/lsm-synced/b/base", "lsm-synced", "b", 1.0, 0.0);
        let figures = read(home.path()).unwrap();
        let rendered = render(&[table()], &figures, &host(), &Occasion { day: "2020-01-02", load: "0.10" });
        assert!(rendered.contains("| small | 500 (0.50) | ~1,000 |"), "{rendered}");
        assert!(rendered.contains("| large | – | – |"), "{rendered}");
        assert!(rendered.starts_with("2020-01-02: 2 cores (A CPU), 24 GiB, Linux 6.1, ext4"), "{rendered}");
        assert!(rendered.contains("The load of the minute before the run was 0.10"), "{rendered}");
        assert!(rendered.contains("### Append, MB/s"), "{rendered}");
    }

    #[test]
    fn without_estimates_there_is_no_report() {
        let home = tempfile::tempdir().unwrap();
        assert!(matches!(read(home.path()), Err(ReportError::Nothing(_))));
        assert!(matches!(read(&home.path().join("none")), Err(ReportError::Nothing(_))));
    }

    #[test]
    fn what_stands_around_the_tables_stays() {
        let text = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let placed = place(&text, "new\n").unwrap();
        assert_eq!(placed, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert_eq!(place(&placed, "new\n").unwrap(), placed);
        assert_eq!(place("no markers", "new"), None);
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let shown = [0.123, 9.876, 12.34, 123.4, 1_234.0, 12_345_678.0].map(number);
        assert_eq!(shown, ["0.12", "9.88", "12.3", "123", "1,230", "12,300,000"]);
    }

    #[test]
    fn no_two_figures_of_the_tables_have_the_same_name() {
        for table in crate::tables() {
            let mut ids: Vec<String> = table.rows.into_iter().map(|row| row.id).collect();
            let all = ids.len();
            ids.sort();
            ids.dedup();
            assert_eq!(ids.len(), all, "{}", table.group);
        }
    }
}
