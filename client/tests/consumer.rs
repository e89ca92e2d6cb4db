//! Receiving, against a broker that the test plays.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Broker, Peer, Stream, TOPIC, lease_lost, spans, stored, turns};
use futures_util::FutureExt;
use stentor_client::{
    Client, Consumer, ConsumerBuilder, Delivery, ErrorCode, OpenError, ReceiveError, SettleError, StartAt,
};
use stentor_core::transport::Frame;
use stentor_core::{Offset, PartitionIndex};
use stentor_protocol::error::refusal;
use stentor_protocol::frame::encode_delivery;
use stentor_protocol::wire::{self, NackKind, to_broker, to_client};

/// A consumer with the broker's side of its stream, the first grant heard.
async fn open(peer: &Peer, builder: ConsumerBuilder) -> (Consumer, Stream) {
    let (consumer, (mut stream, _)) = tokio::join!(builder.open(), peer.subscription());
    stream.hear_grant().await;
    (consumer.unwrap(), stream)
}

async fn start() -> (Broker, Client, Peer, Consumer, Stream) {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let (consumer, stream) = open(&peer, client.consumer(TOPIC, "g")).await;
    (broker, client, peer, consumer, stream)
}

async fn next(consumer: &mut Consumer) -> Delivery {
    consumer.next().await.unwrap().unwrap()
}

async fn come_back(broker: &mut Broker) -> (Peer, Stream) {
    let peer = broker.accept_in_time().await;
    let (mut stream, _) = broker.pass_time_until(peer.subscription()).await;
    stream.hear_grant().await;
    (peer, stream)
}

#[tokio::test]
async fn a_subscription_says_what_the_builder_says() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let at = StartAt::Offset { partition: PartitionIndex(2), offset: Offset(9) };
    let builder =
        client.consumer(TOPIC, "g").filter("tag = 'x'").ordered().from(at).credit(10).credit_bytes(500).name("n");
    let (consumer, (mut stream, subscribe)) = tokio::join!(builder.existing_only().open(), peer.subscription());
    let from = wire::start_at::At::Offset(wire::PartitionOffset { partition: 2, offset: 9 });
    let expected = wire::Subscribe {
        topic: TOPIC.to_owned(),
        group: "g".to_owned(),
        from: Some(wire::StartAt { at: Some(from) }),
        filter: Some("tag = 'x'".to_owned()),
        ordered: Some(true),
        consumer: "n".to_owned(),
        existing_only: true,
    };
    assert_eq!(subscribe, expected);
    assert_eq!(stream.hear_grant().await, wire::Grant { messages: 10, bytes: 500 });
    assert_eq!(consumer.unwrap().group().as_str(), "g");
}

#[tokio::test]
async fn a_group_that_is_another_refuses_the_consumer() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let refusing = async {
        let (mut stream, _) = peer.stream().await;
        stream.say(to_client::Kind::Refused(refusal(ErrorCode::GroupMismatch, "the group has another filter"))).await;
        stream
    };
    let (opened, _stream) = tokio::join!(client.consumer(TOPIC, "g").filter("tag = 'x'").open(), refusing);
    let error = opened.unwrap_err();
    assert!(matches!(error, OpenError::Refused(_)));
    assert_eq!(error.kind(), "group_mismatch");
}

