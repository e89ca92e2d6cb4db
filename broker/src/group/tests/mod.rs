//! The group's state, driven as the partition's task drives it, over a table in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use stentor_core::storage::Key;
use stentor_core::{GroupName, Monotonic, Offset, OffsetRange, Timestamp};

use super::flush::Flush;
use super::*;
use crate::filter::Mask;

mod model;
mod rules;
mod survival;

const ALICE: ConsumerId = ConsumerId(1);
const BOB: ConsumerId = ConsumerId(2);

const RULES: Rules = Rules {
    lease: Duration::from_secs(30),
    max_attempts: 3,
    retry_delay: Duration::from_secs(1),
    retry_delay_max: Duration::from_secs(10),
    retrying_max: 1_000,
    ordered: false,
};

/// A flush with room for everything.
const PLENTY: usize = 16 << 20;

/// A group, a log of batches of the same size, and a table.
struct Rig {
    state: GroupState,
    table: BTreeMap<Key, Bytes>,
    log: OffsetRange,
    batch: u64,
    now: Now,
    rng: fastrand::Rng,
    /// What the filter lets through, and keys, by offset; anything beyond matches and has no key.
    matching: Vec<bool>,
    keys: Vec<Option<u64>>,
}

impl Rig {
    fn new(rules: Rules, messages: u64, batch: u64) -> Self {
        let now = Now { wall: Timestamp(1_000_000_000), monotonic: Monotonic(Duration::from_secs(5)) };
        let mut rig = Self {
            state: GroupState::new(name(), rules, Offset(0)),
            table: BTreeMap::new(),
            log: range(0, messages),
            batch,
            now,
            rng: fastrand::Rng::with_seed(7),
            matching: Vec::new(),
            keys: Vec::new(),
        };
        rig.flush();
        rig
    }

    fn apply(&mut self, flush: &Flush) {
        for range in &flush.deletes {
            self.table.retain(|key, _| !range.contains(key));
        }
        self.table.extend(flush.puts.iter().cloned());
    }

    fn flush(&mut self) {
        self.flush_with(Moves::default());
    }

    fn flush_with(&mut self, moves: Moves) {
        let flush = self.state.flush(PLENTY, moves, self.now);
        assert!(flush.complete);
        self.apply(&flush);
        self.state.flushed();
        self.state.horizon_durable(flush.horizon);
    }

    /// What a restart makes of the rows.
    fn reloaded(&self) -> GroupState {
        let mut loading = Loading::new(name(), self.state.rules);
        for range in state_ranges(&name()) {
            for (key, value) in self.table.iter().filter(|(key, _)| range.contains(key)) {
                loading.row(key, value).unwrap();
            }
        }
        let mut state = loading.finish(self.log).unwrap();
        state.trimmed(self.log.start);
        state
    }

    fn seek(&mut self, to: u64) {
        self.state.seek(Offset(to), self.log);
        self.flush();
    }

    fn crash(&mut self) {
        self.state = self.reloaded();
        // Nothing of the old clock holds.
        self.now.monotonic = Monotonic(Duration::from_secs(1));
    }

    fn pass(&mut self, time: Duration) {
        self.now = Now { wall: self.now.wall.after(time), monotonic: self.now.monotonic.after(time) };
    }

    /// Leases up to `messages` to `consumer`, as the partition's task would.
    fn take(&mut self, consumer: ConsumerId, messages: u32) -> Vec<Leased> {
        let mut all = Vec::new();
        let mut left = messages;
        while left > 0 {
            let mut leased = Vec::new();
            match self.state.wants(self.now, self.log.end) {
                Want::Nothing => break,
                Want::Redriven(offset) => leased.extend(self.state.offer_redriven(offset, consumer, self.now)),
                Want::Due(offset) | Want::Log(offset) => {
                    let start = offset.0 / self.batch * self.batch;
                    let offsets = range(start, (start + self.batch).min(self.log.end.0));
                    let matching: Mask =
                        (start..offsets.end.0).map(|at| self.matching.get(at as usize).is_none_or(|m| *m)).collect();
                    let keys: Vec<Option<u64>> =
                        (start..offsets.end.0).map(|at| self.keys.get(at as usize).copied().flatten()).collect();
                    let batch = Batch {
                        offsets,
                        bytes: 1_000,
                        matching: (!self.matching.is_empty()).then_some(&matching),
                        keys: Some(&keys),
                    };
                    let before = self.state.next;
                    let credit = Credit { messages: left, bytes: 1 << 30 };
                    self.state.offer(batch, consumer, credit, self.now, &mut leased);
                    assert!(!leased.is_empty() || self.state.next > before, "what is wanted leads nowhere");
                }
            }
            left -= u32::try_from(leased.iter().map(|l| l.offsets.len()).sum::<u64>()).unwrap();
            all.extend(leased);
        }
        all
    }

