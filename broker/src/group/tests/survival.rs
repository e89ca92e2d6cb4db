//! What a crash leaves.

use super::keys::StateKey;
use super::*;

#[test]
fn acknowledged_and_flushed_does_not_return_and_everything_else_does() {
    let mut rig = Rig::new(RULES, 100, 10);
    rig.take(ALICE, 50);
    assert!(rig.ack(ALICE, 0, 7) && rig.ack(ALICE, 10, 20));
    rig.flush();
    assert!(rig.ack(ALICE, 7, 8), "too late to be flushed");
    rig.crash();
    assert_eq!(rig.state.floor(), Offset(7));
    let offsets = rig.offsets(BOB, 1_000);
    assert_eq!(offsets, (7..10).chain(20..100).collect::<Vec<_>>());
}

#[test]
fn every_odd_one_of_20001_acknowledged_the_even_ones_return() {
    let mut rig = Rig::new(RULES, 20_001, 100);
    assert_eq!(rig.offsets(ALICE, 100_000).len(), 20_001);
    for offset in (1..20_001).step_by(2) {
        assert!(rig.ack(ALICE, offset, offset + 1));
    }
    rig.flush();
    let bytes: usize = rig.table.iter().map(|(key, value)| key.0.len() + value.len()).sum();
    assert!(rig.table.len() == 2 && bytes < 10_000, "{} rows, {bytes} bytes", rig.table.len());
    rig.crash();
    assert_eq!(rig.state.backlog(rig.log.end), 10_001);
    let leased = rig.take(BOB, 100_000);
    assert!(leased.iter().all(|leased| leased.redelivered && leased.offsets.len() == 1));
    let offsets: Vec<u64> = leased.iter().map(|leased| leased.offsets.start.0).collect();
    assert_eq!(offsets, (0..20_001).step_by(2).collect::<Vec<_>>());
}

#[test]
fn only_the_chunks_that_changed_are_written() {
    let chunk = rows::CHUNK;
    let mut rig = Rig::new(RULES, chunk * 4, 1 << 15);
    for _ in 0..4 {
        rig.take(ALICE, 1 << 16);
        rig.flush();
    }
    assert!(rig.ack(ALICE, 1, chunk * 3));
    assert!(rig.ack(ALICE, chunk * 3 + 5, chunk * 3 + 6));
    rig.flush();
    assert_eq!(rig.table.len(), 5);
    assert!(rig.ack(ALICE, chunk * 3 + 9, chunk * 3 + 10));
    let flush = rig.state.flush(PLENTY, Moves::default(), rig.now);
    assert_eq!(flush.puts.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), [keys::chunk(&name(), 3)]);
    rig.apply(&flush);
    rig.state.flushed();
    // The floor passes three of them: their rows go.
    assert!(rig.ack(ALICE, 0, 1));
    rig.flush();
    assert_eq!(rig.table.len(), 2);
    rig.crash();
    assert_eq!(rig.state.floor(), Offset(chunk * 3));
    assert_eq!(rig.state.backlog(rig.log.end), chunk - 2);
}

#[test]
fn a_flush_in_parts_never_says_more_than_is_done() {
    let chunk = rows::CHUNK;
    let mut rig = Rig::new(RULES, chunk * 4, 1 << 15);
    for _ in 0..4 {
        rig.take(ALICE, 1 << 16);
        rig.flush();
    }
    rig.nack(ALICE, 1, "no").unwrap();
    for n in 0..4 {
        assert!(rig.ack(ALICE, chunk * n + 5, chunk * n + 9));
    }
    let mut flushes = 0;
    loop {
        let flush = rig.state.flush(1, Moves::default(), rig.now);
        rig.apply(&flush);
        rig.state.flushed();
        flushes += 1;
        assert_eq!(rig.reloaded().backlog(rig.log.end), chunk * 4 - 4 * flushes.min(4));
        if flush.complete {
            break;
        }
    }
    assert!(flushes >= 4);
    assert_eq!(rig.reloaded().whereabouts(Offset(1)), rig.state.whereabouts(Offset(1)));
}

