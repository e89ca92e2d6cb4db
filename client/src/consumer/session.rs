//! One subscription on one stream: what of it is held, and what became of it.
//!
//! Deliveries belong to the session that they came in. What becomes of them is gathered here into frames, many to a frame
//! while the one before is under way, and sent by the consumer's task. When the stream is lost the session is over, and
//! with it the leases: what was not sent is a `LeaseLost`, what was sent and not answered an `OutcomeUnknown`.
//!
//! Invariants: what is registered is sent in that order within its kind (durable, or not), or its waiters are told why
//! not; a message's credit comes back when the frame that settles it is taken to be sent, so the grant goes out behind it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stentor_core::{Clock, Monotonic};
use stentor_protocol::wire::{self, Ack, Extend, Grant, Nack, NackKind, Settle, Unsettled};
use tokio::sync::Notify;

use super::credit::Credit;
use super::settlement::Settlement;
use super::spans::Spans;
use crate::outcome::Outcome;

/// A frame of settlements is closed when its head comes to about this.
const SETTLE_BYTES_MAX: usize = 256 << 10;

/// What an acknowledgement, or a refusal beside its reason, adds to the head of a frame at most.
const ENTRY_BYTES: usize = 32;

/// The longest reason of a refusal that is sent; what is longer is cut.
const REASON_BYTES_MAX: usize = 1_024;

/// A broker that does not say how long it leases is taken to do so for this long.
const LEASE_UNKNOWN: Duration = Duration::from_secs(30);

/// What became of a frame of settlements.
#[derive(Clone, Debug)]
pub(super) enum Settled {
    /// It was answered: these failed.
    Answered(Arc<[Unsettled]>),
    /// It was never sent.
    NotSent(String),
    /// It was sent, and not answered.
    Lost(String),
}

pub(super) type SettleOutcome = Outcome<Settled>;

/// The share of a delivery frame that is not settled.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) at: Monotonic,
    bytes: u64,
    open: AtomicU32,
}

impl Arrived {
    pub(super) const fn new(at: Monotonic, bytes: u64, messages: u32) -> Self {
        Self { at, bytes, open: AtomicU32::new(messages) }
    }

    /// One of its messages is settled. Returns the bytes that are free again.
    fn close_one(&self) -> u64 {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 { self.bytes } else { 0 }
    }
}

/// What a consumer says about a message.
#[derive(Clone, Debug)]
pub(super) enum Word {
    Ack { durable: bool },
    Nack { kind: NackKind, after: Option<Duration>, reason: String },
    Extend { by: Option<Duration> },
}

/// A frame of settlements that is being gathered.
#[derive(Debug)]
struct Gathered {
    durable: bool,
    acks: BTreeMap<u32, Spans>,
    nacks: Vec<Nack>,
    extends: BTreeMap<(u32, u32), Spans>,
    head_bytes: usize,
    messages: u64,
    bytes: u64,
    waiters: usize,
    outcome: Arc<SettleOutcome>,
}

impl Gathered {
    fn new(durable: bool) -> Self {
        Self {
            durable,
            acks: BTreeMap::new(),
            nacks: Vec::new(),
            extends: BTreeMap::new(),
            head_bytes: 0,
            messages: 0,
            bytes: 0,
            waiters: 0,
            outcome: Outcome::new(),
        }
    }
}

/// A frame of settlements, taken to be sent.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) settle: Settle,
    pub(super) outcome: Arc<SettleOutcome>,
}

#[derive(Debug)]
struct State {
    /// Why the session is over.
    lost: Option<String>,
    waiting: VecDeque<Gathered>,
    waiting_durable: VecDeque<Gathered>,
    credit: Credit,
    /// Messages and bytes that come back when leases of dropped messages have run out.
    lapsing: BTreeMap<Monotonic, (u64, u64)>,
}

#[derive(Debug)]
pub(super) struct Session {
    state: Mutex<State>,
    /// Something is to be sent.
    pub(super) wake: Notify,
    clock: Arc<dyn Clock>,
    lease: Duration,
}

impl Session {
    pub(super) fn new(clock: Arc<dyn Clock>, subscribed: &wire::Subscribed, credit: Credit) -> Arc<Self> {
        let lease = match subscribed.lease_millis {
            0 => LEASE_UNKNOWN,
            millis => Duration::from_millis(millis.into()),
        };
        let state = State {
            lost: None,
            waiting: VecDeque::new(),
            waiting_durable: VecDeque::new(),
            credit,
            lapsing: BTreeMap::new(),
        };
        Arc::new(Self { state: Mutex::new(state), wake: Notify::new(), clock, lease })
    }

    /// Whether the session is over.
    pub(super) fn is_lost(&self) -> bool {
        self.lock().lost.is_some()
    }

    /// Takes in a frame. False: there was no credit for it.
    pub(super) fn arrived(&self, messages: u32, bytes: u64) -> bool {
        self.lock().credit.arrived(messages.into(), bytes)
    }

