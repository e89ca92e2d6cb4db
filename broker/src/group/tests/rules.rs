//! The rules of delivery, one by one.

use super::*;

#[test]
fn a_batch_is_leased_whole_and_acknowledged_whole() {
    let mut rig = Rig::new(RULES, 200, 100);
    assert_eq!(rig.take(ALICE, 100), [leased(0, 100, 1, false)]);
    assert_eq!(rig.take(BOB, 100), [leased(100, 200, 1, false)]);
    assert_eq!((rig.state.in_flight(), rig.state.backlog(rig.log.end)), (200, 200));
    assert!(rig.ack(BOB, 100, 200));
    assert_eq!((rig.state.floor(), rig.state.backlog(rig.log.end)), (Offset(0), 100));
    assert!(rig.ack(ALICE, 0, 100));
    assert_eq!((rig.state.floor(), rig.state.in_flight()), (Offset(200), 0));
    assert_eq!(rig.state.oldest_owed(rig.log.end), None);
}

#[test]
fn credit_smaller_than_a_batch_takes_a_part_of_it() {
    let mut rig = Rig::new(RULES, 100, 100);
    assert_eq!(rig.take(ALICE, 10), [leased(0, 10, 1, false)]);
    assert_eq!(rig.take(BOB, 25), [leased(10, 35, 1, false)]);
    assert_eq!(rig.offsets(ALICE, 1_000).len(), 65);
}

#[test]
fn bytes_of_credit_are_overdrawn_by_one_message_at_most() {
    let mut rig = Rig::new(RULES, 100, 100);
    let batch = Batch { offsets: range(0, 100), bytes: 1_000, matching: None, keys: None };
    let mut out = Vec::new();
    // Ten bytes a message: 25 bytes are room for two and the one that overdraws.
    rig.state.offer(batch, ALICE, Credit { messages: 50, bytes: 25 }, rig.now, &mut out);
    assert_eq!(out, [leased(0, 3, 1, false)]);
    rig.state.offer(batch, ALICE, Credit { messages: 50, bytes: 0 }, rig.now, &mut out);
    assert_eq!(out.len(), 1);
}

#[test]
fn a_batch_that_is_not_wanted_leases_nothing() {
    let mut rig = Rig::new(RULES, 300, 100);
    let mut out = Vec::new();
    let credit = Credit { messages: 500, bytes: 1 << 20 };
    let later = Batch { offsets: range(100, 200), bytes: 1_000, matching: None, keys: None };
    rig.state.offer(later, ALICE, credit, rig.now, &mut out);
    assert_eq!(out, [], "the batch before it was not offered yet");
    rig.take(ALICE, 100);
    let earlier = Batch { offsets: range(0, 100), bytes: 1_000, matching: None, keys: None };
    rig.state.offer(earlier, BOB, credit, rig.now, &mut out);
    assert_eq!(out, [], "it is leased already");
}

#[test]
fn nothing_is_leased_beyond_the_durable_horizon() {
    let mut rig = Rig::new(RULES, HORIZON_STEP * 2, HORIZON_STEP / 2 + 7);
    let end = rig.log.end;
    assert_eq!(rig.offsets(ALICE, u32::MAX).len() as u64, HORIZON_STEP);
    assert_eq!(rig.state.wants(rig.now, end), Want::Nothing);
    assert!(rig.state.must_flush(end));
    let flush = rig.state.flush(PLENTY, Moves::default(), rig.now);
    rig.state.flushed();
    assert!(!rig.state.must_flush(end), "it is on its way");
    assert_eq!(rig.state.wants(rig.now, end), Want::Nothing, "and not durable yet");
    rig.state.horizon_durable(flush.horizon);
    assert_eq!(rig.state.wants(rig.now, end), Want::Log(Offset(HORIZON_STEP)));
    assert_eq!(rig.offsets(ALICE, u32::MAX).len() as u64, HORIZON_STEP);
}

#[test]
fn no_more_is_in_flight_than_the_bound() {
    let mut rig = Rig::new(RULES, IN_FLIGHT_MAX * 2, 50_000);
    loop {
        rig.flush();
        if rig.take(ALICE, u32::MAX).is_empty() {
            break;
        }
    }
    assert_eq!(rig.state.in_flight(), IN_FLIGHT_MAX);
    assert!(rig.ack(ALICE, 5, 10));
    rig.flush();
    assert_eq!(rig.offsets(BOB, u32::MAX).len(), 5);
}

