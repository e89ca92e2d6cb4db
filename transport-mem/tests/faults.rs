//! What tests can do to the network, and what its parties then see.
#![allow(clippy::unwrap_used, reason = "in tests")]

use std::sync::Arc;

use bytes::Bytes;
use stentor_core::transport::{CloseCode, Connection, Frame, FrameStream, Listener, Transport, TransportError};
use stentor_transport_mem::{MemListener, MemNetwork};

const ADDRESS: &str = "broker:7411";

fn text(text: &'static str) -> Frame {
    Frame::new(Bytes::from_static(text.as_bytes()))
}

/// Both ends of a connection, and of a stream on it.
struct Ends {
    client: Arc<dyn Connection>,
    server: Arc<dyn Connection>,
    near: FrameStream,
    far: FrameStream,
}

async fn connect(network: &MemNetwork, listener: &mut MemListener) -> Ends {
    let client = network.transport().connect(ADDRESS).await.unwrap();
    let server = listener.accept().await.unwrap();
    let mut near = client.open().await.unwrap();
    near.sender.send(text("hello")).await.unwrap();
    let mut far = server.accept().await.unwrap();
    assert_eq!(far.receiver.receive().await.unwrap(), Some(text("hello")));
    Ends { client, server, near, far }
}

/// Whether something is still waiting after everyone else has had their turn.
async fn is_waiting<T>(future: impl Future<Output = T>) -> bool {
    let turns = async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        _ = future => false,
        () = turns => true,
    }
}

#[tokio::test]
async fn a_cut_loses_the_connection_on_both_sides_and_what_was_under_way() {
    let network = MemNetwork::new();
    let mut listener = network.listen(ADDRESS).unwrap();
    let Ends { client, server, mut near, mut far } = connect(&network, &mut listener).await;
    near.sender.send(text("lost")).await.unwrap();
    network.cut(ADDRESS);
    for end in [&client, &server] {
        assert!(matches!(end.closed().await, TransportError::ConnectionLost(_)));
        assert!(matches!(end.open().await, Err(TransportError::ConnectionLost(_))));
    }
    assert!(matches!(far.receiver.receive().await, Err(TransportError::ConnectionLost(_))));
    assert!(matches!(near.sender.send(text("more")).await, Err(TransportError::ConnectionLost(_))));
    assert!(matches!(near.sender.finished().await, Err(TransportError::ConnectionLost(_))));
    // The address is as good as before.
    connect(&network, &mut listener).await;
}

#[tokio::test]
async fn a_cut_of_one_address_leaves_the_others() {
    let network = MemNetwork::new();
    let mut listener = network.listen(ADDRESS).unwrap();
    let _other = network.listen("other:1").unwrap();
    let mut ends = connect(&network, &mut listener).await;
    network.cut("other:1");
    network.cut("nowhere:1");
    ends.near.sender.send(text("still")).await.unwrap();
    assert_eq!(ends.far.receiver.receive().await.unwrap(), Some(text("still")));
}

#[tokio::test]
async fn in_a_stall_nothing_is_heard_until_it_ends() {
    let network = MemNetwork::new();
    let mut listener = network.listen(ADDRESS).unwrap();
    let Ends { client, server, mut near, mut far } = connect(&network, &mut listener).await;
    network.stall(ADDRESS);
    near.sender.send(text("late")).await.unwrap();
    let mut second = client.open().await.unwrap();
    second.sender.send(text("second")).await.unwrap();
    assert!(is_waiting(far.receiver.receive()).await);
    assert!(is_waiting(server.accept()).await);
    assert!(is_waiting(near.sender.finished()).await);
    let refused = network.transport().connect(ADDRESS).await.err();
    assert!(matches!(refused, Some(TransportError::Connect { .. })), "{refused:?}");
    network.resume(ADDRESS);
    assert_eq!(far.receiver.receive().await.unwrap(), Some(text("late")));
    assert_eq!(far.receiver.receive().await.unwrap(), None);
    let mut accepted = server.accept().await.unwrap();
    assert_eq!(accepted.receiver.receive().await.unwrap(), Some(text("second")));
}

#[tokio::test]
async fn a_close_in_a_stall_is_heard_when_it_ends() {
    let network = MemNetwork::new();
    let mut listener = network.listen(ADDRESS).unwrap();
    let Ends { client, server, near: _near, far: _far } = connect(&network, &mut listener).await;
    network.stall(ADDRESS);
    client.close(CloseCode::SHUTDOWN, "bye");
    assert!(matches!(client.closed().await, TransportError::ConnectionClosed(None)));
    assert!(is_waiting(server.closed()).await);
    network.resume(ADDRESS);
    assert!(matches!(server.closed().await, TransportError::ConnectionClosed(Some(reason)) if reason.text == "bye"));
}

#[tokio::test]
async fn a_stall_that_ends_in_a_cut_loses_everything() {
    let network = MemNetwork::new();
    let mut listener = network.listen(ADDRESS).unwrap();
    let Ends { server, mut near, mut far, client } = connect(&network, &mut listener).await;
    network.stall(ADDRESS);
    near.sender.send(text("lost")).await.unwrap();
    network.cut(ADDRESS);
    assert!(matches!(far.receiver.receive().await, Err(TransportError::ConnectionLost(_))));
    assert!(matches!(server.closed().await, TransportError::ConnectionLost(_)));
    assert!(matches!(client.closed().await, TransportError::ConnectionLost(_)));
}

#[tokio::test]
async fn an_address_is_for_one_listener_at_a_time() {
    let network = MemNetwork::new();
    assert!(matches!(network.transport().connect(ADDRESS).await, Err(TransportError::Connect { .. })));
    let listener = network.listen(ADDRESS).unwrap();
    assert!(matches!(network.listen(ADDRESS), Err(TransportError::Listen { .. })));
    drop(listener);
    assert!(matches!(network.transport().connect(ADDRESS).await, Err(TransportError::Connect { .. })));
    let mut again = network.listen(ADDRESS).unwrap();
    connect(&network, &mut again).await;
    let (first, second) = (network.listen("any:0").unwrap(), network.listen("any:0").unwrap());
    assert_ne!(first.local_address(), second.local_address());
}

#[tokio::test]
async fn connections_that_nobody_accepts_end_with_the_listener() {
    let network = MemNetwork::new();
    let listener = network.listen(ADDRESS).unwrap();
    let client = network.transport().connect(ADDRESS).await.unwrap();
    drop(listener);
    assert!(matches!(client.closed().await, TransportError::ConnectionClosed(Some(_))));
}

#[tokio::test]
async fn a_party_is_known_by_the_name_it_was_given() {
    let network = MemNetwork::new();
    let mut listener = network.listen(ADDRESS).unwrap();
    let _client = network.transport_as("order-service").connect(ADDRESS).await.unwrap();
    let server = listener.accept().await.unwrap();
    assert_eq!(server.peer().certificate_subject.as_deref(), Some("order-service"));
}
