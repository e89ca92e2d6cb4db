//! Tail read: a consumer that reads what was appended a moment ago.
//!
//! An iteration appends batches in one change, waits until they are durable, reads them back and sends them on, which
//! copies them once. Only reading and sending is timed. Held against one memory copy of the same bytes.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use stentor_core::Clock as _;

use crate::backend::{Backend, Stores};
use crate::lab::{Lab, group};
use crate::table::{Limit, Row, Table, bytes};
use crate::workload::{Appender, Outlet, batch, messages_label, read_on};

const GROUP: &str = "tail-read";

/// How many batches at a time, and what is in each: messages, and bytes of a message.
const POINTS: [(usize, u32, usize); 3] = [(1, 64, 100), (1, 64, 1 << 10), (16, 64, 1 << 10)];

/// What the work looks like.
#[must_use]
pub fn table() -> Table {
    Table {
        group: GROUP,
        title: "Tail read",
        point: "batches at a time, each",
        rows: POINTS.into_iter().map(row).collect(),
        columns: vec![(Backend::Memory, Limit::Copy), (Backend::Synced, Limit::Copy)],
        limits: Vec::new(),
    }
}

fn row((batches, messages, body_bytes): (usize, u32, usize)) -> Row {
    Row {
        id: format!("{batches}-of-{messages}x{body_bytes}"),
        label: format!("{batches}, {}", messages_label(messages, body_bytes)),
    }
}

/// Measures it.
pub fn bench(criterion: &mut Criterion, lab: &Lab) {
    let stores = Stores::new(lab);
    for point in POINTS {
        for (backend, _) in table().columns {
            measure(criterion, lab, &stores, backend, point);
        }
        measure_limit(criterion, lab, point);
    }
}

fn measure(criterion: &mut Criterion, lab: &Lab, stores: &Stores<'_>, backend: Backend, point: (usize, u32, usize)) {
    let (batches, messages, body_bytes) = point;
    let batch = lab.must(batch(messages, body_bytes));
    let mut group = group(criterion, GROUP);
    group.throughput(bytes((batches * batch.len()) as u64));
    let clock = lab.clock();
    let mut outlet = Outlet::default();
    let mut appender: Option<Appender> = None;
    group.bench_function(BenchmarkId::new(backend.id(), row(point).id), |bencher| {
        let appender =
            appender.get_or_insert_with(|| lab.run(Appender::open(stores.get(backend), backend, batch.clone(), 1)));
        let reader = appender.reader();
        bencher.iter_custom(|rounds| {
            lab.run(async {
                let mut taken = Duration::ZERO;
                for _ in 0..rounds {
                    let from = appender.end();
                    appender.append(batches).await?.durable().await?;
                    let started = clock.monotonic();
                    read_on(&*reader, from, &mut outlet).await?;
                    taken += clock.monotonic().since(started);
                }
                Ok(taken)
            })
        });
    });
    if let Some(appender) = appender {
        lab.run(stores.get(backend).delete(appender.partition()));
    }
}

fn measure_limit(criterion: &mut Criterion, lab: &Lab, point: (usize, u32, usize)) {
    let (batches, messages, body_bytes) = point;
    let batch = lab.must(batch(messages, body_bytes));
    let mut group = group(criterion, GROUP);
    group.throughput(bytes((batches * batch.len()) as u64));
    // As many allocations as there are batches.
    let copies: Vec<_> = (0..batches).map(|_| batch.clone().detached()).collect();
    let mut outlet = Outlet::default();
    group.bench_function(BenchmarkId::new(Limit::Copy.id(), row(point).id), |bencher| {
        bencher.iter(|| copies.iter().for_each(|batch| outlet.send(batch.payload())));
    });
}
