//! Connections are made, told apart and ended.

use std::sync::Arc;

use futures_util::future::join_all;
use stentor_core::transport::{CloseCode, TransportError};

use super::harness::{
    assert_closed_by_peer, connect, converse, frame, pair, receive, receive_until_failure, stream, text,
};
use super::{Limits, Subject};

const CODE: CloseCode = CloseCode(77);

/// The code and the words; this side knows that it was itself.
pub async fn close_tells_the_peer_why(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    pair.client.close(CODE, "enough, naïvely");
    assert_closed_by_peer(&pair.server.closed().await, CODE, "enough, naïvely");
    assert_closed_by_peer(&pair.server.closed().await, CODE, "enough, naïvely");
    assert!(matches!(pair.client.closed().await, TransportError::ConnectionClosed(None)));
}

/// Nothing is left waiting for ever.
pub async fn close_ends_whatever_waits_on_either_side(subject: &impl Subject) {
    const FRAME_BYTES: usize = 1 << 20;
    let limits = Limits { streams_per_connection_max: 2, ..Limits::default() };
    let pair = pair(subject, limits).await;
    let frames = 3 * subject.unread_bytes_max() / FRAME_BYTES + 3;
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for (near, far) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
        let (mut reading, silent) = stream(&**near, &**far).await;
        let (mut writing, unread) = stream(&**near, &**far).await;
        held.push((silent, unread));
        waiting.push(tokio::spawn(async move { receive_until_failure(&mut *reading.receiver).await.1 }));
        waiting.push(tokio::spawn(async move {
            for number in 0..frames {
                if let Err(error) = writing.sender.send(frame(number, 0, FRAME_BYTES)).await {
                    return error;
                }
            }
            panic!("all was sent, and nobody read");
        }));
        // There may be no third stream, and the peer opens none.
        let (opening, accepting, closing) = (Arc::clone(near), Arc::clone(far), Arc::clone(near));
        waiting.push(tokio::spawn(async move { opening.open().await.expect_err("the streams are used up") }));
        waiting.push(tokio::spawn(async move { accepting.accept().await.expect_err("nobody opens a stream") }));
        waiting.push(tokio::spawn(async move { closing.closed().await }));
    }
    tokio::task::yield_now().await;
    pair.server.close(CODE, "down");
    for (index, ended) in join_all(waiting).await.into_iter().enumerate() {
        let error = ended.expect("ended");
        assert!(matches!(error, TransportError::ConnectionClosed(_)), "waiter {index}: {error:?}");
    }
    for connection in [&pair.client, &pair.server] {
        assert!(matches!(connection.open().await, Err(TransportError::ConnectionClosed(_))));
        assert!(matches!(connection.accept().await, Err(TransportError::ConnectionClosed(_))));
    }
    for (mut silent, _) in held {
        assert!(matches!(silent.sender.send(text("late")).await, Err(TransportError::ConnectionClosed(_))));
        assert!(matches!(silent.sender.finish(), Err(TransportError::ConnectionClosed(_))));
    }
}

/// Whatever is under way: a peer that must wait for its idle time holds what it holds for as long.
pub async fn a_close_in_the_middle_of_a_transfer_reaches_the_peer(subject: &impl Subject) {
    // Young connections, since what they may have under way is least; closed a little later each time.
    for patience in 0..40 {
        let pair = pair(subject, Limits::default()).await;
        let mut near = pair.client.open().await.expect("a stream");
        let sending = tokio::spawn(async move { while near.sender.send(frame(0, 0, 1 << 20)).await.is_ok() {} });
        for _ in 0..patience {
            tokio::task::yield_now().await;
        }
        pair.client.close(CODE, "enough");
        assert_closed_by_peer(&pair.server.closed().await, CODE, "enough");
        sending.await.expect("ended");
    }
}