#[test]
fn what_the_filter_excludes_is_done_as_the_cursor_passes_it() {
    let mut rig = Rig::new(RULES, 12, 6);
    rig.matching = vec![false, true, true, false, true, false, false, false, false, false, true, false];
    assert_eq!(rig.offsets(ALICE, 2), [1, 2]);
    assert_eq!(rig.state.floor(), Offset(1));
    assert_eq!(rig.offsets(ALICE, 10), [4, 10]);
    assert!(rig.ack(ALICE, 1, 3) && rig.ack(ALICE, 4, 5) && rig.ack(ALICE, 10, 11));
    assert_eq!(rig.state.floor(), Offset(12));
}

#[test]
fn a_message_of_another_consumer_or_done_with_is_lease_lost() {
    let mut rig = Rig::new(RULES, 30, 10);
    rig.take(ALICE, 10);
    rig.take(BOB, 10);
    let mut lost = Vec::new();
    assert_eq!(rig.state.ack(ALICE, range(5, 25), &mut lost), 5);
    assert_eq!(lost, [range(10, 25)], "Bob's, and what nobody got yet");
    assert!(!rig.ack(ALICE, 5, 10), "done with");
    assert_eq!(rig.nack(ALICE, 12, "mine?"), Err(LeaseLost));
    assert_eq!(rig.nack(ALICE, 5, "done"), Err(LeaseLost));
    assert_eq!(rig.state.in_flight(), 15);
}

#[test]
fn unacked_message_returns_after_its_lease() {
    let mut rig = Rig::new(RULES, 10, 10);
    rig.take(ALICE, 10);
    assert!(rig.ack(ALICE, 0, 7));
    let deadline = rig.state.next_deadline().unwrap();
    assert_eq!(deadline, rig.now.monotonic.after(RULES.lease));
    rig.pass(RULES.lease - Duration::from_millis(1));
    assert_eq!(rig.state.expire(rig.now), 0);
    rig.pass(Duration::from_millis(1));
    assert_eq!(rig.state.expire(rig.now), 3);
    assert_eq!(rig.state.next_deadline(), None);
    assert_eq!(rig.take(BOB, 10), [leased(7, 10, 2, true)]);
}

#[test]
fn an_acknowledgement_after_the_lease_counts_unless_another_holds_the_message() {
    let mut rig = Rig::new(RULES, 2, 2);
    rig.take(ALICE, 2);
    rig.pass(RULES.lease);
    rig.state.expire(rig.now);
    assert!(rig.ack(ALICE, 0, 1));
    assert_eq!(rig.offsets(BOB, 5), [1]);
    assert!(!rig.ack(ALICE, 1, 2));
    assert!(rig.ack(BOB, 1, 2));
    assert_eq!(rig.state.floor(), Offset(2));
}

#[test]
fn an_extended_lease_runs_on() {
    let mut rig = Rig::new(RULES, 10, 10);
    rig.take(ALICE, 10);
    let until = rig.now.monotonic.after(Duration::from_secs(90));
    let mut lost = Vec::new();
    rig.state.extend(ALICE, range(2, 4), until, &mut lost);
    assert_eq!(lost, []);
    rig.state.extend(BOB, range(4, 6), until, &mut lost);
    assert_eq!(lost, [range(4, 6)]);
    rig.pass(RULES.lease);
    assert_eq!(rig.state.expire(rig.now), 8);
    assert_eq!(rig.state.next_deadline(), Some(until));
    assert!(rig.ack(ALICE, 2, 4));
}

#[test]
fn what_a_consumer_held_returns_at_once_when_it_is_gone() {
    let mut rig = Rig::new(RULES, 20, 10);
    rig.take(ALICE, 10);
    rig.take(BOB, 5);
    assert!(rig.ack(ALICE, 3, 5));
    assert_eq!(rig.state.remove_consumer(ALICE, "its connection closed", rig.now), 8);
    assert_eq!(rig.take(BOB, 8), [leased(0, 3, 2, true), leased(5, 10, 2, true)]);
    assert_eq!(rig.state.remove_consumer(ALICE, "again", rig.now), 0);
}

