//! The keeper: watches the room on the disk, keeps the reserve, makes the next segment ready.
//!
//! Invariant: the reserve is given up only when the disk is full, and publishing goes on only while it is whole.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stentor_core::storage::StorageError;

use crate::disk::Space;
use crate::engine::{Engine, SpareWanted};
use crate::format::segment::RESERVE_NAME;
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

/// How much of a spare is written in one piece, …
const ZEROS_BYTES: usize = 1 << 20;

/// … and how much is synced at once: publishers' syncs wait behind it.
const ZEROS_SYNCED_BYTES: u64 = 8 << 20;

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

/// Watches until the store ends.
pub(crate) fn run(engine: &Engine) {
    let mut low_looks = 0;
    loop {
        let next = look(engine, &mut low_looks).unwrap_or_else(|error| {
            tracing::warn!(%error, "the room on the disk cannot be looked after");
            LOOK_EVERY
        });
        if !engine.keeper.wait(Some(next)) {
            return;
        }
    }
}

/// Looks at the room once, and does what follows. Returns when to look again.
pub(crate) fn look(engine: &Engine, low_looks: &mut u32) -> io::Result<Duration> {
    let space = engine.disk.space()?;
    let low = space.free < floor(space);
    let mut reserve = reserve_whole(engine, reserve_bytes(engine, space))?;
    *low_looks = if low && !reserve { *low_looks + 1 } else { 0 };
    if reserve && low {
        give_up_reserve(engine)?;
        reserve = false;
    } else if *low_looks > LOW_LOOKS_MAX {
        engine.poison(FULL);
    } else if !reserve && below_watermark(engine, space, reserve_bytes(engine, space)) {
        reserve = make_reserve(engine, reserve_bytes(engine, space))?;
    }
    let space = engine.disk.space()?;
    let (_, spare) = engine.segments.spares();
    let limits = Limits { watermark: engine.config.disk_watermark, segment_bytes: engine.segment_bytes };
    let level = level(space, limits, spare, reserve);
    let before = std::mem::replace(&mut engine.queue.state().room.level, level);
    if before != level {
        tracing::info!(?level, free = space.free, total = space.total, "room on the disk");
    }
    if level != Level::Plenty {
        // On a disk without room nothing may happen but this, which makes some.
        engine.rewriter.ring();
    }
    if level == Level::Plenty && engine.segments.spares().0 == 0 {
        match engine.spare_wanted() {
            SpareWanted::No => {}
            // A flush lets go of a segment that was written before, for nothing.
            SpareWanted::Soon if engine.segments.any_free() => engine.flush_wanted.store(true, Ordering::Relaxed),
            SpareWanted::Soon | SpareWanted::Now => make_spare(engine)?,
        }
    }
    let index = engine.reading::<_, StorageError>(|index| Ok(index.bytes())).unwrap_or(0);
    let reserve = if reserve { reserve_bytes(engine, space) } else { 0 };
    engine.other_bytes.store(index + reserve, Ordering::Relaxed);
    let far = level == Level::Plenty && below_watermark(engine, space, FAR_SEGMENTS * engine.segment_bytes);
    Ok(if far { LOOK_RARELY } else { LOOK_EVERY })
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

/// Writes the next segment beforehand: syncing into a file that was written before is twice as fast as into a new one.
fn make_spare(engine: &Engine) -> io::Result<()> {
    let generation = engine.next_generation();
    let name = crate::format::segment::spare_name(generation);
    let file = engine.disk.create(&name)?;
    let written = write_zeros(&*file, engine.segment_bytes);
    match written {
        Ok(()) => {
            engine.segments.add_spare(Spare { generation, bytes: engine.segment_bytes });
            Ok(())
        }
        Err(error) => {
            drop(file);
            engine.disk.delete(&name)?;
            Err(error)
        }
    }
}

fn write_zeros(file: &dyn crate::disk::DiskFile, bytes: u64) -> io::Result<()> {
    file.reserve(bytes)?;
    let zeros = vec![0; ZEROS_BYTES];
    let mut position = 0;
    while position < bytes {
        let piece = ZEROS_BYTES.min(usize::try_from(bytes - position).unwrap_or(ZEROS_BYTES));
        file.write_at(position, &[&zeros[..piece]])?;
        position += piece as u64;
        if position % ZEROS_SYNCED_BYTES == 0 {
            file.sync()?;
        }
    }
    file.sync()
}

/// For a thread that owns its share of the engine.
pub(crate) fn run_owned(engine: Arc<Engine>) {
    run(&engine);
}
