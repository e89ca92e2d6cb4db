//! The keeper: watches the room on the disk, keeps the reserve, makes the next segment ready.
//!
//! Invariant: the reserve is given up only when the disk is full, and publishing goes on only while it is whole.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stentor_core::storage::StorageError;

use crate::committer::create_spare;
use crate::disk::{DiskFile, Space};
use crate::engine::{Engine, SpareWanted};
use crate::format::segment::{RESERVE_NAME, spare_name};
use crate::journal::segments::Spare;
use crate::room::{Level, Limits, level};

/// What is said when even the reserve is used up.
pub(crate) const FULL: &str = "the disk is full, and so is the reserve: make room and start again";

/// How often the room is looked at …
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// … and how often when there is far more than could be used up meanwhile …
const LOOK_RARELY: Duration = Duration::from_secs(1);

/// … which is room for so many segments. The committer rings whenever it comes to the half of one.
const FAR_SEGMENTS: u64 = 16;

/// How much of a spare is written and synced in one piece. Publishers' syncs wait behind it: measured, in pieces of 512 KiB
/// it made them take 0.7 ms instead of 0.1.
const ZEROS_BYTES: usize = 128 << 10;

/// From this size of groups on, a spare is not written beforehand. Syncing into a file that was written before is twice as
/// fast as into one that was only reserved, which counts while groups are small; large ones hardly gain, and the zeros would
/// take half of what the disk can write (measured: publishers got a third more without).
const LARGE_GROUP_BYTES: u64 = 128 << 10;

/// A spare is at most so many times as large as the active segment: after the first one, which is small, there is not the
/// time to write a whole one beforehand.
const GROWTH: u64 = 4;

/// The least that is written at a look.
const FILL_BYTES_MIN: u64 = 2 << 20;

/// The reserve takes at most this part of the file system.
const RESERVE_SHARE: u64 = 16;

/// Below this much free the index might meet the end of the disk: then the reserve is given up, and after that writing.
const FLOOR_BYTES: u64 = 16 << 20;

/// The floor is at most this part of the file system.
const FLOOR_SHARE: u64 = 64;

/// For so many looks in a row there may be less than the floor, and no reserve: the index may be about to let go of
/// segments.
const LOW_LOOKS_MAX: u32 = 50;

/// What is always left to the index.
pub(crate) fn floor(space: Space) -> u64 {
    FLOOR_BYTES.min(space.total / FLOOR_SHARE)
}

/// Watches the room.
pub(crate) struct Keeper {
    engine: Arc<Engine>,
    /// For so many looks in a row there was less than the floor, and no reserve.
    low_looks: u32,
    /// What was left in the active segment at the last look, and what is taken of it from one look to the next while they
    /// are frequent.
    left: u64,
    taken: u64,
    /// Until the next look.
    pause: Duration,
    /// The next segment, while zeros are written into it.
    filling: Option<Filling>,
}

/// A spare that is being written beforehand.
struct Filling {
    spare: Spare,
    file: Arc<dyn DiskFile>,
    position: u64,
}

