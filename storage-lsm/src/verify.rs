//! Looks at all data of a stopped node, and says what is damaged.
//!
//! Three walks: over the files and headers of the journal, over every group and frame of every segment, and over every
//! row of the index to the batch or value that it points to. So a damaged batch is reported twice: where it lies, and
//! whose and which it is. The torn end that a power cut leaves behind the last synced group is no damage.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use stentor_core::storage::StorageError;
use stentor_core::{Offset, PartitionId};

use crate::applier::{Applier, ApplyError};
use crate::disk::{Disk, DiskFile, FileDisk};
use crate::format::PAGE_BYTES;
use crate::format::payload::{Frame, PAYLOAD_HEADER_BYTES};
use crate::format::segment::{FIRST_GROUP, FileKind, SegmentHeader, file_kind, segment_name};
use crate::index::{FjallIndex, FjallOptions, Index, IndexError};
use crate::journal::scan::{Evidence, ReadFrame, find_group, read_group, search_synced_through};
use crate::journal::segments::Segment;
use crate::open::OpenError;
use crate::partition::Partition;
use crate::snapshot::{Snapshot, Source};
use crate::storage::INDEX_FOLDER;

/// What was looked at, and what is damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Segments of the journal.
    pub segments: u64,
    /// Frames in them.
    pub frames: u64,
    /// Partitions.
    pub partitions: u64,
    /// Batches that partitions hold.
    pub batches: u64,
    /// Rows of tables.
    pub rows: u64,
    /// What is damaged; nothing if all is well.
    pub damage: Vec<Damage>,
}

/// One thing that is damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// The file, if it lies in one.
    pub file: Option<String>,
    /// Where in the file.
    pub position: Option<u64>,
    /// Whose it is, as far as that is known.
    pub partition: Option<PartitionId>,
    /// The offset of the damaged batch, or the nearest one known.
    pub offset: Option<Offset>,
    /// What was found.
    pub detail: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}: ")?;
        }
        if let Some(position) = self.position {
            write!(f, "position {position}: ")?;
        }
        if let Some(partition) = self.partition {
            write!(f, "partition {partition}: ")?;
        }
        if let Some(offset) = self.offset {
            write!(f, "offset {offset}: ")?;
        }
        f.write_str(&self.detail)
    }
}

/// Looks at the store in `folder`. Blocks for as long as reading all of it takes.
///
/// # Errors
/// [`Locked`](StorageError::Locked) while a node runs on it; what the system says. Damage is no error.
pub fn verify(folder: &Path) -> Result<Report, StorageError> {
    let looking = |error| StorageError::io(format!("looking at {}", folder.display()), error);
    if !std::fs::exists(folder).map_err(looking)? {
        return Err(looking(io::ErrorKind::NotFound.into()));
    }
    let disk = FileDisk::open(folder).map_err(looking)?;
    let held = disk.lock().map_err(looking)?;
    if held.is_none() {
        return Err(StorageError::Locked(folder.display().to_string()));
    }
    match FjallIndex::open(&folder.join(INDEX_FOLDER), FjallOptions::default()) {
        Ok(index) => verify_on(&disk, &(Arc::new(index) as Arc<dyn Index>)),
        Err(IndexError::Failed(why)) => Err(StorageError::io("opening the index", io::Error::other(why))),
        Err(damaged @ IndexError::Damaged(_)) => {
            let mut walk = Walk::default();
            walk.journal(&disk, None).map_err(looking)?;
            walk.damaged(Damage { detail: damaged.to_string(), ..Damage::default() });
            Ok(walk.report)
        }
    }
}

/// Looks at a store over the two seams; nobody else may use it meanwhile.
///
/// # Errors
/// What the system says.
pub fn verify_on(disk: &dyn Disk, index: &Arc<dyn Index>) -> Result<Report, StorageError> {
    let mut walk = Walk::default();
    let applier = match Applier::load(index.clone(), 0) {
        Ok((applier, _)) => Some(applier),
        Err(ApplyError::Index(IndexError::Failed(why))) => {
            return Err(StorageError::io("reading the index", io::Error::other(why)));
        }
        Err(damaged) => {
            walk.damaged(Damage { detail: OpenError::Apply(damaged).to_string(), ..Damage::default() });
            None
        }
    };
    let segments =
        walk.journal(disk, applier.as_ref()).map_err(|error| StorageError::io("looking at the journal", error))?;
    if let Some(applier) = applier {
        walk.index(&applier, index, &segments);
    }
    Ok(walk.report)
}

#[derive(Default)]
struct Walk {
    report: Report,
}

impl Walk {
    fn damaged(&mut self, damage: Damage) {
        self.report.damage.push(damage);
    }

