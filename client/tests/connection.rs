//! Connecting, asking, and losing the connection.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::{ADDRESS, Broker, Peer, message, refused, turns};
use stentor_client::{Client, ConnectError, ErrorCode, OpenError, RequestError, SendError};
use stentor_protocol::error::refusal;
use stentor_protocol::wire::{self, request, response, to_client};

#[tokio::test]
async fn a_broker_of_another_version_is_named_as_the_reason() {
    let mut broker = Broker::new();
    let connecting = broker.connect().open();
    let refusing = async {
        let mut peer = broker.accept_silently().await;
        let hint = "upgrade the client".to_owned();
        let error = wire::Error { hint, ..refusal(ErrorCode::VersionMismatch, "the client is too old") };
        peer.control.say(to_client::Kind::Refused(error)).await;
        peer
    };
    let (connected, _peer) = tokio::join!(connecting, refusing);
    let error = refused(connected);
    assert!(matches!(&error, ConnectError::Refused { address, .. } if address == ADDRESS), "{error:?}");
    assert_eq!(error.kind(), "version_mismatch");
    assert_eq!(error.hint(), Some("upgrade the client"));
    assert!(error.to_string().contains("too old"), "{error}");
}

#[tokio::test]
async fn a_broker_that_chooses_a_version_which_was_not_offered_is_not_spoken_to() {
    let mut broker = Broker::new();
    let connecting = broker.connect().open();
    let answering = async {
        let mut peer = broker.accept_silently().await;
        peer.control.say(to_client::Kind::Welcome(wire::Welcome { version: 9, ..Default::default() })).await;
        peer
    };
    let (connected, _peer) = tokio::join!(connecting, answering);
    assert!(matches!(refused(connected), ConnectError::Protocol { .. }));
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_given_up() {
    let mut broker = Broker::new();
    let clock = broker.clock.clone();
    let connecting = broker.connect().open();
    let (connected, _peer) = tokio::join!(common::pass_time_until(&clock, connecting), broker.accept_silently());
    let error = refused(connected);
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error:?}");
    assert_eq!(error.kind(), "timeout");
}

#[tokio::test]
async fn servers_are_tried_in_turn() {
    let mut broker = Broker::new();
    let transport = Arc::new(broker.network.transport());
    let connecting = Client::connect("nobody:1").server(ADDRESS).transport(transport).seed(1).open();
    let (connected, _peer) = tokio::join!(connecting, broker.accept());
    assert!(connected.is_ok());

    let transport = Arc::new(broker.network.transport());
    let error = refused(Client::connect("nobody:1").transport(transport).seed(1).open().await);
    assert_eq!(error.kind(), "unavailable");
    assert!(error.hint().is_some());
}

#[tokio::test]
async fn a_missing_profile_says_which_file() {
    let error = refused(Client::from_profile("no/such/client.toml").open().await);
    assert!(error.to_string().contains("no/such/client.toml"), "{error}");
    assert_eq!(error.kind(), "invalid");
}

#[tokio::test]
async fn requests_are_answered_by_their_numbers() {
    let mut broker = Broker::new();
    let (client, mut peer) = broker.client().await;
    let (admin, other) = (client.admin(), client.admin());
    let answering = async {
        let (first, kind) = peer.request().await;
        assert!(matches!(kind, request::Kind::ShowTopic(show) if show.name == "a"));
        let (second, _) = peer.request().await;
        let topic = |name: &str| wire::TopicDescription { name: name.to_owned(), ..Default::default() };
        peer.respond(second, response::Kind::Topic(topic("b")), Bytes::new()).await;
        peer.respond(first, response::Kind::Topic(topic("a")), Bytes::new()).await;
    };
    let (a, b, ()) = tokio::join!(admin.show_topic("a"), other.show_topic("b"), answering);
    assert_eq!((a.unwrap().name, b.unwrap().name), ("a".to_owned(), "b".to_owned()));
}

#[tokio::test]
async fn a_name_that_does_not_do_is_refused_before_anything_is_asked() {
    let mut broker = Broker::new();
    let (client, mut peer) = broker.client().await;
    for name in ["../x", "a/b", "", "x\0", &"x".repeat(256)] {
        let error = client.admin().show_topic(name).await.unwrap_err();
        assert_eq!(error.kind(), "invalid");
        assert!(matches!(client.producer(name).open().await, Err(OpenError::Name(_))));
        assert!(matches!(client.consumer("t", name).open().await, Err(OpenError::Name(_))));
    }
    assert!(peer.control.hear_now().await.is_none());
}

#[tokio::test]
async fn what_only_reads_is_asked_again_on_the_next_connection() {
    let mut broker = Broker::new();
    let (client, mut peer) = broker.client().await;
    let admin = client.admin();
    let asking = tokio::spawn(async move { admin.list_topics().await });
    peer.request().await;
    peer.close();
    let mut peer = broker.accept_in_time().await;
    let (id, _) = peer.request().await;
    peer.respond(id, response::Kind::Topics(wire::Topics::default()), Bytes::new()).await;
    assert!(asking.await.unwrap().unwrap().is_empty());
}

