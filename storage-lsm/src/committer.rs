//! The committer: the one thread that writes the journal.
//!
//! It takes every change that waits and writes them as one group. The [`Syncer`] syncs and answers, while the committer
//! waits or, if enough has come meanwhile, already writes the next group: on a file that was never written before, one
//! that is synced as fast as it is filled takes half as much again that way (measured: 292 and 515 MB/s).
//!
//! Invariants: bytes in front of `position` are never written again but for the padding of the last page, with the same
//! bytes; `synced_through` of a group is what was known to be synced when it was written; a segment is synced to its end
//! before the next begins; after a failed write or sync no group is begun and nothing more is called synced.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use stentor_core::storage::StorageError;

use crate::disk::{DiskFile, Space};
use crate::engine::{Engine, SpareWanted};
use crate::format::group::{FrameHeader, GROUP_HEADER_BYTES, GroupHeader};
use crate::format::row::Owed;
use crate::format::segment::{FIRST_GROUP, Seal, SegmentHeader, spare_name};
use crate::format::{PAGE_BYTES, page_end};
use crate::journal::segments::{Segment, Spare, begin_segment};
use crate::keeper::{FULL, floor, give_up_reserve};
use crate::partition::Location;
use crate::queue::{Ending, GROUP_BYTES_MAX, Job, Work};
use crate::room::Level;
use crate::syncer::{Syncer, Written};

/// Chunks below this are copied next to their neighbours: a slice of a vectored write costs more than such a copy.
const COPY_BYTES_MAX: usize = 4 << 10;

/// How much a change that does not ask for a sync may lie unsynced, and so unindexed, behind another.
const UNSYNCED_BYTES_MAX: u64 = 8 << 20;

/// How often the committer looks for room when there is none and the reserve is used up, and how long it waits between.
const ROOM_LOOKS_MAX: u32 = 250;
const ROOM_LOOK: Duration = Duration::from_millis(20);

/// A segment that is made when the disk is full, for bookkeeping, is at most so large …
const EMERGENCY_SEGMENT_BYTES: u64 = 4 << 20;

/// … and at least so large, lest every few changes begin one. Below that it is better to wait for one to be released.
const EMERGENCY_SEGMENT_BYTES_MIN: u64 = 256 << 10;

static ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// Where the journal is written.
pub(crate) struct Committer {
    engine: Arc<Engine>,
    segment: Arc<Segment>,
    /// Where the next group begins.
    position: u64,
    /// How many groups the segment has.
    groups: u64,
    /// Up to here somebody has asked for a sync.
    asked: u64,
    /// Up to here a group says that it is synced.
    proved: u64,
    /// The sequence of the next frame.
    next_sequence: u64,
    syncer: Arc<Syncer>,
}

impl Committer {
    /// A committer that begins behind the header of `segment`.
    pub(crate) fn new(engine: Arc<Engine>, syncer: Arc<Syncer>, segment: Arc<Segment>, next_sequence: u64) -> Self {
        let committer = Self {
            engine,
            segment,
            position: FIRST_GROUP,
            groups: 0,
            asked: FIRST_GROUP,
            proved: FIRST_GROUP,
            next_sequence,
            syncer,
        };
        committer.tell_room(0);
        committer
    }

    /// Works until the store ends.
    pub(crate) fn run(mut self) {
        loop {
            let idle = (self.proved < self.position).then_some(self.engine.config.idle_group_after);
            // Whatever waits beyond one group goes into the next.
            let bytes_max = GROUP_BYTES_MAX.min(self.engine.payload_bytes_max());
            match self.engine.queue.take(bytes_max, idle) {
                Work::Jobs(jobs) => self.group(jobs),
                Work::Idle => self.prove(),
                Work::End(ending) => {
                    if ending == Ending::Close && self.engine.poisoned().is_none() && self.proved < self.position {
                        self.prove();
                    }
                    self.syncer.end();
                    self.engine.backlog.end(ending);
                    return;
                }
            }
        }
    }

    fn group(&mut self, jobs: Vec<Job>) {
        if let Some(why) = self.engine.poisoned() {
            for job in jobs {
                job.receipt.resolve(Err(StorageError::Poisoned(why.clone())));
            }
            return;
        }
        let room = jobs.iter().map(|job| job.room).sum();
        match self.write_group(&jobs) {
            Ok((locations, must_sync)) => {
                self.syncer.push(Written {
                    segment: self.segment.clone(),
                    end: self.position,
                    last_sequence: self.next_sequence - 1,
                    jobs,
                    locations,
                    must_sync,
                });
                self.tell_room(room);
                if self.engine.queue.holds(self.engine.config.write_ahead_bytes) {
                    self.syncer.call();
                } else {
                    self.syncer.settle();
                }
            }
            Err(error) => {
                let why = explain(&error);
                self.engine.poison(&why);
                for job in jobs {
                    job.receipt.resolve(Err(StorageError::Poisoned(why.clone())));
                }
            }
        }
    }

