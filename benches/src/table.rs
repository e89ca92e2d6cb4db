//! What a kind of work looks like in a table: which points there are, who takes part, and what each is held against.
//!
//! The benches and the report both follow it, so a figure cannot miss its column.

use criterion::Throughput;

use crate::backend::Backend;

/// What the machine can do at most, by the simplest program that does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// The bytes copied once, into memory written before.
    Copy,
    /// The bytes written to a file written before, synced every 8 MiB.
    Write,
    /// The bytes written to a file written before, synced each time.
    Sync,
    /// The bytes read from a file.
    Read,
    /// The frames carried and answered, and nothing done with them.
    Quic,
}

impl Limit {
    /// What it is called in criterion's names.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Copy => "limit-copy",
            Self::Write => "limit-write",
            Self::Sync => "limit-sync",
            Self::Read => "limit-read",
            Self::Quic => "limit-quic",
        }
    }

    /// What it is called in the table.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Copy => "memory copy",
            Self::Write => "plain write",
            Self::Sync => "write + fdatasync",
            Self::Read => "plain read",
            Self::Quic => "QUIC alone",
        }
    }
}

/// A kind of work.
#[derive(Clone, Debug)]
pub struct Table {
    /// The name of criterion's group.
    pub group: &'static str,
    /// What stands above the table.
    pub title: &'static str,
    /// What stands above the first column.
    pub point: &'static str,
    /// The points at which it is measured.
    pub rows: Vec<Row>,
    /// Who takes part, and what it is held against.
    pub columns: Vec<(Backend, Limit)>,
    /// Limits that nobody in this table is held against.
    pub limits: Vec<Limit>,
}

/// A point at which a work is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is called in criterion's names.
    pub id: String,
    /// What it is called in the table.
    pub label: String,
}

impl Table {
    /// Every limit that is measured, once.
    #[must_use]
    pub fn all_limits(&self) -> Vec<Limit> {
        let mut limits: Vec<Limit> =
            self.columns.iter().map(|(_, limit)| *limit).chain(self.limits.iter().copied()).collect();
        limits.sort_unstable();
        limits.dedup();
        limits
    }
}

/// So many bytes an iteration, as criterion counts decimal megabytes.
#[must_use]
pub const fn bytes(count: u64) -> Throughput {
    Throughput::BytesDecimal(count)
}
