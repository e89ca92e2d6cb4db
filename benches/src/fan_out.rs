//! Fan-out: readers that each read the whole of one log, from its first message to its last, and send it on.
//!
//! The log is in the page cache and in the index, as it is for groups that run a few seconds late. An iteration is the
//! whole log by every reader, each a task of its own. Memory is held against as many tasks that copy the same bytes once;
//! `lsm` against as many that read a plain file of the same size out of the page cache.

use std::sync::Arc;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion};
use stentor_core::storage::PartitionReader;

use crate::backend::{Backend, Stores};
use crate::lab::{Lab, group};
use crate::limit::{self, ReadFile};
use crate::table::{Limit, Row, Table, bytes};
use crate::workload::{Appender, Outlet, batch, fill, messages_label, random, read_on};

const GROUP: &str = "fan-out";

/// Batches by their number of messages and the bytes of a message, and how many read at a time.
const POINTS: [(u32, usize, usize); 4] = [(64, 100, 1), (64, 100, 10), (64, 1 << 10, 1), (64, 1 << 10, 10)];

/// One reader, and where it sends what it reads.
type Reading = (Arc<dyn PartitionReader>, Outlet);

/// How long the log is.
const LOG_BYTES: u64 = 32 << 20;

/// What the work looks like.
#[must_use]
pub fn table() -> Table {
    Table {
        group: GROUP,
        title: "Fan-out",
        point: "batch, readers at a time",
        rows: POINTS.into_iter().map(row).collect(),
        columns: vec![(Backend::Memory, Limit::Copy), (Backend::Synced, Limit::Read)],
        limits: Vec::new(),
    }
}

fn row((messages, body_bytes, readers): (u32, usize, usize)) -> Row {
    Row {
        id: format!("{messages}x{body_bytes}-to-{readers}"),
        label: format!("{}, {readers}", messages_label(messages, body_bytes)),
    }
}

/// Measures it.
pub fn bench(criterion: &mut Criterion, lab: &Lab) {
    let stores = Stores::new(lab);
    for point in POINTS {
        measure(criterion, lab, &stores, Backend::Memory, point);
        measure_copy(criterion, lab, point);
        measure(criterion, lab, &stores, Backend::Synced, point);
        measure_read(criterion, lab, point);
    }
}

/// The bytes that a reader reads: whole batches.
fn log_bytes(lab: &Lab, batch_bytes: usize) -> u64 {
    lab.bytes(LOG_BYTES).next_multiple_of(batch_bytes as u64)
}

fn measure(criterion: &mut Criterion, lab: &Lab, stores: &Stores<'_>, backend: Backend, point: (u32, usize, usize)) {
    let (messages, body_bytes, readers) = point;
    let batch = lab.must(batch(messages, body_bytes));
    let log_bytes = log_bytes(lab, batch.len());
    let mut group = group(criterion, GROUP);
    group.throughput(bytes(readers as u64 * log_bytes));
    let mut opened: Option<(Appender, Vec<Reading>)> = None;
    group.bench_function(BenchmarkId::new(backend.id(), row(point).id), |bencher| {
        let (_, crew) = opened.get_or_insert_with(|| {
            let store = stores.get(backend);
            let appender = lab.run(async {
                let mut appender = Appender::open(store, backend, batch.clone(), 1).await?;
                fill(std::slice::from_mut(&mut appender), log_bytes).await?;
                Ok(appender)
            });
            store.settle();
            let crew = (0..readers).map(|_| (appender.reader(), Outlet::default())).collect();
            (appender, crew)
        });
        bencher.iter_custom(|rounds| {
            lab.together(crew, |(reader, mut outlet)| async move {
                for _ in 0..rounds {
                    let start = reader.bounds().start;
                    let read = read_on(&*reader, start, &mut outlet).await?;
                    assert_eq!(read, log_bytes, "the whole log is read");
                }
                Ok((reader, outlet))
            })
        });
    });
    if let Some((appender, _)) = opened {
        lab.run(stores.get(backend).delete(appender.partition()));
    }
}

fn measure_copy(criterion: &mut Criterion, lab: &Lab, point: (u32, usize, usize)) {
    let (messages, body_bytes, readers) = point;
    let batch_bytes = lab.must(batch(messages, body_bytes)).len();
    let log_bytes = log_bytes(lab, batch_bytes);
    let mut group = group(criterion, GROUP);
    group.throughput(bytes(readers as u64 * log_bytes));
    let mut crew: Option<Vec<(Bytes, Outlet)>> = None;
    group.bench_function(BenchmarkId::new(Limit::Copy.id(), row(point).id), |bencher| {
        let crew = crew.get_or_insert_with(|| {
            let log = random(usize::try_from(log_bytes).unwrap_or(usize::MAX));
            (0..readers).map(|_| (log.clone(), Outlet::default())).collect()
        });
        bencher.iter_custom(|rounds| {
            lab.together(crew, |(log, mut outlet)| async move {
                for _ in 0..rounds {
                    log.chunks(batch_bytes).for_each(|batch| outlet.send(batch));
                }
                Ok((log, outlet))
            })
        });
    });
}

fn measure_read(criterion: &mut Criterion, lab: &Lab, point: (u32, usize, usize)) {
    let (messages, body_bytes, readers) = point;
    let log_bytes = log_bytes(lab, lab.must(batch(messages, body_bytes)).len());
    let mut group = group(criterion, GROUP);
    group.throughput(bytes(readers as u64 * log_bytes));
    let mut opened: Option<(ReadFile, Vec<Vec<u8>>)> = None;
    group.bench_function(BenchmarkId::new(Limit::Read.id(), row(point).id), |bencher| {
        let (file, crew) = opened.get_or_insert_with(|| {
            (lab.must(ReadFile::new(lab, log_bytes)), (0..readers).map(|_| limit::read_buffer()).collect())
        });
        let file = file.file().clone();
        bencher.iter_custom(|rounds| {
            lab.together(crew, |mut buffer| {
                let file = file.clone();
                async move {
                    let reading = tokio::task::spawn_blocking(move || {
                        for _ in 0..rounds {
                            limit::read(&file, log_bytes, &mut buffer)?;
                        }
                        Ok(buffer)
                    });
                    reading.await?
                }
            })
        });
    });
}
