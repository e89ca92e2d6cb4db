//! The real folder.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Advice;
use rustix::io::ReadWriteFlags;

use super::{Disk, DiskEntry, DiskFile, DiskLock, Space};

/// The most slices that one vectored write takes: `IOV_MAX` of Linux.
const SLICES_MAX: usize = 1_024;

/// The file that the lock lies on.
const LOCK_FILE: &str = "lock";

/// A folder of the file system.
#[derive(Debug)]
pub struct FileDisk {
    folder: PathBuf,
}

impl FileDisk {
    /// The folder at `folder`, which is created if there is none, and stays there after a power cut.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(folder: &Path) -> io::Result<Self> {
        super::make_folder(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Disk for FileDisk {
    fn list(&self) -> io::Result<Vec<DiskEntry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                // Deleted since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if let (true, Some(name)) = (metadata.is_file(), entry.file_name().to_str()) {
                entries.push(DiskEntry { name: name.to_owned(), bytes: metadata.len() });
            }
        }
        Ok(entries)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.folder.join(name))?;
        Ok(Arc::new(OsFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.folder.join(name))?;
        Ok(Arc::new(OsFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.folder.join(from), self.folder.join(to))
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.folder.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        let found = rustix::fs::statvfs(&self.folder)?;
        Ok(Space {
            total: found.f_blocks.saturating_mul(found.f_frsize),
            free: found.f_bavail.saturating_mul(found.f_frsize),
        })
    }

    fn lock(&self) -> io::Result<Option<DiskLock>> {
        let path = self.folder.join(LOCK_FILE);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            // The lock lies on the open file and goes with it, however the process ends.
            Ok(()) => Ok(Some(DiskLock::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[derive(Debug)]
struct OsFile(File);

impl DiskFile for OsFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        match fallocate(&self.0, FallocateFlags::empty(), 0, bytes) {
            // Not every file system can take the space beforehand: then the length alone is set.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => self.0.set_len(bytes),
            other => Ok(other?),
        }
    }

    fn write_at(&self, mut position: u64, parts: &[&[u8]]) -> io::Result<()> {
        for chunk in parts.chunks(SLICES_MAX) {
            let mut slices: Vec<IoSlice<'_>> = chunk.iter().map(|part| IoSlice::new(part)).collect();
            let mut left = &mut slices[..];
            // Drops empty slices at the front, so that a write of nothing is not taken for a disk that takes nothing.
            IoSlice::advance_slices(&mut left, 0);
            while !left.is_empty() {
                let written = match rustix::io::pwritev(&self.0, left, position) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(written) => written,
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(error) => return Err(error.into()),
                };
                position += written as u64;
                IoSlice::advance_slices(&mut left, written);
            }
        }
        Ok(())
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            match self.0.read_at(&mut buffer[read..], position + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn reads_are_scattered(&self) {
        advise(&self.0, 0, None, Advice::Random);
    }

    fn will_need(&self, position: u64, bytes: u64) {
        if let Some(bytes) = NonZeroU64::new(bytes) {
            advise(&self.0, position, Some(bytes), Advice::WillNeed);
        }
    }

    fn is_at_hand(&self, position: u64) -> bool {
        let mut byte = [0];
        let read = rustix::io::preadv2(&self.0, &mut [IoSliceMut::new(&mut byte)], position, ReadWriteFlags::NOWAIT);
        // What cannot be told is taken for a no, which costs a hint too many.
        read.is_ok()
    }

    fn not_needed(&self, position: u64, bytes: u64) {
        if let Some(bytes) = NonZeroU64::new(bytes) {
            advise(&self.0, position, Some(bytes), Advice::DontNeed);
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

fn advise(file: &File, position: u64, bytes: Option<NonZeroU64>, advice: Advice) {
    // What a file system makes of advice is its own affair.
    if let Err(error) = rustix::fs::fadvise(file, position, bytes, advice) {
        tracing::trace!(%error, ?advice, "advice is not taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_what_was_written_in_many_parts() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FileDisk::open(folder.path()).unwrap();
        let file = disk.create("a").unwrap();
        let parts: Vec<Vec<u8>> = (0..3_000_u32).map(|part| vec![part as u8; (part % 7) as usize]).collect();
        let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        file.write_at(5, &slices).unwrap();
        file.sync().unwrap();
        let whole = parts.concat();
        let mut read = vec![0; whole.len() + 10];
        assert_eq!(disk.open("a").unwrap().read_at(5, &mut read).unwrap(), whole.len());
        assert_eq!(read[..whole.len()], whole);
    }

    #[test]
    fn a_folder_lists_renames_and_deletes_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FileDisk::open(folder.path()).unwrap();
        disk.create("a").unwrap().reserve(8_192).unwrap();
        assert_eq!(disk.create("a").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        disk.rename("a", "b").unwrap();
        assert_eq!(disk.list().unwrap(), [DiskEntry { name: "b".into(), bytes: 8_192 }]);
        assert_eq!(disk.open("a").unwrap_err().kind(), io::ErrorKind::NotFound);
        disk.delete("b").unwrap();
        disk.sync_folder().unwrap();
        assert!(disk.list().unwrap().is_empty());
        let space = disk.space().unwrap();
        assert!(space.free <= space.total);
    }

    #[test]
    fn a_second_lock_is_refused_until_the_first_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let disk = FileDisk::open(folder.path()).unwrap();
        let first = disk.lock().unwrap();
        assert!(first.is_some());
        assert!(FileDisk::open(folder.path()).unwrap().lock().unwrap().is_none());
        drop(first);
        assert!(disk.lock().unwrap().is_some());
    }
}
