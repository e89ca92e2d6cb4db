use std::sync::Arc;

use bytes::Bytes;
use stentor_core::batch::BatchBuilder;
use stentor_core::{Compression, MessageId, Offset, PartitionIndex, Record, Timestamp};
use tokio::sync::Semaphore;

use super::*;
use crate::producer::pending::{BatchOutcome, Unresolved};

const WINDOW: usize = 8;
const RULES: Rules =
    Rules { in_doubt: InDoubt::Move, in_doubt_timeout: Duration::from_secs(3), retry_for: Duration::from_secs(10) };

/// A lane, and everything that goes over its wire.
struct Bench {
    lane: Lane,
    unresolved: Arc<Unresolved>,
    now: Monotonic,
    rules: Rules,
    next: u64,
    outcomes: Vec<Arc<BatchOutcome>>,
}

impl Bench {
    fn new() -> Self {
        let lane = Lane::new(ProducerId(7), 1);
        let unresolved = Arc::default();
        Self { lane, unresolved, now: at(0), rules: RULES, next: 0, outcomes: Vec::new() }
    }

    /// Sends a new batch; its number is its request.
    fn send(&mut self, movable: bool) {
        assert!(self.lane.takes_new(self.now, WINDOW));
        let ticket = Ticket::new(self.next, &self.unresolved, &Arc::new(Semaphore::new(0)));
        self.outcomes.push(Arc::clone(ticket.outcome()));
        let batch = batch(self.next, self.lane.next_sequenced());
        self.lane.append(Entry::new(batch, ticket, movable, self.now.after(Duration::from_secs(30))), self.next);
        self.next += 1;
    }

    fn stored(&mut self, request: u64) {
        let placed = Placed { partition: PartitionIndex(0), base: Offset(request * 10), duplicate: false };
        self.lane.stored(request, placed).unwrap();
    }

    fn refused(&mut self, request: u64, code: ErrorCode) {
        self.lane.refused(request, BrokerError::new(code, "no"), self.now).unwrap();
    }

    /// The numbers of the batches that leave.
    fn settle(&mut self, elsewhere: bool) -> Vec<u64> {
        assert!(self.lane.is_to_settle());
        let leaving = self.lane.settle(self.now, &self.rules, elsewhere);
        let numbers = leaving.iter().map(|entry| entry.ticket.number()).collect();
        for mut entry in leaving {
            // Whoever takes them over will say.
            entry.ticket.resolve(Err(SendError::Closed));
        }
        numbers
    }

    /// What is sent again now: number of the batch, epoch, sequence. Its request is 100 and its place in the list.
    fn resend(&mut self) -> Vec<(u64, u32, u64)> {
        let mut sent = Vec::new();
        while let Some(batch) = self.lane.resend(self.now, WINDOW, 100 + sent.len() as u64) {
            let sequenced = batch.producer().unwrap();
            sent.push((batch.first_timestamp().0, sequenced.epoch, sequenced.sequence));
        }
        sent
    }

    fn later(&mut self, millis: u64) {
        self.now = self.now.after(Duration::from_millis(millis));
    }

    /// What became of a batch, if that is known.
    fn outcome(&self, number: usize) -> Option<Result<Placed, SendError>> {
        let context = std::task::Context::from_waker(std::task::Waker::noop());
        match self.outcomes[number].poll(0, &context) {
            std::task::Poll::Ready(outcome) => Some(outcome),
            std::task::Poll::Pending => None,
        }
    }
}

fn at(millis: u64) -> Monotonic {
    Monotonic(Duration::from_millis(millis))
}

fn batch(number: u64, sequenced: Sequenced) -> RecordBatch {
    let mut builder = BatchBuilder::new(Compression::None);
    let record = Record {
        id: MessageId::generate(Timestamp(1), number.into()),
        timestamp: Timestamp(number),
        key: None,
        tag: None,
        headers: Vec::new(),
        body: Bytes::from_static(b"body"),
        deliver_at: None,
        expires_at: None,
    };
    builder.push(&record).unwrap();
    builder.finish(Some(sequenced)).unwrap()
}

#[test]
fn what_was_under_way_when_the_stream_was_lost_is_sent_again_in_order_with_its_sequences() {
    let mut bench = Bench::new();
    (0..3).for_each(|_| bench.send(true));
    bench.stored(0);
    bench.lane.stream_lost(bench.now);
    assert_eq!(bench.resend(), [(1, 0, 1), (2, 0, 2)]);
    bench.stored(100);
    bench.stored(101);
    assert!(bench.lane.is_idle());
    bench.send(true);
    assert_eq!(bench.lane.epoch(), 0);
}

