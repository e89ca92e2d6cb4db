//! Dead letters: how messages get there, with what reasons, and how they come back.

use std::time::Duration;

use stentor_core::transport::CloseCode;
use stentor_protocol::wire::{self, request, response};

use crate::support::{Rig, TOPIC, config, record, subscribe};

#[tokio::test]
async fn after_its_last_attempt_a_message_is_a_dead_letter_once_with_every_reason() {
    let rig =
        Rig::start(config(&[], &[("max_attempts", "3"), ("retry_delay", "1s"), ("retry_delay_max", "10s")])).await;
    let peer = rig.connect().await;
    peer.producer(TOPIC, 1, 0).await.unwrap().publish(&["good", "bad"]).await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(100).await;
    let got = consumer.take_many(2).await;
    consumer.ack(&got[..1]).await;
    consumer.nack(&got[1], "reason 1", Some(0)).await;
    for attempt in 2..=3 {
        let again = consumer.next().await;
        assert_eq!((again.body(), again.attempt), ("bad", attempt));
        consumer.nack(&again, &format!("reason {attempt}"), Some(0)).await;
    }
    rig.until("it is buried", "group", |group| group.dead_letters == 1).await;
    let group = rig.group("group").await;
    assert_eq!((group.backlog, group.retrying, group.in_flight), (0, 0, 0));
    let letters = rig.letters("group").await;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].offset, letters[0].attempts), (1, 3));
    let reasons: Vec<_> = letters[0].reasons.iter().map(|r| (r.attempt, r.reason.as_str())).collect();
    assert_eq!(reasons, [(1, "reason 1"), (2, "reason 2"), (3, "reason 3")]);
    let story = story(&rig, 1).await;
    assert_eq!((story.groups[0].state.as_str(), story.groups[0].attempts), ("dead-lettered", 3));
}

#[tokio::test]
async fn a_rejected_message_is_a_dead_letter_at_once() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    peer.producer(TOPIC, 1, 0).await.unwrap().publish(&["poison"]).await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(100).await;
    let got = consumer.next().await;
    consumer.refuse(&got, "cannot be parsed", None, wire::NackKind::Reject).await;
    rig.until("it is buried", "group", |group| group.dead_letters == 1).await;
    assert_eq!(rig.letters("group").await[0].reasons[0].reason, "cannot be parsed");
}

#[tokio::test]
async fn a_message_whose_consumers_die_is_a_dead_letter_exactly_once_and_a_redrive_brings_it_back() {
    let rig = Rig::start(config(&[], &[("max_attempts", "4")])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    producer.publish(&["killer"]).await;
    for attempt in 1..=4 {
        let victim = rig.connect().await;
        let mut consumer = victim.subscribe(subscribe("group")).await.unwrap();
        consumer.grant(10).await;
        assert_eq!(consumer.next().await.attempt, attempt);
        victim.connection.close(CloseCode::NORMAL, "");
        rig.until("the consumer is gone", "group", |group| group.consumers == 0 && group.in_flight == 0).await;
    }
    rig.until("it is buried", "group", |group| group.dead_letters == 1).await;
    let letters = rig.letters("group").await;
    assert_eq!((letters.len(), letters[0].attempts, letters[0].reasons.len()), (1, 4, 4));
    assert!(letters[0].reasons.iter().all(|reason| reason.reason.contains("connection was lost")));

    // Another group never notices: redriven messages go back to their group alone.
    let mut other = peer.subscribe(subscribe("other")).await.unwrap();
    other.grant(10).await;
    let got = other.next().await;
    other.ack(&[got]).await;

    assert_eq!(rig.redrive("group").await, 1);
    let group = rig.group("group").await;
    assert_eq!((group.dead_letters, group.backlog), (0, 1));
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(10).await;
    let back = consumer.next().await;
    assert_eq!((back.body(), back.offset, back.attempt), ("killer", 0, 1));
    assert!(back.redelivered);
    assert_eq!(rig.group("other").await.backlog, 0);
    consumer.ack_durable(&[back]).await;
    assert_eq!(rig.group("group").await.backlog, 0);
    assert_eq!(rig.letters("group").await, []);
}

#[tokio::test]
async fn a_redriven_message_that_fails_again_keeps_its_earlier_reasons() {
    let rig = Rig::start(config(&[], &[("max_attempts", "1")])).await;
    let peer = rig.connect().await;
    peer.producer(TOPIC, 1, 0).await.unwrap().publish(&["bad"]).await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(10).await;
    for life in 1..=3 {
        let got = consumer.next().await;
        consumer.nack(&got, &format!("life {life}"), None).await;
        rig.until("it is buried", "group", |group| group.dead_letters == 1).await;
        let reasons: Vec<_> = rig.letters("group").await[0].reasons.iter().map(|r| r.reason.clone()).collect();
        assert_eq!(reasons.len(), life);
        assert_eq!(reasons[life - 1], format!("life {life}"));
        assert_eq!(rig.redrive("group").await, 1);
    }
}

#[tokio::test]
async fn dead_letters_survive_a_restart_and_the_trimming_of_their_log() {
    let rig = Rig::start(config(&[("retain_for", "1s")], &[("max_attempts", "1")])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    producer.publish_numbers(0..600, 7).await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(1_000).await;
    for got in consumer.take_many(600).await {
        consumer.nack(&got, "no", None).await;
    }
    rig.until("all are buried", "group", |group| group.dead_letters == 600).await;
    for _ in 0..10 {
        rig.clock.advance(Duration::from_secs(5));
        rig.group("group").await;
    }
    assert_eq!(rig.topic().await.partitions[0].start, 600, "nobody owes the log anything");
    let rig = rig.restart().await;
    assert_eq!(rig.group("group").await.dead_letters, 600);
    let mut redriven = 0;
    let mut after = Default::default();
    loop {
        let redrive =
            wire::Redrive { topic: TOPIC.into(), group: "group".into(), limit: 100, after, ..Default::default() };
        let (response::Kind::Count(count), _) = rig.ask(request::Kind::Redrive(redrive)).await.unwrap() else {
            panic!("not a count")
        };
        redriven += count.messages;
        after = count.next;
        if !count.more {
            break;
        }
    }
    assert_eq!(redriven, 600);
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(1_000).await;
    let mut numbers: Vec<_> = consumer.take_many(600).await.iter().map(|got| got.number()).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..600));
}

