//! Sending, against a broker that the test plays.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::num::NonZeroU32;
use std::time::Duration;

use common::{Broker, Peer, Publish, Stream, TOPIC, message, turns};
use futures_util::FutureExt;
use stentor_client::{
    Client, Compression, ErrorCode, InDoubt, Message, OpenError, Producer, ProducerBuilder, SendError,
};
use stentor_core::partition_for_key;

/// A producer with the broker's side of its stream.
async fn open(peer: &Peer, builder: ProducerBuilder, partitions: u32) -> (Producer, Stream) {
    let (producer, stream) = tokio::join!(builder.open(), peer.producer(partitions));
    (producer.unwrap(), stream)
}

async fn start(partitions: u32) -> (Broker, Client, Peer, Producer, Stream) {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let (producer, stream) = open(&peer, client.producer(TOPIC), partitions).await;
    (broker, client, peer, producer, stream)
}

/// The broker's side after the connection was lost: the next one, with the producer's stream on it.
async fn come_back(broker: &mut Broker, partitions: u32) -> (Peer, Stream) {
    let peer = broker.accept_in_time().await;
    let stream = broker.pass_time_until(peer.producer(partitions)).await;
    (peer, stream)
}

#[tokio::test]
async fn a_lone_message_goes_at_once_and_its_receipt_says_where_it_is() {
    let (_broker, _client, _peer, producer, mut stream) = start(1).await;
    let message = Message::new("body").key("k").tag("t").header("h", "v").id("order-17".parse().unwrap());
    let pending = producer.enqueue(message).await.unwrap();
    let publish = stream.hear_publish().await;
    let record = publish.batch.records(1_000).unwrap().next().unwrap().unwrap();
    assert_eq!((record.body.as_ref(), record.key.as_deref()), (&b"body"[..], Some(&b"k"[..])));
    assert_eq!((record.tag.as_deref(), record.headers[0].name.as_ref()), (Some("t"), "h"));
    stream.stored(&publish, 7).await;
    let receipt = pending.await.unwrap();
    assert_eq!((receipt.partition.0, receipt.offset.0, receipt.duplicate), (0, 7, false));
    assert_eq!((receipt.id.to_string(), receipt.topic.to_string()), ("order-17".to_owned(), TOPIC.to_owned()));
}

#[tokio::test]
async fn messages_gather_while_others_are_under_way_and_keep_their_order() {
    let (_broker, _client, _peer, producer, mut stream) = start(1).await;
    let mut pending = Vec::new();
    let mut publishes = Vec::new();
    for number in 0..2 {
        pending.push(producer.enqueue(message(&number.to_string())).await.unwrap());
        publishes.push(stream.hear_publish().await);
    }
    for number in 2..100 {
        pending.push(producer.enqueue(message(&number.to_string())).await.unwrap());
    }
    assert!(stream.hear_publish_now().await.is_none(), "they wait while two batches are under way");
    stream.stored(&publishes[0], 0).await;
    let rest = stream.hear_publish().await;
    assert_eq!(rest.bodies(), (2..100).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!([&publishes[0], &publishes[1], &rest].map(Publish::sequence), [(0, 0), (0, 1), (0, 2)]);
    stream.stored(&publishes[1], 1).await;
    stream.stored(&rest, 2).await;
    for (number, pending) in pending.into_iter().enumerate() {
        assert_eq!(pending.await.unwrap().offset.0, number as u64);
    }
}

#[tokio::test]
async fn full_batches_are_pipelined_up_to_the_window() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let builder = client.producer(TOPIC).batch_records(1).in_flight_batches(5);
    let (producer, mut stream) = open(&peer, builder, 1).await;
    for number in 0..7 {
        drop(producer.enqueue(message(&number.to_string())).await.unwrap());
    }
    let mut publishes = Vec::new();
    while let Some(publish) = stream.hear_publish_now().await {
        publishes.push(publish);
    }
    assert_eq!(publishes.len(), 5);
    stream.stored(&publishes[0], 0).await;
    assert_eq!(stream.hear_publish().await.bodies(), ["5"]);
    assert!(stream.hear_publish_now().await.is_none());
}

