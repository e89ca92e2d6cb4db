//! Delivery: groups apart from each other, credit, refusal, leases, order.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use stentor_protocol::ErrorCode;
use stentor_protocol::wire;

use crate::support::{Got, Rig, TOPIC, acks, config, record, subscribe, within};

#[tokio::test]
async fn groups_get_everything_each_at_its_own_pace() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut fast = peer.subscribe(subscribe("fast")).await.unwrap();
    let mut slow = peer.subscribe(subscribe("slow")).await.unwrap();
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    producer.publish_numbers(0..100, 10).await;
    fast.grant(1_000).await;
    let got = fast.take_many(100).await;
    fast.ack(&got).await;
    assert_eq!(rig.group("fast").await.backlog, 0);
    assert_eq!(rig.group("slow").await.backlog, 100);
    slow.grant(30).await;
    let got = slow.take_many(30).await;
    assert!(got.iter().map(Got::number).eq(0..30));
    assert_eq!(rig.group("slow").await.in_flight, 30);
}

#[tokio::test]
async fn a_refused_message_returns_when_its_delay_is_over_and_says_so() {
    let rig = Rig::start(config(&[], &[("retry_delay", "1s")])).await;
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(100).await;
    peer.producer(TOPIC, 1, 0).await.unwrap().publish(&["a", "b"]).await;
    let got = consumer.take_many(2).await;
    consumer.nack(&got[0], "not now", Some(5_000)).await;
    consumer.ack(&got[1..]).await;
    rig.clock.advance(Duration::from_millis(4_999));
    let group = rig.group("group").await;
    assert_eq!((group.retrying, group.in_flight, group.backlog), (1, 0, 1), "never before its time");
    rig.clock.advance(Duration::from_millis(1));
    let again = consumer.next().await;
    assert_eq!((again.body(), again.attempt, again.redelivered), ("a", 2, true));
    consumer.ack(&[again]).await;
    assert_eq!(rig.group("group").await.backlog, 0);
}

#[tokio::test]
async fn one_silent_and_one_refusing_group_keep_nothing_from_the_other_eight() {
    let rig = Rig::start(config(&[], &[("retry_delay", "1h"), ("retry_delay_max", "2h")])).await;
    let peer = rig.connect().await;
    let mut silent = peer.subscribe(subscribe("silent")).await.unwrap();
    silent.grant(1_000_000).await;
    let mut refusing = peer.subscribe(subscribe("refusing")).await.unwrap();
    refusing.grant(1_000_000).await;
    let mut healthy = Vec::new();
    for index in 0..8 {
        let mut consumer = peer.subscribe(subscribe(&format!("healthy-{index}"))).await.unwrap();
        consumer.grant(1_000_000).await;
        healthy.push(consumer);
    }
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    for round in 0..10 {
        producer.publish_numbers(round * 100..(round + 1) * 100, 20).await;
        for consumer in &mut healthy {
            let got = consumer.take_many(100).await;
            assert!(got.iter().map(Got::number).eq(round * 100..(round + 1) * 100));
            consumer.ack(&got).await;
        }
        for got in refusing.take_many(100).await {
            refusing.nack(&got, "never", None).await;
        }
    }
    for index in 0..8 {
        assert_eq!(rig.group(&format!("healthy-{index}")).await.backlog, 0);
    }
    assert_eq!(rig.group("silent").await.in_flight, 1_000);
    assert_eq!(rig.group("refusing").await.retrying, 1_000);
}

#[tokio::test]
async fn what_a_lost_consumer_held_goes_to_another_at_once() {
    let rig = Rig::start(config(&[], &[])).await;
    let (lost, staying) = (rig.connect().await, rig.connect().await);
    let mut producer = staying.producer(TOPIC, 1, 0).await.unwrap();
    producer.publish(&["a", "b", "c"]).await;
    let mut first = lost.subscribe(subscribe("group")).await.unwrap();
    first.grant(10).await;
    let got = first.take_many(3).await;
    first.ack(&got[1..2]).await;
    let mut second = staying.subscribe(subscribe("group")).await.unwrap();
    second.grant(10).await;
    assert_eq!(rig.group("group").await.consumers, 2);
    lost.connection.close(stentor_core::transport::CloseCode::NORMAL, "");
    let back = second.take_many(2).await;
    let seen: Vec<_> = back.iter().map(|got| (got.body(), got.attempt, got.redelivered)).collect();
    assert_eq!(seen, [("a", 2, true), ("c", 2, true)]);
    rig.until("the lost consumer is gone", "group", |group| group.consumers == 1).await;
}

