//! The seam under the journal: one flat folder of files.
//!
//! What an implementation promises:
//! - what was written to a file survives a power cut once [`DiskFile::sync`] has returned; before, any part of it may be
//!   there or not, in any order, in units of a sector; what was synced before and is written again with the same bytes
//!   is never lost;
//! - names (created, renamed, deleted) survive a power cut once [`Disk::sync_folder`] has returned; before, each of them
//!   may have happened or not;
//! - a failed sync means that nothing is known of what was written since the last good one.
//!
//! Everything here blocks; the engine calls it from threads of its own or from blocking tasks.

use std::fmt;
use std::io;
use std::sync::Arc;

mod file;
mod folder;

pub use file::FileDisk;
pub use folder::make_folder;

/// A folder of files.
pub trait Disk: fmt::Debug + Send + Sync + 'static {
    /// The files there are, in any order. Folders are left out.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self) -> io::Result<Vec<DiskEntry>>;

    /// Creates an empty file, readable and writable.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if there is one of that name; what the system says.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file, readable and writable.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound) if there is none; what the system says.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file another name; whatever had that name is gone. This is how a segment is recycled. Open handles go on
    /// with the same file.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Deletes a file. Open handles go on until they are dropped.
    ///
    /// # Errors
    /// What the system says.
    fn delete(&self, name: &str) -> io::Result<()>;

    /// Makes names durable.
    ///
    /// # Errors
    /// What the system says; nothing is known then of the names changed since the last good call.
    fn sync_folder(&self) -> io::Result<()>;

    /// How large the file system is and how much of it is free.
    ///
    /// # Errors
    /// What the system says.
    fn space(&self) -> io::Result<Space>;

    /// Keeps other processes out until the lock is dropped; none if another one is in already.
    ///
    /// # Errors
    /// What the system says.
    fn lock(&self) -> io::Result<Option<DiskLock>>;
}

/// An open file. Positions are absolute; calls may come from many threads at once.
pub trait DiskFile: fmt::Debug + Send + Sync + 'static {
    /// How long the file is, in bytes.
    ///
    /// # Errors
    /// What the system says.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// What the system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Makes the file `bytes` long, its new part zeros, and takes the space for it so that writing there later cannot
    /// meet a full disk (as far as the file system can promise that).
    ///
    /// # Errors
    /// [`StorageFull`](io::ErrorKind::StorageFull); what the system says.
    fn reserve(&self, bytes: u64) -> io::Result<()>;

    /// Writes all of `parts`, one behind the other, at `position`. In a failure any part of it may have been written.
    ///
    /// # Errors
    /// What the system says.
    fn write_at(&self, position: u64, parts: &[&[u8]]) -> io::Result<()>;

    /// Fills `buffer` from `position` on, and says how much there was before the end of the file.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Says that reads come in no order, so that reading ahead by guess is of no use. A hint, which may do nothing.
    fn reads_are_scattered(&self) {}

    /// Says that this part is read soon, and begins to bring it in without waiting for it. A hint, which may do nothing.
    fn will_need(&self, _position: u64, _bytes: u64) {}

    /// Whether the byte at `position` can be read without waiting for a device, as far as that is known.
    fn is_at_hand(&self, _position: u64) -> bool {
        true
    }

    /// Says that this part, which is synced, is not read or written soon. A hint, which may do nothing.
    fn not_needed(&self, _position: u64, _bytes: u64) {}

    /// Makes everything written durable, and the length of the file with it (fdatasync).
    ///
    /// # Errors
    /// What the system says; the engine takes no more writes then.
    fn sync(&self) -> io::Result<()>;
}

/// A file in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskEntry {
    /// Its name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

/// The room on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All of it, in bytes.
    pub total: u64,
    /// What this process may still take.
    pub free: u64,
}

/// Held as long as no other process may use the folder.
pub struct DiskLock(#[expect(dead_code, reason = "held only to be dropped")] Box<dyn Send + Sync>);

impl DiskLock {
    /// A lock that is released when `guard` is dropped.
    #[must_use]
    pub fn new(guard: impl Send + Sync + 'static) -> Self {
        Self(Box::new(guard))
    }
}

impl fmt::Debug for DiskLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DiskLock")
    }
}
