//! Peers that break the rules. Whatever they do, their own connection ends within a deadline, the broker's memory stays
//! within a bound, and everybody else goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use stentor_client::{ErrorCode, Message};
use stentor_core::batch::{BatchBuilder, HEADER_BYTES};
use stentor_core::{Compression, MessageId, Record, RecordBatch, Timestamp};
use stentor_protocol::wire::{self, to_broker, to_client};
use tokio::task::JoinHandle;

use crate::support::broker::Broker;
use crate::support::pattern::Pattern;
use crate::support::peer::{Peer, Stream, envelope, first_datagrams, forged, frame, hello, lengths, scatter};
use crate::support::scale::scaled;
use crate::support::sdk;
use crate::support::wait::{DEADLINE, until, within};

const TOPIC: &str = "orders";

/// Short, so that the tests are; a peer that says nothing, or takes nothing in, has so long.
const CONFIG: &str = "[node]\nhandshake_timeout = \"2s\"\nidle_timeout = \"5s\"\n[defaults]\npartitions = 1\n";

/// What a peer's window is where it does not matter.
const WINDOW: u32 = 1 << 20;

/// What the broker's memory may grow by in a test: what allocators keep and what well-behaved clients need, together far
/// below what any of the attacks would take if they got what they ask for.
const GROWTH_BYTES_MAX: u64 = 96 << 20;