#[test]
fn what_is_refused_leaves_with_all_behind_it_and_a_new_epoch_begins() {
    let mut bench = Bench::new();
    (0..3).for_each(|_| bench.send(true));
    bench.refused(0, ErrorCode::StorageFull);
    assert!(!bench.lane.is_to_settle(), "the others are still under way");
    assert!(!bench.lane.takes_new(bench.now, WINDOW));
    bench.refused(1, ErrorCode::SequenceGap);
    bench.refused(2, ErrorCode::SequenceGap);
    assert_eq!(bench.settle(true), [0, 1, 2]);
    assert!(!bench.lane.takes_new(bench.now, WINDOW), "it is held for a while");
    bench.later(100);
    bench.send(true);
    assert_eq!((bench.lane.epoch(), bench.lane.next_sequence), (1, 1));
}

#[test]
fn what_is_bound_to_its_partition_is_tried_there_again_with_pauses() {
    let mut bench = Bench::new();
    (0..2).for_each(|_| bench.send(false));
    bench.refused(0, ErrorCode::StorageFull);
    bench.refused(1, ErrorCode::SequenceGap);
    assert!(bench.settle(true).is_empty());
    assert!(bench.resend().is_empty());
    bench.later(100);
    assert_eq!(bench.resend(), [(0, 1, 0), (1, 1, 1)]);
    bench.stored(100);
    bench.stored(101);
    assert!(matches!(bench.outcome(1), Some(Ok(_))));
}

#[test]
fn a_refusal_of_a_later_try_does_not_clear_the_doubt_about_an_earlier_one() {
    let mut bench = Bench::new();
    bench.send(true);
    bench.lane.stream_lost(bench.now);
    assert_eq!(bench.resend(), [(0, 0, 0)]);
    bench.refused(100, ErrorCode::Unavailable);
    // Not moved: it may be stored here.
    assert!(bench.settle(true).is_empty());
    bench.later(1_000);
    assert_eq!(bench.resend(), [(0, 0, 0)]);
    bench.refused(100, ErrorCode::Unavailable);
    bench.later(2_000);
    // In doubt for long: it moves, and may be stored twice.
    assert_eq!(bench.settle(true), [0]);
}

#[test]
fn what_waits_stays_where_it_was_and_its_outcome_is_unknown_in_the_end() {
    let mut bench = Bench::new();
    bench.rules.in_doubt = InDoubt::Wait;
    bench.send(true);
    bench.lane.stream_lost(bench.now);
    for _ in 0..9 {
        bench.later(3_000);
        assert_eq!(bench.resend(), [(0, 0, 0)]);
        bench.refused(100, ErrorCode::Unavailable);
        assert!(bench.settle(true).is_empty());
    }
    assert_eq!(bench.outcome(0), None);
    bench.later(4_000);
    bench.lane.expire(bench.now, &bench.rules);
    assert!(matches!(bench.outcome(0), Some(Err(SendError::OutcomeUnknown { .. }))));
}

#[test]
fn nothing_moves_while_there_is_no_other_place() {
    let mut bench = Bench::new();
    bench.send(true);
    bench.refused(0, ErrorCode::StorageFailed);
    bench.later(5_000);
    assert!(bench.settle(false).is_empty());
}

#[test]
fn a_gap_before_what_is_in_doubt_shows_that_it_was_not_stored() {
    let mut bench = Bench::new();
    (0..3).for_each(|_| bench.send(true));
    bench.stored(0);
    bench.lane.stream_lost(bench.now);
    // The broker has lost what it acknowledged (a memory topic), and with it all behind.
    assert_eq!(bench.resend(), [(1, 0, 1), (2, 0, 2)]);
    bench.refused(100, ErrorCode::SequenceGap);
    bench.refused(101, ErrorCode::SequenceGap);
    assert!(bench.settle(true).is_empty());
    // At once, since nothing is wrong with the place itself.
    assert_eq!(bench.resend(), [(1, 1, 0), (2, 1, 1)]);
    bench.refused(100, ErrorCode::Invalid);
    bench.refused(101, ErrorCode::SequenceGap);
    bench.settle(true);
    assert!(matches!(bench.outcome(1), Some(Err(SendError::Refused(_)))), "it is certain: {:?}", bench.outcome(1));
}

#[test]
fn a_gap_behind_what_is_in_doubt_shows_nothing() {
    let mut bench = Bench::new();
    (0..2).for_each(|_| bench.send(true));
    bench.lane.stream_lost(bench.now);
    bench.resend();
    bench.refused(100, ErrorCode::Unavailable);
    bench.refused(101, ErrorCode::SequenceGap);
    assert!(bench.settle(true).is_empty());
    bench.later(100);
    // Both keep their sequences.
    assert_eq!(bench.resend(), [(0, 0, 0), (1, 0, 1)]);
}