#[test]
fn what_is_released_returns_at_once_and_the_attempt_does_not_count() {
    let mut rig = Rig::new(RULES, 10, 10);
    rig.take(ALICE, 10);
    rig.refuse(ALICE, 4, &Refusal::Release, "").unwrap();
    assert_eq!(rig.take(BOB, 1), [leased(4, 5, 1, false)]);
    assert_eq!(rig.state.release_consumer(ALICE), 9);
    assert_eq!(rig.take(BOB, 20), [leased(0, 4, 1, true), leased(5, 10, 1, true)]);
    assert_eq!(rig.state.retrying(), 0);
}

#[test]
fn a_refused_message_waits_longer_each_time_up_to_the_longest_delay() {
    let rules = Rules { max_attempts: 100, ..RULES };
    let mut rig = Rig::new(rules, 1, 1);
    for (attempt, seconds) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (6, 10)] {
        assert_eq!(rig.take(ALICE, 5), [leased(0, 1, attempt, attempt > 1)]);
        rig.nack(ALICE, 0, "no").unwrap();
        let delay = rig.state.next_due().unwrap().since(rig.now.wall);
        let full = Duration::from_secs(seconds);
        assert!(delay <= full && delay >= full * 8 / 10, "{delay:?} after attempt {attempt}");
        rig.pass(delay - Duration::from_micros(1));
        assert_eq!(rig.take(ALICE, 5), []);
        assert_eq!(rig.state.retrying(), 1);
        rig.pass(Duration::from_micros(1));
    }
}

#[test]
fn an_explicit_delay_wins() {
    let mut rig = Rig::new(RULES, 1, 1);
    rig.take(ALICE, 1);
    let delay = Duration::from_secs(3_600);
    rig.refuse(ALICE, 0, &Refusal::Retry { delay: Some(delay) }, "later").unwrap();
    assert_eq!(rig.state.next_due(), Some(rig.now.wall.after(delay)));
    rig.pass(delay);
    rig.take(ALICE, 1);
    rig.refuse(ALICE, 0, &Refusal::Retry { delay: Some(Duration::ZERO) }, "now").unwrap();
    assert_eq!(rig.take(ALICE, 1), [leased(0, 1, 3, true)]);
}

#[test]
fn what_is_due_comes_before_what_is_new() {
    let mut rig = Rig::new(RULES, 20, 10);
    rig.take(ALICE, 5);
    rig.nack(ALICE, 3, "no").unwrap();
    rig.nack(ALICE, 1, "no").unwrap();
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.take(ALICE, 3), [leased(1, 2, 2, true), leased(3, 4, 2, true), leased(5, 6, 1, false)]);
}

#[test]
fn when_too_much_is_retrying_new_messages_wait_in_the_log() {
    let mut rig = Rig::new(Rules { retrying_max: 10, max_attempts: 100, ..RULES }, 100, 10);
    rig.take(ALICE, 20);
    for offset in 0..12 {
        rig.nack(ALICE, offset, "no").unwrap();
    }
    assert_eq!(rig.take(ALICE, 100), []);
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.offsets(BOB, 100), (0..12).collect::<Vec<_>>(), "those that are due, and no new ones");
    assert!(rig.ack(BOB, 0, 3));
    assert_eq!(rig.offsets(BOB, 5), (20..25).collect::<Vec<_>>());
}

#[test]
fn a_group_that_fails_faster_than_its_failures_are_written_waits_for_a_flush() {
    let rules = Rules { max_attempts: u32::MAX, retrying_max: 1_000_000, ..RULES };
    let mut rig = Rig::new(rules, UNFLUSHED_FAILURES_MAX as u64 + 10, 1 << 15);
    let end = rig.log.end;
    rig.take(ALICE, u32::MAX);
    rig.state.remove_consumer(ALICE, "gone", rig.now);
    assert_eq!(rig.state.wants(rig.now, end), Want::Nothing);
    assert!(rig.state.must_flush(end));
    let flush = rig.state.flush(1_000, Moves::default(), rig.now);
    assert!(!flush.complete && flush.puts.len() > 5 && flush.puts.len() < 100);
    rig.state.flushed();
    assert_eq!(rig.state.wants(rig.now, end), Want::Due(Offset(0)));
}