/// A client that publishes and consumes, one message after the other, for as long as the test lasts.
struct Witness {
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Witness {
    async fn start(broker: &Broker) -> Self {
        let client = sdk::connect(broker).await;
        let producer = sdk::producer(&client, "witness").await;
        let mut consumer = sdk::consumer(&client, "witness", "witness", 10).await;
        let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (Arc::clone(&rounds), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            // Owned by the task: the connection must outlive the producer and the consumer.
            let _client = client;
            while !stopped.load(Ordering::Relaxed) {
                let round = counted.load(Ordering::Relaxed).to_string();
                within(DEADLINE, "the witness to publish", producer.send(Message::new(round.clone()))).await.unwrap();
                let delivery = sdk::next(&mut consumer).await;
                assert_eq!(&delivery.body()[..], round.as_bytes());
                assert!(!delivery.redelivered(), "the witness lost its connection on the way");
                within(DEADLINE, "the witness to acknowledge", delivery.ack()).await.unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { rounds, stop, task }
    }

    /// Waits until the witness has been through its round several times more.
    async fn goes_on(&self) {
        let enough = self.rounds.load(Ordering::Relaxed) + 5;
        let look = || async { (self.rounds.load(Ordering::Relaxed), self.task.is_finished()) };
        let (_, ended) = until("the witness to go on", look, |(rounds, ended)| *rounds >= enough || *ended).await;
        assert!(!ended, "the witness failed");
    }

    async fn content(self) {
        self.stop.store(true, Ordering::Relaxed);
        within(DEADLINE, "the witness to end", self.task).await.unwrap();
    }
}

/// Runs `attack` beside a well-behaved client, and looks at the broker's memory.
async fn withstands<F: Future<Output = ()>>(attack: impl FnOnce(Arc<Broker>) -> F) {
    let broker = Arc::new(Broker::with_config(CONFIG).await);
    broker.run(["topic", "create", TOPIC]).await;
    let witness = Witness::start(&broker).await;
    witness.goes_on().await;
    let before = broker.resident_bytes().await;
    attack(Arc::clone(&broker)).await;
    let after = broker.resident_bytes().await;
    witness.goes_on().await;
    witness.content().await;
    assert!(after < before + GROWTH_BYTES_MAX, "memory went from {before} to {after} bytes");
}

fn batch(records: usize, bytes: usize) -> RecordBatch {
    let mut builder = BatchBuilder::new(Compression::None);
    for number in 0..records {
        let record = Record {
            id: MessageId::generate(Timestamp(1), number as u128),
            timestamp: Timestamp(1),
            key: None,
            tag: None,
            headers: Vec::new(),
            body: Bytes::from(vec![7; bytes]),
            deliver_at: None,
            expires_at: None,
        };
        builder.push(&record).unwrap();
    }
    builder.finish(None).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_the_port_is_ignored() {
    withstands(|broker| async move {
        let mut rng = fastrand::Rng::with_seed(0x40_0001);
        let first = first_datagrams(&broker).await.remove(0);
        for _ in 0..scaled(500, 2_000, 20_000) {
            let mut datagram = match rng.u8(0..3) {
                // What is no QUIC at all.
                0 => vec![0; rng.usize(1..1_500)],
                // What looks like the long header of some version.
                1 => vec![0xc0; rng.usize(20..1_500)],
                // What was a good beginning, until it was damaged or cut off.
                _ => first[..rng.usize(1..=first.len())].to_vec(),
            };
            let damage = if datagram[0] == 0 { datagram.len() } else { 1 + datagram.len() / 100 };
            for _ in 0..damage {
                let at = rng.usize(0..datagram.len());
                datagram[at] = rng.u8(..);
            }
            drop(scatter(&broker, [datagram]));
        }
    })
    .await;
}

/// The beginnings of handshakes that nobody goes on with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_of_quic_that_stall_cost_little_and_hold_up_nobody() {
    withstands(|broker| async move {
        let mut silent = Vec::new();
        for _ in 0..scaled(50, 200, 1_000) {
            silent.extend(scatter(&broker, first_datagrams(&broker).await));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_connects_and_says_nothing_or_half_of_its_hello_is_hung_up_on() {
    withstands(|broker| async move {
        let says_nothing = Peer::connect(&broker, WINDOW).await;

        let opens_and_says_nothing = Peer::connect(&broker, WINDOW).await;
        let mut nothing = opens_and_says_nothing.open().await;
        nothing.send.write_all(&[]).await.unwrap();

        let says_half = Peer::connect(&broker, WINDOW).await;
        let mut half = says_half.open().await;
        let hello = frame(&envelope(hello(1, 1)), &[]);
        half.send.write_all(&hello[..hello.len() / 2]).await.unwrap();

        for (peer, what) in [
            (&says_nothing, "one that says nothing"),
            (&opens_and_says_nothing, "one that opens a stream and says nothing"),
            (&says_half, "one that says half of its hello"),
        ] {
            peer.ended(what).await;
        }
    })
    .await;
}

/// First words that no broker can make sense of, each on a connection of its own, which ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_word_that_makes_no_sense_ends_the_connection() {
    withstands(|broker| async move {
        let open_producer = to_broker::Kind::OpenProducer(wire::OpenProducer { producer: 1, ..Default::default() });
        let mut rng = fastrand::Rng::with_seed(0x40_0002);
        let mut noise = vec![0; 4_096];
        rng.fill(&mut noise);
        let words = [
            ("a head of u32::MAX bytes", lengths(u32::MAX, 0).to_vec()),
            ("a body of u32::MAX bytes", [&lengths(8, u32::MAX)[..], &[1; 64]].concat()),
            ("a frame of nothing but the greatest lengths", lengths(u32::MAX, u32::MAX).to_vec()),
            ("noise", noise),
            ("an empty head", frame(&[], &[])),
            ("a head that is no envelope", frame(&[0xff; 40], &[])),
            ("an envelope of the future", frame(&[0x9a, 0x06, 0x00], &[])),
            ("a producer before any hello", frame(&envelope(open_producer), &[])),
            ("plain HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ];
        for (what, word) in words {
            let peer = Peer::connect(&broker, WINDOW).await;
            let mut stream = peer.open().await;
            // The broker may hang up while this is still being written.
            let _ = stream.send.write_all(&word).await;
            peer.ended(what).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_another_version_is_told_so() {
    let broker = Broker::with_config(CONFIG).await;
    for (min, max) in [(0, 0), (2, 7), (u32::MAX, u32::MAX)] {
        let peer = Peer::connect(&broker, WINDOW).await;
        let mut stream = peer.open().await;
        stream.say(hello(min, max)).await.unwrap();
        let Some(to_client::Kind::Refused(error)) = stream.hear().await else { panic!("{min} to {max}: no refusal") };
        assert_eq!(error.code(), ErrorCode::VersionMismatch);
        assert!(!error.hint.is_empty(), "{error:?}");
        peer.ended("a client of another version").await;
    }
    // One that speaks later versions too is welcome.
    let peer = Peer::connect(&broker, WINDOW).await;
    let mut stream = peer.open().await;
    stream.say(hello(0, 9)).await.unwrap();
    assert!(matches!(stream.hear().await, Some(to_client::Kind::Welcome(welcome)) if welcome.version == 1));
}

/// A frame is begun on a good connection and never ended: that stream waits, for as long as the peer likes, and costs
/// what has arrived of it. Half a frame and then the end is a fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_frames_on_an_open_connection_cost_no_more_than_what_arrived() {
    withstands(|broker| async move {
        let mut peers = Vec::new();
        for _ in 0..scaled(5, 10, 50) {
            let (peer, control) = Peer::welcomed(&broker, WINDOW).await;
            let mut streams = Vec::new();
            for _ in 0..20 {
                let mut stream = peer.open().await;
                // A claim of 4 MiB, of which a few bytes come.
                let head = envelope(to_broker::Kind::OpenProducer(wire::OpenProducer::default()));
                let claim = [&lengths(head.len() as u32, 4 << 20)[..], &head, &[1; 100]].concat();
                stream.send.write_all(&claim).await.unwrap();
                streams.push(stream);
            }
            let mut ended = peer.open().await;
            ended.send.write_all(&frame(&envelope(hello(1, 1)), &[])[..5]).await.unwrap();
            ended.send.finish().unwrap();
            peer.stream_ended(&mut ended, "one that ends in the middle of a frame").await;
            peers.push((peer, control, streams));
        }
    })
    .await;
}

/// Every one of these is refused or ends its stream; a connection that goes on is of use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_lie_are_refused_and_never_stored() {
    withstands(|broker| async move {
        let honest = batch(3, 100);
        let lies: Vec<(&str, Vec<u8>, Bytes)> = vec![
            ("a wrong checksum", flipped(&honest, 20), honest.payload().clone()),
            ("a damaged payload", honest.header_bytes().to_vec(), flipped_payload(&honest)),
            ("a header cut short", honest.header_bytes()[..HEADER_BYTES - 1].to_vec(), honest.payload().clone()),
            ("no header", Vec::new(), honest.payload().clone()),
            ("no payload", honest.header_bytes().to_vec(), Bytes::new()),
            ("a count of u32::MAX", forged(&honest, 28, &u32::MAX.to_le_bytes()), honest.payload().clone()),
            ("a count of none", forged(&honest, 28, &0_u32.to_le_bytes()), honest.payload().clone()),
            ("a count of one too few", forged(&honest, 28, &2_u32.to_le_bytes()), honest.payload().clone()),
            ("4 GiB when uncompressed", forged(&honest, 36, &u32::MAX.to_le_bytes()), honest.payload().clone()),
            ("lz4 that is none", forged(&honest, 24, &1_u16.to_le_bytes()), honest.payload().clone()),
            ("zstd that is none", forged(&honest, 24, &2_u16.to_le_bytes()), honest.payload().clone()),
            ("a compression of the future", forged(&honest, 24, &7_u16.to_le_bytes()), honest.payload().clone()),
            ("a format of the future", forged(&honest, 16, &[9]), honest.payload().clone()),
        ];
        for (what, header, payload) in lies {
            let (peer, _control) = Peer::welcomed(&broker, WINDOW).await;
            let mut stream = producer_stream(&peer).await;
            let _ = stream.publish(1, 0, &header, &payload).await;
            match stream.hear().await {
                Some(to_client::Kind::PublishRefused(refused)) => {
                    let error = refused.error.unwrap();
                    assert!(
                        matches!(error.code(), ErrorCode::BatchMalformed | ErrorCode::MessageTooLarge),
                        "{what}: {error}"
                    );
                    // The stream lives on: what is honest is stored.
                    stream.publish(2, 0, &honest.header_bytes(), honest.payload()).await.unwrap();
                    let answer = stream.hear().await;
                    assert!(matches!(answer, Some(to_client::Kind::Published(_))), "{what}: {answer:?}");
                }
                // The stream, or the connection, is over: so be it.
                Some(to_client::Kind::Ended(_) | to_client::Kind::Refused(_)) | None => {}
                other => panic!("{what}: {other:?}"),
            }
        }
        let (peer, _control) = Peer::welcomed(&broker, WINDOW).await;
        let mut stream = producer_stream(&peer).await;
        stream.publish(1, 77, &honest.header_bytes(), honest.payload()).await.unwrap();
        let Some(to_client::Kind::PublishRefused(refused)) = stream.hear().await else { panic!("no refusal") };
        assert_eq!(refused.error.unwrap().code(), ErrorCode::PartitionNotFound);

        // Whatever was stored is honest.
        let client = sdk::connect(&broker).await;
        let mut consumer = sdk::consumer(&client, TOPIC, "auditor", 100).await;
        sdk::drain(&broker, (TOPIC, "auditor"), &mut consumer, |delivery| async move {
            assert_eq!(&delivery.body()[..], [7; 100]);
            delivery.ack().await.unwrap();
        })
        .await;
    })
    .await;
}

/// A batch of zeros that came to little on the wire and would come to far more than any limit here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_swells_is_refused_before_it_swells() {
    withstands(|broker| async move {
        for compression in [Compression::Lz4, Compression::Zstd] {
            let mut builder = BatchBuilder::new(compression);
            let record = Record {
                id: MessageId::generate(Timestamp(1), 1),
                timestamp: Timestamp(1),
                key: None,
                tag: None,
                headers: Vec::new(),
                body: Bytes::from(vec![0; 512 << 20]),
                deliver_at: None,
                expires_at: None,
            };
            builder.push(&record).unwrap();
            let bomb = builder.finish(None).unwrap();
            drop(record);
            // As it is, and with a header that says it is small.
            for header in [bomb.header_bytes().to_vec(), forged(&bomb, 36, &1_000_u32.to_le_bytes())] {
                let (peer, _control) = Peer::welcomed(&broker, WINDOW).await;
                let mut stream = producer_stream(&peer).await;
                let _ = stream.publish(1, 0, &header, bomb.payload()).await;
                let answer = stream.hear().await;
                assert!(!matches!(answer, Some(to_client::Kind::Published(_))), "{compression:?}: {answer:?}");
            }
        }
    })
    .await;
}

/// Frames that make sense, but not here and not now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_out_of_place_end_their_stream_or_connection() {
    withstands(|broker| async move {
        let publish = || to_broker::Kind::Publish(wire::Publish::default());
        let grant = || to_broker::Kind::Grant(wire::Grant { messages: u32::MAX, bytes: u64::MAX });
        for (what, word) in [
            ("a publish that opens a stream", publish()),
            ("a grant that opens a stream", grant()),
            ("a second hello on a stream of its own", hello(1, 1)),
            ("an unsubscribe that opens a stream", to_broker::Kind::Unsubscribe(wire::Unsubscribe {})),
        ] {
            let (peer, _control) = Peer::welcomed(&broker, WINDOW).await;
            let mut stream = peer.open().await;
            stream.say(word).await.unwrap();
            peer.stream_ended(&mut stream, what).await;
        }
        let (peer, mut control) = Peer::welcomed(&broker, WINDOW).await;
        control.say(hello(1, 1)).await.unwrap();
        peer.ended("a second hello").await;

        let (peer, _control) = Peer::welcomed(&broker, WINDOW).await;
        let mut stream = producer_stream(&peer).await;
        stream.say(grant()).await.unwrap();
        peer.stream_ended(&mut stream, "a grant to a producer").await;

        let (peer, _control) = Peer::welcomed(&broker, WINDOW).await;
        let mut stream = peer.open().await;
        let answer = stream.open_producer(TOPIC, 0).await;
        assert!(!matches!(answer, Some(to_client::Kind::ProducerOpened(_))), "producer 0 is nobody: {answer:?}");
    })
    .await;
}

/// What nobody holds cannot be settled, however large the span; and credit does not run over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settling_what_is_not_held_and_granting_without_end_harm_nobody() {
    withstands(|broker| async move {
        let client = sdk::connect(&broker).await;
        sdk::publish_all(&client, TOPIC, Pattern { seed: 0x40_0003, bytes: 100 }, 0..10).await;
        let (peer, _control) = Peer::welcomed(&broker, WINDOW).await;
        let mut stream = peer.open().await;
        let answer = stream.subscribe(TOPIC, "raw").await;
        assert!(matches!(answer, Some(to_client::Kind::Subscribed(_))), "{answer:?}");
        let spans = vec![
            wire::OffsetSpan { start: 0, count: u32::MAX },
            wire::OffsetSpan { start: u64::MAX, count: u32::MAX },
            wire::OffsetSpan { start: 5, count: 0 },
        ];
        let ack = wire::Ack { partition: 0, spans: spans.clone() };
        let elsewhere = wire::Ack { partition: u32::MAX, spans };
        let settle = wire::Settle { request: 1, acks: vec![ack, elsewhere], ..Default::default() };
        stream.say(to_broker::Kind::Settle(settle)).await.unwrap();
        // Refused, or the stream ended; but not done.
        match stream.hear().await {
            Some(to_client::Kind::Settled(settled)) => assert!(!settled.failed.is_empty(), "{settled:?}"),
            Some(to_client::Kind::Ended(_)) | None => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(broker.show(["group", "show", TOPIC, "raw"]).await["backlog"], 10);

        let (peer, _control) = Peer::welcomed(&broker, WINDOW).await;
        let mut stream = peer.open().await;
        stream.subscribe(TOPIC, "greedy").await;
        for _ in 0..3 {
            stream.say(to_broker::Kind::Grant(wire::Grant { messages: u32::MAX, bytes: u64::MAX })).await.unwrap();
        }
        let answer = stream.hear().await;
        assert!(matches!(answer, Some(to_client::Kind::Delivery(_) | to_client::Kind::Ended(_))), "{answer:?}");
    })
    .await;
}

/// Far more than its window is on the way to a subscriber that never reads: it is hung up on, and what it held goes to
/// the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_never_reads_is_hung_up_on_and_what_it_held_comes_back() {
    withstands(|broker| async move {
        let messages = scaled(300, 600, 2_000);
        let pattern = Pattern { seed: 0x40_0004, bytes: 64 << 10 };
        let client = sdk::connect(&broker).await;
        let published = sdk::publish_all(&client, TOPIC, pattern, 0..messages).await;
        let (peer, _control) = Peer::welcomed(&broker, 16 << 10).await;
        let mut stream = peer.open().await;
        let answer = stream.subscribe(TOPIC, "raw").await;
        assert!(matches!(answer, Some(to_client::Kind::Subscribed(_))), "{answer:?}");
        let all = wire::Grant { messages: u32::MAX, bytes: u64::MAX };
        stream.say(to_broker::Kind::Grant(all)).await.unwrap();
        peer.ended("a subscriber that never reads").await;

        let mut consumer = sdk::consumer(&client, TOPIC, "raw", 100).await;
        let mut received = crate::support::ledger::Received::new(pattern);
        sdk::drain(&broker, (TOPIC, "raw"), &mut consumer, |delivery| {
            received.arrived(&sdk::arrival(&delivery));
            async move { delivery.ack().await.unwrap() }
        })
        .await;
        received.check(&published);
    })
    .await;
}

/// A producer that never reads its receipts is stopped by its window sooner or later, and is hung up on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_never_reads_its_receipts_is_hung_up_on() {
    withstands(|broker| async move {
        let (peer, _control) = Peer::welcomed(&broker, 1 << 10).await;
        let mut stream = producer_stream(&peer).await;
        let small = batch(1, 10);
        let pouring = async {
            let mut request = 0;
            loop {
                request += 1;
                if stream.publish(request, 0, &small.header_bytes(), small.payload()).await.is_err() {
                    return;
                }
            }
        };
        within(DEADLINE, "the broker to hang up on a producer that never reads", pouring).await;
        peer.ended("a producer that never reads").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_gets_no_more_streams_than_the_limit_and_no_stream_beyond_the_two_directions() {
    withstands(|broker| async move {
        let (peer, _control) = Peer::welcomed(&broker, WINDOW).await;
        let mut streams = Vec::new();
        let opening = async {
            for _ in 0..5_000 {
                let (mut send, receive) = peer.connection().open_bi().await.unwrap();
                send.write_all(&[1]).await.unwrap();
                streams.push((send, receive));
            }
        };
        let opened = tokio::time::timeout(std::time::Duration::from_secs(3), opening).await;
        assert!(opened.is_err() || !peer.is_open(), "5,000 streams on one connection");
        let uni = tokio::time::timeout(std::time::Duration::from_millis(200), peer.connection().open_uni()).await;
        assert!(!matches!(uni, Ok(Ok(_))), "a unidirectional stream was allowed");
    })
    .await;
}

/// Opens a stream as a producer's that is welcome.
async fn producer_stream(peer: &Peer) -> Stream {
    let mut stream = peer.open().await;
    let answer = stream.open_producer(TOPIC, 7).await;
    assert!(matches!(answer, Some(to_client::Kind::ProducerOpened(_))), "{answer:?}");
    stream
}

fn flipped(batch: &RecordBatch, at: usize) -> Vec<u8> {
    let mut header = batch.header_bytes().to_vec();
    header[at] ^= 1;
    header
}

fn flipped_payload(batch: &RecordBatch) -> Bytes {
    let mut payload = batch.payload().to_vec();
    let middle = payload.len() / 2;
    payload[middle] ^= 1;
    payload.into()
}