#[test]
fn behind_what_is_certainly_not_stored_nothing_is_in_doubt() {
    let mut bench = Bench::new();
    (0..2).for_each(|_| bench.send(true));
    bench.refused(0, ErrorCode::StorageFull);
    bench.lane.stream_lost(bench.now);
    assert_eq!(bench.settle(false), [0, 1]);
}

#[test]
fn what_is_fresh_waits_behind_what_is_in_doubt_and_then_begins_a_new_epoch() {
    let mut bench = Bench::new();
    bench.send(true);
    bench.send(false);
    bench.send(false);
    // 0 is in doubt, 1 and 2 are not stored.
    bench.refused(0, ErrorCode::StorageFailed);
    bench.refused(1, ErrorCode::Unavailable);
    bench.refused(2, ErrorCode::SequenceGap);
    assert!(bench.settle(true).is_empty());
    bench.later(100);
    assert_eq!(bench.resend(), [(0, 0, 0)]);
    assert!(!bench.lane.takes_new(bench.now, WINDOW));
    bench.stored(100);
    assert_eq!(bench.resend(), [(1, 1, 0), (2, 1, 1)]);
}

#[test]
fn a_producer_that_was_forgotten_starts_over_at_once() {
    let mut bench = Bench::new();
    bench.send(true);
    bench.stored(0);
    bench.send(true);
    bench.refused(1, ErrorCode::ProducerUnknown);
    assert!(bench.settle(true).is_empty());
    assert_eq!(bench.resend(), [(1, 1, 0)]);
    // The second time there is a pause.
    bench.refused(100, ErrorCode::ProducerUnknown);
    bench.settle(true);
    assert!(bench.resend().is_empty());
}

#[test]
fn what_was_in_doubt_when_it_was_forgotten_stays_in_doubt_for_ever() {
    let mut bench = Bench::new();
    (0..2).for_each(|_| bench.send(true));
    bench.lane.stream_lost(bench.now);
    bench.resend();
    bench.refused(100, ErrorCode::ProducerUnknown);
    bench.refused(101, ErrorCode::ProducerUnknown);
    assert!(bench.settle(true).is_empty());
    assert_eq!(bench.resend(), [(0, 1, 0), (1, 1, 1)]);
    bench.refused(100, ErrorCode::TopicNotFound);
    bench.refused(101, ErrorCode::TopicNotFound);
    bench.settle(true);
    for number in 0..2 {
        assert!(matches!(bench.outcome(number), Some(Err(SendError::OutcomeUnknown { .. }))));
    }
}

#[test]
fn what_waits_and_was_forgotten_is_not_sent_again() {
    let mut bench = Bench::new();
    bench.rules.in_doubt = InDoubt::Wait;
    bench.send(true);
    bench.lane.stream_lost(bench.now);
    bench.resend();
    bench.refused(100, ErrorCode::ProducerUnknown);
    assert!(bench.settle(true).is_empty());
    assert!(matches!(bench.outcome(0), Some(Err(SendError::OutcomeUnknown { .. }))));
    assert!(bench.lane.is_idle());
}

#[test]
fn what_is_refused_for_good_fails_alone() {
    let mut bench = Bench::new();
    (0..2).for_each(|_| bench.send(true));
    bench.refused(0, ErrorCode::BatchMalformed);
    bench.refused(1, ErrorCode::SequenceGap);
    assert!(bench.settle(true).is_empty());
    assert!(matches!(bench.outcome(0), Some(Err(SendError::Refused(_)))));
    assert_eq!(bench.resend(), [(1, 1, 0)]);
    bench.stored(100);
    assert!(matches!(bench.outcome(1), Some(Ok(_))));
}

#[test]
fn what_is_only_refused_is_not_stored_and_what_was_never_answered_is_unknown() {
    let mut bench = Bench::new();
    bench.send(false);
    for _ in 0..11 {
        bench.refused(bench.next - 1, ErrorCode::StorageFull);
        bench.settle(false);
        bench.later(1_000);
        bench.lane.expire(bench.now, &RULES);
        match bench.lane.resend(bench.now, WINDOW, bench.next) {
            Some(_) => bench.next += 1,
            None => break,
        }
        bench.later(1_500);
    }
    assert!(matches!(bench.outcome(0), Some(Err(SendError::NotStored { .. }))), "{:?}", bench.outcome(0));

    let mut bench = Bench::new();
    bench.send(false);
    bench.later(30_000);
    bench.lane.expire(bench.now, &RULES);
    assert!(matches!(bench.outcome(0), Some(Err(SendError::OutcomeUnknown { .. }))));
    // It keeps its place, since those behind it build on it; a late answer changes nothing.
    assert_eq!(bench.lane.sent(), 1);
    bench.stored(0);
    assert!(matches!(bench.outcome(0), Some(Err(SendError::OutcomeUnknown { .. }))));
}
