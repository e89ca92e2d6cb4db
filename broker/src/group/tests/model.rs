//! Random operations, crashes among them, against a naive model: one state for each message.
//!
//! The model takes what the group leases and checks that it may; it foretells everything else and compares every message
//! after every step. Each history follows from its seed, which a failure names.

use std::collections::BTreeSet;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not delivered, or released: it may be leased at any time.
    Ready,
    Leased {
        consumer: ConsumerId,
        until: Monotonic,
    },
    Waiting {
        due: Timestamp,
    },
    Dying,
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    state: State,
    attempts: u32,
    /// Whether any consumer ever got it and may have looked at it.
    delivered: bool,
    /// The same, before it was leased the last time.
    delivered_before: bool,
    redriven: bool,
}

const NEW: Message =
    Message { state: State::Ready, attempts: 0, delivered: false, delivered_before: false, redriven: false };

/// What a crash may not fall behind, and what it may not go beyond.
#[derive(Clone, Debug, Default)]
struct Flushed {
    done: BTreeSet<u64>,
    /// Done at some flush since that was not complete: may be done after a crash.
    perhaps_done: BTreeSet<u64>,
    attempts: BTreeMap<u64, u32>,
    /// Sought since: nothing is known but what that flush said.
    redriven: BTreeSet<u64>,
    perhaps_redriven: BTreeSet<u64>,
    letters: BTreeSet<u64>,
}