#[tokio::test]
async fn a_batch_lingers_until_its_time_or_until_it_is_flushed() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let (producer, mut stream) = open(&peer, client.producer(TOPIC).linger(Duration::from_secs(1)), 1).await;
    drop(producer.enqueue(message("a")).await.unwrap());
    assert!(stream.hear_publish_now().await.is_none());
    broker.clock.advance(Duration::from_secs(1));
    let publish = stream.hear_publish().await;
    stream.stored(&publish, 0).await;

    drop(producer.enqueue(message("b")).await.unwrap());
    assert!(stream.hear_publish_now().await.is_none());
    let answering = async {
        let publish = stream.hear_publish().await;
        stream.stored(&publish, 1).await;
    };
    let (flushed, ()) = tokio::join!(producer.flush(), answering);
    flushed.unwrap();
}

#[tokio::test]
async fn compressed_batches_arrive_whole() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    for compression in [Compression::Lz4, Compression::Zstd] {
        let (producer, mut stream) = open(&peer, client.producer(TOPIC).compression(compression), 1).await;
        let body = "x".repeat(900);
        drop(producer.enqueue(message(&body)).await.unwrap());
        let publish = stream.hear_publish().await;
        assert_eq!(publish.batch.compression(), compression);
        assert_eq!(publish.bodies(), [body]);
    }
}

#[tokio::test]
async fn a_key_decides_the_partition_and_a_producer_may_be_bound_to_one() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let (producer, mut stream) = open(&peer, client.producer(TOPIC), 4).await;
    for key in ["a", "order-17", ""] {
        drop(producer.enqueue(message("m").key(key)).await.unwrap());
        let publish = stream.hear_publish().await;
        assert_eq!(publish.partition, partition_for_key(key.as_bytes(), NonZeroU32::new(4).unwrap()).0);
        stream.stored(&publish, 0).await;
    }
    let (producer, mut stream) = open(&peer, client.producer(TOPIC).partition(3), 4).await;
    drop(producer.enqueue(message("m").key("a")).await.unwrap());
    assert_eq!(stream.hear_publish().await.partition, 3);
    let (beyond, _stream) = tokio::join!(client.producer(TOPIC).partition(4).open(), peer.producer(4));
    assert!(matches!(beyond, Err(OpenError::Setting(_))));
}

#[tokio::test]
async fn messages_without_a_key_spread_over_the_partitions() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let (producer, mut stream) = open(&peer, client.producer(TOPIC).batch_records(1), 4).await;
    let mut seen = [0; 4];
    for _ in 0..16 {
        drop(producer.enqueue(message("m")).await.unwrap());
        seen[stream.hear_publish().await.partition as usize] += 1;
    }
    // The better of two at random: none is left out, and none has more than half.
    assert!(seen.iter().all(|count| (1..=8).contains(count)), "{seen:?}");
}

#[tokio::test]
async fn what_was_not_answered_is_sent_again_after_a_reconnect_with_its_sequence() {
    let (mut broker, _client, peer, producer, mut stream) = start(1).await;
    let first = producer.enqueue(message("a")).await.unwrap();
    let publish = stream.hear_publish().await;
    let second = producer.enqueue(message("b")).await.unwrap();
    stream.hear_publish().await;
    stream.stored(&publish, 0).await;
    assert!(!first.await.unwrap().duplicate);
    peer.close();
    let (_peer, mut stream) = come_back(&mut broker, 1).await;
    let again = stream.hear_publish().await;
    assert_eq!((again.bodies(), again.sequence()), (vec!["b".to_owned()], (0, 1)));
    stream.published(&again, 1, true).await;
    let receipt = second.await.unwrap();
    assert_eq!((receipt.offset.0, receipt.duplicate), (1, true));
}

#[tokio::test]
async fn a_definite_refusal_moves_a_message_to_another_partition_at_once() {
    let (_broker, _client, _peer, producer, mut stream) = start(2).await;
    let pending = producer.enqueue(message("a")).await.unwrap();
    let publish = stream.hear_publish().await;
    stream.refuse(&publish, ErrorCode::StorageFull).await;
    let moved = stream.hear_publish().await;
    assert_ne!(moved.partition, publish.partition);
    assert_eq!((moved.bodies(), moved.sequence()), (vec!["a".to_owned()], (0, 0)));
    assert_eq!(
        moved.batch.records(1_000).unwrap().next().unwrap().unwrap().id,
        publish.batch.records(1_000).unwrap().next().unwrap().unwrap().id,
    );
    stream.stored(&moved, 5).await;
    assert_eq!(pending.await.unwrap().partition.0, moved.partition);
}

