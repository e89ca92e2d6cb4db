//! The machine by itself: what else one has to know to read the other tables.
//!
//! One fdatasync behind a write of a page; a frame of 64 KiB sent to and fro over QUIC, one at a time.

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion};
use stentor_core::transport::{Frame, FrameStream};

use crate::lab::{Failure, Lab, group};
use crate::limit::{self, Point};
use crate::table::{Limit, Row, Table, bytes};
use crate::wire::{Line, answer};
use crate::workload::random;

/// The name of criterion's group.
pub const GROUP: &str = "machine";

/// The point that says how long one sync takes.
pub const SYNC_ROW: &str = "page";

/// The least that a disk writes.
const PAGE_BYTES: usize = 4 << 10;

/// A frame as large as a usual batch.
const FRAME_BYTES: usize = 64 << 10;

const ECHO_ROW: &str = "echo";

/// What the work looks like.
#[must_use]
pub fn table() -> Table {
    Table {
        group: GROUP,
        title: "The machine by itself",
        point: "what",
        rows: vec![
            Row { id: SYNC_ROW.to_owned(), label: "a page of 4 KiB, synced".to_owned() },
            Row { id: ECHO_ROW.to_owned(), label: "64 KiB to and fro, one at a time".to_owned() },
        ],
        columns: Vec::new(),
        limits: vec![Limit::Sync, Limit::Quic],
    }
}

/// Measures it.
pub fn bench(criterion: &mut Criterion, lab: &Lab) {
    let page = Point { group: GROUP, row: SYNC_ROW, length: PAGE_BYTES, at_a_time: 1 };
    limit::measure(criterion, lab, &page, Limit::Sync, bytes(PAGE_BYTES as u64));
    echo(criterion, lab);
}

fn echo(criterion: &mut Criterion, lab: &Lab) {
    let mut group = group(criterion, GROUP);
    group.throughput(bytes(2 * FRAME_BYTES as u64));
    let frame = Frame { head: Bytes::from_static(b"echo"), body: random(FRAME_BYTES) };
    let mut line: Option<Line<()>> = None;
    group.bench_function(BenchmarkId::new(Limit::Quic.id(), ECHO_ROW), |bencher| {
        let line = line.get_or_insert_with(|| lab.run(Line::open(lab, |stream| tokio::spawn(send_back(stream)))));
        bencher.iter_custom(|frames| {
            lab.time(|| {
                lab.run(async {
                    for _ in 0..frames {
                        line.stream.sender.send(frame.clone()).await?;
                        answer(&mut *line.stream.receiver).await?;
                    }
                    Ok(())
                });
            })
        });
    });
    if let Some(line) = line {
        lab.run(line.close());
    }
}

async fn send_back(mut stream: FrameStream) -> Result<(), Failure> {
    while let Some(frame) = stream.receiver.receive().await? {
        stream.sender.send(frame).await?;
    }
    Ok(stream.sender.finish()?)
}
