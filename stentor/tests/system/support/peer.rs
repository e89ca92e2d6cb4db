//! A peer that can say anything: QUIC by hand, frames by hand, whether they make sense or not.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, TransportConfig, VarInt};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use stentor_core::RecordBatch;
use stentor_protocol::wire::{self, to_broker, to_client};

use super::broker::Broker;
use super::wait::{DEADLINE, within};

/// Often enough that no peer here is ended for being idle rather than for what it does.
const KEEP_ALIVE: Duration = Duration::from_millis(300);

/// Bytes in front of a frame: the lengths of head and body.
const LENGTHS_BYTES: usize = 8;

/// A connection, with nothing said yet.
pub(crate) struct Peer {
    connection: Connection,
    _endpoint: Endpoint,
}

/// A stream, with nothing said yet.
pub(crate) struct Stream {
    pub(crate) send: SendStream,
    pub(crate) receive: RecvStream,
}

impl Peer {
    /// Connects, as a client that takes in at most `window` bytes of a stream unread.
    pub(crate) async fn connect(broker: &Broker, window: u32) -> Self {
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let address: SocketAddr = broker.quic().parse().unwrap();
        let connecting = endpoint.connect_with(client_config(broker, window), address, "127.0.0.1").unwrap();
        let connection = within(DEADLINE, "a raw connection", connecting).await.unwrap();
        Self { connection, _endpoint: endpoint }
    }

    /// Opens a stream.
    pub(crate) async fn open(&self) -> Stream {
        let (send, receive) = within(DEADLINE, "a raw stream", self.connection.open_bi()).await.unwrap();
        Stream { send, receive }
    }

    /// Connects and says hello.
    pub(crate) async fn welcomed(broker: &Broker, window: u32) -> (Self, Stream) {
        let peer = Self::connect(broker, window).await;
        let mut control = peer.open().await;
        control.say(hello(1, 1)).await.unwrap();
        let answer = control.hear().await;
        assert!(matches!(answer, Some(to_client::Kind::Welcome(_))), "{answer:?}");
        (peer, control)
    }

    /// Waits until the broker has ended the connection.
    pub(crate) async fn ended(&self, what: &str) {
        within(DEADLINE, &format!("the broker to hang up on {what}"), self.connection.closed()).await;
    }

    /// Waits until the broker has ended the stream, or the connection.
    pub(crate) async fn stream_ended(&self, stream: &mut Stream, what: &str) {
        let over = async {
            tokio::select! {
                _ = self.connection.closed() => {}
                () = async { while let Ok(Some(_)) = stream.receive.read_chunk(64 << 10, true).await {} } => {}
            }
        };
        within(DEADLINE, &format!("the broker to end the stream of {what}"), over).await;
    }

    /// Whether the connection is still there.
    pub(crate) fn is_open(&self) -> bool {
        self.connection.close_reason().is_none()
    }

    /// The connection itself.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Stream {
    /// Sends an envelope.
    pub(crate) async fn say(&mut self, kind: to_broker::Kind) -> Result<(), quinn::WriteError> {
        self.send.write_all(&frame(&envelope(kind), &[])).await
    }

    /// Publishes a batch, with whatever header.
    pub(crate) async fn publish(
        &mut self,
        request: u64,
        partition: u32,
        header: &[u8],
        payload: &[u8],
    ) -> Result<(), quinn::WriteError> {
        let batch_header = header.to_vec().into();
        let publish = to_broker::Kind::Publish(wire::Publish { request, partition, batch_header });
        self.send.write_all(&frame(&envelope(publish), payload)).await
    }

    /// The next envelope; none when the stream is over, in whatever way.
    pub(crate) async fn hear(&mut self) -> Option<to_client::Kind> {
        within(DEADLINE, "an answer to a raw peer", async {
            let mut lengths = [0; LENGTHS_BYTES];
            self.receive.read_exact(&mut lengths).await.ok()?;
            let [h0, h1, h2, h3, b0, b1, b2, b3] = lengths;
            let mut head = vec![0; u32::from_le_bytes([h0, h1, h2, h3]) as usize];
            self.receive.read_exact(&mut head).await.ok()?;
            let mut body = vec![0; u32::from_le_bytes([b0, b1, b2, b3]) as usize];
            self.receive.read_exact(&mut body).await.ok()?;
            wire::ToClient::decode(&*head).unwrap().kind
        })
        .await
    }