/// A close after a close changes nothing, here or there.
pub async fn the_first_close_counts(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    pair.client.close(CODE, "first");
    pair.client.close(CloseCode(78), "second");
    assert_closed_by_peer(&pair.server.closed().await, CODE, "first");
    pair.server.close(CloseCode(79), "third");
    assert_closed_by_peer(&pair.server.closed().await, CODE, "first");
    assert!(matches!(pair.client.closed().await, TransportError::ConnectionClosed(None)));
}

/// Nobody is left to use it.
pub async fn dropping_all_of_a_connection_closes_it(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (near, _far) = stream(&*pair.client, &*pair.server).await;
    drop(near);
    drop(pair.client);
    assert_closed_by_peer(&pair.server.closed().await, CloseCode::NORMAL, "");
}

/// The handle may go before the streams.
pub async fn a_stream_keeps_its_connection(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    drop((pair.client, pair.server));
    converse(&mut near, &mut far, 50).await;
}

/// Each gets a connection of its own.
pub async fn many_connect_at_once(subject: &impl Subject) {
    const CONNECTIONS: usize = 16;
    let mut network = subject.network(Limits::default()).await;
    let address = network.listener.local_address();
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let (transport, address) = (Arc::clone(&network.transport), address.clone());
            tokio::spawn(async move {
                let connection = transport.connect(&address).await.expect("a connection");
                let mut stream = connection.open().await.expect("a stream");
                stream.sender.send(frame(number, 30, 3_000)).await.expect("asked");
                assert_eq!(receive(&mut *stream.receiver).await, frame(number, 30, 3_000));
            })
        })
        .collect();
    let servers: Vec<_> = {
        let mut servers = Vec::new();
        for _ in 0..CONNECTIONS {
            let connection = network.listener.accept().await.expect("a connection");
            servers.push(tokio::spawn(async move {
                let mut stream = connection.accept().await.expect("a stream");
                let question = receive(&mut *stream.receiver).await;
                stream.sender.send(question).await.expect("answered");
                connection.closed().await
            }));
        }
        servers
    };
    for client in join_all(clients).await {
        client.expect("answered");
    }
    for server in join_all(servers).await {
        assert_closed_by_peer(&server.expect("served"), CloseCode::NORMAL, "");
    }
}

/// At least by address.
pub async fn each_side_knows_the_other(subject: &impl Subject) {
    let mut pair = pair(subject, Limits::default()).await;
    assert_eq!(pair.client.peer().address, pair.network.listener.local_address());
    let (_, other) = connect(&mut pair.network).await;
    assert!(!other.peer().address.is_empty());
}

/// An accept that loses a race takes nothing with it.
pub async fn a_dropped_accept_loses_no_connection(subject: &impl Subject) {
    const CONNECTIONS: usize = 4;
    let mut network = subject.network(Limits::default()).await;
    let address = network.listener.local_address();
    let transport = Arc::clone(&network.transport);
    let connecting = tokio::spawn(async move {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(transport.connect(&address).await.expect("a connection"));
        }
        connections
    });
    let mut accepted = Vec::new();
    while accepted.len() < CONNECTIONS {
        tokio::select! {
            biased;
            connection = network.listener.accept() => accepted.push(connection.expect("a connection")),
            () = tokio::task::yield_now() => {}
        }
    }
    connecting.await.expect("all connected");
}

/// A server that goes down sees its guests out.
pub async fn a_closed_listener_takes_nobody_and_keeps_what_it_took(subject: &impl Subject) {
    let mut pair = pair(subject, Limits::default()).await;
    let address = pair.network.listener.local_address();
    pair.network.listener.close();
    assert!(pair.network.listener.accept().await.is_none());
    assert!(pair.network.listener.accept().await.is_none());
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    converse(&mut near, &mut far, 10).await;
    let refused = pair.network.transport.connect(&address).await.err();
    assert!(matches!(refused, Some(TransportError::Connect { .. })), "{refused:?}");
    drop(pair.network);
    converse(&mut near, &mut far, 10).await;
}
