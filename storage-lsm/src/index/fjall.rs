//! The index over fjall 3.
//!
//! One keyspace holds everything, so that one memtable is flushed at a time and the marker with the rows that it speaks
//! of. Measured traps, and what is done about each:
//! - fjall's own rotation of memtables can deadlock under heavy writing (fjall #257, #260, #288): `max_memtable_size` is
//!   out of reach and the one applying thread rotates, waiting while two sealed memtables or four flushes are behind;
//! - a damaged byte in its journal is taken for a torn end (fjall #311): the engine's chain rows notice a hole, and the
//!   segments are kept until the rows about them lie in tables;
//! - tombstones of a trimmed prefix slow scans down: the engine never scans from below the start of a log;
//! - it blocks and sleeps: only ever called from threads of the engine's own, or from blocking tasks.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fjall::config::CompressionPolicy;
use fjall::{AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use super::{Index, IndexBatch, IndexError, IndexOperation, IndexView, Rows, Visit, guard};

/// The one keyspace.
const KEYSPACE: &str = "index";

/// fjall may start rotating by itself only from here on, which is never.
const MEMTABLE_BYTES_NEVER: u64 = 1 << 40;

/// The journals of fjall together; its least. With memtables rotated far earlier they stay well below.
const JOURNALS_BYTES_MAX: u64 = 64 << 20;

/// One thread flushes while the other compacts.
const WORKERS: usize = 2;

/// With so many sealed memtables the applying thread waits.
const SEALED_MAX: usize = 2;

/// With so many flushes queued the applying thread waits.
const FLUSHES_MAX: usize = 4;

/// How long to wait between looks at the backlog of flushes, for which fjall has no event.
const FLUSH_POLL: Duration = Duration::from_millis(1);

/// How the index is set up.
#[derive(Clone, Copy, Debug)]
pub struct FjallOptions {
    /// The memtable is rotated from this size on. Replay of fjall's own journal follows it.
    pub memtable_bytes: u64,
    /// The cache for blocks of tables.
    pub cache_bytes: u64,
}

impl Default for FjallOptions {
    fn default() -> Self {
        Self { memtable_bytes: 12 << 20, cache_bytes: 64 << 20 }
    }
}

/// A folder of fjall.
pub struct FjallIndex {
    database: Database,
    keyspace: Keyspace,
    options: FjallOptions,
    /// Which state each memtable that is being flushed ends with, oldest first. A leaf: nothing else is locked inside.
    flushes: Mutex<Flushes>,
}

#[derive(Debug, Default)]
struct Flushes {
    applied: u64,
    sealed: VecDeque<u64>,
    flushed: u64,
}

impl FjallIndex {
    /// Opens the index in `folder`, creating it if there is none.
    ///
    /// # Errors
    /// When it is damaged or cannot be read.
    pub fn open(folder: &Path, options: FjallOptions) -> Result<Self, IndexError> {
        // fjall asserts what it expects of its files.
        let opened = guard::guarded(|| {
            let database = Database::builder(folder)
                .worker_threads(WORKERS)
                .cache_size(options.cache_bytes)
                .max_journaling_size(JOURNALS_BYTES_MAX)
                .journal_compression(CompressionType::None)
                .open()?;
            let keyspace = database.keyspace(KEYSPACE, || {
                KeyspaceCreateOptions::default()
                    .max_memtable_size(MEMTABLE_BYTES_NEVER)
                    .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
                    .index_block_compression_policy(CompressionPolicy::all(CompressionType::None))
            })?;
            Ok::<_, fjall::Error>((database, keyspace))
        });
        let (database, keyspace) = opened.map_err(IndexError::Damaged)?.map_err(failed)?;
        Ok(Self { database, keyspace, options, flushes: Mutex::default() })
    }

    fn flushes(&self) -> std::sync::MutexGuard<'_, Flushes> {
        let mut flushes = self.flushes.lock().unwrap_or_else(PoisonError::into_inner);
        // Memtables are flushed in the order they were sealed in, and dropped once their table is registered and synced.
        let sealed = self.keyspace.sealed_memtable_count();
        while flushes.sealed.len() > sealed {
            if let Some(token) = flushes.sealed.pop_front() {
                flushes.flushed = token;
            }
        }
        flushes
    }

    fn rotate(&self) -> Result<(), IndexError> {
        // The token goes in first: should the flush be done before this returns, it is counted all the same.
        let token = self.flushes().applied;
        let rotated = {
            let mut flushes = self.flushes.lock().unwrap_or_else(PoisonError::into_inner);
            let rotated = self.keyspace.rotate_memtable().map_err(failed)?;
            if rotated {
                flushes.sealed.push_back(token);
            } else if let Some(last) = flushes.sealed.back_mut() {
                // The memtable was empty: what is sealed already is all there is.
                *last = token;
            } else if self.keyspace.sealed_memtable_count() == 0 {
                flushes.flushed = token;
            }
            rotated
        };
        tracing::trace!(token, rotated, "index memtable sealed");
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "fjall has no event for the end of a flush")]
    fn wait_while(&self, behind: impl Fn(&Self) -> bool) -> Result<(), IndexError> {
        while behind(self) {
            // Fails once a worker has died, which is the one way in which this could go on for ever.
            self.database.persist(PersistMode::Buffer).map_err(failed)?;
            std::thread::sleep(FLUSH_POLL);
        }
        Ok(())
    }
}

