//! Messages and names at the edges of what is allowed, and beyond.

use bytes::Bytes;
use stentor_client::{Client, ErrorCode, Message};
use stentor_core::batch::BatchBuilder;
use stentor_core::{Compression, MessageId, Record, Timestamp};
use stentor_protocol::wire::to_client;

use crate::support::broker::Broker;
use crate::support::peer::{Peer, Stream};
use crate::support::sdk;

const TOPIC: &str = "orders";
const GROUP: &str = "red-packet";

/// `message_bytes_max` unless it is set.
const MAX: usize = 4 << 20;

/// Names that are none.
fn bad_names() -> Vec<String> {
    let long = "x".repeat(256);
    ["", "../x", "a/b", ".", "..", ".hidden", "a b", "tab\t", "nul\0", "ä", "*", "line\n", &long]
        .map(str::to_owned)
        .to_vec()
}

/// A body that does not compress, so that no limit is kept by accident.
fn noise(bytes: usize) -> Bytes {
    let mut body = vec![0; bytes];
    fastrand::Rng::with_seed(bytes as u64).fill(&mut body);
    body.into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_0_of_1_and_of_the_most_bytes_arrive_and_one_more_is_refused_by_name() {
    for storage in ["memory", "lsm"] {
        let broker = Broker::start().await;
        broker.run(["topic", "create", TOPIC, "--storage", storage, "--partitions", "1"]).await;
        let client = sdk::connect(&broker).await;
        let producer = sdk::producer(&client, TOPIC).await;
        let mut consumer = sdk::consumer(&client, TOPIC, GROUP, 10).await;
        for bytes in [0, 1, MAX, 0] {
            producer.send(Message::new(noise(bytes))).await.unwrap();
            let delivery = sdk::next(&mut consumer).await;
            assert!(delivery.body() == &noise(bytes), "{storage}: {bytes} bytes came as {}", delivery.body().len());
            delivery.ack().await.unwrap();

            let error = producer.send(Message::new(noise(MAX + 1))).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::MessageTooLarge, "{error}");
            assert!(!error.may_be_stored());
        }
    }
}

/// The limit is on key, tag, headers and body together, and a topic may set its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_s_own_limit_counts_everything_of_a_message() {
    let broker = Broker::start().await;
    broker.run(["topic", "create", TOPIC, "--set", "message_bytes_max=1000"]).await;
    let client = sdk::connect(&broker).await;
    let producer = sdk::producer(&client, TOPIC).await;
    let message = |body| Message::new(noise(body)).key("key").tag("tag").header("name", "value");
    producer.send(message(1_000 - 15)).await.unwrap();
    let error = producer.send(message(1_000 - 14)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::MessageTooLarge, "{error}");
    producer.send(message(1_000 - 15)).await.unwrap();
}