    /// Opens the stream as a producer's.
    pub(crate) async fn open_producer(&mut self, topic: &str, producer: u64) -> Option<to_client::Kind> {
        let open = wire::OpenProducer { topic: topic.to_owned(), producer, epoch: 0 };
        self.say(to_broker::Kind::OpenProducer(open)).await.unwrap();
        self.hear().await
    }

    /// Opens the stream as a subscription.
    pub(crate) async fn subscribe(&mut self, topic: &str, group: &str) -> Option<to_client::Kind> {
        let from = Some(wire::StartAt { at: Some(wire::start_at::At::Earliest(true)) });
        let subscribe = wire::Subscribe {
            topic: topic.to_owned(),
            group: group.to_owned(),
            from,
            consumer: "raw".to_owned(),
            ..wire::Subscribe::default()
        };
        self.say(to_broker::Kind::Subscribe(subscribe)).await.unwrap();
        self.hear().await
    }
}

/// The first thing that a client says.
pub(crate) fn hello(version_min: u32, version_max: u32) -> to_broker::Kind {
    to_broker::Kind::Hello(wire::Hello { version_min, version_max, client: "raw peer".to_owned() })
}

/// An envelope in bytes.
pub(crate) fn envelope(kind: to_broker::Kind) -> Vec<u8> {
    wire::ToBroker { kind: Some(kind) }.encode_to_vec()
}

/// A frame in bytes.
pub(crate) fn frame(head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut frame = lengths(u32::try_from(head.len()).unwrap(), u32::try_from(body.len()).unwrap()).to_vec();
    frame.extend_from_slice(head);
    frame.extend_from_slice(body);
    frame
}

/// What stands in front of a frame.
pub(crate) fn lengths(head: u32, body: u32) -> [u8; LENGTHS_BYTES] {
    let mut lengths = [0; LENGTHS_BYTES];
    lengths[..4].copy_from_slice(&head.to_le_bytes());
    lengths[4..].copy_from_slice(&body.to_le_bytes());
    lengths
}

/// The header of a batch, with some bytes overwritten, and a checksum that holds again.
pub(crate) fn forged(batch: &RecordBatch, at: usize, bytes: &[u8]) -> Vec<u8> {
    const CHECKSUM_AT: usize = 20;
    let mut header = batch.header_bytes().to_vec();
    header[at..at + bytes.len()].copy_from_slice(bytes);
    let sum = crc32c::crc32c(&header[CHECKSUM_AT + 4..]);
    let sum = crc32c::crc32c_append(sum, batch.payload());
    header[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    header
}

/// The datagrams with which a client begins, caught on their way.
pub(crate) async fn first_datagrams(broker: &Broker) -> Vec<Vec<u8>> {
    let nobody = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = nobody.local_addr().unwrap();
    let _connecting = endpoint.connect_with(client_config(broker, 1 << 20), address, "127.0.0.1").unwrap();
    let mut datagram = vec![0; 65_536];
    let bytes = within(DEADLINE, "a first datagram", nobody.recv(&mut datagram)).await.unwrap();
    datagram.truncate(bytes);
    vec![datagram]
}

/// Sends each datagram from a port of its own; the sockets are kept, so that answers find somebody who does not answer.
pub(crate) fn scatter(broker: &Broker, datagrams: impl IntoIterator<Item = Vec<u8>>) -> Vec<UdpSocket> {
    let send = |datagram: Vec<u8>| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // A full queue in the kernel loses it, as a network would.
        let _ = socket.send_to(&datagram, broker.quic());
        socket
    };
    datagrams.into_iter().map(send).collect()
}

fn client_config(broker: &Broker, window: u32) -> ClientConfig {
    let profile: toml::Table = std::fs::read_to_string(broker.profile()).unwrap().parse().unwrap();
    let mut roots = RootCertStore::empty();
    for certificate in
        CertificateDer::pem_file_iter(broker.profile().with_file_name(profile["ca"].as_str().unwrap())).unwrap()
    {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![stentor_protocol::ALPN.as_bytes().to_vec()];
    let mut transport = TransportConfig::default();
    transport.keep_alive_interval(Some(KEEP_ALIVE)).stream_receive_window(VarInt::from_u32(window));
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    config.transport_config(Arc::new(transport));
    config
}