#[tokio::test]
async fn a_message_with_a_key_is_tried_where_it_belongs_until_it_is_given_back() {
    let (broker, _client, _peer, producer, mut stream) = start(2).await;
    let mut pending = producer.enqueue(message("a").key("k")).await.unwrap();
    let mut partitions = Vec::new();
    let error = broker
        .pass_time_until(async {
            loop {
                tokio::select! {
                    publish = stream.hear_publish() => {
                        partitions.push(publish.partition);
                        stream.refuse(&publish, ErrorCode::StorageFull).await;
                    }
                    result = &mut pending => break result.unwrap_err(),
                }
            }
        })
        .await;
    assert!(matches!(&error, SendError::NotStored { reason } if reason.code == ErrorCode::StorageFull), "{error:?}");
    assert!(!error.may_be_stored());
    assert!(partitions.len() > 3 && partitions.iter().all(|partition| *partition == partitions[0]), "{partitions:?}");
}

#[tokio::test]
async fn an_unknown_outcome_is_never_folded_into_failure() {
    let (mut broker, _client, peer, producer, mut stream) = start(1).await;
    let sent = producer.enqueue(message("sent")).await.unwrap();
    stream.hear_publish().await;
    peer.close();
    turns().await;
    broker.stop_listening();
    let never_sent = producer.enqueue(message("never sent")).await.unwrap();
    let sent = broker.pass_time_until(sent).await.unwrap_err();
    assert!(matches!(sent, SendError::OutcomeUnknown { .. }), "{sent:?}");
    assert_eq!((sent.kind(), sent.may_be_stored()), ("outcome_unknown", true));
    let never_sent = broker.pass_time_until(never_sent).await.unwrap_err();
    assert!(matches!(never_sent, SendError::NotStored { .. }), "{never_sent:?}");
    assert!(!never_sent.may_be_stored());
}

#[tokio::test]
async fn what_is_in_doubt_stays_where_it_was_and_then_moves_unless_it_is_to_wait() {
    for in_doubt in [InDoubt::Move, InDoubt::Wait] {
        let mut broker = Broker::new();
        let (client, peer) = broker.client().await;
        let (producer, mut stream) = open(&peer, client.producer(TOPIC).in_doubt(in_doubt), 2).await;
        let mut pending = producer.enqueue(message("a")).await.unwrap();
        let mut partitions = Vec::new();
        let result = broker
            .pass_time_until(async {
                loop {
                    tokio::select! {
                        publish = stream.hear_publish() => {
                            if partitions.first().is_none_or(|first| *first == publish.partition) {
                                stream.refuse(&publish, ErrorCode::StorageFailed).await;
                            } else {
                                stream.stored(&publish, 3).await;
                            }
                            partitions.push(publish.partition);
                        }
                        result = &mut pending => break result,
                    }
                }
            })
            .await;
        let stayed = partitions.iter().filter(|partition| **partition == partitions[0]).count();
        assert!(stayed > 2, "{partitions:?}");
        match in_doubt {
            InDoubt::Move => assert_eq!((stayed + 1, result.unwrap().offset.0), (partitions.len(), 3)),
            InDoubt::Wait => {
                assert_eq!(stayed, partitions.len());
                assert!(matches!(result, Err(SendError::OutcomeUnknown { .. })));
            }
        }
    }
}

#[tokio::test]
async fn what_does_not_do_is_refused_before_it_is_sent() {
    let (_broker, _client, _peer, producer, mut stream) = start(1).await;
    drop(producer.enqueue(Message::new(vec![0; 1_000])).await.unwrap());
    assert_eq!(stream.hear_publish().await.batch.count(), 1);
    let error = producer.send(Message::new(vec![0; 998]).key("key")).await.unwrap_err();
    assert!(matches!(error, SendError::TooLarge { bytes: 1_001, bytes_max: 1_000, .. }), "{error:?}");
    assert_eq!(error.kind(), "message_too_large");
    let error = producer.send(Message::new("").tag("t".repeat(256))).await.unwrap_err();
    assert!(matches!(error, SendError::Invalid(_)), "{error:?}");
    assert!(stream.hear_publish_now().await.is_none());
}

