//! Peers that break the rules, and lines that break, end their own connection and nothing else.
#![allow(clippy::unwrap_used, reason = "in tests")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stentor_core::transport::{CloseCode, Connection, Frame, Listener, Transport, TransportError};
use stentor_transport_quic::{ClientConfig, QuicListener, QuicTransport, ServerConfig};
use tokio::net::UdpSocket;

mod common;

use common::raw::{self, Wire};
use common::{Certificates, bind};

const ALPN: &[u8] = b"stentor/1";

/// How long a connection may be silent where a test waits for that.
const IDLE_TIMEOUT: Duration = Duration::from_millis(1_000);

/// Both ends of a connection to this address, which leads to the listener.
async fn connect(
    listener: &mut QuicListener,
    client: ClientConfig,
    address: &str,
) -> (Arc<dyn Connection>, Arc<dyn Connection>) {
    let transport = QuicTransport::new(client).unwrap();
    let (near, far) = tokio::join!(transport.connect(address), listener.accept());
    (near.unwrap(), far.unwrap())
}

/// The connection carries a frame there and back.
async fn assert_alive(near: &dyn Connection, far: &dyn Connection) {
    let mut asking = near.open().await.unwrap();
    asking.sender.send(Frame::new(Bytes::from_static(b"alive?"))).await.unwrap();
    let mut answering = far.accept().await.unwrap();
    let question = answering.receiver.receive().await.unwrap().unwrap();
    answering.sender.send(question.clone()).await.unwrap();
    assert_eq!(asking.receiver.receive().await.unwrap().unwrap(), question);
}