#[tokio::test]
async fn what_an_unsubscribed_consumer_held_returns_without_counting_as_an_attempt() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    peer.producer(TOPIC, 1, 0).await.unwrap().publish(&["a"]).await;
    let mut first = peer.subscribe(subscribe("group")).await.unwrap();
    first.grant(10).await;
    first.next().await;
    first.unsubscribe().await;
    let mut second = peer.subscribe(subscribe("group")).await.unwrap();
    second.grant(10).await;
    let got = second.next().await;
    assert_eq!((got.body(), got.attempt, got.redelivered), ("a", 1, true));
}

#[tokio::test]
async fn a_lease_that_runs_out_comes_back_unless_it_is_extended() {
    let rig = Rig::start(config(&[], &[("lease", "30s")])).await;
    let peer = rig.connect().await;
    peer.producer(TOPIC, 1, 0).await.unwrap().publish(&["kept", "lost"]).await;
    let mut holder = peer.subscribe(subscribe("group")).await.unwrap();
    holder.grant(2).await;
    let got = holder.take_many(2).await;
    rig.clock.advance(Duration::from_secs(20));
    let span = wire::OffsetSpan { start: got[0].offset, count: 1 };
    let extend = wire::Extend { partition: 0, spans: vec![span], lease_millis: 30_000 };
    assert_eq!(holder.settle(wire::Settle { extends: vec![extend], ..Default::default() }).await, []);
    let mut other = peer.subscribe(subscribe("group")).await.unwrap();
    other.grant(10).await;
    rig.clock.advance(Duration::from_secs(15));
    let returned = other.next().await;
    assert_eq!((returned.body(), returned.attempt, returned.redelivered), ("lost", 2, true));
    // Whoever held it before can no longer settle it; what was extended is still held.
    let failed = holder.settle(wire::Settle { acks: acks(&got), ..Default::default() }).await;
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].span.unwrap().start, got[1].offset);
    assert_eq!(failed[0].error.as_ref().unwrap().code(), ErrorCode::LeaseLost);
    other.ack(&[returned]).await;
    assert_eq!(rig.group("group").await.backlog, 0);
}

#[tokio::test]
async fn credit_of_ten_with_batches_of_a_hundred_loses_and_blocks_nothing_over_a_hundred_reconnects() {
    let rig = Rig::start(config(&[], &[("max_attempts", "1000000")])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    producer.publish_numbers(0..1_000, 100).await;
    let mut seen = BTreeSet::new();
    for round in 0..100 {
        let peer = rig.connect().await;
        let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
        consumer.grant(10).await;
        let got = consumer.take_many(10).await;
        assert!(consumer.picked > 0, "a tenth of a batch travels alone");
        // The last one of each round is left unsettled: its consumer dies.
        let settled = if round < 99 { &got[..9] } else { &got[..] };
        consumer.ack(settled).await;
        seen.extend(settled.iter().map(Got::number));
        peer.connection.close(stentor_core::transport::CloseCode::NORMAL, "");
        rig.until("the consumer is gone", "group", |group| group.consumers == 0 && group.in_flight == 0).await;
    }
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    while seen.len() < 1_000 {
        consumer.grant(10).await;
        let got = consumer.take_many(10.min(1_000 - seen.len())).await;
        consumer.ack(&got).await;
        seen.extend(got.iter().map(Got::number));
    }
    assert_eq!(rig.group("group").await.backlog, 0);
}

#[tokio::test]
async fn credit_in_bytes_is_counted_as_the_bodies_of_the_frames_are() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    producer.publish_numbers(0..200, 20).await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant_bytes(1_000, 1).await;
    let mut got = Vec::new();
    while got.len() < 200 {
        // One byte lets one message out, which overdraws; what it took is granted again, and not a byte more.
        got.push(consumer.next().await);
        assert_eq!(rig.group("group").await.in_flight, got.len() as u64, "nothing goes out without credit");
        let used = std::mem::take(&mut consumer.body_bytes);
        consumer.grant_bytes(0, used).await;
    }
    assert!(got.iter().map(Got::number).eq(0..200));
}