#[tokio::test]
async fn a_delivery_says_all_about_its_message() {
    let (_broker, _client, _peer, mut consumer, mut stream) = start().await;
    let leased = vec![
        wire::Leased { start: 10, count: 1, attempt: 1, redelivered: false },
        wire::Leased { start: 12, count: 2, attempt: 3, redelivered: true },
    ];
    stream.deliver_leased(&stored(10, &["a", "b", "c", "d"]), leased.clone(), false).await;
    let delivery = next(&mut consumer).await;
    assert_eq!((delivery.body().as_ref(), delivery.offset().0, delivery.partition().0), (&b"a"[..], 10, 0));
    assert_eq!((delivery.attempt(), delivery.redelivered(), delivery.published_at().0), (1, false, 5));
    assert_eq!((delivery.key(), delivery.tag(), delivery.topic().as_str()), (Some(&b"key"[..]), Some("tag"), TOPIC));
    for (offset, body) in [(12, "c"), (13, "d")] {
        let delivery = next(&mut consumer).await;
        assert_eq!((delivery.offset().0, delivery.body().as_ref()), (offset, body.as_bytes()));
        assert_eq!((delivery.attempt(), delivery.redelivered()), (3, true));
    }
    // Picked: the batch holds the leased ones alone.
    stream.deliver_leased(&stored(10, &["a", "c", "d"]), leased, true).await;
    let batch = consumer.next_batch().await.unwrap().unwrap();
    let seen: Vec<_> = batch.iter().map(|delivery| (delivery.offset().0, delivery.body().clone())).collect();
    assert_eq!(seen, [(10, "a"), (12, "c"), (13, "d")].map(|(offset, body)| (offset, Bytes::from(body))));
}

#[tokio::test]
async fn acknowledgements_are_sent_when_they_are_made_and_joined_while_others_are_under_way() {
    let (_broker, _client, _peer, mut consumer, mut stream) = start().await;
    let bodies: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    stream.deliver(0, &bodies.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let first = next(&mut consumer).await.ack();
    let settle = stream.hear_settle().await;
    assert_eq!(settle.acks, [wire::Ack { partition: 0, spans: spans(&[(0, 1)]) }]);
    assert!(!settle.durable);
    let mut later = Vec::new();
    for _ in 1..99 {
        later.push(next(&mut consumer).await.ack());
    }
    let joined = stream.hear_settle().await;
    assert_eq!(joined.acks, [wire::Ack { partition: 0, spans: spans(&[(1, 98)]) }]);
    let durable = next(&mut consumer).await.ack_durable();
    assert!(stream.hear_settle().await.durable);
    assert!(durable.now_or_never().is_none());
    stream.settled(joined.request, vec![lease_lost(50)]).await;
    for (index, ack) in later.into_iter().enumerate() {
        match ack.await {
            Ok(()) => assert_ne!(index + 1, 50),
            Err(error) => {
                assert_eq!((index + 1, error.kind()), (50, "lease_lost"));
                assert!(matches!(error, SettleError::LeaseLost { offset: Offset(50), .. }));
            }
        }
    }
    stream.settled(settle.request, Vec::new()).await;
    first.await.unwrap();
}

#[tokio::test]
async fn a_batch_is_acknowledged_as_one_span() {
    let (_broker, _client, _peer, mut consumer, mut stream) = start().await;
    stream.deliver(5, &["a", "b", "c"]).await;
    let delivery = next(&mut consumer).await;
    let batch = consumer.next_batch().await.unwrap().unwrap();
    assert_eq!(batch.len(), 2);
    let acked = batch.ack();
    let settle = stream.hear_settle().await;
    assert_eq!(settle.acks, [wire::Ack { partition: 0, spans: spans(&[(6, 2)]) }]);
    stream.settled(settle.request, vec![lease_lost(7)]).await;
    assert!(matches!(acked.await, Err(SettleError::LeaseLost { offset: Offset(7), .. })));
    assert_eq!(delivery.offset(), Offset(5));
}

#[tokio::test]
async fn refusals_and_extensions_say_what_they_are() {
    let (_broker, _client, _peer, mut consumer, mut stream) = start().await;
    stream.deliver(0, &["a", "b", "c"]).await;
    let held = next(&mut consumer).await;
    drop((held.extend(), held.extend_by(Duration::from_secs(90))));
    let settle = stream.hear_settle().await;
    let extends: Vec<_> = settle.extends.iter().map(|extend| (extend.lease_millis, extend.spans.clone())).collect();
    assert_eq!(extends, [(0, spans(&[(0, 1)])), (90_000, spans(&[(0, 1)]))]);

    let long = "ä".repeat(1_000);
    let nacked = next(&mut consumer).await.nack().reason(&long).after(Duration::from_secs(5)).send();
    let settle = stream.hear_settle().await;
    let nack = &settle.nacks[0];
    assert_eq!((nack.offset, nack.delay_millis, nack.nack_kind()), (1, Some(5_000), NackKind::Retry));
    assert_eq!(nack.reason, "ä".repeat(512));
    stream.settled(settle.request, Vec::new()).await;
    nacked.await.unwrap();

    let rejecting = async { next(&mut consumer).await.reject().await };
    let answering = async {
        let settle = stream.hear_settle().await;
        assert_eq!((settle.nacks[0].nack_kind(), settle.nacks[0].delay_millis), (NackKind::Reject, None));
        stream.settled(settle.request, Vec::new()).await;
    };
    let (rejected, ()) = tokio::join!(rejecting, answering);
    rejected.unwrap();
}

#[tokio::test]
async fn credit_comes_back_behind_what_settles_it_and_never_exceeds_the_window() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let (mut consumer, mut stream) = open(&peer, client.consumer(TOPIC, "g").credit(4)).await;
    stream.deliver(0, &["a", "b", "c", "d"]).await;
    let held = next(&mut consumer).await;
    assert!(stream.hear_now().await.is_none(), "nothing is settled yet");
    for _ in 0..3 {
        drop(next(&mut consumer).await.ack());
    }
    let (mut acked, mut granted) = (0, 0);
    while let Some((kind, _)) = stream.hear_now().await {
        match kind {
            to_broker::Kind::Settle(settle) => {
                acked += settle.acks[0].spans.iter().map(|span| span.count).sum::<u32>();
            }
            to_broker::Kind::Grant(grant) => granted += grant.messages,
            other => panic!("{other:?}"),
        }
        assert!(granted <= acked);
    }
    assert_eq!((acked, granted), (3, 3));
    drop(held);
}

