//! Opening: reads what the index reflects, replays the journal from there, cuts what a power cut tore, and begins a new
//! segment.
//!
//! Invariants: what is found valid is synced before anything builds on it; damage is told from a torn end by what is
//! known to have been synced ([`Evidence`]), and is never cut away; the journal never grows behind a cut.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use stentor_core::storage::StorageError;

use crate::applier::{Applier, ApplyError};
use crate::committer::{Committer, create_file};
use crate::config::LsmConfig;
use crate::disk::{Disk, DiskFile};
use crate::engine::{Engine, Opened, segment_bytes};
use crate::format::PAGE_BYTES;
use crate::format::group::GROUP_HEADER_BYTES;
use crate::format::payload::Frame;
use crate::format::row::Owed;
use crate::format::segment::{FIRST_GROUP, FileKind, Seal, SegmentHeader, file_kind, segment_name};
use crate::index::Index;
use crate::indexer::Indexer;
use crate::journal::scan::{Evidence, Stop, read_groups, search_synced_through};
use crate::journal::segments::{Segment, Segments, Spare, begin_segment};
use crate::keeper::Keeper;
use crate::partition::{Location, Partition};
use crate::queue::Ending;
use crate::syncer::Syncer;

/// A batch of the index in replay has about so many rows.
const REPLAY_ROWS_MAX: usize = 16 << 10;

/// How much is rewritten in one piece.
const REWRITE_BYTES: usize = 1 << 20;

/// A segment found on disk.
pub(crate) struct Found {
    pub(crate) header: SegmentHeader,
    pub(crate) segment: Arc<Segment>,
}

/// What lies in the folder.
pub(crate) struct Folder {
    pub(crate) segments: Vec<Found>,
    pub(crate) spares: Vec<Spare>,
    /// Greater than every generation that was ever used.
    pub(crate) next_generation: u64,
}

/// Why the store does not open.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("{0}")]
    Damaged(String),
}

impl From<OpenError> for StorageError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Io(error) => Self::io("opening the store", error),
            OpenError::Apply(ApplyError::Index(crate::index::IndexError::Failed(why))) => {
                Self::io("opening the index", io::Error::other(why))
            }
            damage @ (OpenError::Apply(_) | OpenError::Damaged(_)) => Self::Damaged(damage.to_string()),
        }
    }
}

/// Looks at the files, and reads the headers of the segments.
pub(crate) fn read_folder(disk: &dyn Disk) -> Result<Folder, OpenError> {
    let mut folder = Folder { segments: Vec::new(), spares: Vec::new(), next_generation: 1 };
    for entry in disk.list()? {
        match file_kind(&entry.name) {
            FileKind::Segment(generation) => {
                folder.next_generation = folder.next_generation.max(generation + 1);
                let file = disk.open(&entry.name)?;
                let mut block = vec![0; PAGE_BYTES as usize];
                let read = file.read_at(0, &mut block)?;
                // The header was synced before the file got its name: a bad one is damage.
                let header = SegmentHeader::decode(&block[..read], generation)
                    .map_err(|malformed| OpenError::Damaged(format!("{}: {malformed}", entry.name)))?;
                let segment = Arc::new(Segment { generation, file, capacity: entry.bytes });
                folder.segments.push(Found { header, segment });
            }
            FileKind::Spare(generation) => {
                folder.next_generation = folder.next_generation.max(generation + 1);
                folder.spares.push(Spare { generation, bytes: entry.bytes });
            }
            FileKind::Reserve | FileKind::Other => {}
        }
    }
    folder.segments.sort_by_key(|found| found.header.generation);
    Ok(folder)
}

/// Where the journal ends after a replay.
pub(crate) struct Replayed {
    pub(crate) next_sequence: u64,
    /// The end of the last segment.
    pub(crate) end: Seal,
    /// Up to where the last segment is known to have been synced.
    pub(crate) synced: u64,
}