#[test]
fn a_refused_flush_is_written_by_the_next_one() {
    let mut rig = Rig::new(RULES, 20, 10);
    rig.take(ALICE, 20);
    assert!(rig.ack(ALICE, 0, 2) && rig.ack(ALICE, 5, 9));
    rig.nack(ALICE, 3, "no").unwrap();
    assert!(rig.state.is_dirty());
    rig.state.flush(PLENTY, Moves::default(), rig.now);
    rig.state.refused();
    assert!(rig.state.is_dirty());
    rig.flush();
    assert!(!rig.state.is_dirty());
    let state = rig.reloaded();
    for offset in (0..20).map(Offset) {
        let (before, after) = (rig.state.whereabouts(offset), state.whereabouts(offset));
        let owed = matches!(before, Whereabouts::Leased { .. }) && after == Whereabouts::Untouched;
        assert!(owed || before == after, "{offset}: {before:?} became {after:?}");
    }
}

#[test]
fn attempts_due_times_and_reasons_survive() {
    let mut rig = Rig::new(RULES, 10, 10);
    rig.take(ALICE, 10);
    rig.refuse(ALICE, 4, &Refusal::Retry { delay: Some(Duration::from_secs(5)) }, "one").unwrap();
    rig.flush();
    rig.crash();
    assert_eq!(rig.offsets(ALICE, 20), [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    rig.pass(Duration::from_secs(5));
    assert_eq!(rig.take(ALICE, 20), [leased(4, 5, 2, true)]);
    // While it is leased again its failure stays written.
    rig.crash();
    let leased_again = rig.take(ALICE, 20);
    assert!(leased_again.contains(&leased(4, 5, 2, true)), "{leased_again:?}");
    rig.nack(ALICE, 4, "two").unwrap();
    rig.flush();
    rig.crash();
    rig.pass(Duration::from_secs(10));
    rig.take(ALICE, 20);
    rig.nack(ALICE, 4, "three").unwrap();
    rig.flush();
    rig.crash();
    assert_eq!(rig.state.whereabouts(Offset(4)), Whereabouts::Dying { attempts: 3 });
    rig.bury_all();
    let reasons: Vec<_> = rig.letters()[0].1.reasons.iter().map(|reason| reason.text.clone()).collect();
    assert_eq!(reasons, ["one", "two", "three"]);
    rig.crash();
    assert_eq!((rig.state.dead_letters(), rig.state.deaths().count()), (1, 0));
    assert_eq!(rig.state.whereabouts(Offset(4)), Whereabouts::Done);
}

#[test]
fn the_horizon_tells_what_may_have_been_delivered() {
    let mut rig = Rig::new(RULES, 100, 10);
    rig.take(ALICE, 10);
    rig.crash();
    assert!(rig.take(BOB, 100).iter().all(|leased| leased.redelivered));
    rig.log.end = Offset(200);
    assert!(rig.take(BOB, 100).iter().all(|leased| !leased.redelivered), "these came after the crash");
}

#[test]
fn after_an_orderly_shutdown_only_what_was_delivered_says_so() {
    let mut rig = Rig::new(RULES, 100, 10);
    rig.take(ALICE, 10);
    rig.state.seal();
    assert_eq!(rig.take(ALICE, 10), []);
    assert!(rig.state.is_dirty());
    rig.flush();
    assert!(!rig.state.is_dirty());
    rig.crash();
    rig.flush();
    assert_eq!(rig.take(BOB, 20), [leased(0, 10, 1, true), leased(10, 20, 1, false)]);
}

#[test]
fn an_acknowledgement_from_before_the_crash_is_taken() {
    let mut rig = Rig::new(RULES, 100, 10);
    rig.take(ALICE, 20);
    rig.crash();
    assert!(rig.ack(ALICE, 12, 15));
    assert_eq!(rig.offsets(BOB, 20), (0..12).chain(15..23).collect::<Vec<_>>());
    rig.log.end = Offset(150);
    assert!(!rig.ack(ALICE, 120, 121), "nobody can have got it");
}

#[test]
fn a_seek_survives_with_all_it_forgot() {
    let mut rig = Rig::new(RULES, 50, 10);
    rig.take(ALICE, 40);
    assert!(rig.ack(ALICE, 10, 30));
    rig.nack(ALICE, 35, "no").unwrap();
    rig.flush();
    rig.seek(20);
    rig.crash();
    assert_eq!((rig.state.floor(), rig.state.backlog(rig.log.end), rig.state.retrying()), (Offset(20), 30, 0));
    assert_eq!(rig.take(BOB, 10), [leased(20, 30, 1, true)]);
}

#[test]
fn redriven_messages_survive_until_they_are_done() {
    let mut rig = Rig::new(RULES, 4, 4);
    rig.take(ALICE, 4);
    rig.refuse(ALICE, 2, &Refusal::Reject, "bad").unwrap();
    rig.bury_all();
    rig.flush_with(Moves { redrive: vec![rig.redrive(2)], ..Moves::default() });
    rig.crash();
    assert_eq!(rig.state.wants(rig.now, rig.log.end), Want::Redriven(Offset(2)));
    rig.take(BOB, 4);
    rig.nack(BOB, 2, "again").unwrap();
    rig.flush();
    rig.crash();
    rig.pass(Duration::from_secs(5));
    assert!(rig.take(BOB, 4).contains(&leased(2, 3, 2, true)));
    assert!(rig.ack(BOB, 0, 4));
    rig.flush();
    rig.crash();
    assert_eq!(rig.state.backlog(rig.log.end), 0);
    // Besides the cursor and what is done above the floor nothing is left.
    let left = rig
        .table
        .keys()
        .filter(|key| !matches!(keys::parse(&name(), key), Some(StateKey::Cursor | StateKey::Chunk(_))));
    assert_eq!(left.count(), 0, "{:?}", rig.table);
}

#[test]
fn order_holds_across_a_crash() {
    let mut rig = Rig::new(Rules { ordered: true, ..RULES }, 6, 3);
    rig.keys = vec![Some(1), Some(1), Some(2), Some(1), Some(2), None];
    rig.take(ALICE, 10);
    assert!(rig.ack(ALICE, 0, 1));
    assert_eq!(rig.offsets(ALICE, 10), [1]);
    rig.nack(ALICE, 1, "no").unwrap();
    rig.flush();
    rig.crash();
    assert_eq!(rig.offsets(BOB, 10), [2, 5], "1 blocks 3 and 2 blocks 4");
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.offsets(BOB, 10), [1]);
}

#[test]
fn a_dying_message_keeps_its_place_before_a_redriven_one() {
    // Found by the model: after a restart the redriven message, lower in the log, became the current one of the key, and
    // with it done the next one of the log was delivered past the dying one.
    let mut rig = Rig::new(Rules { ordered: true, ..RULES }, 3, 3);
    rig.keys = vec![Some(1); 3];
    rig.take(ALICE, 3);
    rig.refuse(ALICE, 0, &Refusal::Reject, "bad").unwrap();
    rig.bury_all();
    assert_eq!(rig.offsets(ALICE, 3), [1]);
    rig.flush_with(Moves { redrive: vec![rig.redrive(0)], ..Moves::default() });
    rig.refuse(ALICE, 1, &Refusal::Reject, "bad").unwrap();
    rig.flush();
    rig.crash();
    assert_eq!(rig.offsets(BOB, 3), [], "all of them wait for the burial");
    rig.bury_all();
    assert_eq!(rig.offsets(BOB, 3), [0]);
    assert!(rig.ack(BOB, 0, 1));
    assert_eq!(rig.offsets(BOB, 3), [2]);
}

#[test]
fn a_log_that_lost_its_end_owes_the_new_messages_there() {
    let mut rig = Rig::new(RULES, 100, 10);
    rig.take(ALICE, 100);
    assert!(rig.ack(ALICE, 0, 50) && rig.ack(ALICE, 60, 100));
    rig.nack(ALICE, 55, "no").unwrap();
    rig.flush();
    rig.log.end = Offset(40);
    rig.crash();
    assert_eq!(rig.state.backlog(rig.log.end), 0);
    rig.flush();
    rig.log.end = Offset(80);
    rig.crash();
    assert_eq!(rig.offsets(BOB, 100), (40..80).collect::<Vec<_>>());
}

#[test]
fn what_went_below_the_start_while_the_broker_was_down_is_counted() {
    let mut rig = Rig::new(RULES, 100, 10);
    rig.take(ALICE, 20);
    assert!(rig.ack(ALICE, 0, 5) && rig.ack(ALICE, 10, 12));
    rig.nack(ALICE, 7, "no").unwrap();
    rig.flush();
    let mut loading = Loading::new(name(), RULES);
    rig.table.iter().for_each(|(key, value)| loading.row(key, value).unwrap());
    let mut state = loading.finish(range(30, 100)).unwrap();
    assert_eq!(state.trimmed(Offset(30)), 30 - 7);
    assert_eq!((state.floor(), state.retrying()), (Offset(30), 0));
}

#[test]
fn the_pause_survives() {
    let mut rig = Rig::new(RULES, 10, 10);
    rig.state.pause(true);
    rig.flush();
    rig.crash();
    assert!(rig.state.paused);
}

#[test]
fn a_group_without_its_cursor_or_with_an_unknown_row_does_not_load() {
    let loading = Loading::new(name(), RULES);
    assert_eq!(loading.finish(range(0, 1)).unwrap_err(), RowError::NoCursor(name()));
    let mut loading = Loading::new(name(), RULES);
    let error = loading.row(&keys::cursor(&name()), &Bytes::from_static(&[7])).unwrap_err();
    assert_eq!(error, RowError::Version { group: name(), row: "cursor", version: 7 });
    let other = keys::cursor(&GroupName::new("another").unwrap());
    assert!(matches!(loading.row(&other, &Bytes::new()), Err(RowError::Damaged { .. })));
}

#[test]
fn a_flush_in_parts_never_forgets_the_attempts_of_what_is_not_done() {
    let chunk = rows::CHUNK;
    let mut rig = Rig::new(RULES, chunk * 2, 1 << 15);
    rig.take(ALICE, 1 << 16);
    rig.flush();
    rig.take(ALICE, 1 << 16);
    rig.nack(ALICE, chunk + 1, "no").unwrap();
    rig.flush();
    // Acknowledged late; its chunk comes behind another one, for which alone there is room.
    assert!(rig.ack(ALICE, 5, 6) && rig.ack(ALICE, chunk + 1, chunk + 2));
    let flush = rig.state.flush(1, Moves::default(), rig.now);
    rig.apply(&flush);
    rig.state.flushed();
    let state = rig.reloaded();
    assert_eq!(state.whereabouts(Offset(5)), Whereabouts::Done);
    assert!(matches!(state.whereabouts(Offset(chunk + 1)), Whereabouts::Waiting { attempts: 1, .. }));
    rig.flush();
    assert_eq!(rig.reloaded().whereabouts(Offset(chunk + 1)), Whereabouts::Done);
}

#[test]
fn an_acknowledgement_from_before_the_crash_is_not_taken_after_a_seek() {
    let mut rig = Rig::new(RULES, 100, 10);
    rig.take(ALICE, 20);
    rig.crash();
    rig.seek(5);
    assert!(!rig.ack(ALICE, 12, 15));
    assert_eq!(rig.state.backlog(rig.log.end), 95);
}