#[tokio::test]
async fn consumers_of_a_group_share_its_messages() {
    let rig = Rig::start(config(&[("partitions", "2")], &[])).await;
    let peer = rig.connect().await;
    let mut consumers = Vec::new();
    for _ in 0..4 {
        let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
        consumer.grant(100).await;
        consumers.push(consumer);
    }
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    for number in 0..400 {
        producer.publish_records(number % 2, &[record(number.to_string())]).await;
    }
    let mut seen = BTreeSet::new();
    for consumer in &mut consumers {
        let got = consumer.take_many(100).await;
        consumer.ack(&got).await;
        seen.extend(got.iter().map(Got::number));
    }
    assert_eq!(seen, (0..400).collect(), "each message went to exactly one of them");
}

#[tokio::test]
async fn an_ordered_group_has_one_message_of_a_key_out_at_a_time() {
    let rig = Rig::start(config(&[], &[("ordered", "true"), ("retry_delay", "1s")])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let keyed = |key: &'static str, body: &'static str| {
        let mut record = record(body);
        record.key = Some(Bytes::from_static(key.as_bytes()));
        record
    };
    let records = [keyed("x", "x1"), keyed("x", "x2"), keyed("y", "y1"), keyed("x", "x3"), keyed("y", "y2")];
    producer.publish_records(0, &records).await;
    let mut one = peer.subscribe(subscribe("group")).await.unwrap();
    assert!(one.subscribed.ordered);
    one.grant(100).await;
    let first = one.take_many(2).await;
    assert_eq!(first.iter().map(Got::body).collect::<Vec<_>>(), ["x1", "y1"]);
    // The first of a key is refused: the next ones wait behind it, those of other keys do not.
    one.nack(&first[0], "again", Some(1_000)).await;
    one.ack(&first[1..]).await;
    let next = one.next().await;
    assert_eq!(next.body(), "y2");
    one.ack(&[next]).await;
    assert_eq!(rig.group("group").await.in_flight, 0);
    rig.clock.advance(Duration::from_secs(1));
    for expected in ["x1", "x2", "x3"] {
        let got = one.next().await;
        assert_eq!(got.body(), expected);
        one.ack(&[got]).await;
    }
    assert_eq!(rig.group("group").await.backlog, 0);
}

#[tokio::test]
async fn a_group_that_lags_far_behind_the_tail_gets_everything_in_order() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    // 40 MiB: five times what the tail keeps in memory.
    for number in 0..640_u64 {
        let mut body = number.to_le_bytes().to_vec();
        body.resize(64 << 10, 0);
        producer.publish_records(0, &[record(body)]).await;
    }
    let mut consumer = peer.subscribe(subscribe("late")).await.unwrap();
    for number in 0..640_u64 {
        if number % 16 == 0 {
            consumer.grant(16).await;
        }
        let got = consumer.next().await;
        assert_eq!(got.record.body[..8], number.to_le_bytes());
        consumer.ack(&[got]).await;
    }
    assert_eq!(rig.group("late").await.backlog, 0);
}

#[tokio::test]
async fn a_consumer_that_takes_nothing_in_is_cut_off_and_what_it_held_returns() {
    let rig = Rig::start(config(&[], &[])).await;
    let (deaf, peer) = (rig.connect().await, rig.connect().await);
    let mut consumer = deaf.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(1_000_000).await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    for _ in 0..1_200 {
        producer.publish_records(0, &[record(vec![0; 16 << 10])]).await;
    }
    // Far more than its stream holds is out; the broker waits for it until its patience ends.
    let closed = async {
        while tokio::time::timeout(Duration::from_millis(1), deaf.connection.closed()).await.is_err() {
            rig.clock.advance(Duration::from_secs(1));
        }
    };
    within("the deaf peer is cut off", closed).await;
    rig.until("its consumer is gone", "group", |group| group.consumers == 0 && group.in_flight == 0).await;
    let mut other = peer.subscribe(subscribe("group")).await.unwrap();
    other.grant(1).await;
    assert_eq!(other.next().await.offset, 0);
}