    fn journal(&mut self, disk: &dyn Disk, applier: Option<&Applier>) -> io::Result<BTreeMap<u64, Arc<Segment>>> {
        let mut headers: BTreeMap<u64, Option<SegmentHeader>> = BTreeMap::new();
        let mut segments = BTreeMap::new();
        for entry in disk.list()? {
            let FileKind::Segment(generation) = file_kind(&entry.name) else {
                continue;
            };
            self.report.segments += 1;
            let file = disk.open(&entry.name)?;
            let mut block = vec![0; PAGE_BYTES as usize];
            let read = file.read_at(0, &mut block)?;
            let header = SegmentHeader::decode(&block[..read], generation)
                .map_err(|malformed| {
                    let detail = malformed.to_string();
                    self.damaged(Damage {
                        file: Some(entry.name.clone()),
                        position: Some(0),
                        detail,
                        ..Damage::default()
                    });
                })
                .ok();
            headers.insert(generation, header);
            segments.insert(generation, Arc::new(Segment { generation, file, capacity: entry.bytes }));
        }
        for (generation, segment) in &segments {
            // What the next header says of this segment is its seal. If that header is bad, its groups speak for themselves.
            let seal = headers
                .values()
                .flatten()
                .find(|next| next.previous.generation == *generation)
                .map(|next| next.previous.end);
            let marker = applier.map(Applier::marker).filter(|marker| marker.segment == *generation);
            self.segment(segment, seal, marker.map(|marker| marker.position))?;
        }
        if let Some(applier) = applier {
            let marked = (applier.marker().batch != 0).then_some(applier.marker().segment);
            for missing in applier.owed().keys().copied().chain(marked).filter(|owed| !segments.contains_key(owed)) {
                let detail = "the segment is missing, though it is owed".to_owned();
                self.damaged(Damage { file: Some(segment_name(missing)), detail, ..Damage::default() });
            }
        }
        Ok(segments)
    }

    fn segment(&mut self, segment: &Segment, seal: Option<u64>, marker: Option<u64>) -> io::Result<()> {
        let Segment { generation, file, capacity } = segment;
        let end = seal.unwrap_or(*capacity);
        let mut position = FIRST_GROUP;
        let mut evidence = Evidence { seal, marker, groups: 0 };
        if seal.is_none() {
            evidence.groups = search_synced_through(&**file, *generation, FIRST_GROUP, *capacity)?;
        }
        while position < end {
            let bad = match read_group(&**file, *generation, position, end)? {
                Ok(group) => {
                    for frame in &group.frames {
                        self.frame(*generation, frame);
                    }
                    let bad = group.bad;
                    position = group.end;
                    bad.filter(|bad| evidence.condemns(bad.position)).map(|bad| {
                        let offset = bad.partition.and_then(|_| base_of(&**file, bad.position));
                        (bad.position, bad.partition, offset, bad.detail)
                    })
                }
                Err(_) if !evidence.condemns(position) => return Ok(()),
                Err(detail) => {
                    let at = position;
                    // The length of the group is lost with its header: the next one has to be looked for.
                    position = find_group(&**file, *generation, position + 1, end)?.unwrap_or(end);
                    Some((at, None, None, detail.to_owned()))
                }
            };
            if let Some((position, partition, offset, detail)) = bad {
                let file = Some(segment_name(*generation));
                self.damaged(Damage { file, position: Some(position), partition, offset, detail });
            }
        }
        Ok(())
    }

    fn frame(&mut self, generation: u64, frame: &ReadFrame) {
        self.report.frames += 1;
        if let Err(malformed) = Frame::decode(frame.header.kind, frame.header.partition, frame.payload.clone()) {
            self.damaged(Damage {
                file: Some(segment_name(generation)),
                position: Some(frame.payload_position),
                partition: Some(frame.header.partition),
                detail: malformed.to_string(),
                ..Damage::default()
            });
        }
    }

    fn index(&mut self, applier: &Applier, index: &Arc<dyn Index>, segments: &BTreeMap<u64, Arc<Segment>>) {
        for (id, row) in applier.partitions() {
            self.report.partitions += 1;
            let partition = Partition::recovered(*id, row);
            let snapshot = {
                let state = partition.state();
                let source = Source::Held(segments.clone());
                Snapshot::new(*id, &state, Default::default(), index.snapshot(), source)
            };
            let mut found = Vec::new();
            let (batches, rows) = snapshot.verify(|error| found.push(error));
            self.report.batches += batches;
            self.report.rows += rows;
            for error in found {
                self.damaged(match error {
                    StorageError::Corrupt { partition, offset, detail } => {
                        Damage { partition: Some(partition), offset: Some(offset), detail, ..Damage::default() }
                    }
                    other => Damage { partition: Some(*id), detail: other.to_string(), ..Damage::default() },
                });
            }
        }
    }
}

/// Where the log ended before a frame, as far as that can be read of a damaged one.
fn base_of(file: &dyn DiskFile, frame: u64) -> Option<Offset> {
    let mut payload = [0; PAYLOAD_HEADER_BYTES];
    let read = file.read_at(frame + crate::format::group::FRAME_HEADER_BYTES as u64, &mut payload).ok()?;
    let base: [u8; 8] = payload[8..].try_into().ok()?;
    (read == payload.len()).then(|| Offset(u64::from_le_bytes(base)))
}