impl Index for FjallIndex {
    fn apply(&self, batch: IndexBatch, token: u64) -> Result<(), IndexError> {
        let mut write = self.database.batch();
        for operation in batch.operations {
            match operation {
                IndexOperation::Put(key, value) => write.insert(&self.keyspace, &key[..], &value[..]),
                IndexOperation::Delete(key) => write.remove(&self.keyspace, &key[..]),
            }
        }
        write.commit().map_err(failed)?;
        self.flushes().applied = token;
        if self.keyspace.tree.active_memtable().size() >= self.options.memtable_bytes {
            self.begin_flush()?;
        }
        Ok(())
    }

    fn flushed(&self) -> u64 {
        self.flushes().flushed
    }

    fn begin_flush(&self) -> Result<(), IndexError> {
        self.wait_while(|index| {
            index.keyspace.sealed_memtable_count() >= SEALED_MAX || index.database.outstanding_flushes() >= FLUSHES_MAX
        })?;
        self.rotate()
    }

    fn flush(&self) -> Result<(), IndexError> {
        self.begin_flush()?;
        self.wait_while(|index| index.keyspace.sealed_memtable_count() > 0)
    }

    fn snapshot(&self) -> Arc<dyn IndexView> {
        Arc::new(FjallView { snapshot: self.database.snapshot(), keyspace: self.keyspace.clone() })
    }

    fn bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }
}

impl IndexView for FjallIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, IndexError> {
        guarded(|| Ok(self.keyspace.get(key).map_err(failed)?.map(|value| Bytes::copy_from_slice(&value))))
    }

    fn scan(&self, range: Rows<'_>, visit: &mut Visit<'_>) -> Result<(), IndexError> {
        guarded(|| walk(self.keyspace.range(range.start..range.end), range.backwards, visit))
    }
}

struct FjallView {
    snapshot: fjall::Snapshot,
    keyspace: Keyspace,
}

impl IndexView for FjallView {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, IndexError> {
        guarded(|| {
            let value = self.snapshot.get(&self.keyspace, key).map_err(failed)?;
            Ok(value.map(|value| Bytes::copy_from_slice(&value)))
        })
    }

    fn scan(&self, range: Rows<'_>, visit: &mut Visit<'_>) -> Result<(), IndexError> {
        guarded(|| walk(self.snapshot.range(&self.keyspace, range.start..range.end), range.backwards, visit))
    }
}

