//! Benchmarks that compare the backends on the same work, each beside the machine's limit measured in the same run.
//!
//! | module | holds |
//! |---|---|
//! | [`append`], [`acknowledge`], [`tail`], [`fan_out`], [`cold`], [`wire`], [`machine`] | one kind of work each: what it is, its points, its limits |
//! | [`backend`], [`workload`] | the backends, and the batches, writers and readers that all of them are given |
//! | [`limit`] | the plain copy, file and read that backends are held against |
//! | [`lab`], [`table`] | where it runs, and what a kind of work looks like in a table |
//! | [`report`], [`host`] | the tables of `benches/README.md`, out of criterion's estimates |
//! | [`figures`] | the table of `docs/figures.md`, out of what `stentor bench` printed |
//! | [`samples`], [`chart`] | a backlog that `stentor bench` watched, as a chart |
//!
//! Invariants: the backends get the same bytes through the contract of `stentor_core::storage` and nothing else; within a
//! point every backend stands next to its limit in time, since a machine that others use changes from minute to minute;
//! seeds are fixed and nothing is compressed.

pub mod acknowledge;
pub mod append;
pub mod backend;
pub mod chart;
pub mod cold;
pub mod fan_out;
pub mod figures;
pub mod host;
pub mod lab;
pub mod limit;
pub mod machine;
pub mod report;
pub mod samples;
pub mod table;
pub mod tail;
pub mod wire;
pub mod workload;

use lab::Lab;
use table::Table;

/// Every kind of work, in the order of the report.
#[must_use]
pub fn tables() -> Vec<Table> {
    vec![
        append::table(),
        acknowledge::table(),
        tail::table(),
        fan_out::table(),
        cold::table(),
        wire::table(),
        machine::table(),
    ]
}

/// Runs every kind of work that the command line does not filter out.
pub fn run(criterion: &mut criterion::Criterion, lab: &Lab) {
    machine::bench(criterion, lab);
    append::bench(criterion, lab);
    acknowledge::bench(criterion, lab);
    tail::bench(criterion, lab);
    fan_out::bench(criterion, lab);
    cold::bench(criterion, lab);
    wire::bench(criterion, lab);
}
