//! What the properties have in common: an opened partition, and looking at all of it.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use stentor_core::storage::{
    Append, Change, Key, KeyRange, OpenOptions, PartitionReader, PartitionView, PartitionWriter, PendingCommit,
    StorageError, StoredBatch,
};
use stentor_core::{Epoch, Offset, OffsetRange, PartitionId, RecordBatch};

use super::Subject;
use crate::fixtures::{append_of, bodies_of};

/// The partition that most properties use.
pub(super) const P: PartitionId = PartitionId(7);
/// Another one.
pub(super) const Q: PartitionId = PartitionId(8);

/// More than any table here has rows.
pub(super) const ALL_ROWS: NonZeroU32 = NonZeroU32::new(1 << 20).expect("not zero");
/// The bytes of a read where their number does not matter: small, so that it takes several reads to see a log.
const READ_BYTES: NonZeroU32 = NonZeroU32::new(1_000).expect("not zero");

/// A partition that is open for writing.
pub(super) struct Partition {
    pub(super) epoch: Epoch,
    pub(super) writer: Box<dyn PartitionWriter>,
    pub(super) reader: Arc<dyn PartitionReader>,
}

impl Partition {
    pub(super) async fn open(subject: &dyn Subject, id: PartitionId) -> Self {
        Self::open_at(subject, id, Offset::ZERO).await
    }

    pub(super) async fn open_at(subject: &dyn Subject, id: PartitionId, first_offset: Offset) -> Self {
        let options = OpenOptions { first_offset, ..subject.options() };
        let open = subject.storage().open(id, options).await.expect("the partition opens");
        Self { epoch: open.epoch, writer: open.writer, reader: open.reader }
    }

    /// A change that fits, of nothing yet.
    pub(super) fn change(&self) -> Change {
        Change::new(self.epoch, self.writer.end())
    }

    pub(super) async fn start(&mut self, change: Change) -> PendingCommit {
        self.writer.commit(change).await.expect("the change is taken")
    }

    pub(super) async fn commit(&mut self, change: Change) -> OffsetRange {
        self.start(change).await.durable().await.expect("the change gets durable").into_inner()
    }

    /// What the writer says to a change that it should refuse.
    pub(super) async fn refusal(&mut self, change: Change) -> StorageError {
        match self.writer.commit(change).await {
            Ok(pending) => panic!("the change was taken: {:?}", pending.offsets()),
            Err(refusal) => refusal,
        }
    }

    pub(super) async fn append(&mut self, bodies: &[&str]) -> OffsetRange {
        self.append_all(vec![append_of(bodies)]).await
    }

    pub(super) async fn append_all(&mut self, appends: Vec<Append>) -> OffsetRange {
        let change = Change { appends, ..self.change() };
        self.commit(change).await
    }

    pub(super) async fn put(&mut self, puts: Vec<(Key, Bytes)>) {
        let change = Change { puts, ..self.change() };
        self.commit(change).await;
    }

    pub(super) async fn delete(&mut self, deletes: Vec<KeyRange>) {
        let change = Change { deletes, ..self.change() };
        self.commit(change).await;
    }

    pub(super) async fn trim(&mut self, to: u64) {
        let change = Change { trim: Some(Offset(to)), ..self.change() };
        self.commit(change).await;
    }

    pub(super) async fn read(&self, from: u64, bytes_max: u32) -> Vec<StoredBatch> {
        let bytes_max = NonZeroU32::new(bytes_max).expect("not zero");
        self.reader.read(Offset(from), bytes_max).await.expect("the log can be read")
    }

    /// The bodies from the batch that holds `from` on, to the end of the log.
    pub(super) async fn bodies_from(&self, from: u64) -> Vec<String> {
        let mut bodies = Vec::new();
        let mut from = Offset(from);
        loop {
            let batches = self.reader.read(from, READ_BYTES).await.expect("the log can be read");
            let Some(last) = batches.last() else { return bodies };
            from = last.batch.offsets().end;
            bodies.extend(batches.iter().flat_map(|stored| bodies_of(&stored.batch)));
        }
    }

    pub(super) async fn bodies(&self) -> Vec<String> {
        self.bodies_from(self.reader.bounds().start.0).await
    }

    /// Every batch; offsets are checked to be contiguous and to cover the bounds.
    pub(super) async fn stored(&self) -> Vec<StoredBatch> {
        let bounds = self.reader.bounds();
        let mut batches: Vec<StoredBatch> = Vec::new();
        let mut from = bounds.start;
        loop {
            let read = self.reader.read(from, READ_BYTES).await.expect("the log can be read");
            if read.is_empty() {
                break;
            }
            for stored in read {
                let offsets = stored.batch.offsets();
                match batches.last() {
                    Some(last) => assert_eq!(offsets.start, last.batch.offsets().end, "a hole or an overlap"),
                    None => assert!(offsets.contains(bounds.start), "{offsets} does not hold the start {bounds}"),
                }
                from = offsets.end;
                batches.push(stored);
            }
        }
        assert_eq!(from, bounds.end, "the log can be read up to its end");
        batches
    }

    /// As [`stored`](Self::stored), without the places.
    pub(super) async fn batches(&self) -> Vec<RecordBatch> {
        self.stored().await.into_iter().map(|stored| stored.batch).collect()
    }

    pub(super) async fn rows(&self) -> Vec<(Key, Bytes)> {
        self.scan(KeyRange::all()).await
    }

    pub(super) async fn scan(&self, range: KeyRange) -> Vec<(Key, Bytes)> {
        self.reader.scan(range, ALL_ROWS).await.expect("the table can be read")
    }

    pub(super) async fn get(&self, key: &Key) -> Option<Bytes> {
        self.reader.get(key).await.expect("the table can be read")
    }

    pub(super) async fn view(&self) -> Box<dyn PartitionView> {
        self.reader.view().await.expect("a view")
    }

    /// Everything that can be seen of the partition, to be compared.
    pub(super) async fn all(&self) -> Seen {
        Seen { bounds: self.reader.bounds(), batches: self.batches().await, rows: self.rows().await }
    }
}

/// All of a partition at one moment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) bounds: OffsetRange,
    /// Without their places: a backend may move them.
    pub(super) batches: Vec<RecordBatch>,
    pub(super) rows: Vec<(Key, Bytes)>,
}

/// All of a view.
pub(super) async fn seen_of(view: &dyn PartitionView) -> Seen {
    let bounds = view.bounds();
    let mut batches = Vec::new();
    let mut from = bounds.start;
    loop {
        let read = view.read(from, READ_BYTES).await.expect("the view can be read");
        let Some(last) = read.last() else { break };
        from = last.batch.offsets().end;
        batches.extend(read.into_iter().map(|stored| stored.batch));
    }
    assert_eq!(from, bounds.end, "the view can be read up to its end");
    Seen { bounds, batches, rows: view.scan(KeyRange::all(), ALL_ROWS).await.expect("the view can be read") }
}

pub(super) const fn range(start: u64, end: u64) -> OffsetRange {
    OffsetRange::new(Offset(start), Offset(end))
}

/// Checks what an error is, and says what it was otherwise.
macro_rules! assert_refused {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {
        match $error {
            $pattern $(if $guard)? => {}
            other => panic!("expected {}, got {other:?}", stringify!($pattern)),
        }
    };
}

pub(super) use assert_refused;