#[test]
fn a_message_is_dead_after_its_last_attempt_and_buried_exactly_once() {
    let mut rig = Rig::new(RULES, 3, 3);
    for attempt in 1..=3 {
        assert!(rig.offsets(ALICE, 5).contains(&1));
        rig.nack(ALICE, 1, &format!("no {attempt}")).unwrap();
        rig.flush();
        rig.pass(Duration::from_secs(10));
    }
    let deaths: Vec<Death> = rig.state.deaths().collect();
    assert_eq!(deaths.len(), 1);
    assert_eq!((deaths[0].offset, deaths[0].attempts, deaths[0].redriven), (Offset(1), 3, false));
    // Until it is buried it is neither delivered nor done.
    rig.pass(Duration::from_secs(10_000));
    assert_eq!(rig.offsets(BOB, 5), []);
    assert!(!rig.ack(ALICE, 1, 2));
    assert!(rig.ack(ALICE, 0, 1));
    assert_eq!(rig.state.floor(), Offset(1));
    rig.bury_all();
    assert_eq!((rig.state.deaths().count(), rig.state.dead_letters(), rig.state.floor()), (0, 1, Offset(2)));
    let letters = rig.letters();
    assert_eq!(letters.len(), 1);
    let reasons: Vec<_> = letters[0].1.reasons.iter().map(|r| (r.attempt, r.text.as_str())).collect();
    assert_eq!(reasons, [(1, "no 1"), (2, "no 2"), (3, "no 3")]);
    assert_eq!(rig.table.keys().filter(|key| failures_range(&name(), Offset(1)).contains(key)).count(), 0);
}

#[test]
fn lease_expiry_and_the_death_of_consumers_count_as_attempts() {
    let mut rig = Rig::new(RULES, 1, 1);
    rig.take(ALICE, 1);
    rig.pass(RULES.lease);
    rig.state.expire(rig.now);
    rig.take(ALICE, 1);
    rig.state.remove_consumer(ALICE, "its connection closed", rig.now);
    rig.take(BOB, 1);
    rig.nack(BOB, 0, "no").unwrap();
    let death = rig.state.deaths().next().unwrap();
    let reasons: Vec<_> = rig.burial(death).letter.reasons.into_iter().map(|reason| reason.text).collect();
    assert_eq!(reasons, ["the lease ran out", "its connection closed", "no"]);
}

#[test]
fn a_rejected_message_is_dead_at_once() {
    let mut rig = Rig::new(RULES, 2, 2);
    rig.take(ALICE, 2);
    rig.refuse(ALICE, 0, &Refusal::Reject, "malformed").unwrap();
    assert_eq!(rig.state.whereabouts(Offset(0)), Whereabouts::Dying { attempts: 1 });
    rig.bury_all();
    assert_eq!(rig.letters()[0].1.reasons[0].text, "malformed");
    assert_eq!(rig.state.floor(), Offset(1));
}

#[test]
fn a_refused_burial_leaves_the_message_dying() {
    let mut rig = Rig::new(RULES, 2, 2);
    rig.take(ALICE, 2);
    rig.refuse(ALICE, 0, &Refusal::Reject, "malformed").unwrap();
    let death = rig.state.deaths().next().unwrap();
    let moves = Moves { bury: vec![rig.burial(death)], ..Moves::default() };
    rig.state.flush(PLENTY, moves, rig.now);
    rig.state.refused();
    assert_eq!((rig.state.deaths().count(), rig.state.floor(), rig.state.dead_letters()), (1, Offset(0), 0));
    assert_eq!(rig.burial(death).letter.reasons.len(), 1, "its reason is still known");
    rig.bury_all();
    assert_eq!((rig.letters().len(), rig.state.floor()), (1, Offset(1)));
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let mut rig = Rig::new(RULES, 1, 1);
    rig.take(ALICE, 1);
    rig.refuse(ALICE, 0, &Refusal::Reject, &"ä".repeat(1_000)).unwrap();
    let death = rig.state.deaths().next().unwrap();
    assert_eq!(rig.burial(death).letter.reasons[0].text, "ä".repeat(REASON_BYTES_MAX / 2));
}