/// Replays the journal from the marker on.
pub(crate) fn replay(segments: &[Found], applier: &mut Applier) -> Result<(Replayed, BTreeMap<u64, u64>), OpenError> {
    let marker = *applier.marker();
    let mut last_sequences = BTreeMap::new();
    let first = if marker.batch == 0 {
        0
    } else {
        segments.iter().position(|found| found.header.generation == marker.segment).ok_or_else(|| {
            let name = segment_name(marker.segment);
            OpenError::Damaged(format!("the index reflects the journal up to {name}, which is not there"))
        })?
    };
    let Some(oldest) = segments.get(first) else {
        return Ok((Replayed { next_sequence: 1, end: Seal::default(), synced: 0 }, last_sequences));
    };
    // Older segments are only read from; their last sequence is where the one after them begins.
    for (at, found) in segments[..first].iter().enumerate() {
        last_sequences.insert(found.header.generation, segments[at + 1].header.first_sequence - 1);
    }
    let mut next_sequence = marker.sequence + 1;
    if oldest.header.first_sequence > next_sequence || (marker.batch == 0 && oldest.header.first_sequence != 1) {
        return Err(OpenError::Damaged(format!(
            "the index reflects the journal up to sequence {}, but the oldest segment begins with {}",
            marker.sequence, oldest.header.first_sequence
        )));
    }
    let mut from = if marker.batch == 0 { FIRST_GROUP } else { marker.position };
    let mut replayed = None;
    for (at, found) in segments.iter().enumerate().skip(first) {
        let generation = found.header.generation;
        let next = segments.get(at + 1);
        if next.is_some_and(|next| next.header.previous.generation != generation) {
            let name = next.map(|next| segment_name(next.header.previous.generation)).unwrap_or_default();
            return Err(OpenError::Damaged(format!("{name} is missing from the middle of the journal")));
        }
        let seal = next.map(|next| next.header.previous.end);
        let marked = (marker.batch != 0 && generation == marker.segment).then_some(marker.position);
        let stop = replay_segment(found, (from, seal, marked), next_sequence, applier)?;
        next_sequence = stop.next_sequence;
        if next.is_some_and(|next| next.header.first_sequence != next_sequence) {
            return Err(OpenError::Damaged(format!("{} does not go on where it was sealed", segment_name(generation))));
        }
        last_sequences.insert(generation, next_sequence - 1);
        let synced = stop.synced_through.max(marked.unwrap_or(FIRST_GROUP));
        replayed = Some(Replayed { next_sequence, end: Seal { generation, end: stop.position }, synced });
        from = FIRST_GROUP;
    }
    let replayed = replayed.ok_or_else(|| OpenError::Damaged("the journal is missing".to_owned()))?;
    Ok((replayed, last_sequences))
}

fn replay_segment(
    found: &Found,
    (from, seal, marker): (u64, Option<u64>, Option<u64>),
    next_sequence: u64,
    applier: &mut Applier,
) -> Result<Stop, OpenError> {
    let Segment { generation, file, capacity } = &*found.segment;
    let name = segment_name(*generation);
    let end = seal.unwrap_or(*capacity);
    let stop = read_groups::<OpenError>(&**file, *generation, (from, end), next_sequence, |group| {
        let start = group.end - u64::from(group.header.length) - GROUP_HEADER_BYTES as u64;
        // The index must never be ahead of what is synced, and the end of the last segment may not be: what a group says was
        // synced before it is.
        let safe = seal.is_some() || group.header.synced_through >= start;
        if safe && applier.pending_rows() >= REPLAY_ROWS_MAX {
            applier.commit((*generation, start), group.header.first_sequence - 1)?;
        }
        for frame in &group.frames {
            let decoded = Frame::decode(frame.header.kind, frame.header.partition, frame.payload.clone()).map_err(
                |malformed| OpenError::Damaged(format!("{name}, position {}: {malformed}", frame.payload_position)),
            )?;
            let location = Location { segment: *generation, payload_position: frame.payload_position };
            applier.apply(frame.header.sequence, location, &decoded)?;
        }
        Ok(())
    })?;
    let mut evidence = Evidence { seal, marker, groups: stop.synced_through };
    if !evidence.condemns(stop.position) && seal.is_none() {
        evidence.groups = evidence.groups.max(search_synced_through(&**file, *generation, stop.position, *capacity)?);
    }
    if evidence.condemns(stop.position) {
        let whose = stop.bad.partition.map_or(String::new(), |partition| format!(" of partition {partition}"));
        return Err(OpenError::Damaged(format!(
            "{name}, position {}{whose}: {}, though all up to {} had been synced",
            stop.bad.position,
            stop.bad.detail,
            evidence.synced()
        )));
    }
    Ok(stop)
}

