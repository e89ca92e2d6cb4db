//! What every backend is given: batches, a writer that feeds them to a partition, a reader that sends them on.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use stentor_core::batch::BatchBuilder;
use stentor_core::storage::{Append, Change, PartitionReader, PartitionWriter, PendingCommit};
use stentor_core::{Compression, Epoch, MessageId, Offset, PartitionId, Record, RecordBatch, Timestamp};

use crate::backend::{Backend, Store};
use crate::lab::Failure;

/// The seed of all bodies and ids.
const SEED: u64 = 0x5eed;

/// The time on all messages: benches do not depend on the day.
const WRITTEN_AT: Timestamp = Timestamp(1_700_000_000_000_000);

/// What all writers of a point keep of their logs together; older messages are trimmed, as retention does.
pub const KEPT_BYTES: u64 = 64 << 20;

/// How much a reader asks for at a time.
pub const READ_BYTES: NonZeroU32 = match NonZeroU32::new(1 << 20) {
    Some(bytes) => bytes,
    None => NonZeroU32::MIN,
};

/// How many changes a log is filled with before any of them is waited for.
const FILL_AHEAD: usize = 64;

/// A batch of so many messages with random bodies of so many bytes, uncompressed.
///
/// # Errors
/// When that is beyond what a batch may hold.
pub fn batch(messages: u32, body_bytes: usize) -> Result<RecordBatch, Failure> {
    let mut rng = fastrand::Rng::with_seed(SEED);
    let mut builder = BatchBuilder::new(Compression::None);
    for _ in 0..messages {
        let mut body = vec![0; body_bytes];
        rng.fill(&mut body);
        builder.push(&Record {
            id: MessageId::generate(WRITTEN_AT, rng.u128(..)),
            timestamp: WRITTEN_AT,
            key: None,
            tag: None,
            headers: Vec::new(),
            body: body.into(),
            deliver_at: None,
            expires_at: None,
        })?;
    }
    let batch = builder.finish(None).ok_or(Failure::Unfit("a batch needs a message"))?;
    Ok(batch.stored(Offset::ZERO, WRITTEN_AT))
}

/// Feeds one batch to one partition, over and over, and trims what gets old.
pub struct Appender {
    partition: PartitionId,
    writer: Box<dyn PartitionWriter>,
    reader: Arc<dyn PartitionReader>,
    epoch: Epoch,
    batch: RecordBatch,
    start: Offset,
    /// Beyond twice as many the log is cut back to so many.
    kept_messages: u64,
}

impl Appender {
    /// An appender to a new partition, one of `appenders` that keep [`KEPT_BYTES`] together.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn open(store: &Store, backend: Backend, batch: RecordBatch, appenders: u64) -> Result<Self, Failure> {
        let (partition, opened) = store.create(backend).await?;
        let batches = (KEPT_BYTES / appenders / batch.len() as u64).max(1);
        Ok(Self {
            partition,
            writer: opened.writer,
            reader: opened.reader,
            epoch: opened.epoch,
            kept_messages: batches * u64::from(batch.count()),
            batch,
            start: Offset::ZERO,
        })
    }

    /// Where it appends to.
    #[must_use]
    pub const fn partition(&self) -> PartitionId {
        self.partition
    }

    /// A reader of its partition.
    #[must_use]
    pub fn reader(&self) -> Arc<dyn PartitionReader> {
        self.reader.clone()
    }

    /// Where its log ends.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.writer.end()
    }

    /// Commits `batches` in one change.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn commit(&mut self, batches: Vec<RecordBatch>) -> Result<PendingCommit, Failure> {
        let end = self.writer.end();
        let mut change = Change::new(self.epoch, end);
        change.appends = batches.into_iter().map(Append::Batch).collect();
        if end.0 - self.start.0 > 2 * self.kept_messages {
            self.start = Offset(end.0 - self.kept_messages);
            change.trim = Some(self.start);
        }
        Ok(self.writer.commit(change).await?)
    }

    /// Commits `count` times its batch in one change. Each in an allocation of its own, as what came over the wire is.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn append(&mut self, count: usize) -> Result<PendingCommit, Failure> {
        let batches = (0..count).map(|_| self.batch.clone().detached()).collect();
        self.commit(batches).await
    }

    /// Appends so many batches, each durable before the next.
    ///
    /// # Errors
    /// When the store refuses or fails.
    pub async fn run(mut self, batches: u64) -> Result<Self, Failure> {
        for _ in 0..batches {
            self.append(1).await?.durable().await?;
        }
        Ok(self)
    }
}

/// Fills logs with so many bytes each, their batches taking turns as those of a busy node's partitions do, and lets them
/// grow. All is durable on return.
///
/// # Errors
/// When the store refuses or fails.
pub async fn fill(appenders: &mut [Appender], log_bytes: u64) -> Result<(), Failure> {
    let mut pending = Vec::new();
    for appender in appenders.iter_mut() {
        appender.kept_messages = u64::MAX / 2;
    }
    let batch_bytes = appenders.first().map_or(1, |appender| appender.batch.len()) as u64;
    for _ in 0..log_bytes.div_ceil(batch_bytes) {
        for appender in appenders.iter_mut() {
            pending.push(appender.append(1).await?);
        }
        if pending.len() >= FILL_AHEAD {
            for commit in pending.drain(..) {
                commit.durable().await?;
            }
        }
    }
    for commit in pending {
        commit.durable().await?;
    }
    Ok(())
}

/// Where a reader puts what it reads: copied once, as sending does.
#[derive(Debug, Default)]
pub struct Outlet {
    buffer: Vec<u8>,
}

impl Outlet {
    /// Copies `bytes` out.
    pub fn send(&mut self, bytes: &[u8]) {
        self.buffer.clear();
        self.buffer.extend_from_slice(bytes);
        std::hint::black_box(&mut self.buffer);
    }
}

/// Reads the log from `from` to its end and sends it on; returns the bytes.
///
/// # Errors
/// When the store fails.
pub async fn read_on(reader: &dyn PartitionReader, mut from: Offset, to: &mut Outlet) -> Result<u64, Failure> {
    let mut bytes = 0;
    loop {
        let batches = reader.read(from, READ_BYTES).await?;
        let Some(last) = batches.last() else { return Ok(bytes) };
        from = last.batch.offsets().end;
        for stored in &batches {
            to.send(stored.batch.payload());
            bytes += stored.batch.len() as u64;
        }
    }
}

/// Random bytes, the same each time.
#[must_use]
pub fn random(length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(SEED).fill(&mut bytes);
    bytes.into()
}

/// `64 × 1 KiB`: messages of so many bytes.
#[must_use]
pub fn messages_label(messages: u32, body_bytes: usize) -> String {
    let size = if body_bytes.is_multiple_of(1 << 10) {
        format!("{} KiB", body_bytes >> 10)
    } else {
        format!("{body_bytes} B")
    };
    format!("{messages} × {size}")
}
