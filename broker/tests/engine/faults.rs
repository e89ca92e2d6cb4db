//! A storage that fails: what publishers and groups are told, and that the rest goes on.

use std::sync::Arc;

use stentor_core::Offset;
use stentor_protocol::ErrorCode;
use stentor_protocol::wire::to_client;

use crate::support::faulty::FaultyStorage;
use crate::support::{Got, Rig, TOPIC, batch_of, config, record, sequenced, subscribe};

#[tokio::test]
async fn a_failed_receipt_leaves_the_outcome_unknown_and_fails_that_partition_alone() {
    let storage = FaultyStorage::new();
    let rig = Rig::over(config(&[("partitions", "2")], &[]), Arc::new(storage.clone())).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let batch = |sequence| batch_of(&[record("x")], sequenced(1, 0, sequence));
    producer.try_publish(0, &batch(0)).await.unwrap();
    // Number 0 is the catalogue, the topic's partitions follow.
    storage.fail_receipts_of(1);
    let unknown = producer.try_publish(0, &batch(1)).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::StorageFailed);
    let later = producer.try_publish(0, &batch(2)).await.unwrap_err();
    assert_eq!(later.code(), ErrorCode::Unavailable);
    producer.try_publish(1, &batch(0)).await.unwrap();
    let topic = rig.topic().await;
    assert_ne!(topic.partitions[0].state, "ok");
    assert_eq!(topic.partitions[1].state, "ok");
    let mut consumer = peer.subscribe(subscribe("group")).await;
    // A new group has to be on every partition; one that is there already is served from those that are well.
    if let Ok(consumer) = &mut consumer {
        consumer.grant(10).await;
    } else {
        assert_eq!(consumer.err().unwrap().code(), ErrorCode::Unavailable);
    }
}

#[tokio::test]
async fn no_answer_comes_before_its_receipt() {
    let storage = FaultyStorage::new();
    let rig = Rig::over(config(&[], &[]), Arc::new(storage.clone())).await;
    let peer = rig.connect().await;
    rig.group_from_start("group", &[]).await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(10).await;
    let release = storage.hold_receipts();
    let batch = batch_of(&[record("x")], sequenced(1, 0, 0));
    producer.send(0, &batch).await;
    // The repeat overtakes nothing either.
    producer.send(0, &batch).await;
    for _ in 0..50 {
        rig.topic().await;
    }
    let early = tokio::time::timeout(std::time::Duration::from_millis(20), producer.stream.receiver.receive()).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(rig.group("group").await.in_flight, 0, "nor is it delivered");
    release.send_replace(true);
    assert!(!producer.answer().await.unwrap().duplicate);
    assert!(producer.answer().await.unwrap().duplicate);
    assert_eq!(consumer.next().await.body(), "x");
}

#[tokio::test]
async fn a_damaged_batch_stops_the_group_there_and_is_never_skipped() {
    let storage = FaultyStorage::new();
    let rig = Rig::over(config(&[("partitions", "2")], &[]), Arc::new(storage.clone())).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    for number in 0..40_u32 {
        producer.publish_records(number % 2, &[record(number.to_string())]).await;
    }
    // What is in memory is not read: after a restart nothing is.
    storage.damage(1, Offset(10));
    let rig = rig.restart().await;
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(100).await;
    let got = consumer.take_many(30).await;
    let (damaged, whole): (Vec<&Got>, Vec<&Got>) = got.iter().partition(|got| got.partition == 0);
    assert!(damaged.iter().map(|got| got.offset).eq(0..10));
    assert!(whole.iter().map(|got| got.offset).eq(0..20));
    consumer.ack(&got).await;
    let topic = rig.topic().await;
    assert!(topic.partitions[0].state.contains("damaged at offset 10"), "{}", topic.partitions[0].state);
    assert_eq!(topic.partitions[1].state, "ok");
    assert_eq!(rig.group("group").await.backlog, 10, "it is still owed");
}

#[tokio::test]
async fn many_publishes_share_a_commit_and_are_answered_in_their_order() {
    let storage = FaultyStorage::new();
    let rig = Rig::over(config(&[], &[]), Arc::new(storage.clone())).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let release = storage.hold_receipts();
    for sequence in 0..500 {
        producer.send(0, &batch_of(&[record("x")], sequenced(1, 0, sequence))).await;
    }
    release.send_replace(true);
    for offset in 0..500 {
        match crate::support::peer::hear(&mut producer.stream).await {
            Some((to_client::Kind::Published(published), _)) => {
                assert_eq!((published.request, published.base_offset), (offset + 1, offset));
            }
            other => panic!("{other:?}"),
        }
    }
}