#[test]
fn only_the_latest_reasons_are_kept() {
    let mut rig = Rig::new(Rules { max_attempts: 50, ..RULES }, 1, 1);
    for _ in 0..50 {
        rig.take(ALICE, 1);
        rig.refuse(ALICE, 0, &Refusal::Retry { delay: Some(Duration::ZERO) }, "no").unwrap();
        rig.flush();
    }
    let death = rig.state.deaths().next().unwrap();
    let attempts: Vec<u32> = rig.burial(death).letter.reasons.iter().map(|reason| reason.attempt).collect();
    assert_eq!(attempts, (50 - REASONS_MAX + 1..=50).collect::<Vec<_>>());
}

#[test]
fn a_redriven_letter_comes_back_with_attempts_of_its_own_and_may_die_again() {
    let mut rig = Rig::new(Rules { max_attempts: 1, ..RULES }, 3, 3);
    rig.take(ALICE, 3);
    rig.nack(ALICE, 1, "first life").unwrap();
    rig.bury_all();
    assert!(rig.ack(ALICE, 0, 1) && rig.ack(ALICE, 2, 3));
    rig.log.start = Offset(3);
    rig.state.trimmed(Offset(3));
    rig.flush_with(Moves { redrive: vec![rig.redrive(1)], ..Moves::default() });
    assert_eq!((rig.letters().len(), rig.state.dead_letters(), rig.state.backlog(rig.log.end)), (0, 0, 1));
    assert_eq!(rig.state.wants(rig.now, rig.log.end), Want::Redriven(Offset(1)));
    assert_eq!(rig.take(BOB, 5), [leased(1, 2, 1, true)]);
    rig.nack(BOB, 1, "second life").unwrap();
    rig.bury_all();
    let letters = rig.letters();
    let reasons: Vec<_> = letters[0].1.reasons.iter().map(|reason| reason.text.as_str()).collect();
    assert_eq!((letters.len(), rig.state.dead_letters()), (1, 1));
    assert_eq!(reasons, ["first life", "second life"]);
    // And again, to be acknowledged this time.
    rig.flush_with(Moves { redrive: vec![rig.redrive(1)], ..Moves::default() });
    rig.take(BOB, 5);
    assert!(rig.ack(BOB, 1, 2));
    rig.flush();
    assert_eq!((rig.table.len(), rig.state.backlog(rig.log.end)), (1, 0), "only the cursor is left: {:?}", rig.table);
}

#[test]
fn purged_letters_are_gone() {
    let mut rig = Rig::new(RULES, 2, 2);
    rig.take(ALICE, 2);
    rig.refuse(ALICE, 0, &Refusal::Reject, "").unwrap();
    rig.bury_all();
    rig.refuse(ALICE, 1, &Refusal::Reject, "").unwrap();
    let death = rig.state.deaths().next().unwrap();
    let purge = crate::group::Purge { range: crate::group::dead_letters_range(&name()), letters: 1 };
    rig.flush_with(Moves { bury: vec![rig.burial(death)], purge: Some(purge), ..Moves::default() });
    let letters: Vec<u64> = rig.letters().into_iter().map(|(offset, _)| offset).collect();
    assert_eq!((letters, rig.state.dead_letters()), (vec![1], 1), "what is buried meanwhile stays");
}

fn ordered(keys: &[u64]) -> Rig {
    let mut rig = Rig::new(Rules { ordered: true, ..RULES }, keys.len() as u64, 4);
    rig.keys = keys.iter().map(|key| (*key > 0).then_some(*key)).collect();
    rig
}

#[test]
fn messages_of_one_key_come_one_at_a_time_in_order() {
    let mut rig = ordered(&[1, 1, 2, 1, 0, 0, 2]);
    assert_eq!(rig.offsets(ALICE, 10), [0, 2, 4, 5]);
    assert_eq!(rig.state.whereabouts(Offset(1)), Whereabouts::Held);
    assert_eq!(rig.offsets(BOB, 10), []);
    assert!(rig.ack(ALICE, 0, 1));
    assert_eq!(rig.take(BOB, 10), [leased(1, 2, 1, false)]);
    assert!(rig.ack(ALICE, 2, 3));
    assert_eq!(rig.offsets(ALICE, 10), [6]);
    assert!(rig.ack(BOB, 1, 2));
    assert_eq!(rig.offsets(ALICE, 10), [3]);
    assert!(rig.ack(ALICE, 3, 7));
    assert_eq!(rig.state.floor(), Offset(7));
}

