//! What is taken once, what is refused, and what the rows keep.

use bytes::Bytes;
use proptest::prelude::*;
use stentor_core::storage::KeyRange;

use super::rows::{ROWS_BYTES_MAX, decode, key};
use super::*;

const NOW: Timestamp = Timestamp(1_000_000);

fn batch(producer: u64, epoch: u32, sequence: u64) -> Sequenced {
    Sequenced { producer: ProducerId(producer), epoch, sequence }
}

fn at(base: u64) -> Receipt {
    Receipt { base: Offset(base), count: 10 }
}

fn filled(batches: u64) -> Dedup {
    let mut dedup = Dedup::default();
    for sequence in 0..batches {
        assert_eq!(dedup.admit(batch(1, 0, sequence), at(sequence * 10), NOW), Ok(Admission::New));
    }
    dedup.settle();
    dedup
}

#[test]
fn a_repeat_gets_the_first_receipt_and_a_gap_is_refused() {
    let mut dedup = filled(3);
    assert_eq!(dedup.admit(batch(1, 0, 1), at(90), NOW), Ok(Admission::Repeat(at(10))));
    assert_eq!(
        dedup.admit(batch(1, 0, 4), at(90), NOW),
        Err(DedupError::Gap { producer: ProducerId(1), expected: 3, found: 4 })
    );
    assert_eq!(dedup.admit(batch(1, 0, 3), at(90), NOW), Ok(Admission::New));
}

#[test]
fn a_later_epoch_begins_at_zero_and_fences_the_earlier_one() {
    let mut dedup = filled(3);
    assert_eq!(dedup.admit(batch(1, 2, 3), at(90), NOW), Err(DedupError::Unknown { producer: ProducerId(1) }));
    assert_eq!(dedup.admit(batch(1, 2, 0), at(90), NOW), Ok(Admission::New));
    assert_eq!(dedup.admit(batch(1, 1, 0), at(90), NOW), Err(DedupError::Fenced { producer: ProducerId(1), epoch: 2 }));
}

#[test]
fn a_refused_change_leaves_no_trace() {
    let mut dedup = filled(2);
    let before = dedup.producers.clone();
    dedup.admit(batch(1, 0, 2), at(20), NOW).unwrap();
    dedup.admit(batch(1, 0, 3), at(30), NOW).unwrap();
    dedup.admit(batch(1, 1, 0), at(40), NOW).unwrap();
    dedup.admit(batch(2, 0, 0), at(50), NOW).unwrap();
    dedup.take_back();
    assert_eq!(dedup.producers, before);
}

#[test]
fn the_rows_never_speak_of_a_batch_that_was_taken_back() {
    let (mut dedup, mut expected) = (filled(2), filled(2));
    dedup.admit(batch(1, 0, 2), at(20), NOW).unwrap();
    dedup.admit(batch(2, 0, 0), at(30), NOW).unwrap();
    dedup.take_back();
    assert_eq!(dedup.rows(Offset(20)).puts, expected.rows(Offset(20)).puts);
}

#[test]
fn many_rows_are_written_in_small_portions_and_the_position_with_the_last() {
    let mut dedup = Dedup::default();
    for producer in 1..=1_000 {
        for sequence in 0..RECEIPTS_MAX as u64 {
            dedup.admit(batch(producer, 0, sequence), at(sequence << 20), NOW).unwrap();
        }
    }
    dedup.settle();
    let (mut rows, mut portions) = (BTreeMap::new(), 0);
    loop {
        let portion = dedup.rows(Offset(1 << 40).advance(portions));
        let bytes: usize = portion.puts.iter().map(|(_, value)| value.len()).sum();
        assert!(bytes < 2 * ROWS_BYTES_MAX, "{bytes} bytes in one portion");
        let last = portion.position;
        assert_eq!(last.is_some(), portion.puts.iter().any(|(key, _)| *key == Dedup::position_key()));
        rows.extend(portion.puts);
        portions += 1;
        // One that publishes all the time does not keep the round from ending.
        dedup.admit(batch(1, 0, RECEIPTS_MAX as u64 + portions - 1), at(1 << 40), NOW).unwrap();
        dedup.settle();
        if let Some(position) = last {
            assert_eq!(position, Offset(1 << 40), "the end of the log when the round began");
            break;
        }
    }
    assert!(portions > 2);
    assert_eq!(rows.len(), 1_001);
    assert!(dedup.is_dirty(), "the one that published meanwhile is behind again");
}