struct Model {
    seed: u64,
    rig: Rig,
    messages: Vec<Message>,
    letters: BTreeSet<u64>,
    flushed: Flushed,
    /// A seek is not flushed yet.
    sought: bool,
    random: fastrand::Rng,
    consumers: Vec<ConsumerId>,
    next_consumer: u64,
    delivered: u64,
    crashes: u64,
    buried: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let rules = Rules {
            ordered: random.bool(),
            max_attempts: random.u32(1..4),
            retrying_max: if random.bool() { random.u32(1..20) } else { 1_000 },
            ..RULES
        };
        let mut rig = Rig::new(rules, 0, random.u64(1..12));
        rig.rng = fastrand::Rng::with_seed(seed ^ 1);
        let flushed = Flushed::default();
        let consumers = vec![ConsumerId(1), ConsumerId(2), ConsumerId(3)];
        Self {
            seed,
            rig,
            messages: Vec::new(),
            letters: BTreeSet::new(),
            flushed,
            sought: false,
            random,
            consumers,
            next_consumer: 4,
            delivered: 0,
            crashes: 0,
            buried: 0,
        }
    }

    fn consumer(&mut self) -> ConsumerId {
        self.consumers[self.random.usize(..self.consumers.len())]
    }

    fn offset(&mut self) -> u64 {
        self.random.u64(..=self.rig.log.end.0)
    }

    fn step(&mut self) {
        match self.random.u32(..100) {
            0..8 => self.publish(),
            8..30 => self.take(),
            30..50 => self.ack(),
            50..64 => self.refuse(),
            64..67 => self.extend(),
            67..74 => self.pass(),
            74..77 => self.leave(),
            77..90 => self.flush(),
            90..94 => self.crash(),
            94..96 => self.seek(),
            96..98 => self.trim(),
            _ => {
                let paused = self.random.bool() && self.random.bool();
                self.rig.state.pause(paused);
                self.flush_complete();
            }
        }
        self.check();
    }

    fn publish(&mut self) {
        // Whole batches, as far as the rig's batches are of one size: the last one may still grow.
        for _ in 0..self.random.u32(1..20) {
            self.rig.log.end = self.rig.log.end.next();
            self.messages.push(NEW);
            let (filtered, keyed) = (self.random.u32(..10) < 2, self.random.u32(..10) < 7);
            self.rig.matching.push(!filtered);
            self.rig.keys.push(keyed.then(|| self.random.u64(1..5)));
        }
    }

    fn take(&mut self) {
        let (consumer, credit) = (self.consumer(), self.random.u32(1..25));
        let leased = self.rig.take(consumer, credit);
        assert!(leased.iter().map(|l| l.offsets.len()).sum::<u64>() <= u64::from(credit), "seed {}", self.seed);
        let until = self.rig.now.monotonic.after(RULES.lease);
        for lease in leased {
            for offset in lease.offsets.start.0..lease.offsets.end.0 {
                let context = format!("seed {}: {lease:?} at {offset}", self.seed);
                self.check_order(offset, &context);
                let message = &mut self.messages[offset as usize];
                match message.state {
                    State::Ready => assert!(self.rig.matching[offset as usize], "{context}: excluded"),
                    State::Waiting { due } => assert!(due <= self.rig.now.wall, "{context}: not due"),
                    other => panic!("{context}: was {other:?}"),
                }
                assert_eq!(lease.attempt, message.attempts + 1, "{context}");
                assert!(lease.redelivered || !message.delivered, "{context}: was delivered before");
                message.state = State::Leased { consumer, until };
                message.delivered_before = message.delivered;
                message.delivered = true;
                self.delivered += 1;
            }
        }
    }

    /// Nothing of its key may be under way, and nothing before it may be owed.
    fn check_order(&self, offset: u64, context: &str) {
        let key = self.rig.keys[offset as usize];
        if !self.rig.state.rules.ordered || key.is_none() {
            return;
        }
        for (at, other) in (0..).zip(&self.messages).filter(|(at, _)| *at != offset) {
            if self.rig.keys[at as usize] != key || !self.rig.matching[at as usize] {
                continue;
            }
            let under_way = match other.state {
                State::Ready => false,
                State::Leased { .. } | State::Dying | State::Waiting { .. } => true,
                State::Done => continue,
            };
            // Redriven messages come out of their order, one at a time like all.
            let before = at < offset && !self.messages[offset as usize].redriven && !other.redriven;
            // A redriven one that failed before a restart may wait behind one that does as well.
            let both_waited = other.redriven || self.messages[offset as usize].redriven;
            assert!(!before, "{context}: {at} comes before");
            assert!(
                !under_way || (both_waited && matches!(other.state, State::Waiting { .. } | State::Dying)),
                "{context}: {at} is {other:?}"
            );
        }
    }

    fn ack(&mut self) {
        let (consumer, start) = (self.consumer(), self.offset());
        let end = start + self.random.u64(1..15);
        let limit = self.rig.state.next.max(self.rig.state.reach.ackable_below);
        let mut expected = Vec::new();
        for offset in start..end {
            let Some(message) = self.messages.get_mut(offset as usize) else { continue };
            let taken = match message.state {
                State::Leased { consumer: holder, .. } => holder == consumer,
                State::Waiting { .. } => true,
                // It may have been filtered out already.
                State::Ready => {
                    let done = self.rig.state.whereabouts(Offset(offset)) == Whereabouts::Done;
                    !done && (message.redriven || offset < limit)
                }
                State::Dying | State::Done => false,
            };
            if taken {
                *message = Message { state: State::Done, redriven: false, ..*message };
                expected.push(offset);
            }
        }
        let mut lost = Vec::new();
        let count = self.rig.state.ack(consumer, range(start, end), &mut lost);
        let lost: BTreeSet<u64> = lost.iter().flat_map(|l| l.start.0..l.end.0).collect();
        let accepted: Vec<u64> = (start..end).filter(|offset| !lost.contains(offset)).collect();
        assert_eq!(accepted, expected, "seed {}: ack of {start}..{end} by {consumer:?}", self.seed);
        assert_eq!(count, expected.len() as u64);
    }

    fn refuse(&mut self) {
        // Mostly by who holds it, so that something happens.
        let held: Vec<(u64, ConsumerId)> = (0..)
            .zip(&self.messages)
            .filter_map(|(offset, message)| match message.state {
                State::Leased { consumer, .. } => Some((offset, consumer)),
                _ => None,
            })
            .collect();
        let (offset, consumer) = match held.get(self.random.usize(..held.len() + 1)) {
            Some(held) => *held,
            None => (self.offset(), self.consumer()),
        };
        let refusal = match self.random.u32(..8) {
            0 => Refusal::Reject,
            1 => Refusal::Release,
            2 => Refusal::Retry { delay: Some(Duration::from_secs(self.random.u64(..5))) },
            _ => Refusal::Retry { delay: None },
        };
        let result = self.rig.refuse(consumer, offset, &refusal, "no");
        let max_attempts = self.rig.state.rules.max_attempts;
        let holds =
            |message: &Message| matches!(message.state, State::Leased { consumer: holder, .. } if holder == consumer);
        let Some(message) = self.messages.get_mut(offset as usize).filter(|message| holds(message)) else {
            assert_eq!(result, Err(LeaseLost), "seed {}", self.seed);
            return;
        };
        assert_eq!(result, Ok(()), "seed {}", self.seed);
        if refusal == Refusal::Release {
            message.state = State::Ready;
            message.delivered = message.delivered_before;
            return;
        }
        message.attempts += 1;
        message.state = if refusal == Refusal::Reject || message.attempts >= max_attempts {
            State::Dying
        } else {
            let Whereabouts::Waiting { due, .. } = self.rig.state.whereabouts(Offset(offset)) else {
                panic!("seed {}: {offset} does not wait", self.seed)
            };
            let delay = due.since(self.rig.now.wall);
            match refusal {
                Refusal::Retry { delay: Some(asked) } => assert_eq!(delay, asked),
                _ => {
                    let full = RULES.retry_delay * (1 << (message.attempts - 1));
                    assert!(delay <= full && delay * 10 >= full * 8, "{delay:?}");
                }
            }
            State::Waiting { due }
        };
    }

    fn extend(&mut self) {
        let (consumer, start) = (self.consumer(), self.offset());
        let end = start + self.random.u64(1..15);
        let until = self.rig.now.monotonic.after(Duration::from_secs(self.random.u64(1..90)));
        let mut lost = Vec::new();
        self.rig.state.extend(consumer, range(start, end), until, &mut lost);
        let lost: BTreeSet<u64> = lost.iter().flat_map(|l| l.start.0..l.end.0).collect();
        for offset in start..end {
            let state = self.messages.get_mut(offset as usize).map(|message| &mut message.state);
            match state {
                Some(State::Leased { consumer: holder, until: old }) if *holder == consumer => {
                    *old = until;
                    assert!(!lost.contains(&offset));
                }
                _ => assert!(lost.contains(&offset)),
            }
        }
    }

    fn fail_where(&mut self, which: impl Fn(ConsumerId, Monotonic) -> bool) -> u64 {
        let (now, max_attempts) = (self.rig.now, self.rig.state.rules.max_attempts);
        let mut count = 0;
        for message in &mut self.messages {
            if let State::Leased { consumer, until } = message.state
                && which(consumer, until)
            {
                count += 1;
                message.attempts += 1;
                let dies = message.attempts >= max_attempts;
                message.state = if dies { State::Dying } else { State::Waiting { due: now.wall } };
            }
        }
        count
    }

    fn pass(&mut self) {
        self.rig.pass(Duration::from_millis(self.random.u64(1..20_000)));
        let now = self.rig.now;
        let expired = self.fail_where(|_, until| until <= now.monotonic);
        assert_eq!(self.rig.state.expire(now), expired, "seed {}", self.seed);
        let next = self.messages.iter().filter_map(|message| match message.state {
            State::Leased { until, .. } => Some(until),
            _ => None,
        });
        assert_eq!(self.rig.state.next_deadline(), next.min(), "seed {}", self.seed);
    }

    fn leave(&mut self) {
        let index = self.random.usize(..self.consumers.len());
        let consumer = std::mem::replace(&mut self.consumers[index], ConsumerId(self.next_consumer));
        self.next_consumer += 1;
        if self.random.bool() {
            let held = self.fail_where(|holder, _| holder == consumer);
            assert_eq!(self.rig.state.remove_consumer(consumer, "gone", self.rig.now), held, "seed {}", self.seed);
        } else {
            let mut held = 0;
            for message in &mut self.messages {
                if matches!(message.state, State::Leased { consumer: holder, .. } if holder == consumer) {
                    message.state = State::Ready;
                    held += 1;
                }
            }
            assert_eq!(self.rig.state.release_consumer(consumer), held, "seed {}", self.seed);
        }
    }

    fn moves(&mut self) -> Moves {
        let mut moves = Moves::default();
        let deaths: Vec<Death> = self.rig.state.deaths().collect();
        for death in deaths {
            if self.random.bool() {
                moves.bury.push(self.rig.burial(death));
            }
        }
        let buried: BTreeSet<u64> = moves.bury.iter().map(|burial| burial.offset.0).collect();
        for offset in self.letters.difference(&buried).copied().collect::<Vec<_>>() {
            if self.random.u32(..4) == 0 {
                moves.redrive.push(self.rig.redrive(offset));
            }
        }
        moves
    }

    fn flush(&mut self) {
        let moves = self.moves();
        let kind = self.random.u32(..10);
        if kind == 0 {
            self.rig.state.flush(PLENTY, moves, self.rig.now);
            self.rig.state.refused();
            return;
        }
        let bytes_max = if kind < 4 && !self.sought { self.random.usize(..200) } else { PLENTY };
        let flush = self.rig.state.flush(bytes_max, moves.clone(), self.rig.now);
        self.rig.apply(&flush);
        self.rig.state.flushed();
        self.rig.state.horizon_durable(flush.horizon);
        for redrive in &moves.redrive {
            let offset = redrive.offset.0;
            self.letters.remove(&offset);
            let message = &mut self.messages[offset as usize];
            if message.state == State::Done {
                *message = Message { delivered: true, redriven: true, ..NEW };
            }
        }
        for burial in &moves.bury {
            let offset = burial.offset.0;
            let message = &mut self.messages[offset as usize];
            assert_eq!(message.state, State::Dying, "seed {}: {offset}", self.seed);
            assert_eq!(burial.letter.attempts, message.attempts);
            *message = Message { state: State::Done, redriven: false, ..*message };
            self.letters.insert(offset);
            self.buried += 1;
        }
        self.note(flush.complete);
        self.flushed.letters = self.letters.clone();
        let letters: BTreeSet<u64> = self.rig.letters().into_iter().map(|(offset, _)| offset).collect();
        assert_eq!(letters, self.letters, "seed {}", self.seed);
    }

    fn flush_complete(&mut self) {
        self.rig.flush();
        self.note(true);
    }

    fn note(&mut self, complete: bool) {
        let of = |which: &dyn Fn(&Message) -> bool| -> BTreeSet<u64> {
            (0..).zip(&self.messages).filter(|(_, message)| which(message)).map(|(offset, _)| offset).collect()
        };
        let done = of(&|message| message.state == State::Done);
        let redriven = of(&|message| message.redriven);
        let flushed = &mut self.flushed;
        if complete {
            flushed.perhaps_done = BTreeSet::new();
            flushed.perhaps_redriven = BTreeSet::new();
            let attempts = (0..).zip(&self.messages).map(|(offset, message)| (offset, message.attempts));
            flushed.attempts = attempts.collect();
            flushed.done = done;
            flushed.redriven = redriven;
            self.sought = false;
        } else {
            // Buried and redriven whole, whatever the room.
            let letters = &self.letters;
            flushed.done.retain(|offset| done.contains(offset));
            flushed.done.extend(letters.iter().filter(|offset| done.contains(offset)));
            flushed.perhaps_done.extend(done.iter());
            flushed.perhaps_redriven.extend(flushed.redriven.iter().copied().chain(redriven.iter().copied()));
            flushed.redriven = redriven;
            for (offset, attempts) in &mut flushed.attempts {
                *attempts = (*attempts).min(self.messages[*offset as usize].attempts);
            }
        }
    }

    fn crash(&mut self) {
        self.crashes += 1;
        self.rig.crash();
        let limits = self.flushed.clone();
        let seed = self.seed;
        for (offset, message) in (0..).zip(&mut self.messages) {
            let whereabouts = self.rig.state.whereabouts(Offset(offset));
            let context = format!("seed {seed}: {offset} was {message:?} and is {whereabouts:?}");
            let redriven = self.rig.state.redriven.contains(&offset);
            assert!(
                !redriven || limits.redriven.contains(&offset) || limits.perhaps_redriven.contains(&offset),
                "{context}"
            );
            assert!(redriven || !limits.redriven.contains(&offset), "{context}: redriven, and lost");
            message.redriven = redriven;
            let trimmed = offset < self.rig.log.start.0;
            let excluded = !self.rig.matching[offset as usize];
            match whereabouts {
                Whereabouts::Done => {
                    let known = limits.done.contains(&offset) || limits.perhaps_done.contains(&offset);
                    assert!(known || trimmed || excluded, "{context}: lost");
                    if known || trimmed {
                        message.state = State::Done;
                    }
                    continue;
                }
                Whereabouts::Untouched | Whereabouts::Held => message.state = State::Ready,
                Whereabouts::Waiting { due, attempts } => {
                    message.state = if attempts > 0 { State::Waiting { due } } else { State::Ready };
                }
                Whereabouts::Dying { .. } => message.state = State::Dying,
                Whereabouts::Leased { .. } => panic!("{context}"),
            }
            // Done above everything that was known to be: it came back.
            assert!(redriven || !limits.done.contains(&offset), "{context}: done, and came back");
            let attempts = match whereabouts {
                Whereabouts::Waiting { attempts, .. } | Whereabouts::Dying { attempts } => attempts,
                _ => self.rig.state.order.held_as(offset).map_or(0, |waiting| waiting.attempts),
            };
            let least = limits.attempts.get(&offset).copied().unwrap_or(0);
            if !self.sought {
                assert!(attempts >= least || message.attempts < least, "{context}: at least {least}");
                assert!(attempts <= message.attempts.max(least), "{context}");
            }
            message.attempts = attempts;
        }
        self.letters = limits.letters;
        let letters: BTreeSet<u64> = self.rig.letters().into_iter().map(|(offset, _)| offset).collect();
        assert_eq!(letters, self.letters, "seed {seed}");
        self.flush_complete();
    }

    fn seek(&mut self) {
        let to = self.random.u64(..self.rig.log.end.0 + 3);
        self.rig.state.seek(Offset(to), self.rig.log);
        let to = to.clamp(self.rig.log.start.0, self.rig.log.end.0);
        assert_eq!(self.rig.state.floor(), Offset(to));
        for (offset, message) in (0..).zip(&mut self.messages) {
            if offset >= to {
                *message = Message { delivered: message.delivered, ..NEW };
            } else if !message.redriven {
                message.state = State::Done;
            }
        }
        self.sought = true;
        if self.random.bool() {
            self.flush_complete();
        }
    }

    fn trim(&mut self) {
        let (start, end) = (self.rig.log.start.0, self.rig.log.end.0);
        if start == end {
            return;
        }
        let to = self.random.u64(start..=(start + 10).min(end));
        let owed = (start..to)
            .filter(|offset| {
                let done = self.rig.state.whereabouts(Offset(*offset)) == Whereabouts::Done;
                !done && !self.messages[*offset as usize].redriven
            })
            .count();
        self.rig.log.start = Offset(to);
        assert_eq!(self.rig.state.trimmed(Offset(to)), owed as u64, "seed {}", self.seed);
        for message in self.messages.iter_mut().take(to as usize).filter(|message| !message.redriven) {
            message.state = State::Done;
        }
    }

    /// Every message is where the model says.
    fn check(&self) {
        let state = &self.rig.state;
        let (mut backlog, mut in_flight, mut retrying) = (0, 0, 0);
        for (offset, message) in (0..).zip(&self.messages) {
            let whereabouts = state.whereabouts(Offset(offset));
            let context =
                format!("seed {}: {offset} is {message:?} to the model, {whereabouts:?} to the group", self.seed);
            backlog += u64::from(whereabouts != Whereabouts::Done);
            match message.state {
                State::Ready => match whereabouts {
                    Whereabouts::Untouched => assert!(!message.redriven, "{context}"),
                    Whereabouts::Waiting { due, attempts } => {
                        assert!(attempts == message.attempts && due == Timestamp(0), "{context}");
                        retrying += u64::from(attempts > 0);
                    }
                    Whereabouts::Held => assert!(state.rules.ordered, "{context}"),
                    Whereabouts::Done => assert!(!self.rig.matching[offset as usize], "{context}"),
                    _ => panic!("{context}"),
                },
                State::Leased { consumer, until } => {
                    in_flight += 1;
                    let attempt = message.attempts + 1;
                    assert_eq!(whereabouts, Whereabouts::Leased { consumer, until, attempt }, "{context}");
                }
                State::Waiting { due } => {
                    retrying += 1;
                    assert_eq!(whereabouts, Whereabouts::Waiting { due, attempts: message.attempts }, "{context}");
                }
                State::Dying => {
                    assert_eq!(whereabouts, Whereabouts::Dying { attempts: message.attempts }, "{context}");
                }
                State::Done => assert_eq!(whereabouts, Whereabouts::Done, "{context}"),
            }
            assert_eq!(message.redriven, state.redriven.contains(&offset), "{context}");
        }
        assert_eq!(state.backlog(self.rig.log.end), backlog, "seed {}", self.seed);
        assert_eq!(state.in_flight(), in_flight, "seed {}", self.seed);
        assert_eq!(state.retrying(), retrying, "seed {}", self.seed);
        assert!(state.floor <= state.next && state.floor <= self.rig.log.end.0, "seed {}", self.seed);
        assert_ne!(state.whereabouts(Offset(state.floor)), Whereabouts::Done, "seed {}", self.seed);
        assert_eq!(state.dead_letters(), self.letters.len() as u64, "seed {}", self.seed);
    }

    /// Everything that is owed can be had and be done with.
    fn drain(&mut self) {
        self.rig.state.pause(false);
        for _ in 0..10_000 {
            self.rig.bury_all();
            let leased = self.rig.take(ConsumerId(u64::MAX), 1_000);
            for lease in &leased {
                assert!(self.rig.ack(ConsumerId(u64::MAX), lease.offsets.start.0, lease.offsets.end.0));
            }
            if leased.is_empty() && self.rig.state.backlog(self.rig.log.end) == 0 {
                return;
            }
            self.rig.pass(RULES.lease);
            self.rig.state.expire(self.rig.now);
        }
        panic!("seed {}: {} are stuck", self.seed, self.rig.state.backlog(self.rig.log.end));
    }
}

#[test]
fn random_histories_agree_with_a_naive_model() {
    let (mut delivered, mut crashes, mut buried) = (0, 0, 0);
    for seed in 0..200 {
        let mut model = Model::new(seed);
        for _ in 0..150 {
            model.step();
        }
        model.drain();
        delivered += model.delivered;
        crashes += model.crashes;
        buried += model.buried;
    }
    // That something happened at all.
    assert!(delivered > 10_000 && crashes > 500 && buried > 500, "{delivered} {crashes} {buried}");
}
