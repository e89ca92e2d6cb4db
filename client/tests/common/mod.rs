//! A broker that does nothing by itself: each test says what it hears and what it answers.

#![allow(dead_code, reason = "each test file uses its share")]
#![allow(clippy::unwrap_used, reason = "only tests come here")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use stentor_client::{Client, ConnectError, Message};
use stentor_core::batch::BatchBuilder;
use stentor_core::clock::ManualClock;
use stentor_core::transport::{CloseCode, Connection, Frame, FrameStream, Listener};
use stentor_core::{Compression, MessageId, Offset, Record, RecordBatch, Timestamp};
use stentor_protocol::wire::{self, to_broker, to_client};
use stentor_protocol::{ErrorCode, decode_to_broker, encode_to_client, error, frame};
use stentor_transport_mem::{MemListener, MemNetwork};

pub(crate) const ADDRESS: &str = "broker:1";
pub(crate) const TOPIC: &str = "trade.paid";

/// How often tasks get a turn before nothing more is expected of them. On one thread each turn runs all that can run.
const TURNS: usize = 100;

/// A network with a scripted broker on it, and a clock that stands still.
pub(crate) struct Broker {
    pub(crate) network: MemNetwork,
    pub(crate) clock: ManualClock,
    listener: Option<MemListener>,
}

impl Broker {
    pub(crate) fn new() -> Self {
        let network = MemNetwork::new();
        let listener = Some(network.listen(ADDRESS).unwrap());
        Self { network, clock: ManualClock::new(Timestamp(1_700_000_000_000_000)), listener }
    }

    pub(crate) fn connect(&self) -> stentor_client::ConnectBuilder {
        let transport = Arc::new(self.network.transport());
        Client::connect(ADDRESS).transport(transport).clock(Arc::new(self.clock.clone())).seed(1)
    }

    /// A client, and the broker's side of its connection.
    pub(crate) async fn client(&mut self) -> (Client, Peer) {
        let connecting = self.connect().open();
        let (client, peer) = tokio::join!(connecting, self.accept());
        (client.unwrap(), peer)
    }

    /// Takes no more connections.
    pub(crate) fn stop_listening(&mut self) {
        self.listener = None;
    }

    /// Takes a connection and says welcome.
    pub(crate) async fn accept(&mut self) -> Peer {
        let mut peer = self.accept_silently().await;
        peer.control.say(to_client::Kind::Welcome(wire::Welcome { version: 1, node: 1, ..Default::default() })).await;
        peer
    }

    /// Takes a connection and hears the hello.
    pub(crate) async fn accept_silently(&mut self) -> Peer {
        let connection = self.listener.as_mut().unwrap().accept().await.unwrap();
        let mut control = Stream::of(connection.accept().await.unwrap());
        assert!(matches!(control.hear().await.0, to_broker::Kind::Hello(_)));
        Peer { connection, control }
    }

    /// Lets time go by, a little at a time, until `future` is done.
    pub(crate) async fn pass_time_until<T>(&self, future: impl Future<Output = T>) -> T {
        pass_time_until(&self.clock, future).await
    }

    /// As [`pass_time_until`](Self::pass_time_until), until a connection is made.
    pub(crate) async fn accept_in_time(&mut self) -> Peer {
        let clock = self.clock.clone();
        pass_time_until(&clock, self.accept()).await
    }
}

pub(crate) async fn pass_time_until<T>(clock: &ManualClock, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    for _ in 0..10_000 {
        turns().await;
        if let Poll::Ready(output) = futures_util::poll!(future.as_mut()) {
            return output;
        }
        clock.advance(Duration::from_millis(20));
    }
    panic!("it did not happen in 200 seconds");
}

/// Lets every task do what it can.
pub(crate) async fn turns() {
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
}

/// The broker's side of a connection.
pub(crate) struct Peer {
    pub(crate) connection: Arc<dyn Connection>,
    pub(crate) control: Stream,
}

