//! Groups: filters, where they begin, seeking, pausing, deleting.

use std::time::Duration;

use stentor_protocol::ErrorCode;
use stentor_protocol::wire::start_at::At;
use stentor_protocol::wire::{self, request};

use crate::support::{Got, Rig, TOPIC, config, earliest, record, subscribe};

#[tokio::test]
async fn a_filtered_group_gets_what_its_filter_lets_through_and_owes_nothing_else() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let wanted = wire::Subscribe { filter: Some("tag = 'paid'".into()), ..subscribe("filtered") };
    let mut consumer = peer.subscribe(wanted).await.unwrap();
    assert_eq!(consumer.subscribed.filter, "tag = 'paid'");
    consumer.grant(100).await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let records: Vec<_> = (0..30)
        .map(|number| {
            let mut record = record(number.to_string());
            record.tag = (number % 3 > 0).then(|| if number % 3 == 1 { "paid" } else { "open" }.into());
            record
        })
        .collect();
    producer.publish_records(0, &records).await;
    let got = consumer.take_many(10).await;
    assert!(got.iter().map(Got::number).eq((1..30).step_by(3)));
    consumer.ack(&got).await;
    assert_eq!(rig.group("filtered").await.backlog, 0);
}

#[tokio::test]
async fn a_consumer_that_takes_the_group_for_another_is_told_what_it_is() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let with = |filter: &str| wire::Subscribe { filter: Some(filter.into()), ..subscribe("group") };
    peer.subscribe(with("tag = 'a'")).await.unwrap();
    peer.subscribe(with("tag   =   'a'")).await.expect("the same condition, written otherwise");
    peer.subscribe(subscribe("group")).await.expect("whatever the group has");
    let other = peer.subscribe(with("tag = 'b'")).await.err().unwrap();
    assert_eq!(other.code(), ErrorCode::GroupMismatch);
    assert!(other.message.contains("tag = 'a'") && other.message.contains("tag = 'b'"), "{}", other.message);
    let ordered = wire::Subscribe { ordered: Some(true), ..subscribe("group") };
    assert_eq!(peer.subscribe(ordered).await.err().unwrap().code(), ErrorCode::GroupMismatch);
    let broken = peer.subscribe(with("tag = ")).await.err().unwrap();
    assert_eq!(broken.code(), ErrorCode::FilterInvalid);
    let missing = wire::Subscribe { existing_only: true, ..subscribe("missing") };
    assert_eq!(peer.subscribe(missing).await.err().unwrap().code(), ErrorCode::GroupNotFound);
}

#[tokio::test]
async fn a_group_begins_where_it_was_told_to() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    producer.publish_numbers(0..5, 1).await;
    rig.clock.advance(Duration::from_secs(10));
    let later = rig.clock_micros();
    producer.publish_numbers(5..10, 1).await;
    let offset = |offset| At::Offset(wire::PartitionOffset { partition: 0, offset });
    let cases = [
        ("earliest", Some(At::Earliest(true)), 10),
        ("latest", Some(At::Latest(true)), 0),
        ("silent", None, 0),
        ("time", Some(At::TimeMicros(later)), 5),
        ("offset", Some(offset(7)), 3),
        ("end", Some(offset(10)), 0),
    ];
    for (group, at, backlog) in cases {
        let from = at.map(|at| wire::StartAt { at: Some(at) });
        peer.subscribe(wire::Subscribe { from, ..subscribe(group) }).await.unwrap();
        assert_eq!(rig.group(group).await.backlog, backlog, "{group}");
    }
    let beyond = Some(wire::StartAt { at: Some(offset(11)) });
    let refused = peer.subscribe(wire::Subscribe { from: beyond, ..subscribe("beyond") }).await.err().unwrap();
    assert_eq!(refused.code(), ErrorCode::OffsetOutOfRange);
}