#[tokio::test]
async fn letters_are_listed_page_by_page_counted_without_moving_and_purged() {
    let rig = Rig::start(config(&[("partitions", "2")], &[("max_attempts", "1")])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    for number in 0..20_u32 {
        let mut tagged = record(number.to_string());
        tagged.tag = Some(if number < 8 { "early" } else { "late" }.into());
        producer.publish_records(number % 2, &[tagged]).await;
    }
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(100).await;
    for got in consumer.take_many(20).await {
        consumer.nack(&got, "no", None).await;
    }
    rig.until("all are buried", "group", |group| group.dead_letters == 20).await;
    let mut listed = Vec::new();
    let mut after = Default::default();
    loop {
        let list = wire::ListDeadLetters { topic: TOPIC.into(), group: "group".into(), after, limit: 3, only: None };
        let (response::Kind::DeadLetters(page), _) = rig.ask(request::Kind::ListDeadLetters(list)).await.unwrap()
        else {
            panic!("no letters")
        };
        assert!(page.letters.len() <= 3);
        listed.extend(page.letters.iter().map(|letter| (letter.partition, letter.offset)));
        after = page.next;
        if after.is_empty() {
            break;
        }
    }
    assert_eq!(listed, (0..2).flat_map(|p| (0..10).map(move |o| (p, o))).collect::<Vec<_>>());

    let redrive = |dry_run| wire::Redrive {
        topic: TOPIC.into(),
        group: "group".into(),
        filter: "tag = 'early'".into(),
        dry_run,
        ..Default::default()
    };
    for (dry_run, left) in [(true, 20), (false, 12)] {
        let (response::Kind::Count(count), _) = rig.ask(request::Kind::Redrive(redrive(dry_run))).await.unwrap() else {
            panic!("not a count")
        };
        assert_eq!((count.messages, rig.group("group").await.dead_letters), (8, left));
    }
    let purge = wire::PurgeDeadLetters { topic: TOPIC.into(), group: "group".into() };
    let (response::Kind::Count(count), _) = rig.ask(request::Kind::PurgeDeadLetters(purge)).await.unwrap() else {
        panic!("not a count")
    };
    assert_eq!(count.messages, 12);
    assert_eq!(rig.letters("group").await, []);
}

async fn story(rig: &Rig, offset: u64) -> wire::MessageStory {
    let which = Some(wire::show_message::Which::Offset(wire::PartitionOffset { partition: 0, offset }));
    match rig.ask(request::Kind::ShowMessage(wire::ShowMessage { topic: TOPIC.into(), which })).await.unwrap() {
        (response::Kind::Message(story), _) => story,
        other => panic!("{other:?}"),
    }
}