/// Opens the store over these seams, and starts its threads.
pub(crate) fn open(
    config: LsmConfig,
    disk: Arc<dyn Disk>,
    open_index: impl FnOnce(u64) -> Result<Arc<dyn Index>, StorageError>,
) -> Result<(Arc<Engine>, Vec<std::thread::JoinHandle<()>>), StorageError> {
    let failed = |error: io::Error| StorageError::io("opening the store", error);
    let lock_held = disk.lock().map_err(failed)?.ok_or_else(|| StorageError::Locked(format!("{disk:?}")))?;
    let space = disk.space().map_err(failed)?;
    let index = open_index(space.total)?;
    let folder = read_folder(&*disk)?;
    let store_new = fastrand::Rng::with_seed(config.seed).u64(1..);
    let (mut applier, fresh) = Applier::load(index.clone(), store_new).map_err(OpenError::from)?;
    let store = match folder.segments.first() {
        // An index that lost everything belongs to whatever store the journal says.
        Some(found) if fresh => found.header.store,
        _ => applier.marker().store,
    };
    applier.belongs_to(store);
    check_store(&folder, store, fresh)?;

    let (replayed, last_sequences) = replay(&folder.segments, &mut applier)?;
    if let Some(last) = folder.segments.last() {
        settle(&*last.segment.file, replayed.synced, replayed.end.end).map_err(failed)?;
    }
    if applier.marker().sequence + 1 < replayed.next_sequence {
        let end = (replayed.end.generation, replayed.end.end);
        applier.commit(end, replayed.next_sequence - 1).map_err(OpenError::from)?;
    }

    let segments = Arc::new(Segments::default());
    for found in folder.segments {
        let generation = found.header.generation;
        let owed = applier.owed().get(&generation).copied().unwrap_or_default();
        segments.insert(found.segment, last_sequences.get(&generation).copied(), owed);
    }
    for spare in folder.spares {
        segments.add_spare(spare);
    }
    segments.account([], applier.marker());
    for generation in applier.owed().keys() {
        if segments.get(*generation).is_none() {
            // Whoever reads from it is told; the rest goes on.
            tracing::error!(segment = segment_name(*generation), "a segment is missing, though it is owed");
        }
    }

    let partitions =
        applier.partitions().iter().map(|(id, row)| (*id, Arc::new(Partition::recovered(*id, row)))).collect();
    let engine = Arc::new(Engine::new(Opened {
        config,
        segment_bytes: segment_bytes(&config, space.total),
        store,
        disk,
        index: index.clone(),
        lock: lock_held,
        segments,
        partitions,
        next_generation: folder.next_generation,
        next_sequence: replayed.next_sequence,
    }));
    let segment = begin(&engine, &replayed).map_err(failed)?;
    let mut keeper = Keeper::new(engine.clone());
    keeper.look().map_err(failed)?;
    let syncer = Arc::new(Syncer::new(engine.clone()));
    let committer = Committer::new(engine.clone(), syncer.clone(), segment, replayed.next_sequence);
    let indexer = Indexer::new(engine.clone(), index, applier);
    let threads = start(&engine, keeper, committer, syncer, indexer).map_err(failed)?;
    Ok((engine, threads))
}

/// The journal and the index must be of one store.
fn check_store(folder: &Folder, store: u64, fresh: bool) -> Result<(), OpenError> {
    if folder.segments.is_empty() && !fresh {
        return Err(OpenError::Damaged("the index is there, but the journal is missing".to_owned()));
    }
    match folder.segments.iter().find(|found| found.header.store != store) {
        Some(stranger) => {
            let name = segment_name(stranger.header.generation);
            Err(OpenError::Damaged(format!("{name} belongs to another store")))
        }
        None => Ok(()),
    }
}

