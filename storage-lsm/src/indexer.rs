//! The indexer: the one thread that changes the index.
//!
//! It takes the groups that are synced, applies them as one atomic batch, lets the partitions let go of what the index
//! holds now, and releases the segments that nobody owes any more. When nothing comes, it sweeps away rows of trimmed
//! logs and deleted partitions, and waits for readers to let go of segments.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stentor_core::PartitionId;

use crate::applier::{Applier, ApplyError};
use crate::backlog::{Backlog, IndexWork, SyncedGroup};
use crate::engine::Engine;
use crate::format::group::FrameKind;
use crate::index::Index;
use crate::partition::Partition;
use crate::queue::Ending;
use crate::recent::RecentTails;
use crate::room::Level;

/// How much of the journal one batch of the index covers. Larger batches cost fewer rows for the bookkeeping; this one
/// keeps the time short for which a checkpoint holds up the next.
const BATCH_BYTES_MAX: u64 = 16 << 20;

/// How long to wait between looks at what only time can change: a flush that ends, a reader that lets go.
const HOUSEKEEPING: Duration = Duration::from_millis(20);

/// The index is flushed after so many segments, so that they can be used again and replay stays short even if the index
/// lost its own log.
const FLUSH_AFTER_SEGMENTS: u64 = 4;

/// Follows the journal.
pub(crate) struct Indexer {
    engine: Arc<Engine>,
    index: Arc<dyn Index>,
    applier: Applier,
    recent: RecentTails,
    /// The batch that the last flush was asked for, and the segment that was being indexed then.
    flush: (u64, u64),
}

/// Why the indexer gives up.
#[derive(Debug, thiserror::Error)]
enum IndexerError {
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("releasing a segment: {0}")]
    Io(#[from] io::Error),
}

impl From<crate::index::IndexError> for IndexerError {
    fn from(error: crate::index::IndexError) -> Self {
        Self::Apply(error.into())
    }
}

impl Indexer {
    /// An indexer that goes on from the state that `applier` has.
    pub(crate) fn new(engine: Arc<Engine>, index: Arc<dyn Index>, applier: Applier) -> Self {
        let flush = (index.flushed(), applier.marker().segment);
        Self { engine, index, applier, recent: RecentTails::default(), flush }
    }

    /// Works until the store ends.
    pub(crate) fn run(mut self) {
        loop {
            let waits = self.applier.sweeping() || self.engine.segments.any_free();
            let work = self.engine.backlog.take(BATCH_BYTES_MAX, waits.then_some(HOUSEKEEPING));
            let done = match work {
                IndexWork::Groups(groups) => self.apply(groups),
                IndexWork::Idle => self.idle(),
                IndexWork::End(Ending::Abandon) => return,
                IndexWork::End(Ending::Close) => {
                    // So that opening has nothing to replay.
                    if self.engine.poisoned().is_none()
                        && let Err(error) = self.close()
                    {
                        self.engine.poison(&format!("the index cannot be written: {error}"));
                    }
                    return;
                }
            };
            if let Err(error) = done {
                self.engine.poison(&format!("the index cannot be written: {error}"));
                // Memory keeps serving what could not be indexed.
                wait_for_end(&self.engine.backlog);
                return;
            }
        }
    }

    fn apply(&mut self, groups: Vec<SyncedGroup>) -> Result<(), IndexerError> {
        let mut touched: BTreeMap<PartitionId, Arc<Partition>> = BTreeMap::new();
        let Some((at, sequence)) = groups.last().map(|group| ((group.segment, group.end), group.last_sequence)) else {
            return Ok(());
        };
        for change in groups.iter().flat_map(|group| &group.changes) {
            self.applier.apply(change.sequence, change.location, &change.frame)?;
            // Of a relocation the partition is only whom the bytes were first written for; it may be gone.
            if change.frame.kind != FrameKind::Relocation {
                touched.insert(change.partition.id, change.partition.clone());
            }
        }
        self.commit(at, sequence)?;
        for (id, partition) in touched {
            // Only now: until the index has it, the partition itself must.
            partition.state().indexed(sequence, self.applier.partitions().get(&id));
            self.recent.indexed(&partition, sequence);
        }
        let bytes = groups.iter().map(|group| group.bytes).sum();
        // Holds references' segments until here.
        drop(groups);
        self.engine.backlog.indexed(sequence, bytes);
        self.housekeep(false)
    }

    fn commit(&mut self, at: (u64, u64), sequence: u64) -> Result<(), IndexerError> {
        let owed = self.applier.commit(at, sequence)?;
        self.engine.segments.account(owed, self.applier.marker());
        if !self.engine.sparse().generations.is_empty() {
            self.engine.rewriter.ring();
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), IndexerError> {
        if self.applier.sweeping() {
            let marker = *self.applier.marker();
            self.commit((marker.segment, marker.position), marker.sequence)?;
        }
        self.housekeep(true)
    }

    /// Flushes the index when segments wait for it, and releases those that wait for nothing any more. When it is `idle` a
    /// flush costs nobody anything, and afterwards there is nothing to look for every now and then.
    fn housekeep(&mut self, idle: bool) -> Result<(), IndexerError> {
        let flushed = self.index.flushed();
        let level = self.engine.queue.state().room.level;
        let waiting = self.engine.segments.waiting_for_flush(flushed);
        let marker = self.applier.marker();
        let soon = idle || level != Level::Plenty || self.engine.flush_wanted.load(Ordering::Relaxed);
        let wanted = waiting >= if soon { 1 } else { 2 };
        let far = marker.segment.saturating_sub(self.flush.1) >= FLUSH_AFTER_SEGMENTS;
        // One flush at a time: the next is asked for when the last is done.
        if (wanted || far) && flushed >= self.flush.0 {
            self.flush = (marker.batch, marker.segment);
            self.engine.flush_wanted.store(false, Ordering::Relaxed);
            self.index.begin_flush()?;
        }
        let engine = &self.engine;
        engine.segments.release(&*engine.disk, flushed, engine.segment_bytes, level != Level::Full)?;
        Ok(())
    }

    fn close(&mut self) -> Result<(), IndexerError> {
        self.index.flush()?;
        let engine = &self.engine;
        engine.segments.release(&*engine.disk, self.index.flushed(), engine.segment_bytes, true)?;
        Ok(())
    }
}

fn wait_for_end(backlog: &Backlog) {
    while !matches!(backlog.take(BATCH_BYTES_MAX, None), IndexWork::End(_)) {}
}
