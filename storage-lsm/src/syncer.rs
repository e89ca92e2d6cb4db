//! The syncer: syncs what the committer has written, and answers for it.
//!
//! Groups come here in the order in which they lie in the journal. A turn takes all that wait, syncs once if any of them
//! asks for it, lets readers see them, resolves their receipts in order, and hands what is synced to the indexer. Whoever
//! is there takes the turn: the committer itself while little waits, which costs no switch of threads; a thread of the
//! syncer's own while so much waits that writing the next group meanwhile gains more than putting it off.
//!
//! Invariants: one turn at a time; nothing is shown or resolved before it has reached its durability; nothing is handed
//! to the indexer before it is synced; after a failed sync nothing is shown or resolved as durable any more; a sync
//! covers what was written before it began, and nothing is called synced for having been written during one.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use stentor_core::storage::StorageError;

use crate::backlog::{SyncedChange, SyncedGroup};
use crate::committer::explain;
use crate::engine::Engine;
use crate::format::group::FrameKind;
use crate::format::payload::Part;
use crate::format::segment::FIRST_GROUP;
use crate::journal::segments::Segment;
use crate::partition::Location;
use crate::queue::Job;
use crate::warm::Warm;

/// What may lie written and not yet synced while the committer goes on: a group in the turn, and one behind it.
const WRITTEN_BYTES_MAX: u64 = 16 << 20;

/// A group that lies in the journal.
pub(crate) struct Written {
    pub(crate) segment: Arc<Segment>,
    /// Where the next group begins.
    pub(crate) end: u64,
    pub(crate) last_sequence: u64,
    pub(crate) jobs: Vec<Job>,
    /// Where the payload of each job lies.
    pub(crate) locations: Vec<Location>,
    /// Whether it waits for a sync.
    pub(crate) must_sync: bool,
}

impl Written {
    fn bytes(&self) -> u64 {
        self.jobs.iter().map(Job::bytes).sum()
    }
}

/// What is written and not yet answered. All of it lies in one segment.
pub(crate) struct Syncer {
    engine: Arc<Engine>,
    /// A leaf, not held across I/O.
    state: Mutex<State>,
    /// A turn is over, or the thread is gone.
    over: Condvar,
    /// The thread is called, or is to end. Apart from the other, so that it sleeps on while others take the turns.
    called: Condvar,
}

struct State {
    written: VecDeque<Written>,
    /// With those of the turn under way.
    written_bytes: u64,
    /// Whether a turn is under way.
    busy: bool,
    /// Up to here the segment is synced.
    synced: u64,
    /// Groups that are shown but not synced, in order. Belongs to the turn while there is one.
    unsynced: Vec<SyncedGroup>,
    /// Belongs to the turn while there is one.
    warm: Warm,
    /// Whether the thread is asked for turns.
    called: bool,
    ended: bool,
}

/// Gives the turn back, also when it panics: whoever waits for it finds a poisoned engine then.
struct Turn<'a> {
    syncer: &'a Syncer,
    bytes: u64,
    synced: u64,
    unsynced: Vec<SyncedGroup>,
    warm: Warm,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.syncer.state();
        state.busy = false;
        state.written_bytes -= self.bytes;
        state.synced = self.synced;
        state.unsynced = std::mem::take(&mut self.unsynced);
        state.warm = std::mem::take(&mut self.warm);
        drop(state);
        self.syncer.over.notify_all();
    }
}

/// Says that the thread is gone.
struct End<'a>(&'a Syncer);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.ended();
    }
}