/// Makes what was found at the end of the journal durable. After a sync that failed, the kernel may hold pages that are
/// not on disk but no longer count as unwritten: so everything not known to be synced is written once more.
fn settle(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<()> {
    let mut position = from;
    let mut buffer = vec![0; REWRITE_BYTES];
    while position < to {
        let wanted = REWRITE_BYTES.min(usize::try_from(to - position).unwrap_or(REWRITE_BYTES));
        let read = file.read_at(position, &mut buffer[..wanted])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_at(position, &[&buffer[..read]])?;
        position += read as u64;
    }
    file.sync()
}

/// Begins the segment that this run writes to.
fn begin(engine: &Arc<Engine>, replayed: &Replayed) -> io::Result<Arc<Segment>> {
    let (file, name, capacity) = match engine.segments.take_spare(engine.segment_bytes) {
        Some(Spare { generation, bytes }) => {
            let name = crate::format::segment::spare_name(generation);
            (engine.disk.open(&name)?, name, bytes)
        }
        None => {
            let first = match create_file(engine, room_for_first(engine)?) {
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                    crate::keeper::give_up_reserve(engine)?;
                    create_file(engine, engine.segment_bytes.min(SMALL_SEGMENT_BYTES))?
                }
                other => other?,
            };
            crate::keeper::write_zeros(&*first.0, 0, first.2)?;
            first
        }
    };
    let header = SegmentHeader {
        store: engine.store,
        generation: engine.next_generation(),
        first_sequence: replayed.next_sequence,
        previous: replayed.end,
    };
    let segment = begin_segment(&*engine.disk, file, &name, &header, capacity)?;
    engine.segments.insert(segment.clone(), None, Owed::default());
    Ok(segment)
}

/// How large the first segment is where no spare is left: not so large that writing it beforehand, without which syncs
/// take twice as long, would hold up the opening.
fn room_for_first(engine: &Engine) -> io::Result<u64> {
    let space = engine.disk.space()?;
    let whole = space.free >= FIRST_SEGMENT_BYTES + crate::keeper::floor(space);
    Ok(engine.segment_bytes.min(if whole { FIRST_SEGMENT_BYTES } else { SMALL_SEGMENT_BYTES }))
}

const FIRST_SEGMENT_BYTES: u64 = 8 << 20;

/// What is enough to open on a full disk.
const SMALL_SEGMENT_BYTES: u64 = 1 << 20;

fn start(
    engine: &Arc<Engine>,
    keeper: Keeper,
    committer: Committer,
    syncer: Arc<Syncer>,
    indexer: Indexer,
) -> io::Result<Vec<std::thread::JoinHandle<()>>> {
    let spawn =
        |name: &str, run: Box<dyn FnOnce() + Send>| std::thread::Builder::new().name(format!("lsm-{name}")).spawn(run);
    let rewritten = engine.clone();
    let guarded = |name: &'static str, run: Box<dyn FnOnce() + Send>| -> Box<dyn FnOnce() + Send> {
        let engine = engine.clone();
        Box::new(move || {
            // Nobody would ever be answered again by a thread that is gone.
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                engine.poison(&format!("the {name} has panicked"));
                engine.backlog.end(Ending::Abandon);
            }
        })
    };
    let threads = [
        spawn("committer", guarded("committer", Box::new(move || committer.run()))),
        spawn("syncer", guarded("syncer", Box::new(move || syncer.run()))),
        spawn("indexer", guarded("indexer", Box::new(move || indexer.run()))),
        spawn("rewriter", guarded("rewriter", Box::new(move || crate::rewriter::Rewriter::new(rewritten).run()))),
        spawn("keeper", guarded("keeper", Box::new(move || keeper.run()))),
    ];
    let mut started = Vec::new();
    for thread in threads {
        started.push(thread.inspect_err(|_| engine.end(Ending::Abandon))?);
    }
    Ok(started)
}
