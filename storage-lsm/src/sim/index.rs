//! The simulated index.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use fastrand::Rng;

use super::power::{Power, Supply};
use crate::index::{Index, IndexBatch, IndexError, IndexOperation, IndexView, Rows, Visit};

type Map = Arc<BTreeMap<Bytes, Bytes>>;

/// An index in memory that a power cut can hit: it falls back to the state after any batch from the last flushed one on.
pub struct SimIndex {
    state: Mutex<State>,
    power: Arc<Power>,
}

struct State {
    now: Map,
    flushed: Map,
    flushed_token: u64,
    /// The batches since the last flush, with the token of each.
    since: Vec<(u64, IndexBatch)>,
    /// Decides how long a flush in the background takes.
    rng: Rng,
    flush_due: Option<u64>,
}

impl SimIndex {
    /// An empty index.
    #[must_use]
    pub fn new(power: Arc<Power>, seed: u64) -> Self {
        Self::with(Map::default(), power, seed)
    }

    fn with(map: Map, power: Arc<Power>, seed: u64) -> Self {
        let state = State {
            now: map.clone(),
            flushed: map,
            flushed_token: 0,
            since: Vec::new(),
            rng: Rng::with_seed(seed),
            flush_due: None,
        };
        Self { state: Mutex::new(state), power }
    }

    /// The index as a power cut may have left it, with the power back on.
    #[must_use]
    pub fn after_power_cut(&self, rng: &mut Rng, power: Arc<Power>) -> Self {
        let state = self.lock();
        let kept = match rng.u8(..3) {
            0 => 0,
            1 => state.since.len(),
            _ => rng.usize(..=state.since.len()),
        };
        let mut map = state.flushed.clone();
        for (_, batch) in &state.since[..kept] {
            apply(Arc::make_mut(&mut map), batch);
        }
        Self::with(map, power, rng.u64(..))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_power(&self) -> Result<(), IndexError> {
        match self.power.take() {
            Ok(Supply::On) => Ok(()),
            Ok(Supply::Failing) => Err(IndexError::Failed("the power goes off".into())),
            Err(error) => Err(IndexError::Failed(error.to_string())),
        }
    }
}

impl State {
    fn flush_through(&mut self, token: u64) {
        let behind = self.since.partition_point(|(of, _)| *of <= token);
        for (of, batch) in self.since.drain(..behind) {
            apply(Arc::make_mut(&mut self.flushed), &batch);
            self.flushed_token = of;
        }
    }

    fn last_token(&self) -> u64 {
        self.since.last().map_or(self.flushed_token, |(token, _)| *token)
    }
}

fn apply(map: &mut BTreeMap<Bytes, Bytes>, batch: &IndexBatch) {
    for operation in &batch.operations {
        match operation {
            IndexOperation::Put(key, value) => map.insert(key.clone(), value.clone()),
            IndexOperation::Delete(key) => map.remove(key),
        };
    }
}

impl Index for SimIndex {
    fn apply(&self, batch: IndexBatch, token: u64) -> Result<(), IndexError> {
        let mut state = self.lock();
        self.take_power()?;
        apply(Arc::make_mut(&mut state.now), &batch);
        state.since.push((token, batch));
        // A flush that was begun earlier ends at some later batch.
        if let Some(due) = state.flush_due
            && state.rng.u8(..3) == 0
        {
            state.flush_due = None;
            state.flush_through(due);
        }
        Ok(())
    }

    fn flushed(&self) -> u64 {
        self.lock().flushed_token
    }

    fn begin_flush(&self) -> Result<(), IndexError> {
        let mut state = self.lock();
        self.take_power()?;
        state.flush_due = Some(state.last_token());
        Ok(())
    }

    fn flush(&self) -> Result<(), IndexError> {
        let mut state = self.lock();
        self.take_power()?;
        let last = state.last_token();
        state.flush_through(last);
        Ok(())
    }

    fn snapshot(&self) -> Arc<dyn IndexView> {
        Arc::new(Snapshot(self.lock().now.clone()))
    }

    fn bytes(&self) -> u64 {
        self.lock().now.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum()
    }
}

impl IndexView for SimIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, IndexError> {
        Ok(self.lock().now.get(key).cloned())
    }

    fn scan(&self, range: Rows<'_>, visit: &mut Visit<'_>) -> Result<(), IndexError> {
        let now = self.lock().now.clone();
        scan(&now, range, visit);
        Ok(())
    }
}

struct Snapshot(Map);

impl IndexView for Snapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, IndexError> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, range: Rows<'_>, visit: &mut Visit<'_>) -> Result<(), IndexError> {
        scan(&self.0, range, visit);
        Ok(())
    }
}

fn scan(map: &BTreeMap<Bytes, Bytes>, range: Rows<'_>, visit: &mut Visit<'_>) {
    if range.start >= range.end {
        return;
    }
    let mut rows = map.range::<[u8], _>((Bound::Included(range.start), Bound::Excluded(range.end)));
    while let Some((key, value)) = if range.backwards { rows.next_back() } else { rows.next() } {
        if visit(key, value) == ControlFlow::Break(()) {
            return;
        }
    }
}

impl fmt::Debug for SimIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimIndex").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &'static str) -> IndexBatch {
        let mut batch = IndexBatch::default();
        batch.put(key, "v");
        batch
    }

    #[test]
    fn a_power_cut_takes_the_latest_batches_first_and_never_a_flushed_one() {
        let index = SimIndex::new(Arc::new(Power::steady()), 1);
        index.apply(put("a"), 1).unwrap();
        index.flush().unwrap();
        assert_eq!(index.flushed(), 1);
        index.apply(put("b"), 2).unwrap();
        index.apply(put("c"), 3).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let crashed = index.after_power_cut(&mut Rng::with_seed(seed), Arc::new(Power::steady()));
            let has = |key: &str| crashed.get(key.as_bytes()).unwrap().is_some();
            assert!(has("a"));
            assert!(has("b") || !has("c"));
            seen.insert((has("b"), has("c")));
        }
        assert_eq!(seen.len(), 3);
    }
}