#[tokio::test]
async fn a_message_that_is_dropped_keeps_its_credit_until_its_lease_is_over() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let (mut consumer, mut stream) = open(&peer, client.consumer(TOPIC, "g").credit(1)).await;
    stream.deliver(0, &["a"]).await;
    drop(next(&mut consumer).await);
    assert!(stream.hear_now().await.is_none());
    broker.clock.advance(Duration::from_secs(29));
    assert!(stream.hear_now().await.is_none());
    broker.clock.advance(Duration::from_secs(1));
    assert_eq!(stream.hear_grant().await.messages, 1);
}

#[tokio::test]
async fn a_message_that_overslept_its_lease_is_not_handed_out() {
    let (broker, _client, _peer, mut consumer, mut stream) = start().await;
    stream.deliver(0, &["old"]).await;
    turns().await;
    broker.clock.advance(Duration::from_secs(30));
    stream.deliver(1, &["new"]).await;
    assert_eq!(next(&mut consumer).await.offset(), Offset(1));
}

#[tokio::test]
async fn a_delivery_without_credit_ends_the_stream() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let (mut consumer, mut stream) = open(&peer, client.consumer(TOPIC, "g").credit(1)).await;
    stream.deliver(0, &["a", "b"]).await;
    assert!(stream.stream.receiver.receive().await.is_err());
    let (mut stream, _) = broker.pass_time_until(peer.subscription()).await;
    stream.hear_grant().await;
    stream.deliver(0, &["a"]).await;
    assert_eq!(next(&mut consumer).await.body().as_ref(), b"a");
}