#[test]
fn a_refused_portion_is_written_again() {
    let mut dedup = filled(3);
    let refused = dedup.rows(Offset(30));
    let puts = refused.puts.clone();
    dedup.unwritten(refused);
    assert_eq!(dedup.rows(Offset(30)).puts, puts);
}

#[test]
fn a_receipt_is_kept_for_as_long_as_a_client_may_ask() {
    let kept = RECEIPTS_MAX as u64;
    let mut dedup = filled(kept + 5);
    assert_eq!(dedup.admit(batch(1, 0, 5), at(9), NOW), Ok(Admission::Repeat(at(50))));
    assert_eq!(
        dedup.admit(batch(1, 0, 4), at(9), NOW),
        Err(DedupError::Forgotten { producer: ProducerId(1), sequence: 4 })
    );
}

#[test]
fn an_idle_producer_is_forgotten_with_its_row() {
    let mut dedup = filled(1);
    dedup.rows(Offset(10));
    dedup.expire(NOW.after(PRODUCER_IDLE_MAX));
    assert_eq!(dedup.len(), 0);
    assert_eq!(dedup.rows(Offset(10)).deletes, [KeyRange::single(&key(ProducerId(1)))]);
    assert_eq!(dedup.admit(batch(1, 0, 1), at(10), NOW), Err(DedupError::Unknown { producer: ProducerId(1) }));
}

#[test]
fn there_are_never_more_producers_than_the_bound() {
    let mut dedup = Dedup::default();
    for producer in 1..=PRODUCERS_MAX as u64 + 1 {
        dedup.admit(batch(producer, 0, 0), at(producer), Timestamp(producer)).unwrap();
        dedup.settle();
    }
    assert!(dedup.len() <= PRODUCERS_MAX);
    assert!(dedup.producers.contains_key(&ProducerId(PRODUCERS_MAX as u64 + 1)), "the latest one stays");
}

proptest! {
    /// Rows written at some point and the log behind it bring back what was known.
    #[test]
    fn rows_and_the_log_behind_them_restore_everything(
        steps in proptest::collection::vec((1_u64..4, any::<bool>()), 1..300),
        written_after in 0_usize..300,
    ) {
        let mut live = Dedup::default();
        let mut next: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
        let mut log = Vec::new();
        let (mut rows, mut position) = (BTreeMap::new(), Offset(0));
        for (index, (producer, new_epoch)) in steps.iter().enumerate() {
            let (epoch, sequence) = next.entry(*producer).or_default();
            if *new_epoch && index % 7 == 0 {
                (*epoch, *sequence) = (*epoch + 1, 0);
            }
            let (batch, receipt) = (batch(*producer, *epoch, *sequence), at(index as u64 * 10));
            prop_assert_eq!(live.admit(batch, receipt, NOW), Ok(Admission::New));
            live.settle();
            log.push((batch, receipt));
            *sequence += 1;
            if index == written_after {
                position = receipt.end();
                rows.extend(live.rows(position).puts);
            }
        }
        let mut restored = Dedup::default();
        if let Some(value) = rows.remove(&Dedup::position_key()) {
            prop_assert_eq!(decode_position(&value), Ok(position));
        }
        for (key, value) in &rows {
            restored.load(key, value).unwrap();
        }
        for (batch, receipt) in log.into_iter().filter(|(_, receipt)| receipt.base >= position) {
            restored.replay(batch, receipt, NOW);
        }
        prop_assert_eq!(restored.producers, live.producers);
    }

    #[test]
    fn garbage_is_an_error_and_no_panic(garbage in proptest::collection::vec(any::<u8>(), 0..64)) {
        let garbage = Bytes::from(garbage);
        let _ = decode(&garbage);
        let _ = decode_position(&garbage);
    }
}
