//! Publishing: receipts, deduplication, and what is refused.

use std::time::Duration;

use crate::support::{Rig, TOPIC, batch_of, config, record, sequenced, settings, subscribe};
use stentor_protocol::ErrorCode;
use stentor_protocol::wire::{self, request};

#[tokio::test]
async fn receipts_name_contiguous_offsets_and_consumers_get_what_was_sent() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    assert_eq!(producer.route.partitions.len(), 1);
    assert_eq!((producer.route.storage.as_str(), producer.route.durability.as_str()), ("memory", "memory"));
    let first = producer.publish(&["a", "b", "c"]).await;
    assert_eq!((first.base_offset, first.count, first.duplicate), (0, 3, false));
    let second = producer.publish(&["d"]).await;
    assert_eq!((second.base_offset, second.count), (3, 1));

    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(10).await;
    let got = consumer.take_many(4).await;
    let seen: Vec<_> = got.iter().map(|got| (got.offset, got.body(), got.attempt, got.redelivered)).collect();
    assert_eq!(seen, [(0, "a", 1, false), (1, "b", 1, false), (2, "c", 1, false), (3, "d", 1, false)]);
    consumer.ack(&got).await;
    assert_eq!(rig.group("group").await.backlog, 0);
}

#[tokio::test]
async fn a_retried_batch_is_stored_once_and_gets_the_first_receipt() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let batches: Vec<_> = (0..3).map(|n| batch_of(&[record("x"), record("y")], sequenced(1, 0, n))).collect();
    for batch in &batches {
        producer.try_publish(0, batch).await.unwrap();
    }
    // Another connection of the same producer, as after a reconnect.
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let again = producer.try_publish(0, &batches[1]).await.unwrap();
    assert_eq!((again.base_offset, again.count, again.duplicate), (2, 2, true));
    assert_eq!(rig.topic().await.partitions[0].end, 6);
}

#[tokio::test]
async fn a_batch_and_its_repeat_on_their_way_together_share_one_receipt() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let batch = batch_of(&[record("x")], sequenced(1, 0, 0));
    producer.send(0, &batch).await;
    producer.send(0, &batch).await;
    let (first, second) = (producer.answer().await.unwrap(), producer.answer().await.unwrap());
    assert_eq!((first.base_offset, first.duplicate), (0, false));
    assert_eq!((second.base_offset, second.duplicate), (0, true));
    assert_eq!(rig.topic().await.partitions[0].end, 1);
}

#[tokio::test]
async fn gaps_older_epochs_and_forgotten_producers_are_refused_by_name() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 1).await.unwrap();
    let batch = |epoch, sequence| batch_of(&[record("x")], sequenced(1, epoch, sequence));
    producer.try_publish(0, &batch(1, 0)).await.unwrap();
    let gap = producer.try_publish(0, &batch(1, 2)).await.unwrap_err();
    assert_eq!(gap.code(), ErrorCode::SequenceGap);
    let fenced = producer.try_publish(0, &batch(0, 0)).await.unwrap_err();
    assert_eq!(fenced.code(), ErrorCode::ProducerFenced);
    let unknown = producer.try_publish(0, &batch(2, 5)).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::ProducerUnknown);

    // Idle for longer than any batch stays in doubt: rounds of care pass until it is forgotten.
    for _ in 0..12 {
        rig.clock.advance(Duration::from_secs(100));
        rig.topic().await;
    }
    let forgotten = producer.try_publish(0, &batch(1, 1)).await.unwrap_err();
    assert_eq!(forgotten.code(), ErrorCode::ProducerUnknown);
    producer.try_publish(0, &batch(2, 0)).await.unwrap();
}