impl Syncer {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let state = State {
            written: VecDeque::new(),
            written_bytes: 0,
            busy: false,
            synced: FIRST_GROUP,
            unsynced: Vec::new(),
            warm: Warm::default(),
            called: false,
            ended: false,
        };
        Self { engine, state: Mutex::new(state), over: Condvar::new(), called: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of a turn.
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.over.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to here the segment is known to be synced.
    pub(crate) fn synced(&self) -> u64 {
        self.state().synced
    }

    /// Takes a group over.
    pub(crate) fn push(&self, written: Written) {
        let mut state = self.state();
        state.written_bytes += written.bytes();
        state.written.push_back(written);
    }

    /// Has the thread answer for what waits, and returns once there is room for another group.
    pub(crate) fn call(&self) {
        let mut state = self.state();
        state.called = true;
        self.called.notify_one();
        while state.written_bytes > WRITTEN_BYTES_MAX && !state.ended {
            state = self.wait(state);
        }
        if state.ended {
            // The thread is gone, which is a fault that has been reported; whoever waits is answered all the same.
            drop(state);
            self.settle();
        }
    }

    /// Answers for all that waits before it returns.
    pub(crate) fn settle(&self) {
        let mut state = self.state();
        loop {
            if state.busy {
                state = self.wait(state);
            } else if state.written.is_empty() {
                return;
            } else {
                self.turn(state);
                state = self.state();
            }
        }
    }

    /// Answers for all that waits, and syncs `segment` up to `end` whether or not anybody asked for it.
    pub(crate) fn sync(&self, segment: &Segment, end: u64) -> io::Result<()> {
        self.settle();
        if let Some(why) = self.engine.poisoned() {
            // A sync that is asked for again after one that failed may succeed without the pages that were lost.
            return Err(io::Error::other(why));
        }
        let (unsynced, synced) = {
            let mut state = self.state();
            (std::mem::take(&mut state.unsynced), state.synced)
        };
        if synced < end {
            self.sync_file(segment)?;
            self.state().synced = end;
        }
        self.hand_over(unsynced);
        Ok(())
    }

    /// A new segment begins: nothing of it is synced. All of the one before it is.
    pub(crate) fn begin(&self) {
        self.state().synced = FIRST_GROUP;
    }

    /// Lets the thread end. What waits is dropped; there is nothing after [`Self::settle`].
    pub(crate) fn end(&self) {
        self.ended();
        let mut state = self.state();
        while state.busy {
            state = self.wait(state);
        }
        state.written.clear();
    }

    fn ended(&self) {
        self.state().ended = true;
        self.called.notify_one();
        self.over.notify_all();
    }

    /// Takes turns when it is called, until the end. For a thread of its own.
    pub(crate) fn run(&self) {
        // Also when a turn panics.
        let _end = End(self);
        let mut state = self.state();
        while !state.ended {
            if state.busy {
                state = self.wait(state);
            } else if state.called && !state.written.is_empty() {
                self.turn(state);
                state = self.state();
            } else {
                // What has been answered for by others needs no turn.
                state.called = false;
                state = self.called.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn turn(&self, mut state: MutexGuard<'_, State>) {
        let groups = std::mem::take(&mut state.written);
        state.busy = true;
        let mut turn = Turn {
            syncer: self,
            bytes: groups.iter().map(Written::bytes).sum(),
            synced: state.synced,
            unsynced: std::mem::take(&mut state.unsynced),
            warm: std::mem::take(&mut state.warm),
        };
        drop(state);
        self.answer(groups, &mut turn);
    }

    fn answer(&self, groups: VecDeque<Written>, turn: &mut Turn<'_>) {
        let end = groups.back().map_or(turn.synced, |last| last.end);
        if let Some(asking) = groups.iter().find(|group| group.must_sync)
            && self.engine.poisoned().is_none()
        {
            match self.sync_file(&asking.segment) {
                Ok(()) => {
                    let bytes_max = self.engine.config.warm_bytes;
                    turn.warm.written(&asking.segment, (turn.synced, end), bytes_max);
                    turn.synced = end;
                }
                Err(error) => self.engine.poison(&explain(&error)),
            }
        }
        // Also those that ask for no sync: they may have been written while the sync of one before them failed.
        if let Some(why) = self.engine.poisoned() {
            for job in groups.into_iter().flat_map(|group| group.jobs) {
                job.receipt.resolve(Err(StorageError::Poisoned(why.clone())));
            }
            return;
        }
        for group in groups {
            let shown = self.show(group);
            turn.unsynced.push(shown);
        }
        if turn.synced == end {
            self.hand_over(std::mem::take(&mut turn.unsynced));
        }
    }

    fn sync_file(&self, segment: &Segment) -> io::Result<()> {
        segment.file.sync()?;
        self.engine.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Lets readers see a group, and answers its writers.
    fn show(&self, group: Written) -> SyncedGroup {
        let Written { segment, end, last_sequence, jobs, locations, .. } = group;
        for (job, location) in jobs.iter().zip(&locations) {
            let frame = &job.encoded.frame;
            job.partition.state().publish(job.sequence, *location, frame);
            if frame.kind == FrameKind::Deletion {
                self.engine.forget(&job.partition);
            }
            for part in &frame.parts {
                if let Part::Open { epoch, .. } = part {
                    self.engine.lead(job.partition.id, *epoch);
                }
            }
        }
        let bytes = jobs.iter().map(Job::bytes).sum();
        let answer = |(job, location): (Job, Location)| {
            // Complete after the sync: an acknowledgement may never precede durability.
            job.receipt.resolve(Ok(()));
            SyncedChange {
                partition: job.partition,
                sequence: job.sequence,
                location,
                frame: job.encoded.frame,
                pins: job.pins,
            }
        };
        let changes = jobs.into_iter().zip(locations).map(answer).collect();
        SyncedGroup { segment: segment.generation, end, last_sequence, bytes, changes }
    }

    fn hand_over(&self, groups: Vec<SyncedGroup>) {
        for group in groups {
            self.engine.backlog.push(group);
        }
    }
}