#[tokio::test]
async fn enqueue_waits_for_room_and_a_wait_that_is_dropped_sends_nothing() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let (producer, mut stream) = open(&peer, client.producer(TOPIC).in_flight_bytes(1_000), 1).await;
    let first = producer.enqueue(Message::new(vec![b'a'; 800])).await.unwrap();
    let publish = stream.hear_publish().await;
    assert!(producer.enqueue(Message::new(vec![b'b'; 800])).now_or_never().is_none());
    let mut third = Box::pin(producer.enqueue(Message::new(vec![b'c'; 800])));
    assert!(futures_util::poll!(third.as_mut()).is_pending());
    stream.stored(&publish, 0).await;
    first.await.unwrap();
    drop(third.await.unwrap());
    assert_eq!(stream.hear_publish().await.bodies(), ["c".repeat(800)]);
}

#[tokio::test]
async fn close_waits_until_all_is_answered() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let (producer, mut stream) = open(&peer, client.producer(TOPIC).linger(Duration::from_secs(60)), 1).await;
    let pending = producer.enqueue(message("a")).await.unwrap();
    let mut closing = Box::pin(producer.close());
    assert!(futures_util::poll!(closing.as_mut()).is_pending());
    let publish = stream.hear_publish().await;
    turns().await;
    assert!(futures_util::poll!(closing.as_mut()).is_pending());
    stream.stored(&publish, 0).await;
    closing.await.unwrap();
    pending.await.unwrap();
    stream.ended().await;
}

#[tokio::test]
async fn close_reports_what_was_not_stored() {
    let (_broker, _client, _peer, producer, mut stream) = start(1).await;
    drop(producer.enqueue(message("a")).await.unwrap());
    let publish = stream.hear_publish().await;
    stream.refuse(&publish, ErrorCode::BatchMalformed).await;
    assert!(matches!(producer.close().await, Err(SendError::Refused(_))));
}

#[tokio::test]
async fn a_dropped_producer_finishes_what_it_took_over() {
    let (_broker, client, _peer, producer, mut stream) = start(1).await;
    let pending = producer.enqueue(message("a")).await.unwrap();
    drop((producer, client));
    let publish = stream.hear_publish().await;
    stream.stored(&publish, 4).await;
    assert_eq!(pending.await.unwrap().offset.0, 4);
    stream.ended().await;
}

#[tokio::test]
async fn when_the_topic_is_gone_messages_are_refused() {
    let (mut broker, _client, peer, producer, _stream) = start(1).await;
    peer.close();
    let peer = broker.accept_in_time().await;
    let pending = producer.enqueue(message("a")).await.unwrap();
    let refusing = async {
        let (mut stream, _) = peer.stream().await;
        let error = stentor_protocol::error::refusal(ErrorCode::TopicNotFound, "no such topic");
        stream.say(stentor_protocol::wire::to_client::Kind::Refused(error)).await;
        stream
    };
    let _stream = broker.pass_time_until(refusing).await;
    let error = broker.pass_time_until(pending).await.unwrap_err();
    assert!(matches!(&error, SendError::Refused(refused) if refused.code == ErrorCode::TopicNotFound), "{error:?}");
}

#[tokio::test]
async fn settings_out_of_bounds_are_refused() {
    let mut broker = Broker::new();
    let (client, _peer) = broker.client().await;
    let builders = [
        client.producer(TOPIC).in_flight_batches(65),
        client.producer(TOPIC).in_flight_batches(0),
        client.producer(TOPIC).batch_bytes(2 << 20),
        client.producer(TOPIC).batch_records(0),
        client.producer(TOPIC).in_flight_bytes(0),
    ];
    for builder in builders {
        assert!(matches!(builder.clone().open().await, Err(OpenError::Setting(_))), "{builder:?}");
    }
}

#[tokio::test]
async fn a_route_that_is_pushed_opens_new_partitions() {
    let (_broker, _client, mut peer, producer, mut stream) = start(1).await;
    let route = stentor_protocol::wire::Route { version: 2, ..common::route(2) };
    peer.control.say(stentor_protocol::wire::to_client::Kind::Route(route)).await;
    turns().await;
    let mut seen = std::collections::BTreeSet::new();
    for number in 0..6 {
        drop(producer.enqueue(message(&number.to_string())).await.unwrap());
        if let Some(publish) = stream.hear_publish_now().await {
            seen.insert(publish.partition);
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1]);
}