#[tokio::test]
async fn deduplication_survives_a_restart_and_a_crash() {
    for crash in [false, true] {
        let rig = Rig::start(config(&[], &[])).await;
        let batches: Vec<_> = (0..5).map(|n| batch_of(&[record("x")], sequenced(9, 3, n))).collect();
        let peer = rig.connect().await;
        let mut producer = peer.producer(TOPIC, 9, 3).await.unwrap();
        for batch in &batches {
            producer.try_publish(0, batch).await.unwrap();
        }
        let rig = if crash { rig.crash().await } else { rig.restart().await };
        let peer = rig.connect().await;
        let mut producer = peer.producer(TOPIC, 9, 3).await.unwrap();
        for (offset, batch) in batches.iter().enumerate() {
            let again = producer.try_publish(0, batch).await.unwrap();
            assert_eq!((again.base_offset, again.duplicate), (offset as u64, true), "crash: {crash}");
        }
        let next = producer.try_publish(0, &batch_of(&[record("x")], sequenced(9, 3, 5))).await.unwrap();
        assert_eq!((next.base_offset, next.duplicate), (5, false));
    }
}

#[tokio::test]
async fn a_batch_without_a_producer_is_stored_as_often_as_it_is_sent() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let batch = batch_of(&[record("x")], None);
    assert_eq!(producer.try_publish(0, &batch).await.unwrap().base_offset, 0);
    assert_eq!(producer.try_publish(0, &batch).await.unwrap().base_offset, 1);
}

#[tokio::test]
async fn a_refused_batch_leaves_stream_and_sequence_as_they_were() {
    let rig = Rig::start(config(&[("message_bytes_max", "1KiB")], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let large = batch_of(&[record(vec![0; 1025])], sequenced(1, 0, 0));
    assert_eq!(producer.try_publish(0, &large).await.unwrap_err().code(), ErrorCode::MessageTooLarge);
    let elsewhere = batch_of(&[record("x")], sequenced(1, 0, 0));
    assert_eq!(producer.try_publish(7, &elsewhere).await.unwrap_err().code(), ErrorCode::PartitionNotFound);
    let foreign = batch_of(&[record("x")], sequenced(2, 0, 0));
    assert_eq!(producer.try_publish(0, &foreign).await.unwrap_err().code(), ErrorCode::Invalid);
    let largest = batch_of(&[record(vec![7; 1024]), record("")], sequenced(1, 0, 0));
    assert_eq!(producer.try_publish(0, &largest).await.unwrap().count, 2);
}

#[tokio::test]
async fn a_full_memory_topic_refuses_and_takes_again_once_its_messages_are_done_with() {
    let rig = Rig::start(config(&[("memory_max", "64KiB")], &[])).await;
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let mut stored: u64 = 0;
    let refused = loop {
        let batch = batch_of(&[record(vec![1; 4096])], sequenced(1, 0, stored));
        match producer.try_publish(0, &batch).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.code(), ErrorCode::StorageFull);
    assert!(stored > 10, "{stored}");
    // Reading and acknowledging go on.
    consumer.grant(100).await;
    let got = consumer.take_many(stored as usize).await;
    consumer.ack_durable(&got).await;
    // The refused batch left no trace in the deduplication: it is the next one.
    let batch = batch_of(&[record("small")], sequenced(1, 0, stored));
    let published = producer.try_publish(0, &batch).await.unwrap();
    assert_eq!((published.base_offset, published.duplicate), (stored, false));
}

#[tokio::test]
async fn topics_appear_on_first_use_only_where_the_configuration_says_so() {
    let mut config = config(&[], &[]);
    config.defaults = settings(&[("storage", "memory")]);
    let rig = Rig::start(config.clone()).await;
    let missing = rig.connect().await.producer("new", 1, 0).await.err().unwrap();
    assert_eq!(missing.code(), ErrorCode::TopicNotFound);
    config.auto_create = true;
    let rig = Rig::start(config).await;
    let producer = rig.connect().await.producer("new", 1, 0).await.unwrap();
    assert_eq!(producer.route.partitions.len(), 4);
    for bad in ["../x", "a/b", "", "\0", &"x".repeat(256)] {
        let mut peer = rig.connect().await;
        let refused = peer.producer(bad, 1, 0).await.err().unwrap();
        assert_eq!(refused.code(), ErrorCode::Invalid, "{bad:?}");
        let listed = peer.ask(request::Kind::ListTopics(wire::ListTopics::default())).await;
        assert!(matches!(listed, wire::response::Kind::Topics(_)), "the connection lives on");
    }
}
