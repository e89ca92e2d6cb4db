//! Peers that break the rules: they alone are turned away, within a bound of time and memory, and told why.

use std::time::Duration;

use bytes::Bytes;
use stentor_core::transport::TransportError;
use stentor_protocol::ErrorCode;
use stentor_protocol::wire::{self, request, to_broker, to_client};
use stentor_transport_mem::{MemLimits, MemNetwork};

use crate::support::peer::{hear, say};
use crate::support::{Peer, Rig, TOPIC, batch_of, config, record, sequenced, subscribe, within};

async fn closed(peer: &Peer) -> TransportError {
    within("the connection is closed", peer.connection.closed()).await
}

fn refused(said: Option<(to_client::Kind, Bytes)>) -> wire::Error {
    match said {
        Some((to_client::Kind::Refused(error) | to_client::Kind::Ended(error), _)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn garbage_on_a_stream_ends_that_stream_with_a_reason() {
    let rig = Rig::start(config(&[], &[])).await;
    let mut peer = rig.connect().await;
    for garbage in [&b"\xff\xff\xff\xff"[..], b"", b"\x9a\x06\x00"] {
        let mut stream = peer.raw(Bytes::copy_from_slice(garbage)).await;
        assert_eq!(refused(hear(&mut stream).await).code(), ErrorCode::Protocol, "{garbage:?}");
    }
    // In the middle of a producer's stream, and of a subscription's.
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    say(&mut producer.stream, to_broker::Kind::Grant(wire::Grant { messages: 1, bytes: 1 })).await;
    assert_eq!(producer.answer().await.unwrap_err().code(), ErrorCode::Protocol);
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    say(&mut consumer.stream, to_broker::Kind::Hello(wire::Hello::default())).await;
    assert_eq!(consumer.ended().await.code(), ErrorCode::Protocol);
    let listed = peer.ask(request::Kind::ListTopics(wire::ListTopics::default())).await;
    assert!(matches!(listed, wire::response::Kind::Topics(_)), "the connection lives on");
}

#[tokio::test]
async fn garbage_on_the_control_stream_ends_the_connection_and_no_other() {
    let rig = Rig::start(config(&[], &[])).await;
    let (mut bad, mut good) = (rig.connect().await, rig.connect().await);
    say(&mut bad.control, to_broker::Kind::Unsubscribe(wire::Unsubscribe {})).await;
    assert_eq!(refused(hear(&mut bad.control).await).code(), ErrorCode::Protocol);
    closed(&bad).await;
    let listed = good.ask(request::Kind::ListTopics(wire::ListTopics::default())).await;
    assert!(matches!(listed, wire::response::Kind::Topics(_)));
}

#[tokio::test]
async fn a_damaged_batch_is_refused_and_the_stream_lives_on() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let batch = batch_of(&[record("hello")], sequenced(1, 0, 0));
    for flipped in 0..batch.payload().len() {
        let mut body = batch.payload().to_vec();
        body[flipped] ^= 1;
        let publish = wire::Publish {
            request: 1_000 + flipped as u64,
            partition: 0,
            batch_header: Bytes::copy_from_slice(&batch.header_bytes()),
        };
        let mut frame = stentor_protocol::encode_to_broker(to_broker::Kind::Publish(publish));
        frame.body = body.into();
        producer.stream.sender.send(frame).await.unwrap();
        assert_eq!(producer.answer().await.unwrap_err().code(), ErrorCode::BatchMalformed);
    }
    assert_eq!(producer.try_publish(0, &batch).await.unwrap().base_offset, 0);
}

#[tokio::test]
async fn peers_of_other_versions_are_told_so() {
    let rig = Rig::start(config(&[], &[])).await;
    for (version_min, version_max) in [(2, 3), (0, 0)] {
        let connection = Peer::dial(&rig.network).await;
        let mut control = connection.open().await.unwrap();
        say(&mut control, to_broker::Kind::Hello(wire::Hello { version_min, version_max, client: "x".into() })).await;
        assert_eq!(refused(hear(&mut control).await).code(), ErrorCode::VersionMismatch);
        within("the connection is closed", connection.closed()).await;
    }
}

#[tokio::test]
async fn a_handshake_that_stalls_is_cut_off_and_others_go_on() {
    let rig = Rig::start(config(&[], &[])).await;
    let silent = Peer::dial(&rig.network).await;
    let opened = Peer::dial(&rig.network).await;
    let _half = opened.open().await.unwrap();
    let mut good = rig.connect().await;
    let cut_off = async {
        while tokio::time::timeout(Duration::from_millis(1), silent.closed()).await.is_err()
            || tokio::time::timeout(Duration::from_millis(1), opened.closed()).await.is_err()
        {
            rig.clock.advance(Duration::from_secs(1));
        }
    };
    within("both are cut off", cut_off).await;
    let listed = good.ask(request::Kind::ListTopics(wire::ListTopics::default())).await;
    assert!(matches!(listed, wire::response::Kind::Topics(_)));
}

#[tokio::test]
async fn an_open_stream_may_stay_silent_for_as_long_as_it_likes() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    rig.clock.advance(Duration::from_secs(3_600));
    producer.publish(&["the deadline was for the handshake"]).await;
}

#[tokio::test]
async fn a_frame_that_is_too_large_ends_its_stream_alone() {
    let limits = MemLimits { frame_body_bytes_max: 4_096, ..MemLimits::default() };
    let rig = Rig::start(config(&[], &[])).await;
    let narrow = MemNetwork::with_limits(limits);
    rig.broker.serve(Box::new(narrow.listen(crate::support::ADDRESS).unwrap()));
    let mut peer = Peer::connect(&narrow.limited(MemLimits::default())).await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let large = batch_of(&[record(vec![0; 8_192])], sequenced(1, 0, 0));
    let frame = stentor_protocol::frame::encode_publish(1, 0, &large);
    // Whichever side notices first.
    if producer.stream.sender.send(frame).await.is_ok() {
        assert_eq!(producer.answer().await.unwrap_err().code(), ErrorCode::MessageTooLarge);
    }
    let listed = peer.ask(request::Kind::ListTopics(wire::ListTopics::default())).await;
    assert!(matches!(listed, wire::response::Kind::Topics(_)), "the connection lives on");
}

#[tokio::test]
async fn connections_and_streams_beyond_their_limits_are_turned_away() {
    let mut config = config(&[], &[]);
    config.node.connections_max = 2;
    config.node.streams_per_connection_max = 2;
    let rig = Rig::start(config).await;
    let first = rig.connect().await;
    let _second = rig.connect().await;
    let third = Peer::dial(&rig.network).await;
    assert!(matches!(within("it is closed", third.closed()).await, TransportError::ConnectionClosed(Some(_))));
    let _a = first.producer(TOPIC, 1, 0).await.unwrap();
    let _b = first.producer(TOPIC, 2, 0).await.unwrap();
    let mut stream = first.connection.open().await.unwrap();
    let open = wire::OpenProducer { topic: TOPIC.into(), producer: 3, epoch: 0 };
    say(&mut stream, to_broker::Kind::OpenProducer(open)).await;
    assert!(hear(&mut stream).await.is_none(), "the third stream is reset");
    drop(first);
    let freed = async {
        loop {
            let connection = Peer::dial(&rig.network).await;
            if tokio::time::timeout(Duration::from_millis(20), connection.closed()).await.is_err() {
                return;
            }
        }
    };
    within("a place is free again", freed).await;
}

#[tokio::test]
async fn a_settlement_of_what_was_never_held_fails_by_name() {
    let rig = Rig::start(config(&[], &[])).await;
    let peer = rig.connect().await;
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    let span = |start, count| wire::OffsetSpan { start, count };
    let ack = wire::Ack { partition: 0, spans: vec![span(5, 10), span(u64::MAX - 1, u32::MAX)] };
    let failed = consumer.settle(wire::Settle { acks: vec![ack], ..Default::default() }).await;
    assert!(!failed.is_empty());
    assert!(failed.iter().all(|failed| failed.error.as_ref().unwrap().code() == ErrorCode::LeaseLost));
    let elsewhere = wire::Ack { partition: 9, spans: vec![span(0, 1)] };
    say(
        &mut consumer.stream,
        to_broker::Kind::Settle(wire::Settle { request: 9, acks: vec![elsewhere], ..Default::default() }),
    )
    .await;
    assert_eq!(consumer.ended().await.code(), ErrorCode::PartitionNotFound);
}