    /// Writes a group. Returns where each frame's payload lies, and whether it is to be synced.
    fn write_group(&mut self, jobs: &[Job]) -> io::Result<(Vec<Location>, bool)> {
        let frames: u64 = jobs.iter().map(Job::bytes).sum();
        if self.position + GROUP_HEADER_BYTES as u64 + frames > self.segment.capacity {
            self.roll(GROUP_HEADER_BYTES as u64 + frames)?;
        }
        let mut pieces = Pieces::default();
        let generation = self.segment.generation;
        let header = GroupHeader {
            generation,
            first_sequence: self.next_sequence,
            synced_through: self.syncer.synced(),
            length: u32::try_from(frames).map_err(|_| io::Error::other("a group of more than 4 GiB"))?,
            frames: u32::try_from(jobs.len()).map_err(io::Error::other)?,
        };
        pieces.copy(&header.encode());
        let mut locations = Vec::with_capacity(jobs.len());
        for job in jobs {
            let header = FrameHeader {
                payload_checksum: job.encoded.checksum,
                length: u32::try_from(job.encoded.length).map_err(io::Error::other)?,
                kind: job.encoded.frame.kind,
                partition: job.partition.id,
                sequence: job.sequence,
            };
            pieces.copy(&header.encode(generation));
            locations.push(Location { segment: generation, payload_position: self.position + pieces.length });
            for chunk in &job.encoded.chunks {
                pieces.take(chunk);
            }
        }
        pieces.write(&*self.segment.file, self.position)?;
        let start = self.position;
        self.position += pieces.length;
        self.groups += 1;
        self.next_sequence += jobs.len() as u64;
        let must_sync = jobs.iter().any(|job| job.synced) || self.position - self.asked >= UNSYNCED_BYTES_MAX;
        if must_sync {
            self.asked = self.position;
        }
        tracing::trace!(generation, start, end = self.position, frames = jobs.len(), "group written");
        Ok((locations, must_sync))
    }

    /// Appends an empty group and syncs, so that it is known of all before it that it was synced.
    fn prove(&mut self) {
        let proved = self.write_group_empty();
        if let Err(error) = proved {
            self.engine.poison(&explain(&error));
        }
    }

    fn write_group_empty(&mut self) -> io::Result<()> {
        // What was not asked to be synced is synced before anything says that it is.
        self.syncer.sync(&self.segment, self.position)?;
        // At the very end of a segment the next one's seal says the same.
        if self.position + GROUP_HEADER_BYTES as u64 <= self.segment.capacity {
            self.write_group(&[])?;
            self.syncer.sync(&self.segment, self.position)?;
        }
        self.proved = self.position;
        self.tell_room(0);
        Ok(())
    }

    /// Seals the segment and begins the next, which holds at least `bytes` of groups.
    fn roll(&mut self, bytes: u64) -> io::Result<()> {
        self.syncer.sync(&self.segment, self.position)?;
        let (file, name, capacity) = self.next_file(FIRST_GROUP + bytes)?;
        let header = SegmentHeader {
            store: self.engine.store,
            generation: self.engine.next_generation(),
            first_sequence: self.next_sequence,
            previous: Seal { generation: self.segment.generation, end: self.position },
        };
        let next = begin_segment(&*self.engine.disk, file, &name, &header, capacity)?;
        self.engine.segments.insert(next.clone(), None, Owed::default());
        self.engine.segments.sealed(self.segment.generation, self.next_sequence - 1);
        self.segment = next;
        (self.position, self.asked, self.proved) = (FIRST_GROUP, FIRST_GROUP, FIRST_GROUP);
        self.groups = 0;
        self.syncer.begin();
        tracing::debug!(generation = header.generation, capacity, "segment begun");
        Ok(())
    }

