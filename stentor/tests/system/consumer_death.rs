//! A consumer dies, or falls silent, with messages in its hands.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::Value;
use stentor_client::Message;
use stentor_protocol::wire::{self, to_broker, to_client};

use crate::support::broker::Broker;
use crate::support::ledger::{Published, Received, runs};
use crate::support::pattern::Pattern;
use crate::support::peer::Peer;
use crate::support::process::Process;
use crate::support::sdk::{self, arrival};
use crate::support::wait::{DEADLINE, until};

const TOPIC: &str = "orders";
const GROUP: &str = "red-packet";
const HELD: usize = 50;

/// What runs out first, where only one of them is to do it: the other is an hour away.
const IDLE_TIME_FIRST: &str = "[node]\nidle_timeout = \"2s\"\n[defaults]\nlease = \"1h\"\n";
const LEASE_FIRST: &str = "[node]\nidle_timeout = \"1h\"\n[defaults]\nlease = \"2s\"\nretry_delay = \"10ms\"\n";
const NEITHER: &str = "[node]\nidle_timeout = \"1h\"\n[defaults]\nlease = \"1h\"\n";

/// A process that takes messages and does nothing with them; returns once it holds [`HELD`].
async fn consumer_process(broker: &Broker) -> (Process, BTreeSet<(u64, u64)>) {
    let credit = HELD.to_string();
    let arguments =
        ["subscribe", TOPIC, "--group", GROUP, "--from", "earliest", "--no-ack", "--credit", &credit, "--print", "all"];
    let mut process = broker.cli().spawn(arguments);
    let mut held = BTreeSet::new();
    while held.len() < HELD {
        let line = process.line(DEADLINE).await.expect("the consumer goes on");
        let message: Value = serde_json::from_str(&line).unwrap();
        held.insert((message["partition"].as_u64().unwrap(), message["offset"].as_u64().unwrap()));
    }
    (process, held)
}

/// Publishes what the consumer is to hold, and a little more.
async fn publish(broker: &Broker, pattern: Pattern) -> Published {
    let client = sdk::connect(broker).await;
    sdk::publish_all(&client, TOPIC, pattern, 0..2 * HELD as u64).await
}