/// The SDK checks before it sends; a client that does not is refused by the broker, and may go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_broker_itself_refuses_what_is_too_large_and_the_stream_lives_on() {
    let broker = Broker::start().await;
    broker.run(["topic", "create", TOPIC, "--set", "message_bytes_max=1000", "--partitions", "1"]).await;
    let (peer, _control) = Peer::welcomed(&broker, 1 << 20).await;
    let mut stream = peer.open().await;
    let opened = stream.open_producer(TOPIC, 7).await;
    assert!(matches!(opened, Some(to_client::Kind::ProducerOpened(_))), "{opened:?}");
    for (request, body, fits) in [(1, 1_001, false), (2, 1_000, true)] {
        let mut builder = BatchBuilder::new(Compression::None);
        builder.push(&record(noise(body))).unwrap();
        let batch = builder.finish(None).unwrap();
        stream.publish(request, 0, &batch.header_bytes(), batch.payload()).await.unwrap();
        match stream.hear().await {
            Some(to_client::Kind::Published(published)) => assert!(fits && published.request == request),
            Some(to_client::Kind::PublishRefused(refused)) => {
                assert!(!fits && refused.request == request, "{refused:?}");
                assert_eq!(refused.error.unwrap().code(), ErrorCode::MessageTooLarge);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unicode_and_binary_keys_tags_and_headers_round_trip_bit_for_bit() {
    let every_byte: Vec<u8> = (0..=255).collect();
    let messages = || {
        vec![
            Message::new("").key("").tag("").header("", ""),
            Message::new("grüße 🎺").key("ключ").tag("标签").header("naïve 名", "café ☕").header("naïve 名", "again"),
            Message::new(every_byte.clone()).key(every_byte.clone()).header("\u{0}\n\u{202e}", every_byte.clone()),
            Message::new("long")
                .key(vec![0xff; 64 << 10])
                .tag("t".repeat(255))
                .header("n".repeat(1_000), noise(100_000)),
            (0..1_024).fold(Message::new("many"), |message, n| message.header(format!("h{n}"), vec![n as u8])),
        ]
    };
    let broker = Broker::start().await;
    for (topic, storage) in [("in-memory", "memory"), ("on-disk", "lsm")] {
        broker.run(["topic", "create", topic, "--storage", storage, "--partitions", "1"]).await;
    }
    let client = sdk::connect(&broker).await;
    for topic in ["in-memory", "on-disk"] {
        let producer = sdk::producer(&client, topic).await;
        for message in messages() {
            producer.send(message).await.unwrap();
        }
        expect(&client, topic, "first", &messages()).await;
    }
    // Also once they have been on disk and nowhere else.
    broker.terminate().await;
    broker.restart().await;
    expect(&client, "on-disk", "second", &messages()).await;
}

/// These messages, in this order, are what a new group gets.
async fn expect(client: &Client, topic: &str, group: &str, messages: &[Message]) {
    let mut consumer = sdk::consumer(client, topic, group, 100).await;
    for (number, message) in messages.iter().enumerate() {
        let delivery = sdk::next(&mut consumer).await;
        let mut again = Message::new(delivery.body().clone());
        if let Some(key) = delivery.key() {
            again = again.key(Bytes::copy_from_slice(key));
        }
        if let Some(tag) = delivery.tag() {
            again = again.tag(tag);
        }
        for header in delivery.headers() {
            again = again.header(header.name.clone(), header.value.clone());
        }
        assert!(again == *message, "message {number} of {topic}: {again:?} instead of {message:?}");
        delivery.ack().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_none_are_refused_by_the_sdk_by_the_command_and_by_the_broker() {
    let broker = Broker::start().await;
    let client = sdk::connect(&broker).await;
    let (peer, _control) = Peer::welcomed(&broker, 1 << 20).await;
    for name in bad_names() {
        let error = client.producer(&name).open().await.err().unwrap_or_else(|| panic!("{name:?} was taken"));
        assert_eq!(error.code(), ErrorCode::Invalid, "{name:?}: {error}");
        let error = client.consumer(TOPIC, &name).open().await.err().unwrap_or_else(|| panic!("{name:?} was taken"));
        assert_eq!(error.code(), ErrorCode::Invalid, "{name:?}: {error}");

        // What no operating system passes as an argument cannot be tried on the command line.
        if !name.contains('\0') {
            for arguments in [["topic", "create", &name], ["publish", &name, "body"]] {
                let error = broker.attempt(arguments).await.error();
                assert!(matches!(error["kind"].as_str(), Some("invalid" | "usage")), "{name:?}: {error}");
            }
            let error = broker.attempt(["group", "create", TOPIC, &name]).await.error();
            assert!(matches!(error["kind"].as_str(), Some("invalid" | "usage")), "{name:?}: {error}");
        }

        // A client that does not check for itself.
        let mut stream = peer.open().await;
        assert_invalid(&name, stream.open_producer(&name, 7).await);
        let mut stream = peer.open().await;
        assert_invalid(&name, stream.subscribe(TOPIC, &name).await);
        let mut stream = peer.open().await;
        assert_invalid(&name, stream.subscribe(&name, GROUP).await);
    }
    assert!(peer.is_open(), "a bad name cost the connection");
    let mut stream: Stream = peer.open().await;
    let opened = stream.open_producer(TOPIC, 7).await;
    assert!(matches!(opened, Some(to_client::Kind::ProducerOpened(_))), "{opened:?}");
    // The longest good name, all the way.
    let name = "x".repeat(255);
    client.producer(&name).open().await.unwrap().send(Message::new("fits")).await.unwrap();
    assert_eq!(broker.show(["topic", "show", &name]).await["name"], name);
}

fn assert_invalid(name: &str, answer: Option<to_client::Kind>) {
    let Some(to_client::Kind::Refused(error)) = answer else { panic!("{name:?}: {answer:?}") };
    assert_eq!(error.code(), ErrorCode::Invalid, "{name:?}: {error}");
}

fn record(body: Bytes) -> Record {
    Record {
        id: MessageId::generate(Timestamp(1), 1),
        timestamp: Timestamp(1),
        key: None,
        tag: None,
        headers: Vec::new(),
        body,
        deliver_at: None,
        expires_at: None,
    }
}