/// A client does not know at once that its broker was killed: the first thing it opens then met the dead connection, and
/// failed with it although the next one was being made.
#[tokio::test]
async fn a_producer_that_is_opened_on_a_dying_connection_opens_on_the_next() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let opening = client.producer(common::TOPIC).open();
    let cutting = async {
        let (stream, _) = peer.stream().await;
        peer.close();
        drop(stream);
        let peer = broker.accept_in_time().await;
        let stream = peer.producer(1).await;
        (peer, stream)
    };
    let (opened, _kept) = tokio::join!(opening, cutting);
    opened.unwrap();
}

#[tokio::test]
async fn what_changes_something_is_not_asked_twice() {
    let mut broker = Broker::new();
    let (client, mut peer) = broker.client().await;
    let admin = client.admin();
    let asking = tokio::spawn(async move { admin.delete_topic("t").await });
    peer.request().await;
    peer.close();
    let error = asking.await.unwrap().unwrap_err();
    assert!(matches!(error, RequestError::OutcomeUnknown { .. }), "{error:?}");
    let mut peer = broker.accept_in_time().await;
    assert!(peer.control.hear_now().await.is_none());
}

#[tokio::test]
async fn without_a_connection_a_request_was_not_done() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    peer.close();
    turns().await;
    broker.stop_listening();
    let error = broker.pass_time_until(client.admin().delete_topic("t")).await.unwrap_err();
    assert!(matches!(&error, RequestError::Unavailable { last: Some(_), .. }), "{error:?}");
    assert_eq!(error.kind(), "unavailable");
}

#[tokio::test]
async fn an_answer_that_never_comes_leaves_the_outcome_open() {
    let mut broker = Broker::new();
    let (client, mut peer) = broker.client().await;
    let error = broker.pass_time_until(client.admin().delete_topic("t")).await.unwrap_err();
    assert!(matches!(error, RequestError::OutcomeUnknown { .. }), "{error:?}");
    // A late answer harms nobody.
    let (id, _) = peer.request().await;
    peer.respond(id, response::Kind::Done(wire::Done {}), Bytes::new()).await;
    turns().await;
    let admin = client.admin();
    let asking = tokio::spawn(async move { admin.pause_group("t", "g").await });
    let (id, kind) = peer.request().await;
    assert!(matches!(kind, request::Kind::PauseGroup(pause) if pause.paused));
    peer.respond(id, response::Kind::Error(refusal(ErrorCode::GroupNotFound, "no group")), Bytes::new()).await;
    assert_eq!(asking.await.unwrap().unwrap_err().kind(), "group_not_found");
}

#[tokio::test]
async fn when_a_broker_goes_away_its_streams_finish_and_new_ones_go_elsewhere() {
    let mut broker = Broker::new();
    let (client, mut old) = broker.client().await;
    let (producer, mut old_stream) = tokio::join!(client.producer(common::TOPIC).open(), old.producer(1));
    let producer = producer.unwrap();
    let first = producer.enqueue(message("a")).await.unwrap();
    let published = old_stream.hear_publish().await;
    old.control.say(to_client::Kind::GoingAway(wire::GoingAway { reason: "drains".to_owned() })).await;
    turns().await;
    let second = producer.enqueue(message("b")).await.unwrap();
    assert!(old_stream.hear_publish_now().await.is_none(), "nothing new goes to the old one");
    old_stream.stored(&published, 0).await;
    assert_eq!(first.await.unwrap().offset.0, 0);
    old_stream.ended().await;
    let new: Peer = broker.accept_in_time().await;
    let mut new_stream = broker.pass_time_until(new.producer(1)).await;
    let published = new_stream.hear_publish().await;
    assert_eq!((published.bodies(), published.sequence()), (vec!["b".to_owned()], (0, 1)));
    new_stream.stored(&published, 1).await;
    assert_eq!(second.await.unwrap().offset.0, 1);
}

#[tokio::test]
async fn a_closed_client_ends_its_connection_and_all_that_hangs_on_it() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    let (producer, _stream) = tokio::join!(client.producer(common::TOPIC).open(), peer.producer(1));
    let producer = producer.unwrap();
    let (consumer, _stream) = tokio::join!(client.consumer(common::TOPIC, "g").open(), peer.subscription());
    let mut consumer = consumer.unwrap();
    let pending = producer.enqueue(message("a")).await.unwrap();
    turns().await;
    client.clone().close().await;
    peer.connection.closed().await;
    broker
        .pass_time_until(async {
            assert!(matches!(pending.await, Err(SendError::OutcomeUnknown { .. })), "it had been sent");
            assert_eq!(consumer.next().await.unwrap_err().to_string(), "the client has been closed");
            assert!(consumer.next().await.unwrap().is_none());
            assert!(matches!(producer.send(message("b")).await, Err(SendError::Closed)));
        })
        .await;
    assert!(matches!(client.producer("t").open().await, Err(OpenError::Closed)));
    assert!(matches!(client.admin().list_topics().await, Err(RequestError::Closed)));
}

#[tokio::test]
async fn the_connection_ends_with_the_last_handle() {
    let mut broker = Broker::new();
    let (client, peer) = broker.client().await;
    drop(client);
    peer.connection.closed().await;
}