#[test]
fn a_retrying_message_blocks_its_key_and_no_other() {
    let mut rig = ordered(&[1, 1, 2, 2]);
    rig.take(ALICE, 10);
    rig.nack(ALICE, 0, "no").unwrap();
    assert!(rig.ack(ALICE, 2, 3));
    assert_eq!(rig.offsets(ALICE, 10), [3]);
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.offsets(ALICE, 10), [0]);
    assert!(rig.ack(ALICE, 0, 1));
    assert_eq!(rig.offsets(ALICE, 10), [1]);
}

#[test]
fn a_dead_letter_unblocks_its_key() {
    let mut rig = ordered(&[1, 1]);
    rig.take(ALICE, 10);
    rig.refuse(ALICE, 0, &Refusal::Reject, "bad").unwrap();
    assert_eq!(rig.offsets(ALICE, 10), [], "not before it is buried");
    rig.bury_all();
    assert_eq!(rig.offsets(ALICE, 10), [1]);
}

#[test]
fn what_is_held_for_its_key_is_bounded_too() {
    let mut rig = ordered(&[1; 100]);
    rig.state.set_rules(Rules { ordered: true, retrying_max: 10, ..RULES });
    assert_eq!(rig.offsets(ALICE, 100), [0]);
    assert_eq!(rig.state.next, 11);
    for offset in 0..100 {
        assert!(rig.ack(ALICE, offset, offset + 1));
        assert_eq!(rig.offsets(ALICE, 100), (offset + 1..100).take(1).collect::<Vec<_>>());
    }
}

#[test]
fn a_group_that_is_no_longer_ordered_frees_what_was_held() {
    let mut rig = ordered(&[1, 1, 1]);
    rig.take(ALICE, 10);
    rig.state.set_rules(RULES);
    assert_eq!(rig.offsets(BOB, 10), [1, 2]);
}

#[test]
fn after_seeking_back_everything_is_delivered_again_and_says_so() {
    let mut rig = Rig::new(RULES, 30, 10);
    rig.take(ALICE, 20);
    assert!(rig.ack(ALICE, 0, 12));
    rig.nack(ALICE, 15, "no").unwrap();
    rig.seek(5);
    assert_eq!((rig.state.floor(), rig.state.in_flight(), rig.state.retrying()), (Offset(5), 0, 0));
    assert!(!rig.ack(ALICE, 12, 13), "its lease was taken back");
    assert_eq!(rig.take(BOB, 100), [leased(5, 10, 1, true), leased(10, 20, 1, true), leased(20, 30, 1, false),]);
    assert!(!rig.ack(ALICE, 12, 13));
}

#[test]
fn nothing_is_leased_before_a_seek_is_durable() {
    let mut rig = Rig::new(RULES, 30, 10);
    rig.take(ALICE, 20);
    let earlier = rig.state.flush(PLENTY, Moves::default(), rig.now);
    rig.state.flushed();
    rig.state.seek(Offset(5), rig.log);
    rig.state.horizon_durable(earlier.horizon);
    assert!(rig.state.must_flush(rig.log.end));
    assert_eq!(rig.take(BOB, 10), []);
    rig.flush();
    assert_eq!(rig.take(BOB, 5), [leased(5, 10, 1, true)]);
}

#[test]
fn after_seeking_ahead_what_lay_between_is_done() {
    let mut rig = Rig::new(RULES, 30, 10);
    rig.take(ALICE, 5);
    rig.nack(ALICE, 2, "no").unwrap();
    rig.seek(1_000);
    assert_eq!((rig.state.floor(), rig.state.backlog(rig.log.end)), (Offset(30), 0));
    rig.pass(Duration::from_secs(60));
    assert_eq!(rig.offsets(ALICE, 10), []);
    rig.log.start = Offset(10);
    rig.seek(0);
    assert_eq!(rig.state.floor(), Offset(10));
    assert_eq!(rig.take(BOB, 5), [leased(10, 15, 1, false)], "it was skipped, not delivered");
}