    /// A file for the next segment of at least `bytes`: a spare, or a new one, or on a full disk a small one, for which
    /// the reserve is given up if it must be.
    ///
    /// A small one takes at most half of the room that is left: a segment is released only once the marker has moved on
    /// into the one behind it, so there must be room for that one too, or bookkeeping would wait for itself.
    fn next_file(&self, bytes: u64) -> io::Result<(Arc<dyn DiskFile>, String, u64)> {
        let engine = &self.engine;
        for _ in 0..ROOM_LOOKS_MAX {
            if let Some(Spare { generation, bytes }) = engine.segments.take_spare(bytes) {
                let name = spare_name(generation);
                return Ok((engine.disk.open(&name)?, name, bytes));
            }
            let plenty = engine.queue.state().room.level == Level::Plenty;
            let space = engine.disk.space()?;
            let capacity = if plenty {
                engine.segment_bytes.max(page_end(bytes))
            } else {
                emergency_bytes(space, bytes, engine.segment_bytes)
            };
            // The index must never meet the end of the disk.
            if space.free >= capacity + floor(space) {
                match create_file(engine, capacity) {
                    Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
                    other => return other,
                }
            }
            tracing::warn!(capacity, free = space.free, "no room for a segment");
            if !give_up_reserve(engine)? {
                // The index lets go of segments that held nothing but bookkeeping, once it has flushed.
                engine.backlog.wait_briefly(ROOM_LOOK);
            }
        }
        Err(io::ErrorKind::StorageFull.into())
    }

    /// Tells admission what is left, and that `written` bytes of what it admitted are done.
    fn tell_room(&self, written: u64) {
        let (_, spare) = self.engine.segments.spares();
        let left = self.segment.capacity - self.position;
        {
            let mut queue = self.engine.queue.state();
            queue.room.written(written);
            queue.room.active_left = left.saturating_sub(GROUP_HEADER_BYTES as u64);
            queue.room.spare = spare.saturating_sub(FIRST_GROUP + GROUP_HEADER_BYTES as u64);
        }
        self.engine.active_bytes.store(self.segment.capacity, Ordering::Relaxed);
        self.engine.group_bytes.store(self.position / self.groups.max(1), Ordering::Relaxed);
        self.engine.want_spare(SpareWanted::of(left, self.segment.capacity));
    }
}

/// How large a segment is made when there is not much room: at least `bytes`.
fn emergency_bytes(space: Space, bytes: u64, segment_bytes: u64) -> u64 {
    let half = space.free.saturating_sub(floor(space)) / 2;
    let wanted = half.clamp(EMERGENCY_SEGMENT_BYTES_MIN, EMERGENCY_SEGMENT_BYTES).min(segment_bytes);
    page_end(wanted.max(bytes))
}

/// Makes a spare of this size.
pub(crate) fn create_spare(engine: &Engine, bytes: u64) -> io::Result<(Arc<dyn DiskFile>, Spare)> {
    let spare = Spare { generation: engine.next_generation(), bytes };
    let name = spare_name(spare.generation);
    let file = engine.disk.create(&name)?;
    if let Err(error) = file.reserve(bytes) {
        drop(file);
        engine.disk.delete(&name)?;
        return Err(error);
    }
    Ok((file, spare))
}

/// Makes a file of this size under a spare's name.
pub(crate) fn create_file(engine: &Engine, capacity: u64) -> io::Result<(Arc<dyn DiskFile>, String, u64)> {
    let (file, spare) = create_spare(engine, capacity)?;
    Ok((file, spare_name(spare.generation), capacity))
}

pub(crate) fn explain(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::StorageFull {
        FULL.to_owned()
    } else {
        format!("writing the journal failed: {error}")
    }
}

/// The bytes of a group: small ones copied together, large ones where they lie.
#[derive(Default)]
struct Pieces {
    copied: Vec<u8>,
    pieces: Vec<Piece>,
    length: u64,
}

enum Piece {
    /// Up to here of what was copied.
    Copied(usize),
    Shared(Bytes),
}

impl Pieces {
    fn copy(&mut self, bytes: &[u8]) {
        self.copied.extend_from_slice(bytes);
        self.length += bytes.len() as u64;
        match self.pieces.last_mut() {
            Some(Piece::Copied(end)) => *end = self.copied.len(),
            _ => self.pieces.push(Piece::Copied(self.copied.len())),
        }
    }

    fn take(&mut self, chunk: &Bytes) {
        if chunk.len() < COPY_BYTES_MAX {
            self.copy(chunk);
        } else {
            self.length += chunk.len() as u64;
            self.pieces.push(Piece::Shared(chunk.clone()));
        }
    }

    /// Writes all of it, padded to a whole page.
    fn write(&self, file: &dyn DiskFile, position: u64) -> io::Result<()> {
        let mut slices: Vec<&[u8]> = Vec::with_capacity(self.pieces.len() + 1);
        let mut copied = 0;
        for piece in &self.pieces {
            match piece {
                Piece::Copied(end) => {
                    slices.push(&self.copied[copied..*end]);
                    copied = *end;
                }
                Piece::Shared(bytes) => slices.push(bytes),
            }
        }
        let end = position + self.length;
        let padding = usize::try_from(page_end(end) - end).unwrap_or(0);
        slices.push(&ZEROS[..padding]);
        file.write_at(position, &slices)
    }
}
