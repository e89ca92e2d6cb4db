//! Cold read: a group that comes back after days reads one log of a store that was opened anew, with nothing of it in the
//! page cache.
//!
//! Before each iteration the store is closed, everything in its folder is forced to the disk and dropped from the page
//! cache (`POSIX_FADV_DONTNEED`), and the store is opened again; none of that is timed. Then one log is read from its
//! first message to its last and sent on. Held against a plain file of the same size, dropped and read in the same way.

use std::path::Path;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use stentor_core::storage::Storage;
use stentor_core::{Clock as _, PartitionId, RecordBatch};
use tempfile::TempDir;

use crate::backend::{Backend, Store, drop_page_cache, forget, open_lsm};
use crate::lab::{Failure, Lab, group};
use crate::limit::{self, ReadFile};
use crate::table::{Limit, Row, Table, bytes};
use crate::workload::{Appender, Outlet, batch, fill, messages_label, read_on};

const GROUP: &str = "cold-read";

/// Batches by their number of messages and the bytes of a message, and how many logs were written at a time, their batches
/// taking turns in the journal.
const POINTS: [(u32, usize, usize); 4] = [(64, 100, 1), (64, 100, 8), (64, 1 << 10, 1), (64, 1 << 10, 8)];

/// How long each log is.
const LOG_BYTES: u64 = 32 << 20;

/// What the work looks like.
#[must_use]
pub fn table() -> Table {
    Table {
        group: GROUP,
        title: "Cold read",
        point: "batch, logs that share the journal",
        rows: POINTS.into_iter().map(row).collect(),
        columns: vec![(Backend::Synced, Limit::Read)],
        limits: Vec::new(),
    }
}

fn row((messages, body_bytes, logs): (u32, usize, usize)) -> Row {
    Row {
        id: format!("{messages}x{body_bytes}-of-{logs}"),
        label: format!("{}, {logs}", messages_label(messages, body_bytes)),
    }
}

/// Measures it.
pub fn bench(criterion: &mut Criterion, lab: &Lab) {
    for point in POINTS {
        let batch = lab.must(batch(point.0, point.1));
        measure(criterion, lab, &row(point).id, &batch, point.2);
        measure_limit(criterion, lab, &row(point).id, batch.len());
    }
}

fn log_bytes(lab: &Lab, batch_bytes: usize) -> u64 {
    lab.bytes(LOG_BYTES).next_multiple_of(batch_bytes as u64)
}

fn measure(criterion: &mut Criterion, lab: &Lab, point: &str, batch: &RecordBatch, logs: usize) {
    let log_bytes = log_bytes(lab, batch.len());
    let mut group = group(criterion, GROUP);
    group.throughput(bytes(log_bytes));
    let mut filled: Option<(TempDir, PartitionId)> = None;
    let mut outlet = Outlet::default();
    group.bench_function(BenchmarkId::new(Backend::Synced.id(), point), |bencher| {
        let (folder, partition) =
            filled.get_or_insert_with(|| lab.run(write_logs(lab, batch.clone(), logs, log_bytes)));
        bencher.iter_custom(|rounds| {
            lab.run(async {
                let mut taken = Duration::ZERO;
                for _ in 0..rounds {
                    let (time, bytes) = read_cold(lab, folder.path(), *partition, &mut outlet).await?;
                    assert_eq!(bytes, log_bytes, "the whole log is read");
                    taken += time;
                }
                Ok(taken)
            })
        });
    });
}

/// Writes logs of so many bytes each into a new store and closes it; returns where it is and the log to read.
async fn write_logs(
    lab: &Lab,
    batch: RecordBatch,
    logs: usize,
    log_bytes: u64,
) -> Result<(TempDir, PartitionId), Failure> {
    let store = Store::new(lab, Backend::Buffered)?;
    let mut appenders = Vec::with_capacity(logs);
    for _ in 0..logs {
        appenders.push(Appender::open(&store, Backend::Buffered, batch.clone(), logs as u64).await?);
    }
    fill(&mut appenders, log_bytes).await?;
    let chosen = appenders.get(logs / 2).ok_or(Failure::Unfit("there is no log to read"))?.partition();
    drop(appenders);
    Ok((store.close().await?, chosen))
}

/// Opens the store, reads the log with nothing of it in the page cache, and closes the store again. Only reading is timed.
async fn read_cold(
    lab: &Lab,
    folder: &Path,
    partition: PartitionId,
    to: &mut Outlet,
) -> Result<(Duration, u64), Failure> {
    drop_page_cache(folder)?;
    let store = open_lsm(folder)?;
    let opened = store.open(partition, Backend::Synced.options()).await?;
    let clock = lab.clock();
    let started = clock.monotonic();
    let bytes = read_on(&*opened.reader, opened.reader.bounds().start, to).await?;
    let taken = clock.monotonic().since(started);
    drop(opened);
    store.close().await?;
    Ok((taken, bytes))
}

fn measure_limit(criterion: &mut Criterion, lab: &Lab, point: &str, batch_bytes: usize) {
    let log_bytes = log_bytes(lab, batch_bytes);
    let mut group = group(criterion, GROUP);
    group.throughput(bytes(log_bytes));
    let mut file: Option<ReadFile> = None;
    let mut buffer = limit::read_buffer();
    group.bench_function(BenchmarkId::new(Limit::Read.id(), point), |bencher| {
        let file = file.get_or_insert_with(|| lab.must(ReadFile::new(lab, log_bytes)));
        bencher.iter_custom(|rounds| {
            let mut taken = Duration::ZERO;
            for _ in 0..rounds {
                lab.must(forget(file.file()));
                taken += lab.time(|| lab.must(file.read(&mut buffer)));
            }
            taken
        });
    });
}