impl Keeper {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, low_looks: 0, left: 0, taken: 0, pause: LOOK_EVERY, filling: None }
    }

    /// Watches until the store ends. What was not filled by then is a spare all the same: it is as long as it should be.
    pub(crate) fn run(mut self) {
        loop {
            if let Err(error) = self.look() {
                tracing::warn!(%error, "the room on the disk cannot be looked after");
                self.pause = LOOK_EVERY;
            }
            if !self.engine.keeper.wait(Some(self.pause)) {
                return;
            }
        }
    }

    /// Looks at the room once, and does what follows.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        let engine = self.engine.clone();
        let space = engine.disk.space()?;
        let low = space.free < floor(space);
        let mut reserve = reserve_whole(&engine, reserve_bytes(&engine, space))?;
        self.low_looks = if low && !reserve { self.low_looks + 1 } else { 0 };
        if reserve && low {
            give_up_reserve(&engine)?;
            reserve = false;
        } else if self.low_looks > LOW_LOOKS_MAX {
            engine.poison(FULL);
        } else if !reserve && below_watermark(&engine, space, reserve_bytes(&engine, space)) {
            reserve = make_reserve(&engine, reserve_bytes(&engine, space))?;
        }
        let space = engine.disk.space()?;
        let (_, spare) = engine.segments.spares();
        let limits = Limits { watermark: engine.config.disk_watermark, segment_bytes: engine.segment_bytes };
        let level = level(space, limits, spare, reserve);
        let (before, left) = {
            let room = &mut engine.queue.state().room;
            (std::mem::replace(&mut room.level, level), room.active_left)
        };
        if before != level {
            tracing::info!(?level, free = space.free, total = space.total, "room on the disk");
        }
        if level != Level::Plenty {
            // On a disk without room nothing may happen but this, which makes some.
            engine.rewriter.ring();
        }
        if left < self.left && self.pause == LOOK_EVERY {
            self.taken = self.left - left;
        }
        self.left = left;
        self.prepare(level)?;
        let far = level == Level::Plenty && below_watermark(&engine, space, FAR_SEGMENTS * engine.segment_bytes);
        self.pause = if far && self.filling.is_none() { LOOK_RARELY } else { LOOK_EVERY };
        let index = engine.reading::<_, StorageError>(|index| Ok(index.bytes())).unwrap_or(0);
        let reserve = if reserve { reserve_bytes(&engine, space) } else { 0 };
        engine.other_bytes.store(index + reserve, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the next segment ready, if one is wanted and none is there.
    fn prepare(&mut self, level: Level) -> io::Result<()> {
        let engine = self.engine.clone();
        if let Some(mut filling) = self.filling.take() {
            if let Err(error) = self.fill(&mut filling) {
                return discard(&engine, filling.file, filling.spare, error);
            }
            if filling.position < filling.spare.bytes {
                self.filling = Some(filling);
            } else {
                engine.segments.add_spare(filling.spare);
            }
            return Ok(());
        }
        if level != Level::Plenty || engine.segments.spares().0 > 0 {
            return Ok(());
        }
        match engine.spare_wanted() {
            SpareWanted::No => {}
            // A flush lets go of a segment that was written before, for nothing.
            SpareWanted::Soon if engine.segments.any_free() => engine.flush_wanted.store(true, Ordering::Relaxed),
            SpareWanted::Soon | SpareWanted::Now => {
                let bytes = engine.segment_bytes.min(GROWTH * engine.active_bytes.load(Ordering::Relaxed));
                let (file, spare) = create_spare(&engine, bytes)?;
                // So that the first group in it need not wait for that.
                if let Err(error) = file.sync() {
                    return discard(&engine, file, spare, error);
                }
                if engine.group_bytes.load(Ordering::Relaxed) < LARGE_GROUP_BYTES {
                    self.filling = Some(Filling { spare, file, position: 0 });
                } else {
                    engine.segments.add_spare(spare);
                }
            }
        }
        Ok(())
    }

    /// Writes some zeros: so many that the spare is ready before the active segment is full, if that goes on filling as it
    /// does, and little at a time, because whoever waits for a sync waits for what is under way as well.
    fn fill(&self, filling: &mut Filling) -> io::Result<()> {
        let more = filling.spare.bytes - filling.position;
        let needed = u128::from(self.taken) * u128::from(more) * 3 / (2 * u128::from(self.left.max(1)));
        let bytes = u64::try_from(needed).unwrap_or(u64::MAX).max(FILL_BYTES_MIN).min(more);
        write_zeros(&*filling.file, filling.position, filling.position + bytes)?;
        filling.position += bytes;
        filling.file.not_needed(0, filling.position);
        Ok(())
    }
}

/// Takes a spare off the disk that could not be made ready; gives back why.
fn discard(engine: &Engine, file: Arc<dyn DiskFile>, spare: Spare, why: io::Error) -> io::Result<()> {
    drop(file);
    engine.disk.delete(&spare_name(spare.generation))?;
    Err(why)
}

/// Writes zeros over a part of a file, and syncs them.
pub(crate) fn write_zeros(file: &dyn DiskFile, mut position: u64, end: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS_BYTES];
    while position < end {
        let piece = ZEROS_BYTES.min(usize::try_from(end - position).unwrap_or(ZEROS_BYTES));
        file.write_at(position, &[&zeros[..piece]])?;
        file.sync()?;
        position += piece as u64;
    }
    Ok(())
}

fn below_watermark(engine: &Engine, space: Space, more: u64) -> bool {
    let used = u128::from(space.total - space.free.min(space.total)) + u128::from(more);
    used < u128::from(space.total) * u128::from(engine.config.disk_watermark) / 100
}

fn reserve_bytes(engine: &Engine, space: Space) -> u64 {
    engine.config.disk_reserve.min(space.total / RESERVE_SHARE)
}

fn reserve_whole(engine: &Engine, bytes: u64) -> io::Result<bool> {
    let found = match engine.disk.open(RESERVE_NAME) {
        Ok(file) => file.len()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if found < bytes {
        // Made by halves, or for other settings: it is made anew.
        engine.disk.delete(RESERVE_NAME)?;
    }
    Ok(found >= bytes)
}

fn make_reserve(engine: &Engine, bytes: u64) -> io::Result<bool> {
    let file = engine.disk.create(RESERVE_NAME)?;
    match file.reserve(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            engine.disk.delete(RESERVE_NAME)?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Gives the reserve up, for bookkeeping; false if there is none. The keeper makes it anew when there is room, and
/// publishing waits for that.
pub(crate) fn give_up_reserve(engine: &Engine) -> io::Result<bool> {
    engine.queue.state().room.level = Level::Full;
    match engine.disk.delete(RESERVE_NAME) {
        Ok(()) => {
            tracing::warn!("the disk is full: the reserve is given up");
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
