//! What stays in the log, and what goes.

use std::time::Duration;

use stentor_protocol::wire;

use crate::support::{Got, Rig, TOPIC, config, subscribe};

/// Lets the clock go on, step by step, so that every timer gets its turn.
async fn pass(rig: &Rig, seconds: u64) {
    for _ in 0..seconds {
        rig.clock.advance(Duration::from_secs(1));
        // Each answer is a turn of the partition's task.
        for _ in 0..4 {
            rig.topic().await;
        }
    }
}

async fn start_of(rig: &Rig) -> u64 {
    rig.topic().await.partitions[0].start
}

#[tokio::test]
async fn what_every_group_is_done_with_goes_after_retain_for_and_what_one_owes_stays() {
    let rig = Rig::start(config(&[("retain_for", "60s")], &[])).await;
    let peer = rig.connect().await;
    let mut done = peer.subscribe(subscribe("done")).await.unwrap();
    let mut owing = peer.subscribe(subscribe("owing")).await.unwrap();
    peer.producer(TOPIC, 1, 0).await.unwrap().publish_numbers(0..10, 1).await;
    done.grant(100).await;
    let got = done.take_many(10).await;
    done.ack(&got).await;
    owing.grant(100).await;
    let got = owing.take_many(10).await;
    owing.ack(&got[..4]).await;
    pass(&rig, 40).await;
    assert_eq!(start_of(&rig).await, 0, "it is retained");
    pass(&rig, 40).await;
    assert_eq!(start_of(&rig).await, 4, "what one group owes stays, however old");
    let group = rig.group("owing").await;
    assert_eq!(group.backlog, 6);
    assert!(group.oldest_unacked_seconds.unwrap() >= 80.0);
}

#[tokio::test]
async fn without_any_group_messages_are_kept_for_retain_for() {
    let rig = Rig::start(config(&[("retain_for", "60s")], &[])).await;
    let peer = rig.connect().await;
    peer.producer(TOPIC, 1, 0).await.unwrap().publish_numbers(0..10, 1).await;
    pass(&rig, 40).await;
    assert_eq!(start_of(&rig).await, 0);
    pass(&rig, 40).await;
    assert_eq!(start_of(&rig).await, 10);
}

#[tokio::test]
async fn owed_messages_go_only_where_the_topic_lets_them_expire_and_are_counted() {
    let rig = Rig::start(config(&[("retain_for", "10s"), ("expire_owed_after", "60s")], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    rig.group_from_start("group", &[]).await;
    producer.publish_numbers(0..10, 1).await;
    pass(&rig, 50).await;
    producer.publish_numbers(10..15, 1).await;
    assert_eq!(start_of(&rig).await, 0);
    pass(&rig, 30).await;
    assert_eq!(start_of(&rig).await, 10);
    assert_eq!(rig.group("group").await.backlog, 5);
    let mut registry = prometheus_client::registry::Registry::with_prefix("stentor");
    rig.broker.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("stentor_expired_total{topic=\"orders\",group=\"group\"} 10"), "{text}");
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(100).await;
    assert!(consumer.take_many(5).await.iter().map(Got::number).eq(10..15));
}

#[tokio::test]
async fn retain_bytes_bounds_what_is_kept_of_what_is_done_with() {
    let rig = Rig::start(config(&[("retain_bytes", "16KiB")], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    for _ in 0..64 {
        producer.publish_records(0, &[crate::support::record(vec![0; 1_024])]).await;
    }
    pass(&rig, 30).await;
    let partition = rig.topic().await.partitions[0].clone();
    assert!(partition.bytes < 24 << 10, "{partition:?}");
    assert!(partition.start > 40 && partition.start < 64, "{partition:?}");
}

#[tokio::test]
async fn a_topic_that_drops_its_oldest_counts_what_a_group_loses() {
    let rig = Rig::start(config(&[("memory_max", "64KiB"), ("when_full", "drop-oldest")], &[])).await;
    let peer = rig.connect().await;
    rig.group_from_start("group", &[]).await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    for _ in 0..100 {
        producer.publish_records(0, &[crate::support::record(vec![0; 4_096])]).await;
    }
    let start = start_of(&rig).await;
    assert!(start > 50, "{start}");
    let mut consumer = peer.subscribe(wire::Subscribe { ..subscribe("group") }).await.unwrap();
    consumer.grant(1_000).await;
    let got = consumer.take_many(100 - start as usize).await;
    assert_eq!((got[0].offset, got[got.len() - 1].offset), (start, 99));
    consumer.ack(&got).await;
    assert_eq!(rig.group("group").await.backlog, 0);
}