#[tokio::test]
async fn next_loses_nothing_when_it_is_dropped() {
    let (_broker, _client, _peer, mut consumer, mut stream) = start().await;
    assert!(consumer.next().now_or_never().is_none());
    stream.deliver(0, &["a", "b"]).await;
    let mut seen = Vec::new();
    for _ in 0..10_000 {
        // Polled once and dropped, again and again, while the tasks go on.
        if let Some(delivery) = consumer.next().now_or_never() {
            seen.push(delivery.unwrap().unwrap().offset().0);
            if seen.len() == 2 {
                break;
            }
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(seen, [0, 1]);
}

#[tokio::test]
async fn damaged_messages_are_refused_and_those_behind_them_still_come() {
    let (_broker, _client, _peer, mut consumer, mut stream) = start().await;
    let batch = stored(7, &["a", "b"]);
    let leased = vec![wire::Leased { start: 7, count: 2, attempt: 1, redelivered: false }];
    let frame = encode_delivery(0, &batch, leased, false);
    let mut body = frame.body.to_vec();
    body[3] ^= 1;
    stream.stream.sender.send(Frame { body: body.into(), ..frame }).await.unwrap();
    let error = consumer.next().await.unwrap_err();
    assert!(matches!(error, ReceiveError::Corrupt { offset: Offset(7), .. }), "{error:?}");
    assert_eq!(error.kind(), "corrupt");
    let settle = stream.hear_settle().await;
    assert_eq!(
        settle.nacks.iter().map(|nack| (nack.offset, nack.nack_kind())).collect::<Vec<_>>(),
        [(7, NackKind::Retry), (8, NackKind::Retry)]
    );
    assert!(settle.nacks[0].reason.contains("checksum"), "{}", settle.nacks[0].reason);
    stream.deliver(9, &["c"]).await;
    assert_eq!(next(&mut consumer).await.offset(), Offset(9));
}

#[tokio::test]
async fn where_the_group_has_stopped_is_told_once_and_the_rest_goes_on() {
    let stopped = |offset| {
        let error =
            wire::Error { hint: "seek".to_owned(), ..refusal(ErrorCode::Corrupt, "the checksum does not hold") };
        to_client::Kind::PartitionStopped(wire::PartitionStopped { partition: 3, offset, error: Some(error) })
    };
    let (mut broker, _client, peer, mut consumer, mut stream) = start().await;
    stream.deliver(0, &["a"]).await;
    stream.say(stopped(Some(9))).await;
    stream.deliver(1, &["b"]).await;
    assert_eq!(next(&mut consumer).await.body().as_ref(), b"a");
    let error = consumer.next().await.unwrap_err();
    assert!(
        matches!(error, ReceiveError::Stopped { partition: PartitionIndex(3), offset: Some(Offset(9)), .. }),
        "{error:?}"
    );
    assert_eq!((error.kind(), error.hint(), error.is_final()), ("corrupt", Some("seek"), false));
    assert_eq!(error.to_string(), "the group has stopped on partition 3 at offset 9: the checksum does not hold");
    assert_eq!(next(&mut consumer).await.body().as_ref(), b"b");
    // A broker says it to each subscription: the application has heard it.
    drop((peer, stream));
    let (_peer, mut stream) = come_back(&mut broker).await;
    stream.say(stopped(Some(9))).await;
    stream.deliver(2, &["c"]).await;
    assert_eq!(next(&mut consumer).await.body().as_ref(), b"c");
    // Another place is news.
    stream.say(stopped(None)).await;
    assert!(matches!(consumer.next_batch().await, Err(ReceiveError::Stopped { offset: None, .. })));
}

#[tokio::test]
async fn leased_offsets_that_are_not_in_the_batch_are_damage_too() {
    let (_broker, _client, _peer, mut consumer, mut stream) = start().await;
    for (start, picked) in [(6, false), (9, false), (7, true)] {
        let leased = vec![wire::Leased { start, count: 3, attempt: 1, redelivered: false }];
        stream.deliver_leased(&stored(7, &["a", "b"]), leased, picked).await;
        assert!(matches!(consumer.next().await, Err(ReceiveError::Corrupt { .. })));
    }
}

#[tokio::test]
async fn after_a_reconnect_what_was_held_is_lost_and_what_was_said_may_or_may_not_count() {
    let (mut broker, _client, peer, mut consumer, mut stream) = start().await;
    stream.deliver(0, &["a", "b", "c", "d"]).await;
    let said = next(&mut consumer).await.ack();
    stream.hear_settle().await;
    let held = next(&mut consumer).await;
    peer.close();
    turns().await;
    assert!(matches!(said.await, Err(SettleError::OutcomeUnknown { .. })));
    assert!(matches!(held.ack().await, Err(SettleError::LeaseLost { offset: Offset(1), .. })));
    let (_peer, mut stream) = come_back(&mut broker).await;
    // Not the ones that were waiting when the connection was lost.
    stream.deliver(1, &["b again"]).await;
    let delivery = next(&mut consumer).await;
    assert_eq!(delivery.body().as_ref(), b"b again");
    let acked = delivery.ack();
    let settle = stream.hear_settle().await;
    stream.settled(settle.request, Vec::new()).await;
    acked.await.unwrap();
}

#[tokio::test]
async fn close_gives_back_what_was_not_asked_for_and_waits_for_answers() {
    let (_broker, _client, _peer, mut consumer, mut stream) = start().await;
    stream.deliver(0, &["a", "b", "c"]).await;
    stream.deliver(3, &["d"]).await;
    let acked = next(&mut consumer).await.ack();
    let mut closing = Box::pin(consumer.close());
    assert!(futures_util::poll!(closing.as_mut()).is_pending());
    let mut released = Vec::new();
    let mut requests = Vec::new();
    while let Some((kind, _)) = stream.hear_now().await {
        let to_broker::Kind::Settle(settle) = kind else { panic!("{kind:?}") };
        released.extend(settle.nacks.iter().map(|nack| (nack.offset, nack.nack_kind())));
        requests.push(settle.request);
    }
    assert_eq!(released, [1, 2, 3].map(|offset| (offset, NackKind::Release)));
    assert!(futures_util::poll!(closing.as_mut()).is_pending());
    for request in requests {
        stream.settled(request, Vec::new()).await;
    }
    acked.await.unwrap();
    assert!(matches!(stream.hear().await.0, to_broker::Kind::Unsubscribe(_)));
    stream.ended().await;
    drop(stream);
    closing.await;
}

#[tokio::test]
async fn a_dropped_consumer_says_farewell_too() {
    let (_broker, _client, _peer, consumer, mut stream) = start().await;
    stream.deliver(0, &["a"]).await;
    turns().await;
    drop(consumer);
    let settle = stream.hear_settle().await;
    assert_eq!(settle.nacks[0].nack_kind(), NackKind::Release);
    stream.settled(settle.request, Vec::new()).await;
    assert!(matches!(stream.hear().await.0, to_broker::Kind::Unsubscribe(_)));
    stream.ended().await;
}

#[tokio::test]
async fn a_subscription_whose_topic_is_gone_ends() {
    let (_broker, _client, _peer, mut consumer, mut stream) = start().await;
    stream.say(to_client::Kind::Ended(refusal(ErrorCode::TopicNotFound, "it was deleted"))).await;
    let error = consumer.next().await.unwrap_err();
    assert!(matches!(error, ReceiveError::Ended(_)));
    assert_eq!(error.kind(), "topic_not_found");
    assert!(consumer.next().await.unwrap().is_none());
    consumer.close().await;
}

#[tokio::test]
async fn a_broker_that_cannot_serve_for_now_is_asked_again() {
    let (broker, _client, peer, mut consumer, mut stream) = start().await;
    stream.say(to_client::Kind::Ended(refusal(ErrorCode::ShuttingDown, "it drains"))).await;
    let (mut stream, _) = broker.pass_time_until(peer.subscription()).await;
    stream.hear_grant().await;
    stream.deliver(0, &["a"]).await;
    assert_eq!(next(&mut consumer).await.body().as_ref(), b"a");
}

#[tokio::test]
async fn a_credit_of_nothing_is_refused() {
    let mut broker = Broker::new();
    let (client, _peer) = broker.client().await;
    assert!(matches!(client.consumer(TOPIC, "g").credit(0).open().await, Err(OpenError::Setting(_))));
    assert!(matches!(client.consumer(TOPIC, "g").credit_bytes(0).open().await, Err(OpenError::Setting(_))));
}