/// Another consumer of the group gets everything, and what the first one held says that it may have been delivered. The
/// next delivery is attempt `attempt`: a death counts, giving back in good order does not.
async fn another_gets_it(
    broker: &Broker,
    pattern: Pattern,
    published: &Published,
    held: &BTreeSet<(u64, u64)>,
    attempt: u32,
) {
    let client = sdk::connect(broker).await;
    let mut consumer = sdk::consumer(&client, TOPIC, GROUP, 1_000).await;
    let mut received = Received::new(pattern);
    let mut unmarked = Vec::new();
    let mut again = BTreeSet::new();
    sdk::drain(broker, (TOPIC, GROUP), &mut consumer, |delivery| {
        let arrival = arrival(&delivery);
        let number = received.arrived(&arrival).unwrap_or(u64::MAX);
        let place = (arrival.place.0.into(), arrival.place.1);
        if held.contains(&place) {
            again.insert(place);
            if !arrival.redelivered || arrival.attempt != attempt {
                unmarked.push(number);
            }
        }
        async move { delivery.ack().await.unwrap() }
    })
    .await;
    assert_eq!(&again, held, "what the first one held");
    assert!(unmarked.is_empty(), "held by another before, and not said so: {}", runs(&unmarked));
    received.check(published);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_consumer_held_comes_back_by_the_idle_time() {
    let pattern = Pattern { seed: 0xdead_0001, bytes: 100 };
    let broker = Broker::with_config(IDLE_TIME_FIRST).await;
    let published = publish(&broker, pattern).await;
    // Killed, it cannot say goodbye; to the broker it has fallen silent.
    let (mut process, held) = consumer_process(&broker).await;
    process.kill9().await;
    another_gets_it(&broker, pattern, &published, &held, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stopped_consumer_held_comes_back_by_the_lease() {
    let pattern = Pattern { seed: 0xdead_0002, bytes: 100 };
    let broker = Broker::with_config(LEASE_FIRST).await;
    let published = publish(&broker, pattern).await;
    let (process, held) = consumer_process(&broker).await;
    process.signal(Signal::STOP);
    another_gets_it(&broker, pattern, &published, &held, 2).await;
}

/// Lease and idle time are an hour: only the closing can have given the messages back. The connection ends without a
/// word to the subscription.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_consumer_held_comes_back_at_once_when_its_connection_closes() {
    let pattern = Pattern { seed: 0xdead_0003, bytes: 100 };
    let broker = Broker::with_config(NEITHER).await;
    let published = publish(&broker, pattern).await;

    let (peer, _control) = Peer::welcomed(&broker, 1 << 20).await;
    let mut stream = peer.open().await;
    let answer = stream.subscribe(TOPIC, GROUP).await;
    assert!(matches!(answer, Some(to_client::Kind::Subscribed(_))), "{answer:?}");
    stream.say(to_broker::Kind::Grant(wire::Grant { messages: HELD as u32, bytes: 1 << 20 })).await.unwrap();
    let mut held = BTreeSet::new();
    while held.len() < HELD {
        let Some(to_client::Kind::Delivery(delivery)) = stream.hear().await else { panic!("the deliveries ended") };
        for leased in delivery.leased {
            held.extend(
                (leased.start..leased.start + u64::from(leased.count)).map(|at| (delivery.partition.into(), at)),
            );
        }
    }
    peer.connection().close(0_u32.into(), b"enough");
    another_gets_it(&broker, pattern, &published, &held, 2).await;
}

/// In good order, by the SDK: what the application had in hand says that it was delivered before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dropped_consumer_held_comes_back_at_once() {
    let pattern = Pattern { seed: 0xdead_0005, bytes: 100 };
    let broker = Broker::with_config(NEITHER).await;
    let published = publish(&broker, pattern).await;

    let client = sdk::connect(&broker).await;
    let mut consumer = sdk::consumer(&client, TOPIC, GROUP, HELD as u32).await;
    let mut held = BTreeSet::new();
    let mut deliveries = Vec::new();
    for _ in 0..HELD {
        let delivery = sdk::next(&mut consumer).await;
        let (partition, offset) = arrival(&delivery).place;
        held.insert((partition.into(), offset));
        deliveries.push(delivery);
    }
    drop((deliveries, consumer, client));
    another_gets_it(&broker, pattern, &published, &held, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_consumer_process_gives_back_at_once_what_it_held() {
    let pattern = Pattern { seed: 0xdead_0004, bytes: 100 };
    let broker = Broker::with_config(NEITHER).await;
    let published = publish(&broker, pattern).await;
    let (mut process, held) = consumer_process(&broker).await;
    process.signal(Signal::INT);
    process.exit(DEADLINE).await;
    another_gets_it(&broker, pattern, &published, &held, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_consumers_all_die_is_a_dead_letter_exactly_once_and_redrive_brings_it_back() {
    const ATTEMPTS: u64 = 3;
    let config = "[node]\nidle_timeout = \"1s\"\n[defaults]\npartitions = 1\nlease = \"1h\"\nmax_attempts = 3\n\
                  retry_delay = \"1ms\"\n";
    let broker = Broker::with_config(config).await;
    let client = sdk::connect(&broker).await;
    let producer = sdk::producer(&client, TOPIC).await;
    let receipt = producer.send(Message::new("poison").key("k").tag("bad")).await.unwrap();

    for attempt in 1..=ATTEMPTS {
        let arguments =
            ["subscribe", TOPIC, "--group", GROUP, "--from", "earliest", "--no-ack", "--credit", "1", "--print", "all"];
        let mut process = broker.cli().spawn(arguments);
        let line = process.line(DEADLINE).await.expect("the poison comes");
        let message: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(message["body"], "poison");
        assert_eq!(message["attempt"], attempt, "{message}");
        assert_eq!(message["redelivered"], attempt > 1, "{message}");
        process.kill9().await;
    }

    let letters = || async { broker.run(["dead-letters", "list", TOPIC, GROUP]).await };
    let found = until("the poison to be a dead letter", letters, |letters| !letters.is_empty()).await;
    assert_one_letter(&found, receipt.offset.0, ATTEMPTS);
    let group = broker.show(["group", "show", TOPIC, GROUP]).await;
    assert_eq!((&group["dead_letters"], &group["backlog"]), (&Value::from(1), &Value::from(0)), "{group}");

    // Nor does a crash make two of it, or none.
    broker.kill9().await;
    broker.restart().await;
    assert_one_letter(&broker.run(["dead-letters", "list", TOPIC, GROUP]).await, receipt.offset.0, ATTEMPTS);

    broker.run(["dead-letters", "redrive", TOPIC, GROUP]).await;
    let mut consumer = sdk::consumer(&client, TOPIC, GROUP, 10).await;
    let delivery = sdk::next(&mut consumer).await;
    assert_eq!(&delivery.body()[..], b"poison");
    assert_eq!(delivery.offset(), receipt.offset);
    assert!(delivery.redelivered());
    delivery.ack_durable().await.unwrap();
    assert_eq!(broker.run(["dead-letters", "list", TOPIC, GROUP]).await, Vec::<Value>::new());
    let group = broker.show(["group", "show", TOPIC, GROUP]).await;
    assert_eq!((&group["dead_letters"], &group["backlog"]), (&Value::from(0), &Value::from(0)), "{group}");
}

fn assert_one_letter(letters: &[Value], offset: u64, attempts: u64) {
    let [letter] = letters else { panic!("{} letters: {letters:?}", letters.len()) };
    assert_eq!(letter["body"], "poison");
    assert_eq!(letter["key"], "k");
    assert_eq!(letter["tag"], "bad");
    assert_eq!(letter["offset"], offset);
    let reasons = letter["reasons"].as_array().unwrap();
    let numbers: Vec<u64> = reasons.iter().map(|reason| reason["attempt"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (1..=attempts).collect::<Vec<_>>(), "{letter}");
    assert!(
        reasons.iter().all(|reason| reason["reason"].as_str().is_some_and(|reason| !reason.is_empty())),
        "{letter}"
    );
}

/// Redrive is for the group alone whose letters they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_group_rejects_and_redrives_concerns_no_other_group() {
    let broker = Broker::start().await;
    let client = sdk::connect(&broker).await;
    let mut unhappy = sdk::consumer(&client, TOPIC, "unhappy", 10).await;
    let mut content = sdk::consumer(&client, TOPIC, "content", 10).await;
    let producer = sdk::producer(&client, TOPIC).await;
    producer.send(Message::new("once")).await.unwrap();

    sdk::next(&mut unhappy).await.reject().await.unwrap();
    sdk::next(&mut content).await.ack().await.unwrap();
    let letters = || async { broker.run(["dead-letters", "list", TOPIC, "unhappy"]).await };
    until("the rejected message to be a dead letter", letters, |letters| letters.len() == 1).await;

    broker.run(["dead-letters", "redrive", TOPIC, "unhappy"]).await;
    let delivery = sdk::next(&mut unhappy).await;
    assert_eq!(&delivery.body()[..], b"once");
    delivery.ack().await.unwrap();
    producer.send(Message::new("twice")).await.unwrap();
    let delivery = sdk::next(&mut content).await;
    assert_eq!(&delivery.body()[..], b"twice", "the redriven message went to the other group too");
    delivery.ack().await.unwrap();
}