    /// As [`take`](Self::take): just the offsets.
    fn offsets(&mut self, consumer: ConsumerId, messages: u32) -> Vec<u64> {
        let leased = self.take(consumer, messages);
        leased.iter().flat_map(|l| l.offsets.start.0..l.offsets.end.0).collect()
    }

    /// Acknowledges; says whether all of it was taken.
    fn ack(&mut self, consumer: ConsumerId, start: u64, end: u64) -> bool {
        let mut lost = Vec::new();
        self.state.ack(consumer, range(start, end), &mut lost);
        lost.is_empty()
    }

    fn nack(&mut self, consumer: ConsumerId, offset: u64, reason: &str) -> Result<(), LeaseLost> {
        self.refuse(consumer, offset, &Refusal::Retry { delay: None }, reason)
    }

    fn refuse(&mut self, consumer: ConsumerId, offset: u64, refusal: &Refusal, reason: &str) -> Result<(), LeaseLost> {
        self.state.refuse(consumer, Offset(offset), refusal, reason, self.now, &mut self.rng)
    }

    /// The letter for a death, as the partition's task would write it.
    fn burial(&self, death: Death) -> Burial {
        let failures = failures_range(&name(), death.offset);
        let rows: Vec<(Key, Bytes)> =
            self.table.range(failures.start.clone()..).map(|(key, value)| (key.clone(), value.clone())).collect();
        let rows: Vec<(Key, Bytes)> = rows.into_iter().filter(|(key, _)| failures.contains(key)).collect();
        let mut reasons = Vec::new();
        if death.redriven {
            let value = &self.table[&redriven_key(&name(), death.offset)];
            reasons = DeadLetter::decode(&name(), value).unwrap().reasons;
        }
        reasons.extend(self.state.reasons(death.offset, &rows).unwrap());
        let letter = DeadLetter {
            attempts: death.attempts,
            dead_at: death.at,
            reasons,
            batch: Bytes::from(format!("message {}", death.offset)),
        };
        Burial {
            offset: death.offset,
            letter,
            replaces: self.table.contains_key(&dead_letter_key(&name(), death.offset)),
        }
    }

    fn bury_all(&mut self) {
        let deaths: Vec<Death> = self.state.deaths().collect();
        let bury = deaths.into_iter().map(|death| self.burial(death)).collect();
        self.flush_with(Moves { bury, ..Moves::default() });
    }

    fn letters(&self) -> Vec<(u64, DeadLetter)> {
        let range = dead_letters_range(&name());
        let rows = self.table.iter().filter(|(key, _)| range.contains(key));
        rows.map(|(key, value)| {
            (dead_letter_offset(&name(), key).unwrap().0, DeadLetter::decode(&name(), value).unwrap())
        })
        .collect()
    }

    fn redrive(&self, offset: u64) -> Redrive {
        let value = self.table[&dead_letter_key(&name(), Offset(offset))].clone();
        let key = self.keys.get(offset as usize).copied().flatten();
        Redrive { offset: Offset(offset), key, value }
    }
}

fn name() -> GroupName {
    GroupName::new("red-packet").unwrap()
}

fn range(start: u64, end: u64) -> OffsetRange {
    OffsetRange::new(Offset(start), Offset(end))
}

fn leased(start: u64, end: u64, attempt: u32, redelivered: bool) -> Leased {
    Leased { offsets: range(start, end), attempt, redelivered }
}
