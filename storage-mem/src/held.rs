//! A batch in memory, held by one or several logs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use stentor_core::storage::Place;
use stentor_core::{PartitionId, RecordBatch};

use crate::ledger::Ledger;

/// Batches and values up to this size are copied into an allocation of their own: 64 KiB.
///
/// A copy of that size takes a few microseconds; not copying could pin a receive buffer many times as large.
pub const COPIED_BYTES_MAX: usize = 64 << 10;

/// What a held batch takes beyond its bytes: this struct, the counts of its `Arc`, and the header that shared bytes keep
/// on the heap. Measured: batches of one empty message, booked at 343 bytes in all, took 264 before they were first read,
/// which is when that header is made.
const HELD_OVERHEAD: u64 = (size_of::<Held>() + 2 * size_of::<usize>() + BYTES_SHARED_HEADER) as u64;

/// The header of shared [`Bytes`]: pointer, capacity and count.
pub(crate) const BYTES_SHARED_HEADER: usize = 3 * size_of::<usize>();

/// Takes a value for keeping: copied if it is small, since it may be a slice of something large.
pub(crate) fn kept(bytes: Bytes) -> Bytes {
    if bytes.len() <= COPIED_BYTES_MAX { Bytes::copy_from_slice(&bytes) } else { bytes }
}

/// A batch that some log owes, or a view still shows. The base offset and the time of storing are each log's own.
///
/// Invariant: its bytes are on the ledger from its making to its drop, once, however many logs hold it.
#[derive(Debug)]
pub(crate) struct Held {
    batch: RecordBatch,
    place: Place,
    bytes: u64,
    /// Whether the ledger knows it by its place.
    listed: AtomicBool,
    ledger: Arc<Ledger>,
}

impl Held {
    /// Holds a batch that enters the log of `partition` as new.
    pub(crate) fn new(batch: RecordBatch, partition: PartitionId, ledger: &Arc<Ledger>) -> Arc<Self> {
        let batch = if batch.len() <= COPIED_BYTES_MAX { batch.detached() } else { batch };
        let place = Place {
            segment: partition.0,
            position: ledger.next_number(),
            // `RecordBatch` keeps its length within its u32 fields and a header.
            length: u32::try_from(batch.len()).unwrap_or(u32::MAX),
            count: batch.count(),
        };
        let bytes = batch.len() as u64 + HELD_OVERHEAD;
        ledger.take(bytes);
        Arc::new(Self { batch, place, bytes, listed: AtomicBool::new(false), ledger: Arc::clone(ledger) })
    }

    pub(crate) const fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    pub(crate) const fn place(&self) -> Place {
        self.place
    }

    /// What it takes, its overhead included.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes it known by its place, so that the place holds when the log that it entered first has dropped it.
    pub(crate) fn list(self: &Arc<Self>) {
        if !self.listed.swap(true, Ordering::AcqRel) {
            self.ledger.list(self);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.ledger.give_back(self.bytes);
        if *self.listed.get_mut() {
            self.ledger.unlist(self.place);
        }
    }
}
