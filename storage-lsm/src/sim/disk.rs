//! The simulated disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;

use super::power::{Power, Supply, off};
use crate::disk::{Disk, DiskEntry, DiskFile, DiskLock, Space};

/// What a disk writes as a whole or not at all.
const SECTOR: usize = 512;

/// How often a sync lets other threads go first.
const SYNC_YIELDS: u32 = 8;

/// Whether the disk does what a sync asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncHonesty {
    /// What was synced stays.
    Honest,
    /// A sync of a file says yes and does nothing: an engine that skips its syncs, seen from below. A suite that passes
    /// over such a disk proves nothing.
    Lying,
}

/// A disk in memory that a power cut can hit.
#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    power: Arc<Power>,
    honesty: SyncHonesty,
    locked: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, File>,
    next_file: u64,
    names: BTreeMap<String, u64>,
    names_synced: BTreeMap<String, u64>,
    /// What happened to the names since the folder was last synced, in order.
    renamed: Vec<NameChange>,
    bytes_total: u64,
    /// The next syncs of files fail, so many of them.
    syncs_to_fail: u32,
}

#[derive(Clone, Debug)]
enum NameChange {
    Created(String, u64),
    Renamed(String, String),
    Deleted(String),
}

#[derive(Debug, Default)]
struct File {
    now: Vec<u8>,
    synced: Vec<u8>,
    /// The sectors in which the two may differ.
    dirty: BTreeSet<usize>,
}

