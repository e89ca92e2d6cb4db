//! A storage that fails: what publishers and groups are told, and that the rest goes on.

use std::sync::Arc;

use stentor_core::Offset;
use stentor_protocol::ErrorCode;
use stentor_protocol::wire::{self, request, response, to_client};

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

/// A topic of two partitions with 20 messages each, of which partition 0 is damaged at offset 10, in a broker that has just
/// been started; the group `group` has buried the first message of each.
async fn half_damaged() -> Rig {
    let storage = FaultyStorage::new();
    let config = config(&[("partitions", "2")], &[("max_attempts", "1")]);
    let rig = Rig::over(config, Arc::new(storage.clone())).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    for number in 0..40_u32 {
        producer.publish_records(number % 2, &[record(number.to_string())]).await;
    }
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(40).await;
    for got in consumer.take_many(40).await.iter().filter(|got| got.offset == 0) {
        consumer.nack(got, "no", None).await;
    }
    rig.until("they are buried", "group", |group| group.dead_letters == 2).await;
    consumer.unsubscribe().await;
    // What is in memory is not read: after a restart nothing is.
    storage.damage(1, Offset(10));
    rig.restart().await
}

#[tokio::test]
async fn consumers_of_a_stopped_group_are_told_where_it_stopped_also_those_that_come_later() {
    let rig = half_damaged().await;
    let peer = rig.connect().await;
    let (mut first, mut second) =
        (peer.subscribe(subscribe("group")).await.unwrap(), peer.subscribe(subscribe("group")).await.unwrap());
    first.grant(100).await;
    first.until_stopped(1).await;
    second.until_stopped(1).await;
    let mut late = peer.subscribe(subscribe("group")).await.unwrap();
    late.until_stopped(1).await;
    for stop in [&first.stops[0], &second.stops[0], &late.stops[0]] {
        assert_eq!((stop.partition, stop.offset), (0, Some(10)));
        let error = stop.error.as_ref().unwrap();
        assert_eq!(error.code(), ErrorCode::Corrupt);
        assert!(error.hint.contains("seek"), "{}", error.hint);
    }
    // The other partition goes on, and nobody is told again.
    let mut producer = peer.producer(TOPIC, 2, 0).await.unwrap();
    producer.publish_records(1, &[record("new")]).await;
    let got = first.take_many(9 + 20).await;
    assert!(got.iter().any(|got| got.body() == "new"));
    first.ack(&got).await;
    assert_eq!([first.stops.len(), second.stops.len(), late.stops.len()], [1; 3]);
}

#[tokio::test]
async fn a_group_gets_all_that_lies_before_the_damage_and_is_not_stopped_sooner() {
    let rig = half_damaged().await;
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("fresh")).await.unwrap();
    // Less than what is read ahead at once, which ends at the damage.
    let mut before = 0;
    for _ in 0..15 {
        consumer.grant(2).await;
        let got = consumer.take_many(2).await;
        before += got.iter().filter(|got| got.partition == 0).count();
        consumer.ack(&got).await;
    }
    assert_eq!(before, 10);
    consumer.grant(1).await;
    consumer.until_stopped(1).await;
    assert_eq!(consumer.stops[0].offset, Some(10));
}

#[tokio::test]
async fn a_group_that_was_moved_past_the_damage_goes_on() {
    let rig = half_damaged().await;
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("fresh")).await.unwrap();
    consumer.grant(100).await;
    consumer.until_stopped(1).await;
    consumer.take_many(30).await;
    let past = wire::PartitionOffset { partition: 0, offset: 11 };
    rig.seek("fresh", wire::start_at::At::Offset(past)).await.unwrap();
    assert!(consumer.take_many(9).await.iter().map(|got| (got.partition, got.offset)).eq((11..20).map(|at| (0, at))));
}

#[tokio::test]
async fn redriving_and_purging_do_what_they_can_beside_a_stopped_partition_and_say_what_they_cannot() {
    let rig = half_damaged().await;
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(100).await;
    consumer.until_stopped(1).await;
    let redrive = wire::Redrive { topic: TOPIC.into(), group: "group".into(), ..Default::default() };
    let Ok((response::Kind::Count(count), _)) = rig.ask(request::Kind::Redrive(redrive)).await else {
        panic!("a partition that is stopped kept the other one's letters")
    };
    assert_eq!((count.messages, count.more, count.failed.len()), (1, false, 1));
    assert_eq!(count.failed[0].partition, 0);
    assert_eq!(count.failed[0].error.as_ref().unwrap().code(), ErrorCode::Corrupt);
    let letters = rig.letters("group").await;
    assert_eq!(letters.iter().map(|letter| letter.partition).collect::<Vec<_>>(), [0]);
    // The letters themselves are sound.
    let purge = wire::PurgeDeadLetters { topic: TOPIC.into(), group: "group".into() };
    let Ok((response::Kind::Count(count), _)) = rig.ask(request::Kind::PurgeDeadLetters(purge)).await else {
        panic!("not purged")
    };
    assert_eq!((count.messages, count.failed.len()), (1, 0));
    assert_eq!(rig.letters("group").await, []);
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