fn walk(rows: fjall::Iter, backwards: bool, visit: &mut Visit<'_>) -> Result<(), IndexError> {
    let mut show = |guard: fjall::Guard| {
        let (key, value) = guard.into_inner().map_err(failed)?;
        Ok::<_, IndexError>(visit(&key, &value))
    };
    if backwards {
        for guard in rows.rev() {
            if show(guard)? == ControlFlow::Break(()) {
                break;
            }
        }
    } else {
        for guard in rows {
            if show(guard)? == ControlFlow::Break(()) {
                break;
            }
        }
    }
    Ok(())
}

/// fjall answers some damage by a panic; to the engine it is damage like any other.
fn guarded<T>(read: impl FnOnce() -> Result<T, IndexError>) -> Result<T, IndexError> {
    guard::guarded(read).unwrap_or_else(|said| Err(IndexError::Damaged(said)))
}

fn failed(error: fjall::Error) -> IndexError {
    match error {
        fjall::Error::Io(_) | fjall::Error::Poisoned | fjall::Error::Locked => IndexError::Failed(error.to_string()),
        fjall::Error::Storage(fjall::LsmError::Io(_)) => IndexError::Failed(error.to_string()),
        damage => IndexError::Damaged(damage.to_string()),
    }
}

impl std::fmt::Debug for FjallIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallIndex").field("options", &self.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(keys: std::ops::Range<u32>) -> IndexBatch {
        let mut batch = IndexBatch::default();
        for key in keys {
            batch.put(key.to_be_bytes().to_vec(), vec![7; 100]);
        }
        batch
    }

    fn keys(view: &dyn IndexView, start: u32, end: u32, backwards: bool) -> Vec<u32> {
        let mut found = Vec::new();
        let (start, end) = (start.to_be_bytes(), end.to_be_bytes());
        view.scan(Rows { start: &start, end: &end, backwards }, &mut |key, _| {
            found.push(u32::from_be_bytes(key.try_into().unwrap()));
            ControlFlow::Continue(())
        })
        .unwrap();
        found
    }

    #[test]
    fn a_snapshot_stays_while_the_index_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let index = FjallIndex::open(folder.path(), FjallOptions::default()).unwrap();
        index.apply(batch(0..3), 1).unwrap();
        let before = index.snapshot();
        let mut change = batch(3..5);
        change.delete(1_u32.to_be_bytes().to_vec());
        index.apply(change, 2).unwrap();
        assert_eq!(keys(&*before, 0, 9, false), [0, 1, 2]);
        assert_eq!(keys(&index, 0, 9, false), [0, 2, 3, 4]);
        assert_eq!(keys(&index, 2, 4, true), [3, 2]);
        assert!(before.get(&1_u32.to_be_bytes()).unwrap().is_some());
        assert!(index.get(&1_u32.to_be_bytes()).unwrap().is_none());
    }

    #[test]
    fn only_what_lies_in_tables_counts_as_flushed() {
        let folder = tempfile::tempdir().unwrap();
        let options = FjallOptions { memtable_bytes: 64 << 10, ..FjallOptions::default() };
        let index = FjallIndex::open(folder.path(), options).unwrap();
        index.apply(batch(0..10), 1).unwrap();
        assert_eq!(index.flushed(), 0);
        index.flush().unwrap();
        assert_eq!(index.flushed(), 1);
        // Past the memtable's size the flush begins by itself, and the rows survive it.
        for round in 0..20 {
            index.apply(batch(round * 100..round * 100 + 100), 2 + u64::from(round)).unwrap();
        }
        index.flush().unwrap();
        assert_eq!(index.flushed(), 21);
        // An empty flush says the same.
        index.flush().unwrap();
        assert_eq!(index.flushed(), 21);
        drop(index);
        let index = FjallIndex::open(folder.path(), options).unwrap();
        assert_eq!(keys(&index, 0, u32::MAX, false).len(), 2_000);
    }
}
