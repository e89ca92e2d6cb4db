//! Acknowledge: changes of rows alone, as a group writes them when it flushes what its consumers have acknowledged.
//!
//! A change writes the group's cursor and the bitmap of one chunk of offsets, and deletes the chunk before once the group
//! has gone on to the next: the shapes of the broker's rows, with random bits in them. An iteration is a change from each
//! group; every group has a partition of its own. Held against a copy, or a write, of as many bytes.

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput};
use stentor_core::storage::{Change, Key, KeyRange, PartitionWriter};
use stentor_core::{Epoch, PartitionId};

use crate::backend::{Backend, Store, Stores};
use crate::lab::{Failure, Lab, group};
use crate::limit::{self, Point};
use crate::table::{Limit, Row, Table};
use crate::workload::random;

const GROUP: &str = "acknowledge";

/// How many groups flush at a time.
const POINTS: [usize; 3] = [1, 16, 64];

/// A cursor row: version, flags, four numbers.
const CURSOR_BYTES: usize = 34;

/// The row of a chunk in which a thousand acknowledged messages lie scattered: a version, a header, two bytes each.
const CHUNK_BYTES: usize = 2_017;

/// After so many flushes a group goes on to the next chunk.
const FLUSHES_PER_CHUNK: u64 = 64;

/// What the work looks like.
#[must_use]
pub fn table() -> Table {
    Table {
        group: GROUP,
        title: "Acknowledge",
        point: "groups at a time",
        rows: POINTS.into_iter().map(row).collect(),
        columns: vec![
            (Backend::Memory, Limit::Copy),
            (Backend::Buffered, Limit::Write),
            (Backend::Synced, Limit::Sync),
        ],
        limits: Vec::new(),
    }
}

fn row(groups: usize) -> Row {
    Row { id: format!("by-{groups}"), label: groups.to_string() }
}

/// Measures it.
pub fn bench(criterion: &mut Criterion, lab: &Lab) {
    let stores = Stores::new(lab);
    for groups in POINTS {
        for (backend, limit) in table().columns {
            measure(criterion, lab, &stores, backend, groups);
            let point =
                Point { group: GROUP, row: &row(groups).id, length: CURSOR_BYTES + CHUNK_BYTES, at_a_time: groups };
            limit::measure(criterion, lab, &point, limit, Throughput::Elements(groups as u64));
        }
    }
}

fn measure(criterion: &mut Criterion, lab: &Lab, stores: &Stores<'_>, backend: Backend, groups: usize) {
    let mut group = group(criterion, GROUP);
    group.throughput(Throughput::Elements(groups as u64));
    let mut crew: Option<Vec<Acknowledger>> = None;
    group.bench_function(BenchmarkId::new(backend.id(), row(groups).id), |bencher| {
        let crew = crew.get_or_insert_with(|| {
            let store = stores.get(backend);
            lab.run(async {
                let mut crew = Vec::with_capacity(groups);
                for _ in 0..groups {
                    crew.push(Acknowledger::open(store, backend).await?);
                }
                Ok(crew)
            })
        });
        bencher.iter_custom(|rounds| lab.together(crew, |acknowledger| acknowledger.run(rounds)));
    });
    for acknowledger in crew.into_iter().flatten() {
        lab.run(stores.get(backend).delete(acknowledger.partition));
    }
}

/// Flushes one group, over and over.
struct Acknowledger {
    partition: PartitionId,
    writer: Box<dyn PartitionWriter>,
    epoch: Epoch,
    flushes: u64,
    rows: Bytes,
}

impl Acknowledger {
    async fn open(store: &Store, backend: Backend) -> Result<Self, Failure> {
        let (partition, opened) = store.create(backend).await?;
        Ok(Self {
            partition,
            writer: opened.writer,
            epoch: opened.epoch,
            flushes: 0,
            rows: random(CURSOR_BYTES + CHUNK_BYTES),
        })
    }

    fn change(&mut self) -> Change {
        let mut change = Change::new(self.epoch, self.writer.end());
        let chunk = self.flushes / FLUSHES_PER_CHUNK;
        if chunk > 0 && self.flushes.is_multiple_of(FLUSHES_PER_CHUNK) {
            change.deletes.push(KeyRange::single(&chunk_key(chunk - 1)));
        }
        // Rows are encoded anew for each flush.
        let (cursor, bits) = self.rows.split_at(CURSOR_BYTES);
        change.puts.push((Key::copy_from(b"g/red-packet/c"), Bytes::copy_from_slice(cursor)));
        change.puts.push((chunk_key(chunk), Bytes::copy_from_slice(bits)));
        self.flushes += 1;
        change
    }

    async fn run(mut self, flushes: u64) -> Result<Self, Failure> {
        for _ in 0..flushes {
            let change = self.change();
            self.writer.commit(change).await?.durable().await?;
        }
        Ok(self)
    }
}

fn chunk_key(chunk: u64) -> Key {
    let mut key = b"g/red-packet/a/".to_vec();
    key.extend_from_slice(&chunk.to_be_bytes());
    key.into()
}