    /// Says one thing about some messages of a frame, and returns a future of the broker's answer. It is sent whether or
    /// not anybody waits.
    pub(super) fn say(&self, word: &Word, partition: u32, offsets: &[u64], frame: &Arrived) -> Settlement {
        let first = offsets.first().copied().unwrap_or_default();
        let mut state = self.lock();
        if let Some(reason) = state.lost.clone() {
            return Settlement::lost(partition, first, reason);
        }
        let durable = matches!(word, Word::Ack { durable: true });
        let queue = if durable { &mut state.waiting_durable } else { &mut state.waiting };
        if queue.back().is_none_or(|last| last.head_bytes >= SETTLE_BYTES_MAX) {
            queue.push_back(Gathered::new(durable));
        }
        // Just pushed, if there was none.
        let Some(last) = queue.back_mut() else { return Settlement::lost(partition, first, String::new()) };
        match word {
            Word::Ack { .. } => {
                let spans = last.acks.entry(partition).or_default();
                let before = spans.len();
                offsets.iter().for_each(|offset| spans.insert(*offset));
                last.head_bytes += spans.len().saturating_sub(before) * ENTRY_BYTES;
            }
            Word::Nack { kind, after, reason } => {
                let reason = cut(reason);
                last.head_bytes += offsets.len() * (ENTRY_BYTES + reason.len());
                last.nacks.extend(offsets.iter().map(|offset| Nack {
                    partition,
                    offset: *offset,
                    delay_millis: after.map(millis),
                    reason: reason.to_owned(),
                    nack_kind: (*kind).into(),
                }));
            }
            Word::Extend { by } => {
                // 0 stands for the group's lease.
                let by = by.map_or(0, |by| u32::try_from(millis(by)).unwrap_or(u32::MAX).max(1));
                let spans = last.extends.entry((partition, by)).or_default();
                offsets.iter().for_each(|offset| spans.insert(*offset));
                last.head_bytes += offsets.len() * ENTRY_BYTES;
            }
        }
        if !matches!(word, Word::Extend { .. }) {
            last.messages += offsets.len() as u64;
            last.bytes += offsets.iter().map(|_| frame.close_one()).sum::<u64>();
        }
        last.waiters += 1;
        let settlement = Settlement::waiting(Arc::clone(&last.outcome), last.waiters - 1, partition, offsets);
        drop(state);
        self.wake.notify_one();
        settlement
    }

    /// A message was dropped without a word: its credit comes back when its lease has run out.
    pub(super) fn dropped(&self, frame: &Arrived) {
        self.lapse(frame, self.clock.monotonic().after(self.lease));
    }

    /// A message waited here until its lease had run out: the broker has it back already.
    pub(super) fn overslept(&self, frame: &Arrived) {
        self.lapse(frame, self.clock.monotonic());
    }

    fn lapse(&self, frame: &Arrived, at: Monotonic) {
        let bytes = frame.close_one();
        let mut state = self.lock();
        let lapsing = state.lapsing.entry(at).or_default();
        lapsing.0 += 1;
        lapsing.1 += bytes;
        drop(state);
        self.wake.notify_one();
    }

    /// Whether what arrived in this frame, and was not touched, is still leased.
    pub(super) fn is_leased(&self, frame: &Arrived) -> bool {
        self.clock.monotonic() < frame.at.after(self.lease)
    }

    /// The next frame of settlements of a kind.
    pub(super) fn take(&self, durable: bool) -> Option<Sending> {
        let mut state = self.lock();
        let queue = if durable { &mut state.waiting_durable } else { &mut state.waiting };
        let gathered = queue.pop_front()?;
        state.credit.settled(gathered.messages, gathered.bytes);
        let ack = |(partition, spans): (u32, Spans)| Ack { partition, spans: spans.to_wire() };
        let extend = |((partition, lease_millis), spans): ((u32, u32), Spans)| Extend {
            partition,
            spans: spans.to_wire(),
            lease_millis,
        };
        let settle = Settle {
            request: 0,
            durable: gathered.durable,
            acks: gathered.acks.into_iter().map(ack).collect(),
            nacks: gathered.nacks,
            extends: gathered.extends.into_iter().map(extend).collect(),
        };
        Some(Sending { settle, outcome: gathered.outcome })
    }

    /// What is to be granted now.
    pub(super) fn grant(&self, now: Monotonic) -> Option<Grant> {
        let mut state = self.lock();
        while let Some(entry) = state.lapsing.first_entry().filter(|entry| *entry.key() <= now) {
            let (messages, bytes) = entry.remove();
            state.credit.settled(messages, bytes);
        }
        state.credit.grant()
    }

    /// When, after `now`, credit comes back by itself.
    pub(super) fn next_lapse(&self, now: Monotonic) -> Option<Monotonic> {
        self.lock().lapsing.keys().find(|at| **at > now).copied()
    }

    /// Whether nothing is to be sent.
    pub(super) fn is_quiet(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.waiting_durable.is_empty()
    }

    /// How many messages are held, dropped ones included while they are leased.
    pub(super) fn held(&self) -> u64 {
        self.lock().credit.held()
    }

    /// The session is over. Tells everybody who waits for something that was not sent.
    pub(super) fn lose(&self, reason: &str) {
        let mut state = self.lock();
        state.lost.get_or_insert_with(|| reason.to_owned());
        let mut never_sent = std::mem::take(&mut state.waiting);
        never_sent.append(&mut state.waiting_durable);
        drop(state);
        for gathered in never_sent {
            gathered.outcome.fill(Settled::NotSent(reason.to_owned()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The front of a reason that is too long.
fn cut(reason: &str) -> &str {
    let end = (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at));
    &reason[..end.unwrap_or(0)]
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}