#[tokio::test]
async fn garbage_datagrams_disturb_nobody() {
    let certificates = Certificates::new();
    let mut listener = bind(certificates.server()).await.unwrap();
    let address = listener.local_address();
    let (near, far) = connect(&mut listener, certificates.client(), &address).await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    for round in 0..500 {
        let mut datagram: Vec<u8> = (0..rng.usize(..1_500)).map(|_| rng.u8(..)).collect();
        // Half of them look like the first of a connection, and are as long as those have to be.
        if round % 2 == 0 {
            datagram.resize(1_200, 0);
            datagram[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
        }
        socket.send_to(&datagram, &address).await.unwrap();
        if round % 50 == 0 {
            assert_alive(&*near, &*far).await;
        }
    }
    assert_alive(&*near, &*far).await;
    let (near, far) = connect(&mut listener, certificates.client(), &address).await;
    assert_alive(&*near, &*far).await;
}

#[tokio::test]
async fn a_handshake_that_stalls_gives_its_place_back() {
    let certificates = Certificates::new();
    let mut config = ServerConfig { connections_max: 1, ..certificates.server() };
    config.quic.handshake_timeout = IDLE_TIMEOUT;
    let mut listener = bind(config).await.unwrap();
    let address = listener.local_address();
    // Its first datagram arrives, and then nothing.
    let wire = Wire::to(&address, 1).await;
    let stalling = raw::endpoint(&certificates.path("ca.pem"), &[ALPN]);
    let _connecting = stalling.connect(wire.address, "localhost").unwrap();
    wire.passes.subscribe().wait_for(|left| *left == 0).await.unwrap();
    let transport = QuicTransport::new(certificates.client()).unwrap();
    let mut refused = 0;
    let near = loop {
        match transport.connect(&address).await {
            Ok(connection) => break connection,
            Err(TransportError::Connect { reason, .. }) => {
                assert_eq!(reason, "it takes no more connections");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(refused > 0, "the stalled handshake had no place to give back");
    let far = listener.accept().await.unwrap();
    assert_alive(&*near, &*far).await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_refused_and_room_comes_back() {
    let certificates = Certificates::new();
    let mut listener = bind(ServerConfig { connections_max: 2, ..certificates.server() }).await.unwrap();
    let address = listener.local_address();
    let (first, first_far) = connect(&mut listener, certificates.client(), &address).await;
    let (second, second_far) = connect(&mut listener, certificates.client(), &address).await;
    let transport = QuicTransport::new(certificates.client()).unwrap();
    let refused = transport.connect(&address).await.err();
    assert!(matches!(refused, Some(TransportError::Connect { .. })), "{refused:?}");
    assert_alive(&*second, &*second_far).await;
    first.close(CloseCode::NORMAL, "");
    first_far.closed().await;
    drop(first_far);
    let (third, third_far) = tokio::join!(transport.connect(&address), listener.accept());
    assert_alive(&*third.unwrap(), &*third_far.unwrap()).await;
}

/// Without the bound, what is held for the half frames of one connection was only bounded by streams times frame size.
#[tokio::test]
async fn many_half_frames_hold_up_themselves_and_nothing_else() {
    const HALF_FRAMES: usize = 8;
    const FRAME_BYTES: u32 = 4 << 20;
    let certificates = Certificates::new();
    let mut server = certificates.server();
    server.quic.frames_incoming_bytes_max = FRAME_BYTES;
    let mut listener = bind(server).await.unwrap();
    let endpoint = raw::endpoint(&certificates.path("ca.pem"), &[ALPN]);
    let connecting = endpoint.connect(listener.local_address().parse().unwrap(), "localhost").unwrap();
    let (raw, far) = tokio::join!(connecting, listener.accept());
    let (raw, far) = (raw.unwrap(), far.unwrap());
    // More than a stream's window: a receiver that took all of it in would let the peer say everything.
    let half = vec![7; FRAME_BYTES as usize - 1];
    let mut readers = tokio::task::JoinSet::new();
    let mut writers = tokio::task::JoinSet::new();
    let mut receives = Vec::new();
    for _ in 0..HALF_FRAMES {
        let (mut send, receive) = raw.open_bi().await.unwrap();
        receives.push(receive);
        send.write_all(&[[0; 4], FRAME_BYTES.to_le_bytes()].concat()).await.unwrap();
        let half = half.clone();
        writers.spawn(async move {
            send.write_all(&half).await.unwrap();
            send
        });
        let mut stream = far.accept().await.unwrap();
        readers.spawn(async move { stream.receiver.receive().await.map(drop) });
    }
    // One frame has room, and its sender gets all of it across; the other senders wait.
    let mut first = writers.join_next().await.unwrap().unwrap();
    assert_eq!(writers.len(), HALF_FRAMES - 1);
    // Small frames need no room.
    let (mut send, _receive) = raw.open_bi().await.unwrap();
    send.write_all(b"\x01\0\0\0\x02\0\0\0hbb").await.unwrap();
    let frame = far.accept().await.unwrap().receiver.receive().await.unwrap().unwrap();
    assert_eq!(&frame.head[..], b"h");
    // Once the first frame is whole the next one gets its turn, until all are through.
    first.write_all(&[7]).await.unwrap();
    let mut senders = vec![first];
    for _ in 1..HALF_FRAMES {
        readers.join_next().await.unwrap().unwrap().unwrap();
        let mut next = writers.join_next().await.unwrap().unwrap();
        next.write_all(&[7]).await.unwrap();
        senders.push(next);
    }
    readers.join_next().await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn lengths_that_lie_end_their_stream_and_not_the_connection() {
    let certificates = Certificates::new();
    let mut listener = bind(certificates.server()).await.unwrap();
    let endpoint = raw::endpoint(&certificates.path("ca.pem"), &[ALPN]);
    let connecting = endpoint.connect(listener.local_address().parse().unwrap(), "localhost").unwrap();
    let (raw, far) = tokio::join!(connecting, listener.accept());
    let (raw, far) = (raw.unwrap(), far.unwrap());
    for lengths in [[0xff; 8], [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]] {
        let (mut send, _receive) = raw.open_bi().await.unwrap();
        send.write_all(&lengths).await.unwrap();
        let mut stream = far.accept().await.unwrap();
        let error = stream.receiver.receive().await.unwrap_err();
        assert!(matches!(error, TransportError::FrameTooLarge { bytes: 0xffff_ffff, .. }), "{error:?}");
        assert_eq!(send.stopped().await.unwrap().map(quinn::VarInt::into_inner), Some(u64::from(CloseCode::LIMIT.0)));
    }
    // A frame that is finished half-way is no frame.
    for half in [&b"\x05\0\0"[..], &b"\x05\0\0\0\0\0\0\0"[..], &b"\x02\0\0\0\x02\0\0\0abc"[..]] {
        let (mut send, _receive) = raw.open_bi().await.unwrap();
        send.write_all(half).await.unwrap();
        send.finish().unwrap();
        let error = far.accept().await.unwrap().receiver.receive().await.unwrap_err();
        assert!(matches!(error, TransportError::Malformed(_)), "{error:?}");
    }
    let (mut send, _receive) = raw.open_bi().await.unwrap();
    send.write_all(b"\x01\0\0\0\x02\0\0\0hbb").await.unwrap();
    let frame = far.accept().await.unwrap().receiver.receive().await.unwrap().unwrap();
    assert_eq!((&frame.head[..], &frame.body[..]), (&b"h"[..], &b"bb"[..]));
}

#[tokio::test]
async fn another_protocol_is_refused_and_so_is_none() {
    let certificates = Certificates::new();
    let mut listener = bind(certificates.server()).await.unwrap();
    let address = listener.local_address();
    for protocols in [&[&b"stentor/2"[..], &b"h3"[..]][..], &[][..]] {
        let endpoint = raw::endpoint(&certificates.path("ca.pem"), protocols);
        let connected = endpoint.connect(address.parse().unwrap(), "localhost").unwrap().await;
        match connected {
            Err(quinn::ConnectionError::ConnectionClosed(_)) => {}
            Err(error) => panic!("{error:?}"),
            // A client that offers nothing learns it a little later.
            Ok(connection) => {
                let error = connection.closed().await;
                assert!(
                    matches!(
                        error,
                        quinn::ConnectionError::ApplicationClosed(_) | quinn::ConnectionError::ConnectionClosed(_)
                    ),
                    "{error:?}"
                );
            }
        }
    }
    // None of them was handed out: the next is ours.
    let (near, far) = connect(&mut listener, certificates.client(), &address).await;
    assert_alive(&*near, &*far).await;
}

#[tokio::test]
async fn unidirectional_streams_are_not_allowed() {
    let certificates = Certificates::new();
    let mut listener = bind(certificates.server()).await.unwrap();
    let endpoint = raw::endpoint(&certificates.path("ca.pem"), &[ALPN]);
    let connecting = endpoint.connect(listener.local_address().parse().unwrap(), "localhost").unwrap();
    let (raw, _far) = tokio::join!(connecting, listener.accept());
    let raw = raw.unwrap();
    let opened = tokio::select! {
        biased;
        opened = raw.open_uni() => opened.is_ok(),
        () = std::future::ready(()) => false,
    };
    assert!(!opened);
}

#[tokio::test]
async fn a_silent_peer_is_lost_after_the_idle_time_and_a_quiet_one_is_not() {
    let certificates = Certificates::new();
    let mut server = certificates.server();
    let mut client = certificates.client();
    client.server_name = Some("localhost".to_owned());
    server.quic.idle_timeout = IDLE_TIMEOUT;
    client.quic.idle_timeout = IDLE_TIMEOUT;
    let mut listener = bind(server).await.unwrap();
    let address = listener.local_address();
    let (quiet, quiet_far) = connect(&mut listener, client.clone(), &address).await;
    // Three idle times pass; nothing is said on the quiet one.
    for _ in 0..3 {
        let wire = Wire::to(&address, usize::MAX).await;
        let (near, far) = connect(&mut listener, client.clone(), &wire.address.to_string()).await;
        assert_alive(&*near, &*far).await;
        wire.cut();
        for end in [near, far] {
            let lost = end.closed().await;
            assert!(matches!(lost, TransportError::ConnectionLost(_)), "{lost:?}");
        }
    }
    assert_alive(&*quiet, &*quiet_far).await;
}

#[tokio::test]
async fn nobody_listening_is_found_out_within_the_handshake_time() {
    let certificates = Certificates::new();
    let nobody = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut config = certificates.client();
    config.quic.handshake_timeout = IDLE_TIMEOUT;
    let transport = QuicTransport::new(config).unwrap();
    let address = nobody.local_addr().unwrap().to_string();
    let error = transport.connect(&address).await.err().unwrap();
    assert_eq!(error.to_string(), format!("cannot connect to {address}: it does not answer"));
    for wrong in ["127.0.0.1", "no port", "", "localhost:99999"] {
        let error = transport.connect(wrong).await.err().unwrap();
        assert!(error.to_string().contains("HOST:PORT"), "{error}");
    }
}

#[tokio::test]
async fn everything_comes_to_rest_after_the_last_close() {
    let certificates = Certificates::new();
    let mut listener = bind(certificates.server()).await.unwrap();
    let address = listener.local_address();
    let transport = QuicTransport::new(certificates.client()).unwrap();
    let mut ends = Vec::new();
    for _ in 0..5 {
        let (near, far) = tokio::join!(transport.connect(&address), listener.accept());
        let (near, far) = (near.unwrap(), far.unwrap());
        assert_alive(&*near, &*far).await;
        ends.push((near, far));
    }
    // One more that nobody accepts, and one in the middle of its handshake.
    let waiting = transport.connect(&address).await.unwrap();
    let endpoint = raw::endpoint(&certificates.path("ca.pem"), &[ALPN]);
    let connecting = endpoint.connect(address.parse().unwrap(), "localhost").unwrap();
    let idle = listener.idle();
    listener.close();
    assert!(listener.accept().await.is_none());
    drop(listener);
    assert!(matches!(waiting.closed().await, TransportError::ConnectionClosed(Some(_))));
    for (_, far) in &ends {
        far.close(CloseCode::SHUTDOWN, "going down");
    }
    for (near, _) in &ends {
        assert!(
            matches!(near.closed().await, TransportError::ConnectionClosed(Some(reason)) if reason.code == CloseCode::SHUTDOWN)
        );
    }
    drop((ends, waiting, connecting));
    idle.await;
    transport.idle().await;
}