impl Peer {
    /// The next stream that the client opens, and what it begins with.
    pub(crate) async fn stream(&self) -> (Stream, to_broker::Kind) {
        let mut stream = Stream::of(self.connection.accept().await.unwrap());
        let (first, _) = stream.hear().await;
        (stream, first)
    }

    /// Opens a producer's stream for a topic of so many partitions.
    pub(crate) async fn producer(&self, partitions: u32) -> Stream {
        let (mut stream, first) = self.stream().await;
        assert!(matches!(&first, to_broker::Kind::OpenProducer(open) if open.topic == TOPIC), "{first:?}");
        let opened = wire::ProducerOpened { route: Some(route(partitions)) };
        stream.say(to_client::Kind::ProducerOpened(opened)).await;
        stream
    }

    /// Opens a subscription.
    pub(crate) async fn subscription(&self) -> (Stream, wire::Subscribe) {
        let (mut stream, first) = self.stream().await;
        let to_broker::Kind::Subscribe(subscribe) = first else { panic!("{first:?}") };
        stream.say(to_client::Kind::Subscribed(subscribed())).await;
        (stream, subscribe)
    }

    /// The next request, with its number.
    pub(crate) async fn request(&mut self) -> (u64, wire::request::Kind) {
        match self.control.hear().await.0 {
            to_broker::Kind::Request(request) => (request.id, request.kind.unwrap()),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn respond(&mut self, id: u64, kind: wire::response::Kind, body: Bytes) {
        let response = to_client::Kind::Response(wire::Response { id, kind: Some(kind) });
        let frame = Frame { body, ..encode_to_client(response) };
        self.control.stream.sender.send(frame).await.unwrap();
    }

    pub(crate) fn close(&self) {
        self.connection.close(CloseCode::NORMAL, "the broker stops");
    }
}

pub(crate) fn route(partitions: u32) -> wire::Route {
    let partition = |index| wire::RoutePartition { index, node: 1, address: String::new() };
    wire::Route {
        topic: TOPIC.to_owned(),
        version: 1,
        storage: "memory".to_owned(),
        durability: "memory".to_owned(),
        message_bytes_max: 1_000,
        keyed_partitions: partitions,
        partitions: (0..partitions).map(partition).collect(),
    }
}

pub(crate) fn subscribed() -> wire::Subscribed {
    wire::Subscribed { consumer: 1, lease_millis: 30_000, message_bytes_max: 1_000, ..Default::default() }
}

/// The broker's side of a stream.
pub(crate) struct Stream {
    pub(crate) stream: FrameStream,
}

/// A batch that was published.
#[derive(Debug)]
pub(crate) struct Publish {
    pub(crate) request: u64,
    pub(crate) partition: u32,
    pub(crate) batch: RecordBatch,
}

impl Publish {
    pub(crate) fn bodies(&self) -> Vec<String> {
        let records = self.batch.records(1 << 20).unwrap();
        records.map(|record| String::from_utf8(record.unwrap().body.to_vec()).unwrap()).collect()
    }

    /// Epoch and sequence.
    pub(crate) fn sequence(&self) -> (u32, u64) {
        let sequenced = self.batch.producer().unwrap();
        (sequenced.epoch, sequenced.sequence)
    }
}

impl Stream {
    fn of(stream: FrameStream) -> Self {
        Self { stream }
    }

    /// What the client says next.
    pub(crate) async fn hear(&mut self) -> (to_broker::Kind, Bytes) {
        let frame = self.stream.receiver.receive().await.unwrap().expect("the client ended the stream");
        (decode_to_broker(frame.head).unwrap(), frame.body)
    }

    /// What the client says next; none if it says nothing now.
    pub(crate) async fn hear_now(&mut self) -> Option<(to_broker::Kind, Bytes)> {
        turns().await;
        self.hear().now_or_never()
    }

    pub(crate) async fn say(&mut self, kind: to_client::Kind) {
        self.stream.sender.send(encode_to_client(kind)).await.unwrap();
    }

    pub(crate) async fn hear_publish(&mut self) -> Publish {
        let (kind, body) = self.hear().await;
        publish(kind, body)
    }

    pub(crate) async fn hear_publish_now(&mut self) -> Option<Publish> {
        self.hear_now().await.map(|(kind, body)| publish(kind, body))
    }

    pub(crate) async fn stored(&mut self, publish: &Publish, base_offset: u64) {
        self.published(publish, base_offset, false).await;
    }

    pub(crate) async fn published(&mut self, publish: &Publish, base_offset: u64, duplicate: bool) {
        let (request, partition, count) = (publish.request, publish.partition, publish.batch.count());
        self.say(to_client::Kind::Published(wire::Published { request, partition, base_offset, count, duplicate }))
            .await;
    }

    pub(crate) async fn refuse(&mut self, publish: &Publish, code: ErrorCode) {
        let error = Some(error::refusal(code, "no"));
        self.say(to_client::Kind::PublishRefused(wire::PublishRefused { request: publish.request, error })).await;
    }

    /// Delivers messages with these bodies, from this offset on, as the batch that they make.
    pub(crate) async fn deliver(&mut self, base: u64, bodies: &[&str]) {
        let leased = wire::Leased { start: base, count: bodies.len() as u32, attempt: 1, redelivered: false };
        self.deliver_leased(&stored(base, bodies), vec![leased], false).await;
    }

    pub(crate) async fn deliver_leased(&mut self, batch: &RecordBatch, leased: Vec<wire::Leased>, picked: bool) {
        self.stream.sender.send(frame::encode_delivery(0, batch, leased, picked)).await.unwrap();
    }

    pub(crate) async fn hear_grant(&mut self) -> wire::Grant {
        match self.hear().await.0 {
            to_broker::Kind::Grant(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn hear_settle(&mut self) -> wire::Settle {
        match self.hear().await.0 {
            to_broker::Kind::Settle(settle) => settle,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn settled(&mut self, request: u64, failed: Vec<wire::Unsettled>) {
        self.say(to_client::Kind::Settled(wire::Settled { request, failed })).await;
    }

    /// Returns when the client has ended the stream.
    pub(crate) async fn ended(&mut self) {
        match self.stream.receiver.receive().await {
            Ok(None) => {}
            other => panic!("{other:?}"),
        }
    }
}

fn publish(kind: to_broker::Kind, body: Bytes) -> Publish {
    let to_broker::Kind::Publish(publish) = kind else { panic!("{kind:?}") };
    let batch = frame::batch(&publish.batch_header, body).unwrap();
    Publish { request: publish.request, partition: publish.partition, batch }
}

/// A batch as it lies in a log.
pub(crate) fn stored(base: u64, bodies: &[&str]) -> RecordBatch {
    let mut builder = BatchBuilder::new(Compression::None);
    for (index, body) in bodies.iter().enumerate() {
        let record = Record {
            id: MessageId::generate(Timestamp(1), u128::from(base) + index as u128),
            timestamp: Timestamp(3),
            key: Some(Bytes::from_static(b"key")),
            tag: Some("tag".into()),
            headers: Vec::new(),
            body: Bytes::copy_from_slice(body.as_bytes()),
            deliver_at: None,
            expires_at: None,
        };
        builder.push(&record).unwrap();
    }
    builder.finish(None).unwrap().stored(Offset(base), Timestamp(5))
}

pub(crate) fn message(body: &str) -> Message {
    Message::new(body.to_owned())
}

pub(crate) fn lease_lost(start: u64) -> wire::Unsettled {
    wire::Unsettled {
        partition: 0,
        span: Some(wire::OffsetSpan { start, count: 1 }),
        error: Some(error::refusal(ErrorCode::LeaseLost, "another consumer has it")),
    }
}

pub(crate) fn spans(spans: &[(u64, u32)]) -> Vec<wire::OffsetSpan> {
    spans.iter().map(|(start, count)| wire::OffsetSpan { start: *start, count: *count }).collect()
}

pub(crate) fn refused(result: Result<Client, ConnectError>) -> ConnectError {
    result.expect_err("it was to fail")
}