impl SimDisk {
    /// An empty disk of `bytes_total`.
    #[must_use]
    pub fn new(power: Arc<Power>, honesty: SyncHonesty, bytes_total: u64) -> Self {
        let state = State { bytes_total, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), power, honesty, locked: Arc::default() }
    }

    /// The disk as a power cut may have left it, with the power back on.
    #[must_use]
    pub fn after_power_cut(&self, rng: &mut Rng, power: Arc<Power>) -> Self {
        let state = self.lock();
        let mut names = state.names_synced.clone();
        // Journalling file systems keep the order of names: some first part of the changes has happened. Now and then
        // any of them, since nothing promises more.
        let any_order = rng.u8(..4) == 0;
        let kept = rng.usize(..=state.renamed.len());
        for (at, change) in state.renamed.iter().enumerate() {
            if if any_order { rng.bool() } else { at < kept } {
                change.apply(&mut names);
            }
        }
        let files = names
            .values()
            .filter_map(|file| Some((*file, File::synced(state.files.get(file)?.after_power_cut(rng)))))
            .collect();
        let crashed = State {
            files,
            next_file: state.next_file,
            names_synced: names.clone(),
            names,
            renamed: Vec::new(),
            bytes_total: state.bytes_total,
            syncs_to_fail: 0,
        };
        Self { state: Arc::new(Mutex::new(crashed)), power, honesty: self.honesty, locked: Arc::default() }
    }

    /// Lets the next `count` syncs of files fail. What was written before stays unsynced, as after a real failure.
    pub fn fail_syncs(&self, count: u32) {
        self.lock().syncs_to_fail = count;
    }

    /// Changes the size of the disk: less than what is taken leaves nothing free.
    pub fn resize(&self, bytes_total: u64) {
        self.lock().bytes_total = bytes_total;
    }

    /// Flips one bit of a file, on the platter: as rot does.
    pub fn flip(&self, name: &str, byte: usize, bit: u8) {
        let mut state = self.lock();
        let file = state.names.get(name).copied();
        if let Some(file) = file.and_then(|file| state.files.get_mut(&file)) {
            for bytes in [&mut file.now, &mut file.synced] {
                if let Some(byte) = bytes.get_mut(byte) {
                    *byte ^= 1 << (bit % 8);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One change of the names, which takes an operation's worth of power.
    fn change_names(&self, change: NameChange, state: &mut State) -> io::Result<()> {
        let supply = self.power.take()?;
        change.apply(&mut state.names);
        state.renamed.push(change);
        match supply {
            Supply::On => Ok(()),
            Supply::Failing => Err(off()),
        }
    }

    fn file(&self, id: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile { disk: self.clone(), id })
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Created(name, file) => {
                names.insert(name.clone(), *file);
            }
            Self::Renamed(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            Self::Deleted(name) => {
                names.remove(name);
            }
        }
    }
}

impl State {
    fn bytes_taken(&self) -> u64 {
        self.names.values().filter_map(|file| self.files.get(file)).map(|file| file.now.len() as u64).sum()
    }

    fn not_found(name: &str) -> io::Error {
        io::Error::new(io::ErrorKind::NotFound, format!("no file {name}"))
    }
}

/// What a sync covers: nothing that is written after it has begun.
struct Saved {
    length: usize,
    sectors: Vec<(usize, Vec<u8>)>,
}

impl File {
    fn synced(bytes: Vec<u8>) -> Self {
        Self { now: bytes.clone(), synced: bytes, dirty: BTreeSet::new() }
    }

    fn write(&mut self, position: usize, bytes: &[u8]) {
        let end = position + bytes.len();
        if end > self.now.len() {
            self.now.resize(end, 0);
        }
        self.now[position..end].copy_from_slice(bytes);
        if !bytes.is_empty() {
            self.dirty.extend(position / SECTOR..=(end - 1) / SECTOR);
        }
    }

    /// What a sync that begins now will have saved when it is done.
    fn begin_sync(&mut self) -> Saved {
        let content = |sector: usize| {
            let start = (sector * SECTOR).min(self.now.len());
            self.now[start..(start + SECTOR).min(self.now.len())].to_vec()
        };
        let sectors = self.dirty.iter().map(|sector| (*sector, content(*sector))).collect();
        self.dirty.clear();
        Saved { length: self.now.len(), sectors }
    }

    fn end_sync(&mut self, saved: Saved) {
        self.synced.resize(self.synced.len().max(saved.length), 0);
        for (sector, content) in saved.sectors {
            let start = sector * SECTOR;
            self.synced[start..start + content.len()].copy_from_slice(&content);
        }
    }

    /// What was synced, with some of what was not.
    fn after_power_cut(&self, rng: &mut Rng) -> Vec<u8> {
        let mut left = self.synced.clone();
        if self.now.len() > left.len() {
            let length = match rng.u8(..3) {
                0 => left.len(),
                1 => self.now.len(),
                _ => rng.usize(left.len()..=self.now.len()),
            };
            left.resize(length, 0);
        }
        let dirty: Vec<usize> = self.dirty.iter().copied().collect();
        let first = rng.usize(..=dirty.len());
        let way = rng.u8(..5);
        for (at, sector) in dirty.into_iter().enumerate() {
            let kept = match way {
                0 => false,       // nothing had reached the disk
                1 => true,        // everything had
                2 => at < first,  // it was written from the front
                3 => at >= first, // the later part was, the earlier one was not
                _ => rng.bool(),  // any sectors were
            };
            if kept {
                copy_sector(&self.now, &mut left, sector);
            }
        }
        left
    }
}

fn copy_sector(from: &[u8], to: &mut [u8], sector: usize) {
    let start = sector * SECTOR;
    let end = (start + SECTOR).min(from.len()).min(to.len());
    if start < end {
        to[start..end].copy_from_slice(&from[start..end]);
    }
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<DiskEntry>> {
        let state = self.lock();
        let entry = |(name, file): (&String, &u64)| DiskEntry {
            name: name.clone(),
            bytes: state.files.get(file).map_or(0, |file| file.now.len() as u64),
        };
        Ok(state.names.iter().map(entry).collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.lock();
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = state.next_file;
        state.next_file += 1;
        state.files.insert(id, File::default());
        self.change_names(NameChange::Created(name.to_owned(), id), &mut state)?;
        Ok(self.file(id))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.lock();
        let id = state.names.get(name).copied().ok_or_else(|| State::not_found(name))?;
        Ok(self.file(id))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        if !state.names.contains_key(from) {
            return Err(State::not_found(from));
        }
        self.change_names(NameChange::Renamed(from.to_owned(), to.to_owned()), &mut state)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        if !state.names.contains_key(name) {
            return Err(State::not_found(name));
        }
        self.change_names(NameChange::Deleted(name.to_owned()), &mut state)
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.lock();
        match self.power.take()? {
            Supply::On => {
                state.names_synced = state.names.clone();
                state.renamed.clear();
                Ok(())
            }
            Supply::Failing => Err(off()),
        }
    }

    fn space(&self) -> io::Result<Space> {
        let state = self.lock();
        Ok(Space { total: state.bytes_total, free: state.bytes_total.saturating_sub(state.bytes_taken()) })
    }

    fn lock(&self) -> io::Result<Option<DiskLock>> {
        struct Unlock(Arc<AtomicBool>);
        impl Drop for Unlock {
            fn drop(&mut self) {
                self.0.store(false, Ordering::SeqCst);
            }
        }
        let taken = self.locked.swap(true, Ordering::SeqCst);
        Ok((!taken).then(|| DiskLock::new(Unlock(self.locked.clone()))))
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    id: u64,
}

impl SimFile {
    /// Runs `change` on the file with the power for one operation; says whether it went off meanwhile.
    fn with<T>(&self, change: impl FnOnce(&mut State, Supply) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.lock();
        let supply = self.disk.power.take()?;
        change(&mut state, supply)
    }

    fn of<'a>(&self, state: &'a mut State) -> io::Result<&'a mut File> {
        state.files.get_mut(&self.id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.of(&mut self.disk.lock())?.now.len() as u64)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.with(|state, supply| {
            let more = bytes.saturating_sub(self.of(state)?.now.len() as u64);
            if state.bytes_taken() + more > state.bytes_total {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let length = usize::try_from(bytes).map_err(io::Error::other)?;
            let file = self.of(state)?;
            if file.now.len() < length {
                file.now.resize(length, 0);
            }
            match supply {
                Supply::On => Ok(()),
                Supply::Failing => Err(off()),
            }
        })
    }

    fn write_at(&self, position: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.with(|state, supply| {
            let bytes = parts.concat();
            let position = usize::try_from(position).map_err(io::Error::other)?;
            let more = (position + bytes.len()).saturating_sub(self.of(state)?.now.len());
            if state.bytes_taken() + more as u64 > state.bytes_total {
                return Err(io::ErrorKind::StorageFull.into());
            }
            // All of it lies in the page cache, if the power fails too: which of it stays is chosen later.
            self.of(state)?.write(position, &bytes);
            match supply {
                Supply::On => Ok(()),
                Supply::Failing => Err(off()),
            }
        })
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.disk.lock();
        let file = self.of(&mut state)?;
        let start = usize::try_from(position).map_or(file.now.len(), |start| start.min(file.now.len()));
        let count = buffer.len().min(file.now.len() - start);
        buffer[..count].copy_from_slice(&file.now[start..start + count]);
        Ok(count)
    }

    fn sync(&self) -> io::Result<()> {
        let saved = self.with(|state, supply| {
            if state.syncs_to_fail > 0 {
                state.syncs_to_fail -= 1;
                return Err(io::Error::other("the sync failed"));
            }
            match (supply, self.disk.honesty) {
                (Supply::On, SyncHonesty::Honest) => Ok(Some(self.of(state)?.begin_sync())),
                (Supply::On, SyncHonesty::Lying) => Ok(None),
                (Supply::Failing, _) => Err(off()),
            }
        })?;
        if let Some(saved) = saved {
            // So that others write meanwhile, as they do while a real one takes its time.
            for _ in 0..SYNC_YIELDS {
                std::thread::yield_now();
            }
            self.of(&mut self.disk.lock())?.end_sync(saved);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (SimDisk, Arc<Power>) {
        let power = Arc::new(Power::steady());
        (SimDisk::new(power.clone(), SyncHonesty::Honest, 1 << 20), power)
    }

    #[test]
    fn what_was_synced_stays_and_what_was_not_may_go() {
        let (disk, _) = disk();
        let file = disk.create("a").unwrap();
        file.write_at(0, &[&[1; 4_096]]).unwrap();
        file.sync().unwrap();
        disk.sync_folder().unwrap();
        file.write_at(4_096, &[&[2; 4_096]]).unwrap();
        let mut lengths = BTreeSet::new();
        for seed in 0..50 {
            let crashed = disk.after_power_cut(&mut Rng::with_seed(seed), Arc::new(Power::steady()));
            let file = crashed.open("a").unwrap();
            let mut bytes = vec![0; 8_192];
            lengths.insert(file.read_at(0, &mut bytes).unwrap());
            assert_eq!(bytes[..4_096], [1; 4_096]);
            assert!(bytes[4_096..].iter().all(|byte| matches!(byte, 0 | 2)));
        }
        assert!(lengths.len() > 2, "{lengths:?}");
    }

    #[test]
    fn a_name_that_was_not_synced_may_be_missing() {
        let (disk, _) = disk();
        disk.create("a").unwrap().sync().unwrap();
        let kept = (0..50).filter(|seed| {
            let crashed = disk.after_power_cut(&mut Rng::with_seed(*seed), Arc::new(Power::steady()));
            crashed.open("a").is_ok()
        });
        assert!((1..50).contains(&kept.count()));
    }

    #[test]
    fn nothing_happens_once_the_power_is_off() {
        let power = Arc::new(Power::for_operations(2));
        let disk = SimDisk::new(power.clone(), SyncHonesty::Honest, 1 << 20);
        let file = disk.create("a").unwrap();
        file.write_at(0, &[b"one"]).unwrap();
        assert!(file.sync().is_err());
        assert!(power.is_off());
        assert!(file.write_at(0, &[b"two"]).is_err());
        assert!(disk.create("b").is_err());
    }
}