#[tokio::test]
async fn seeking_owes_a_group_messages_again_or_no_longer() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    producer.publish_numbers(0..5, 2).await;
    rig.clock.advance(Duration::from_secs(10));
    let later = rig.clock_micros();
    producer.publish_numbers(5..10, 2).await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(1_000).await;
    let got = consumer.take_many(10).await;
    consumer.ack(&got).await;

    rig.seek("group", At::Earliest(true)).await.unwrap();
    let again = consumer.take_many(10).await;
    assert!(again.iter().map(Got::number).eq(0..10));
    assert!(again.iter().all(|got| got.redelivered));
    rig.seek("group", At::TimeMicros(later)).await.unwrap();
    assert!(consumer.take_many(5).await.iter().map(Got::number).eq(5..10));
    rig.seek("group", At::Offset(wire::PartitionOffset { partition: 0, offset: 8 })).await.unwrap();
    assert!(consumer.take_many(2).await.iter().map(Got::number).eq(8..10));
    rig.seek("group", At::Latest(true)).await.unwrap();
    assert_eq!(rig.group("group").await.backlog, 0);
    let beyond = At::Offset(wire::PartitionOffset { partition: 0, offset: 99 });
    assert_eq!(rig.seek("group", beyond).await.unwrap_err().code(), ErrorCode::OffsetOutOfRange);
    // It was durable when it was answered.
    let rig = rig.crash().await;
    assert_eq!(rig.group("group").await.backlog, 0);
}

#[tokio::test]
async fn a_paused_group_gets_nothing_until_it_is_resumed() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(100).await;
    rig.pause("group", true).await;
    peer.producer(TOPIC, 1, 0).await.unwrap().publish(&["a"]).await;
    let group = rig.group("group").await;
    assert!(group.paused);
    assert_eq!((group.backlog, group.in_flight), (1, 0));
    rig.pause("group", false).await;
    assert_eq!(consumer.next().await.body(), "a");
}

#[tokio::test]
async fn a_deleted_group_lets_go_of_its_consumers_and_comes_back_as_a_new_one() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    producer.publish_numbers(0..5, 1).await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(100).await;
    let got = consumer.take_many(5).await;
    consumer.ack_durable(&got[..3]).await;
    let delete = wire::DeleteGroup { topic: TOPIC.into(), group: "group".into() };
    rig.ask(request::Kind::DeleteGroup(delete.clone())).await.unwrap();
    assert_eq!(consumer.ended().await.code(), ErrorCode::GroupNotFound);
    let again = rig.ask(request::Kind::DeleteGroup(delete)).await.unwrap_err();
    assert_eq!(again.code(), ErrorCode::GroupNotFound);
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(100).await;
    let got = consumer.take_many(5).await;
    assert!(got.iter().all(|got| got.attempt == 1 && !got.redelivered), "it remembers nothing");
}

#[tokio::test]
async fn settings_of_a_group_change_while_it_is_served_but_not_what_it_is() {
    let rig = Rig::start(config(&[], &[])).await;
    rig.group_from_start("group", &[]).await;
    let set = |key: &str, value: &str| {
        request::Kind::SetGroup(wire::SetGroup {
            topic: TOPIC.into(),
            group: "group".into(),
            settings: [(key.to_owned(), value.to_owned())].into(),
        })
    };
    rig.ask(set("max_attempts", "1")).await.unwrap();
    assert_eq!(rig.ask(set("max_attempts", "0")).await.unwrap_err().code(), ErrorCode::Invalid);
    assert_eq!(rig.ask(set("ordered", "true")).await.unwrap_err().code(), ErrorCode::Invalid);
    let typo = rig.ask(set("max_attemps", "1")).await.unwrap_err();
    assert!(typo.message.contains("did you mean `max_attempts`?"), "{}", typo.message);
    let peer = rig.connect().await;
    peer.producer(TOPIC, 1, 0).await.unwrap().publish(&["a"]).await;
    let mut consumer = peer.subscribe(wire::Subscribe { from: Some(earliest()), ..subscribe("group") }).await.unwrap();
    assert_eq!(consumer.subscribed.max_attempts, 1);
    consumer.grant(1).await;
    let got = consumer.next().await;
    consumer.nack(&got, "no", None).await;
    rig.until("it is buried at once", "group", |group| group.dead_letters == 1).await;
}
