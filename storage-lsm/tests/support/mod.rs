//! What the tests of the store share.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use stentor_storage_lsm::LsmConfig;
use stentor_storage_lsm::disk::{Disk, DiskEntry, DiskFile, DiskLock, FileDisk, Space};

/// Syncs and room as a test wants them.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) fail_next_sync: AtomicBool,
    /// The next sync but so many fails, once `hold_failure` lets it; 0 when none is to fail.
    pub(crate) fail_sync_number: AtomicU64,
    /// How often files were written.
    pub(crate) writes: AtomicU64,
    failure_held: Mutex<bool>,
    failure_released: Condvar,
    /// How often files were read, and how often it was said what is read next.
    pub(crate) reads: AtomicU64,
    pub(crate) hints: AtomicU64,
    /// Whether what is read has to come from the device, as far as the file says.
    pub(crate) cold: AtomicBool,
    held: Mutex<bool>,
    released: Condvar,
    /// How large the disk pretends to be; 0 means that it does not.
    pub(crate) total: AtomicU64,
    /// What others take of it.
    pub(crate) taken: AtomicU64,
}

impl Faults {
    pub(crate) fn hold_syncs(&self, hold: bool) {
        *self.held.lock().unwrap() = hold;
        self.released.notify_all();
    }

    pub(crate) fn hold_failure(&self, hold: bool) {
        *self.failure_held.lock().unwrap() = hold;
        self.failure_released.notify_all();
    }

    fn sync(&self) -> io::Result<()> {
        let mut held = self.held.lock().unwrap();
        while *held {
            held = self.released.wait(held).unwrap();
        }
        drop(held);
        let number = self.fail_sync_number.load(Ordering::SeqCst);
        self.fail_sync_number.store(number.saturating_sub(1), Ordering::SeqCst);
        if number == 1 {
            let mut held = self.failure_held.lock().unwrap();
            while *held {
                held = self.failure_released.wait(held).unwrap();
            }
            return Err(io::Error::other("the sync failed, as the test wanted"));
        }
        if self.fail_next_sync.swap(false, Ordering::SeqCst) {
            return Err(io::Error::other("the sync failed, as the test wanted"));
        }
        Ok(())
    }
}

/// A real folder whose syncs and whose room a test decides.
#[derive(Debug)]
pub(crate) struct TestDisk {
    pub(crate) disk: FileDisk,
    pub(crate) faults: Arc<Faults>,
}

impl TestDisk {
    pub(crate) fn open(folder: &Path, faults: Arc<Faults>) -> Arc<Self> {
        Arc::new(Self { disk: FileDisk::open(folder).unwrap(), faults })
    }

    fn used(&self) -> io::Result<u64> {
        Ok(self.disk.list()?.iter().map(|entry| entry.bytes).sum())
    }

    fn free(&self) -> io::Result<u64> {
        let taken = self.faults.taken.load(Ordering::SeqCst) + self.used()?;
        Ok(self.faults.total.load(Ordering::SeqCst).saturating_sub(taken))
    }
}

#[derive(Debug)]
struct TestFile {
    file: Arc<dyn DiskFile>,
    disk: Arc<FileDisk>,
    faults: Arc<Faults>,
}

impl Disk for TestDisk {
    fn list(&self) -> io::Result<Vec<DiskEntry>> {
        self.disk.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(self.disk.create(name)?)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(self.disk.open(name)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.disk.delete(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.disk.sync_folder()
    }

    fn space(&self) -> io::Result<Space> {
        match self.faults.total.load(Ordering::SeqCst) {
            0 => self.disk.space(),
            total => Ok(Space { total, free: self.free()? }),
        }
    }

    fn lock(&self) -> io::Result<Option<DiskLock>> {
        self.disk.lock()
    }
}

impl TestDisk {
    fn file(&self, file: Arc<dyn DiskFile>) -> io::Result<Arc<dyn DiskFile>> {
        let folder = self.disk.folder().to_owned();
        let disk = Arc::new(FileDisk::open(&folder)?);
        Ok(Arc::new(TestFile { file, disk, faults: self.faults.clone() }))
    }
}

impl DiskFile for TestFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        if self.faults.total.load(Ordering::SeqCst) != 0 {
            let disk = TestDisk { disk: FileDisk::open(self.disk.folder())?, faults: self.faults.clone() };
            if bytes.saturating_sub(self.len()?) > disk.free()? {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        self.file.reserve(bytes)
    }

    fn write_at(&self, position: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.file.write_at(position, parts)?;
        self.faults.writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.faults.reads.fetch_add(1, Ordering::SeqCst);
        self.file.read_at(position, buffer)
    }

    fn will_need(&self, position: u64, bytes: u64) {
        self.faults.hints.fetch_add(1, Ordering::SeqCst);
        self.file.will_need(position, bytes);
    }

    fn is_at_hand(&self, position: u64) -> bool {
        !self.faults.cold.load(Ordering::SeqCst) && self.file.is_at_hand(position)
    }

    fn sync(&self) -> io::Result<()> {
        self.faults.sync()?;
        self.file.sync()
    }
}

/// Small segments, and no group of its own accord: so that a test knows which sync is whose.
pub(crate) fn config(segment_bytes: u64) -> LsmConfig {
    LsmConfig { segment_bytes, idle_group_after: Duration::from_secs(3_600), seed: 7, ..LsmConfig::default() }
}

/// Flips a bit of a file.
pub(crate) fn flip(disk: &FileDisk, name: &str, position: u64, bit: u32) {
    let file = disk.open(name).unwrap();
    let mut byte = [0];
    assert_eq!(file.read_at(position, &mut byte).unwrap(), 1);
    byte[0] ^= 1 << bit;
    file.write_at(position, &[&byte]).unwrap();
}
