//! The rewriter: moves what is owed in sparse segments to the end of the journal, so that one forgotten group costs its own
//! bytes and not everybody's. Which segments, and the bound that is kept, is said in [`sparse`](crate::journal::sparse).
//!
//! In rounds: it goes over the rows of the index and appends what lies in one of the chosen segments anew, through the
//! committer like any writer, in relocation frames. The indexer points the rows to the new places, and releases a segment
//! in which nothing is owed any more the way it releases every other. So a round costs one walk over the index and the
//! bytes that it moves; the segments themselves are read only where something is owed.
//!
//! Invariants:
//! - A relocation changes where bytes lie and nothing else. It applies, live and in replay, only to a row that still holds
//!   the old place; whatever became of the row meanwhile (trimmed, overwritten, truncated, its partition deleted, a new
//!   epoch) stays as it became.
//! - What is copied was checked first, against its own checksum and its row's: nothing damaged is ever written anew.
//! - The old copy is released by the rules for all segments: nothing owed, all rows that say so *flushed*, and nobody holding
//!   it. The index learns of a relocation only once it is synced, so the new copy is always safe before the old one goes.
//! - One step is in flight at a time, of [`STEP_BYTES`] or one row: memory is bounded. Steps are paced, and wait for
//!   room in the queue behind publishers.
//!
//! What may happen meanwhile:
//!
//! | what | then |
//! |---|---|
//! | a crash or a power cut at any point | before the sync of the relocation: it is cut off or replayed like every frame, and the old copy is there; behind it: replay moves the rows again. What was moved and not released is owed in one place only |
//! | damage in what is to be moved | it is reported and counted, nothing more of that segment is moved, and it stays for good: whoever reads there is told `Corrupt` as before. The other segments go on |
//! | a damaged row of the index | the round ends and its segments stay until what they owe changes; readers and `verify` name the row |
//! | a reader holds the old segment | the release waits for it; a reader that comes too late for it looks the row up again |
//! | a reference to the old place is committed | in time: it counts, and holds the segment until it is moved in a later round; too late: the commit is refused as `Moved` |
//! | the disk is nearly full | only as much is moved as fits into half of what is left in the segments there are, so nothing is taken from the disk and bookkeeping finds its half; whole segments come back for it. A segment that needs more waits |
//! | the store closes | the round ends between two steps; there is nothing to undo |
//! | the sync fails | poisoned, as by any writer |

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use stentor_core::storage::{KeyRange, PendingCommit, Place, StorageError};
use stentor_core::{Epoch, Offset, PartitionId, RecordBatch};

use crate::engine::{Engine, range_from};
use crate::format::Malformed;
use crate::format::group::FrameKind;
use crate::format::payload::{Encoder, Moved, MovedRow};
use crate::format::row::{
    LogRow, PartitionRow, TableRow, key_of, last_of, letter_range, log_end, log_key, number_of, table_range,
};
use crate::index::{IndexError, IndexView, Rows};
use crate::partition::Partition;
use crate::queue::{Need, Request};
use crate::snapshot::{read_batch, read_value};

/// How much is moved in one step, unless a row alone is larger. Small beside what a group gathers, since publishers wait for
/// the group that it is in.
const STEP_BYTES: u64 = 256 << 10;

/// With so much more to do, steps are larger.
const URGENT_STEP_BYTES: u64 = 2 << 20;

/// At how many rows a step looks at most.
const STEP_ROWS_MAX: usize = 4_096;

/// What is moved in a second at most, while there is no hurry.
const BYTES_PER_SECOND_MAX: u64 = 32 << 20;

/// The pause between two steps, while there is no hurry: looking at rows takes a processor too.
const STEP_PAUSE: Duration = Duration::from_millis(5);

/// Rewrites sparse segments.
pub(crate) struct Rewriter {
    engine: Arc<Engine>,
}

/// Why a round ends before its end.
#[derive(Debug, thiserror::Error)]
enum Stop {
    /// The store ends, or takes no more writes.
    #[error("the store ends")]
    End,
    #[error("there is no room")]
    NoRoom,
    #[error("{0}")]
    Failed(String),
}

