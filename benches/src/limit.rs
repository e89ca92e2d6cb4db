//! What the machine can do at most: the simplest program that moves the same bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput};
use tempfile::TempDir;

use crate::lab::{Failure, Lab, group};
use crate::table::Limit;
use crate::workload::{KEPT_BYTES, READ_BYTES, random};

/// How large the file is: a segment of the journal.
const FILE_BYTES: u64 = 128 << 20;

/// The most that is written in one piece: what one group of the journal gathers.
const PIECE_BYTES_MAX: usize = 8 << 20;

/// How much is written before it is synced where nobody waits for it; what `lsm` leaves unsynced at `buffered`.
const UNSYNCED_BYTES_MAX: u64 = 8 << 20;

/// Memory that was written before, and bytes that are copied into it, round and round.
pub struct Ring {
    source: Vec<u8>,
    memory: Vec<u8>,
    at: usize,
}

impl Ring {
    /// A ring of so many bytes, for copies of `length` bytes.
    #[must_use]
    pub fn new(bytes: u64, length: usize) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).max(length);
        // Written, so that no page is made while it is measured.
        Self { source: random(length).to_vec(), memory: vec![1; bytes], at: 0 }
    }

    /// Copies so many times.
    pub fn copy(&mut self, times: u64) {
        let length = self.source.len();
        for _ in 0..times {
            if self.at + length > self.memory.len() {
                self.at = 0;
            }
            self.memory[self.at..self.at + length].copy_from_slice(&self.source);
            self.at += length;
            std::hint::black_box(&mut self.memory);
        }
    }
}

/// When what was written is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncing {
    /// Each time, before the next write.
    EachTime,
    /// After a stated amount.
    NowAndThen,
}

/// A file that was written before and is written again, round and round.
pub struct PlainFile {
    file: File,
    source: Vec<u8>,
    position: u64,
    unsynced: u64,
    syncing: Syncing,
    /// Goes after the file.
    _folder: TempDir,
}

impl PlainFile {
    /// A file for writes of `length` bytes.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(lab: &Lab, length: usize, syncing: Syncing) -> Result<Self, Failure> {
        let folder = lab.folder()?;
        let file = File::options().read(true).write(true).create_new(true).open(folder.path().join("plain"))?;
        let piece = vec![1; PIECE_BYTES_MAX];
        for position in (0..FILE_BYTES).step_by(PIECE_BYTES_MAX) {
            file.write_all_at(&piece, position)?;
        }
        file.sync_all()?;
        Ok(Self { file, source: random(length).to_vec(), position: 0, unsynced: 0, syncing, _folder: folder })
    }

    /// Writes so many times.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&mut self, times: u64) -> Result<(), Failure> {
        for _ in 0..times {
            for piece in self.source.chunks(PIECE_BYTES_MAX) {
                if self.position + piece.len() as u64 > FILE_BYTES {
                    self.position = 0;
                }
                self.file.write_all_at(piece, self.position)?;
                self.position += piece.len() as u64;
                self.unsynced += piece.len() as u64;
                if self.syncing == Syncing::EachTime || self.unsynced >= UNSYNCED_BYTES_MAX {
                    self.file.sync_data()?;
                    self.unsynced = 0;
                }
            }
        }
        Ok(())
    }
}

/// A file with so many bytes in it, to be read.
pub struct ReadFile {
    file: Arc<File>,
    bytes: u64,
    /// Goes after the file.
    _folder: TempDir,
}

impl ReadFile {
    /// Writes the file.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(lab: &Lab, bytes: u64) -> Result<Self, Failure> {
        let folder = lab.folder()?;
        let file = File::options().read(true).write(true).create_new(true).open(folder.path().join("plain"))?;
        file.write_all_at(&random(usize::try_from(bytes).unwrap_or(usize::MAX)), 0)?;
        file.sync_all()?;
        Ok(Self { file: Arc::new(file), bytes, _folder: folder })
    }

    /// The file.
    #[must_use]
    pub const fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Reads it once, in order. Blocks.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&self, buffer: &mut [u8]) -> Result<(), Failure> {
        read(&self.file, self.bytes, buffer)
    }

    /// How many bytes are in it.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Reads so many bytes from the start of `file`, a buffer at a time. Blocks.
///
/// # Errors
/// What the system says.
pub fn read(file: &File, bytes: u64, buffer: &mut [u8]) -> Result<(), Failure> {
    let mut position = 0;
    while position < bytes {
        let count = file.read_at(buffer, position)?;
        if count == 0 {
            return Err(Failure::Unfit("the file is shorter than it was written"));
        }
        std::hint::black_box(&mut *buffer);
        position += count as u64;
    }
    Ok(())
}

/// A buffer that a reader of files reads into.
#[must_use]
pub fn read_buffer() -> Vec<u8> {
    vec![1; READ_BYTES.get() as usize]
}

/// Where a limit of writing is measured.
#[derive(Clone, Copy, Debug)]
pub struct Point<'a> {
    /// The name of criterion's group.
    pub group: &'static str,
    /// The name of the point in it.
    pub row: &'a str,
    /// What one writer writes at a time, in bytes.
    pub length: usize,
    /// How many writers there are.
    pub at_a_time: usize,
}

/// Measures what copying into memory, or writing to a file, comes to at best. An iteration is `length` bytes from every
/// writer: copied by as many tasks, or written in one piece.
pub fn measure(criterion: &mut Criterion, lab: &Lab, point: &Point<'_>, limit: Limit, throughput: Throughput) {
    let Point { length, at_a_time, .. } = *point;
    let mut group = group(criterion, point.group);
    group.throughput(throughput);
    let id = BenchmarkId::new(limit.id(), point.row);
    if limit == Limit::Copy {
        let mut crew: Option<Vec<Ring>> = None;
        group.bench_function(id, |bencher| {
            let ring = || Ring::new(2 * KEPT_BYTES / at_a_time as u64, length);
            let crew = crew.get_or_insert_with(|| (0..at_a_time).map(|_| ring()).collect());
            bencher.iter_custom(|rounds| {
                lab.together(crew, |mut ring| async move {
                    ring.copy(rounds);
                    Ok(ring)
                })
            });
        });
    } else {
        let syncing = if limit == Limit::Sync { Syncing::EachTime } else { Syncing::NowAndThen };
        let mut file: Option<PlainFile> = None;
        group.bench_function(id, |bencher| {
            let file = file.get_or_insert_with(|| lab.must(PlainFile::new(lab, at_a_time * length, syncing)));
            bencher.iter_custom(|rounds| lab.time(|| lab.must(file.write(rounds))));
        });
    }
}