#[test]
fn seeking_back_over_a_redriven_message_leaves_one_of_it() {
    let mut rig = Rig::new(RULES, 4, 4);
    rig.take(ALICE, 4);
    for offset in [0, 3] {
        rig.refuse(ALICE, offset, &Refusal::Reject, "bad").unwrap();
    }
    rig.bury_all();
    rig.flush_with(Moves { redrive: vec![rig.redrive(0), rig.redrive(3)], ..Moves::default() });
    assert_eq!(rig.offsets(BOB, 4), [0, 3]);
    rig.seek(2);
    assert!(rig.ack(BOB, 0, 1), "the one below stays as it was");
    assert!(!rig.ack(BOB, 3, 4), "the log owes it again");
    assert_eq!(rig.offsets(ALICE, 10), [2, 3]);
    assert_eq!(rig.state.backlog(rig.log.end), 2);
}

#[test]
fn a_letter_that_the_log_owes_again_is_only_taken_away_by_a_redrive() {
    let mut rig = Rig::new(RULES, 2, 2);
    rig.take(ALICE, 2);
    rig.refuse(ALICE, 0, &Refusal::Reject, "bad").unwrap();
    rig.bury_all();
    rig.seek(0);
    rig.flush_with(Moves { redrive: vec![rig.redrive(0)], ..Moves::default() });
    assert_eq!((rig.letters().len(), rig.state.dead_letters(), rig.state.backlog(rig.log.end)), (0, 0, 2));
    assert_eq!(rig.offsets(BOB, 10), [0, 1]);
}

#[test]
fn a_message_that_dies_again_after_a_seek_has_one_letter() {
    let mut rig = Rig::new(RULES, 1, 1);
    for _ in 0..2 {
        rig.take(ALICE, 1);
        rig.refuse(ALICE, 0, &Refusal::Reject, "bad").unwrap();
        rig.bury_all();
        assert_eq!((rig.letters().len(), rig.state.dead_letters()), (1, 1));
        assert_eq!(rig.letters()[0].1.reasons.len(), 1);
        rig.seek(0);
    }
}

#[test]
fn a_paused_group_is_offered_nothing_and_may_settle() {
    let mut rig = Rig::new(RULES, 10, 10);
    rig.take(ALICE, 2);
    rig.state.pause(true);
    assert_eq!(rig.take(ALICE, 2), []);
    assert!(rig.ack(ALICE, 0, 2));
    rig.state.pause(false);
    assert_eq!(rig.offsets(ALICE, 2), [2, 3]);
}

#[test]
fn trimming_counts_what_was_owed_and_lets_go_of_it() {
    let mut rig = Rig::new(RULES, 100, 10);
    rig.take(ALICE, 20);
    assert!(rig.ack(ALICE, 5, 10));
    rig.nack(ALICE, 3, "no").unwrap();
    rig.refuse(ALICE, 4, &Refusal::Reject, "bad").unwrap();
    rig.log.start = Offset(15);
    assert_eq!(rig.state.trimmed(Offset(15)), 10);
    assert_eq!(rig.state.trimmed(Offset(15)), 0);
    assert_eq!((rig.state.floor(), rig.state.in_flight(), rig.state.deaths().count()), (Offset(15), 5, 0));
    assert!(!rig.ack(ALICE, 12, 13));
    assert!(rig.ack(ALICE, 15, 20));
    // Beyond the cursor too.
    assert_eq!(rig.state.trimmed(Offset(50)), 30);
    assert_eq!(rig.state.wants(rig.now, rig.log.end), Want::Log(Offset(50)));
}

#[test]
fn whereabouts_are_known() {
    let mut rig = Rig::new(RULES, 10, 10);
    rig.take(ALICE, 5);
    rig.ack(ALICE, 0, 1);
    rig.refuse(ALICE, 1, &Refusal::Retry { delay: Some(Duration::from_secs(9)) }, "no").unwrap();
    let due = rig.now.wall.after(Duration::from_secs(9));
    let until = rig.now.monotonic.after(RULES.lease);
    for (offset, whereabouts) in [
        (0, Whereabouts::Done),
        (1, Whereabouts::Waiting { due, attempts: 1 }),
        (2, Whereabouts::Leased { consumer: ALICE, until, attempt: 1 }),
        (5, Whereabouts::Untouched),
    ] {
        assert_eq!(rig.state.whereabouts(Offset(offset)), whereabouts);
    }
}
