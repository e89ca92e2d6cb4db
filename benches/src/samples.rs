//! The samples that `stentor bench backlog --samples FILE` leaves: a JSON object a line, in the order of time.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;
use thiserror::Error;

/// Why there are none.
#[derive(Debug, Error)]
pub enum SamplesError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is no sample.
    #[error("{path}, line {line}: {source}")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, the first being 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// There is no line.
    #[error("{0} holds no samples")]
    Nothing(PathBuf),
}

/// What was going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The backlog grew.
    Publish,
    /// It was drained.
    Drain,
    /// It was waited for the disk.
    GivingBack,
}

/// How things stood at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Sample {
    /// What was going on.
    pub phase: Phase,
    /// Since the beginning.
    pub seconds: f64,
    /// Published, or drained, so far.
    pub messages: u64,
    /// Since the sample before.
    pub messages_per_second: f64,
    /// Memory of the broker.
    pub broker_rss_bytes: u64,
    /// What its folder takes on the disk, where that is known.
    pub disk_bytes: Option<u64>,
    /// What a group still owes and its bookkeeping, as the broker counts it.
    pub storage_bytes_live: u64,
}

/// Reads them.
///
/// # Errors
/// When the file does not hold any.
pub fn read(path: &Path) -> Result<Vec<Sample>, SamplesError> {
    let text = fs::read_to_string(path).map_err(|source| SamplesError::Io { path: path.to_owned(), source })?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let samples: Vec<Sample> = lines
        .map(|(at, line)| {
            let line_number = at + 1;
            serde_json::from_str(line).map_err(|source| SamplesError::Line {
                path: path.to_owned(),
                line: line_number,
                source,
            })
        })
        .collect::<Result<_, _>>()?;
    if samples.is_empty() { Err(SamplesError::Nothing(path.to_owned())) } else { Ok(samples) }
}
