//! Append: producers that each wait for their batch to be as durable as the backend keeps it, before they send the next.
//!
//! An iteration is a batch from each appender; they go on independently of one another. Every appender has a partition of
//! its own, and trims it, so that what is measured can go on for ever. Held against one memory copy, or against one write
//! (and fdatasync) of what all of the appenders send at a time.

use criterion::{BenchmarkId, Criterion};
use stentor_core::RecordBatch;

use crate::backend::{Backend, Stores};
use crate::lab::{Lab, group};
use crate::limit::{self, Point};
use crate::table::{Limit, Row, Table, bytes};
use crate::workload::{Appender, batch, messages_label};

const GROUP: &str = "append";

/// Batches by their number of messages and the bytes of a message, and how many append at a time.
const POINTS: [(u32, usize, usize); 8] = [
    (64, 100, 1),
    (64, 100, 16),
    (64, 100, 64),
    (64, 1 << 10, 1),
    (64, 1 << 10, 16),
    (64, 1 << 10, 64),
    (1_024, 1 << 10, 1),
    (1_024, 1 << 10, 16),
];

/// What the work looks like.
#[must_use]
pub fn table() -> Table {
    Table {
        group: GROUP,
        title: "Append",
        point: "batch, appenders at a time",
        rows: POINTS.into_iter().map(row).collect(),
        columns: vec![
            (Backend::Memory, Limit::Copy),
            (Backend::Buffered, Limit::Write),
            (Backend::Synced, Limit::Sync),
        ],
        limits: Vec::new(),
    }
}

fn row((messages, body_bytes, appenders): (u32, usize, usize)) -> Row {
    Row {
        id: format!("{messages}x{body_bytes}-by-{appenders}"),
        label: format!("{}, {appenders}", messages_label(messages, body_bytes)),
    }
}

/// Measures it.
pub fn bench(criterion: &mut Criterion, lab: &Lab) {
    let stores = Stores::new(lab);
    for point in POINTS {
        let (messages, body_bytes, appenders) = point;
        let batch = lab.must(batch(messages, body_bytes));
        for (backend, limit) in table().columns {
            measure(criterion, lab, &stores, &row(point).id, backend, &batch, appenders);
            let point = Point { group: GROUP, row: &row(point).id, length: batch.len(), at_a_time: appenders };
            limit::measure(criterion, lab, &point, limit, bytes((appenders * batch.len()) as u64));
        }
    }
}

fn measure(
    criterion: &mut Criterion,
    lab: &Lab,
    stores: &Stores<'_>,
    point: &str,
    backend: Backend,
    batch: &RecordBatch,
    appenders: usize,
) {
    let mut group = group(criterion, GROUP);
    group.throughput(bytes((appenders * batch.len()) as u64));
    let mut crew: Option<Vec<Appender>> = None;
    group.bench_function(BenchmarkId::new(backend.id(), point), |bencher| {
        let crew = crew.get_or_insert_with(|| {
            let store = stores.get(backend);
            lab.run(async {
                let mut crew = Vec::with_capacity(appenders);
                for _ in 0..appenders {
                    crew.push(Appender::open(store, backend, batch.clone(), appenders as u64).await?);
                }
                Ok(crew)
            })
        });
        bencher.iter_custom(|rounds| lab.together(crew, |appender| appender.run(rounds)));
    });
    for appender in crew.into_iter().flatten() {
        lab.run(stores.get(backend).delete(appender.partition()));
    }
}