impl From<StorageError> for Stop {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Closed | StorageError::Poisoned(_) => Self::End,
            StorageError::StorageFull(_) => Self::NoRoom,
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<IndexError> for Stop {
    fn from(error: IndexError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Malformed> for Stop {
    fn from(malformed: Malformed) -> Self {
        Self::Failed(format!("the index is damaged: {malformed}"))
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Segments that are being emptied.
struct Round {
    from: BTreeSet<u64>,
    urgent: bool,
    /// The sequence of the last relocation.
    last_sequence: u64,
    /// What was looked at and moved since the last pause.
    rows: usize,
    bytes: u64,
}

impl Round {
    const fn step_bytes(&self) -> u64 {
        if self.urgent { URGENT_STEP_BYTES } else { STEP_BYTES }
    }

    /// How long to pause now, if it is time to.
    fn pause(&mut self) -> Option<Duration> {
        if self.rows < STEP_ROWS_MAX && self.bytes < self.step_bytes() / 2 {
            return None;
        }
        let paced = Duration::from_micros(self.bytes * 1_000_000 / BYTES_PER_SECOND_MAX);
        (self.rows, self.bytes) = (0, 0);
        Some(if self.urgent { Duration::ZERO } else { paced + STEP_PAUSE })
    }
}

/// Which rows are walked over.
#[derive(Clone, Copy)]
enum Walk {
    Logs,
    Tables,
}

/// A row that points into a segment of the round.
struct Found {
    place: Place,
    row: FoundRow,
}

enum FoundRow {
    Log { base: Offset, row: LogRow },
    Table { row: MovedRow, checksum: u32 },
}

/// What is to be moved, read and checked.
struct Copy {
    /// Whom the bytes were written for: a reader asks them that.
    partition: PartitionId,
    moved: Moved,
    bytes: Content,
}

enum Content {
    Batch(RecordBatch),
    Value(Bytes),
}

impl Rewriter {
    pub(crate) const fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// Works until the store ends.
    pub(crate) fn run(self) {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else {
            tracing::error!("sparse segments are not rewritten: the thread has no runtime");
            return;
        };
        // What earlier runs left behind is looked at first.
        self.engine.rewriter.ring();
        while self.engine.rewriter.wait(None) {
            loop {
                let choice = self.engine.sparse();
                if choice.generations.is_empty() {
                    break;
                }
                let mut round = Round {
                    from: choice.generations.into_iter().collect(),
                    urgent: choice.urgent,
                    last_sequence: 0,
                    rows: 0,
                    bytes: 0,
                };
                tracing::debug!(segments = round.from.len(), round.urgent, "rewriting sparse segments");
                match runtime.block_on(self.round(&mut round)) {
                    Ok(()) => {}
                    Err(Stop::End) => return,
                    Err(Stop::NoRoom) => break,
                    Err(Stop::Failed(why)) => {
                        tracing::error!(why, "sparse segments stay as they are");
                        round.from.iter().for_each(|generation| self.engine.segments.keep(*generation));
                    }
                }
            }
        }
    }

    /// Moves all that is owed in the segments of a round.
    async fn round(&self, round: &mut Round) -> Result<(), Stop> {
        // Tables come second, and only if the logs do not account for all: they may be large, and hold few large values.
        for walk in [Walk::Logs, Walk::Tables] {
            for (partition, row) in self.partitions()? {
                self.walk(round, walk, partition, &row).await?;
            }
            if round.last_sequence > 0 {
                self.engine.backlog.wait_for(round.last_sequence);
            }
            round.from.retain(|generation| self.engine.segments.is_owed(*generation));
            if round.from.is_empty() {
                return Ok(());
            }
        }
        // What is left belongs to rows that wait to be swept, or came while the rows were walked over.
        round.from.iter().for_each(|generation| self.engine.segments.keep(*generation));
        Ok(())
    }

    fn partitions(&self) -> Result<Vec<(PartitionId, PartitionRow)>, Stop> {
        let (start, end) = letter_range(b'P');
        self.engine.reading(|index| {
            let mut partitions = Vec::new();
            collect(&**index, &start, &end, |key, value| {
                partitions.push((PartitionId(number_of(key)?), PartitionRow::decode(value)?));
                Ok(ControlFlow::Continue(()))
            })?;
            Ok(partitions)
        })
    }

    /// Goes over the rows of a partition's log or table.
    async fn walk(
        &self,
        round: &mut Round,
        walk: Walk,
        partition: PartitionId,
        row: &PartitionRow,
    ) -> Result<(), Stop> {
        // Rows below the start wait to be swept.
        let (mut start, end) = match walk {
            Walk::Logs => (log_key(row.incarnation, row.start), log_end(row.incarnation)),
            Walk::Tables => table_range(row.incarnation, &KeyRange::all()),
        };
        while !round.from.is_empty() {
            let (found, next) = self.engine.reading(|index| look(&**index, walk, round, &start, &end))?;
            self.step(round, partition, row.incarnation, found).await?;
            if let Some(pause) = round.pause()
                && !self.engine.rewriter.pause(pause)
            {
                return Err(Stop::End);
            }
            match next {
                Some(next) => start = next,
                None => break,
            }
        }
        Ok(())
    }

    /// Moves what was found, and waits until it is safe.
    async fn step(
        &self,
        round: &mut Round,
        partition: PartitionId,
        incarnation: u64,
        found: Vec<Found>,
    ) -> Result<(), Stop> {
        let mut bytes = 0;
        let mut pending = Vec::new();
        let mut frame: Option<(PartitionId, Encoder)> = None;
        for found in found {
            let Some(copy) = self.read(round, partition, incarnation, found)? else {
                continue;
            };
            // A frame, and so its parts, are of one partition.
            if let Some((of, encoder)) = frame.take_if(|(of, _)| *of != copy.partition) {
                pending.push(self.submit(of, encoder).await?);
            }
            let (_, encoder) = frame.get_or_insert_with(|| {
                (copy.partition, Encoder::new(FrameKind::Relocation, copy.partition, Epoch(0), Offset::ZERO))
            });
            encoder.moved(copy.moved);
            match copy.bytes {
                Content::Batch(batch) => {
                    bytes += batch.len() as u64;
                    encoder.batch(batch);
                }
                Content::Value(value) => {
                    bytes += value.len() as u64;
                    encoder.moved_value(value);
                }
            }
        }
        if let Some((of, encoder)) = frame {
            pending.push(self.submit(of, encoder).await?);
        }
        for (sequence, pending) in pending {
            pending.durable().await?;
            round.last_sequence = sequence;
        }
        round.bytes += bytes;
        self.engine.rewritten_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    async fn submit(&self, partition: PartitionId, encoder: Encoder) -> Result<(u64, PendingCommit), Stop> {
        let encoded = encoder.finish();
        let permit = self.engine.permit(&encoded).await?;
        // Whom the bytes were written for may be gone by now; a relocation asks nothing of it.
        let partition = self.engine.partition(partition).unwrap_or_else(|| Arc::new(Partition::new(partition)));
        let request = Request {
            encoded,
            offsets: range_from(Offset::ZERO, 0),
            synced: true,
            need: Need::Rewriting,
            pins: Vec::new(),
            permit,
        };
        Ok(self.engine.submit(&partition, request, |_| Ok(()))?)
    }

    /// Reads and checks what a row points to; none if it is gone, or damaged and therefore stays.
    fn read(
        &self,
        round: &mut Round,
        partition: PartitionId,
        incarnation: u64,
        found: Found,
    ) -> Result<Option<Copy>, Stop> {
        let place = found.place;
        // Released since: then nothing is owed there.
        let Some(segment) = self.engine.segments.get(place.segment).filter(|_| round.from.contains(&place.segment))
        else {
            return Ok(None);
        };
        let moved = |row| Moved { segment: place.segment, position: place.position, incarnation, row };
        let (read, at) = match found.row {
            FoundRow::Log { base, row } => {
                let read = read_batch(&*segment.file, partition, base, &row)?.map(|batch| Copy {
                    partition: row.origin.map_or(partition, |origin| origin.partition),
                    moved: moved(MovedRow::Log { last: Offset(base.0 + u64::from(place.count) - 1) }),
                    bytes: Content::Batch(batch),
                });
                (read, base)
            }
            FoundRow::Table { row, checksum } => {
                let read = read_value(&*segment.file, place, checksum)?;
                (read.map(|value| Copy { partition, moved: moved(row), bytes: Content::Value(value) }), Offset::ZERO)
            }
        };
        match read {
            Ok(copy) => Ok(Some(copy)),
            Err(detail) => {
                let detail = format!("segment {:x}, position {}: {detail}", place.segment, place.position);
                self.engine.met(StorageError::Corrupt { partition, offset: at, detail });
                self.engine.segments.keep_damaged(place.segment);
                round.from.remove(&place.segment);
                Ok(None)
            }
        }
    }
}

/// Looks at the next rows from `start` on; returns those that point into a segment of the round, and where to go on.
fn look(
    index: &dyn IndexView,
    walk: Walk,
    round: &mut Round,
    start: &[u8],
    end: &[u8],
) -> Result<(Vec<Found>, Option<Vec<u8>>), Stop> {
    let bytes_max = round.step_bytes();
    let mut found = Vec::new();
    let mut next = None;
    let (mut rows, mut bytes) = (0, 0);
    collect(index, start, end, |key, value| {
        let row = match walk {
            Walk::Logs => {
                let row = LogRow::decode(value)?;
                let base = Offset((last_of(key)?.0 + 1).saturating_sub(row.place.count.into()));
                Some(Found { place: row.place, row: FoundRow::Log { base, row } })
            }
            Walk::Tables => match TableRow::decode(value)? {
                TableRow::Placed { place, checksum } => {
                    let row = MovedRow::Table { key: key_of(key)? };
                    Some(Found { place, row: FoundRow::Table { row, checksum } })
                }
                TableRow::Inline(_) => None,
            },
        };
        rows += 1;
        if let Some(row) = row.filter(|row| round.from.contains(&row.place.segment)) {
            bytes += u64::from(row.place.length);
            if bytes > bytes_max && !found.is_empty() {
                next = Some(key.to_vec());
                return Ok(ControlFlow::Break(()));
            }
            found.push(row);
        }
        if rows == STEP_ROWS_MAX {
            // The first key behind this one.
            next = Some([key, &[0]].concat());
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    round.rows += rows;
    Ok((found, next))
}

/// Scans, with a visitor that may fail.
fn collect(
    index: &dyn IndexView,
    start: &[u8],
    end: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Malformed>,
) -> Result<(), Stop> {
    let mut bad = None;
    index.scan(Rows { start, end, backwards: false }, &mut |key, value| {
        visit(key, value).unwrap_or_else(|malformed| {
            bad = Some(malformed);
            ControlFlow::Break(())
        })
    })?;
    bad.map_or(Ok(()), |malformed| Err(malformed.into()))
}
