//! What is remembered across restarts and crashes.

use std::time::Duration;

use stentor_protocol::ErrorCode;
use stentor_protocol::wire::{self, request, response, to_client};

use crate::support::peer::hear;
use crate::support::{Got, Rig, TOPIC, batch_of, config, record, sequenced, subscribe, within};

const MESSAGES: u64 = 20_001;

#[tokio::test]
async fn of_20_001_messages_exactly_those_not_acknowledged_return_after_a_restart() {
    odd_ones_acknowledged(false).await;
}

#[tokio::test]
async fn of_20_001_messages_exactly_those_not_acknowledged_return_after_a_crash() {
    odd_ones_acknowledged(true).await;
}

/// Every odd message is acknowledged, the broker goes and comes, and exactly the even ones are there again.
async fn odd_ones_acknowledged(crash: bool) {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    producer.publish_numbers(0..MESSAGES, 500).await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(MESSAGES as u32).await;
    let got = consumer.take_many(MESSAGES as usize).await;
    let odd: Vec<_> = got.into_iter().filter(|got| got.offset % 2 == 1).collect();
    if crash {
        consumer.ack_durable(&odd).await;
    } else {
        consumer.ack(&odd).await;
    }
    let rig = if crash { rig.crash().await } else { rig.restart().await };
    assert_eq!(rig.group("group").await.backlog, MESSAGES / 2 + 1);
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(MESSAGES as u32).await;
    let back = consumer.take_many(MESSAGES as usize / 2 + 1).await;
    assert!(back.iter().map(Got::number).eq((0..MESSAGES).step_by(2)));
    assert!(back.iter().all(|got| got.redelivered), "all of them had been delivered before");
    consumer.ack(&back).await;
    assert_eq!(rig.group("group").await.backlog, 0);
}

#[tokio::test]
async fn an_acknowledgement_is_durable_after_ack_flush() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    peer.producer(TOPIC, 1, 0).await.unwrap().publish_numbers(0..10, 5).await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(100).await;
    let got = consumer.take_many(10).await;
    consumer.ack(&got[..7]).await;
    rig.clock.advance(Duration::from_millis(100));
    // The turn in which the partition answers comes after the one in which it flushes.
    rig.group("group").await;
    rig.group("group").await;
    let rig = rig.crash().await;
    assert_eq!(rig.group("group").await.backlog, 3);
}

#[tokio::test]
async fn what_was_never_delivered_says_so_after_an_orderly_restart() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    peer.producer(TOPIC, 1, 0).await.unwrap().publish_numbers(0..10, 1).await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(4).await;
    consumer.take_many(4).await;
    let rig = rig.restart().await;
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(10).await;
    let got = consumer.take_many(10).await;
    let redelivered: Vec<_> = got.iter().filter(|got| got.redelivered).map(Got::number).collect();
    assert_eq!(redelivered, [0, 1, 2, 3]);
}

#[tokio::test]
async fn after_a_crash_what_may_have_been_delivered_says_redelivered() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    producer.publish_numbers(0..5, 5).await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(5).await;
    consumer.take_many(5).await;
    let rig = rig.crash().await;
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(10).await;
    assert!(consumer.take_many(5).await.iter().all(|got| got.redelivered));
}

#[tokio::test]
async fn topics_groups_and_their_settings_are_there_again() {
    let mut config = config(&[], &[]);
    config.defaults = crate::support::settings(&[("storage", "memory")]);
    let rig = Rig::start(config).await;
    let create = wire::CreateTopic {
        name: "made".into(),
        settings: [("partitions".to_owned(), "3".to_owned()), ("retain_for".to_owned(), "5s".to_owned())].into(),
    };
    rig.ask(request::Kind::CreateTopic(create)).await.unwrap();
    rig.group_from_start("group", &[("max_attempts", "7"), ("filter", "tag = 'a'")]).await;
    rig.pause("group", true).await;
    let rig = rig.restart().await;
    let (response::Kind::Topic(made), _) =
        rig.ask(request::Kind::ShowTopic(wire::ShowTopic { name: "made".into() })).await.unwrap()
    else {
        panic!("no topic")
    };
    assert_eq!((made.partitions.len(), made.settings["retain_for"].as_str()), (3, "5s"));
    let group = rig.group("group").await;
    assert!(group.paused);
    assert_eq!((group.settings["max_attempts"].as_str(), group.settings["filter"].as_str()), ("7", "tag = 'a'"));
}

#[tokio::test]
async fn a_shutdown_tells_everybody_answers_what_is_under_way_and_joins_every_task() {
    let rig = Rig::start(config(&[], &[])).await;
    let mut peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    producer.publish(&["a"]).await;
    let stopping = tokio::spawn({
        let broker = rig.broker.clone();
        async move { broker.shutdown(Duration::from_secs(60)).await }
    });
    assert!(matches!(hear(&mut peer.control).await, Some((to_client::Kind::GoingAway(_), _))));
    assert_eq!(producer.answer().await.unwrap_err().code(), ErrorCode::ShuttingDown);
    assert_eq!(consumer.ended().await.code(), ErrorCode::ShuttingDown);
    within("everything has ended", stopping).await.unwrap();
    // The partitions are free: whoever opens them next is not in anybody's way.
    let late = rig.broker.request(request::Kind::ListTopics(wire::ListTopics::default())).await;
    assert!(matches!(late.0, response::Kind::Topics(_)));
    let create = request::Kind::CreateTopic(wire::CreateTopic { name: "late".into(), ..Default::default() });
    assert_eq!(rig.ask(create).await.unwrap_err().code(), ErrorCode::ShuttingDown);
    rig.stop().await;
}

#[tokio::test]
async fn a_peer_that_ignores_the_shutdown_is_cut_off_at_its_deadline() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    producer.send(0, &batch_of(&[record("x")], sequenced(1, 0, 0))).await;
    let mut deaf = peer.subscribe(subscribe("group")).await.unwrap();
    deaf.grant(1_000_000).await;
    for number in 1..1_200 {
        producer.send(0, &batch_of(&[record(vec![0; 16 << 10])], sequenced(1, 0, number))).await;
        producer.answer().await.unwrap();
    }
    let broker = rig.broker.clone();
    let stopping = tokio::spawn(async move { broker.shutdown(Duration::from_secs(3)).await });
    let stopped = async {
        while !stopping.is_finished() {
            rig.clock.advance(Duration::from_millis(100));
            tokio::task::yield_now().await;
        }
    };
    within("the broker stops all the same", stopped).await;
}
