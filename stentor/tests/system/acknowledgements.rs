//! What a group has acknowledged stays acknowledged, and nothing else does.

use std::collections::BTreeSet;
use std::time::Duration;

use stentor_client::{Client, Delivery};

use crate::support::broker::Broker;
use crate::support::ledger::{Received, runs};
use crate::support::pattern::Pattern;
use crate::support::sdk::{self, arrival};
use crate::support::wait::pause;

const TOPIC: &str = "orders";
const GROUP: &str = "red-packet";
const MESSAGES: u64 = 20_001;

/// Acknowledgements become durable at least every 100 ms, says the configuration; so long after the last one, all are.
const ACK_FLUSH_AND_MARGIN: Duration = Duration::from_secs(2);

/// Takes every message, acknowledges the odd ones, and keeps the even ones.
async fn acknowledge_the_odd_ones(client: &Client, pattern: Pattern) -> (Received, Vec<Delivery>) {
    let mut consumer = sdk::consumer(client, TOPIC, GROUP, 2 * MESSAGES as u32).await;
    let mut received = Received::new(pattern);
    let mut kept = Vec::new();
    let mut settling = Vec::new();
    for _ in 0..MESSAGES {
        let delivery = sdk::next(&mut consumer).await;
        let number = received.arrived(&arrival(&delivery)).unwrap();
        if number % 2 == 1 {
            received.done(number);
            settling.push(delivery);
        } else {
            kept.push(delivery);
        }
    }
    // Together, so that it takes many acknowledgements and few round trips.
    for outcome in futures_util::future::join_all(settling.into_iter().map(Delivery::ack)).await {
        outcome.unwrap();
    }
    consumer.close().await;
    (received, kept)
}

/// What comes until nothing is owed any more.
async fn all_that_returns(broker: &Broker, client: &Client, received: &mut Received) -> BTreeSet<u64> {
    let mut consumer = sdk::consumer(client, TOPIC, GROUP, 1_000).await;
    let mut returned = BTreeSet::new();
    sdk::drain(broker, (TOPIC, GROUP), &mut consumer, |delivery| {
        returned.extend(received.arrived(&arrival(&delivery)));
        async move { delivery.ack().await.unwrap() }
    })
    .await;
    returned
}

fn assert_exactly_the_even_ones(returned: &BTreeSet<u64>) {
    let even: BTreeSet<u64> = (0..MESSAGES).step_by(2).collect();
    let missing: Vec<u64> = even.difference(returned).copied().collect();
    let unwanted: Vec<u64> = returned.difference(&even).copied().collect();
    assert!(missing.is_empty() && unwanted.is_empty(), "missing: {}; unwanted: {}", runs(&missing), runs(&unwanted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_20_001_messages_exactly_the_even_ones_return_when_the_odd_ones_were_acknowledged() {
    let pattern = Pattern { seed: 0xacc_0001, bytes: 40 };
    let broker = Broker::start().await;
    let client = sdk::connect(&broker).await;
    let published = sdk::publish_all(&client, TOPIC, pattern, 0..MESSAGES).await;
    let (mut received, _kept) = acknowledge_the_odd_ones(&client, pattern).await;

    let status = broker.terminate().await;
    assert!(status.success(), "{status}");
    broker.restart().await;

    assert_exactly_the_even_ones(&all_that_returns(&broker, &client, &mut received).await);
    received.check(&published);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_holds_when_the_broker_is_killed_once_the_acknowledgements_are_flushed() {
    let pattern = Pattern { seed: 0xacc_0002, bytes: 40 };
    let broker = Broker::with_config("[node]\nidle_timeout = \"2s\"\n").await;
    let client = sdk::connect(&broker).await;
    let published = sdk::publish_all(&client, TOPIC, pattern, 0..MESSAGES).await;
    let (mut received, _kept) = acknowledge_the_odd_ones(&client, pattern).await;

    pause(ACK_FLUSH_AND_MARGIN).await;
    broker.kill9().await;
    broker.restart().await;

    assert_exactly_the_even_ones(&all_that_returns(&broker, &client, &mut received).await);
    received.check(&published);
}

/// `ack_flush` is set to a minute, so that nothing but the promise itself can make the acknowledgements durable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_durably_never_returns_however_soon_the_broker_is_killed() {
    let pattern = Pattern { seed: 0xacc_0003, bytes: 40 };
    let broker = Broker::with_config("[node]\nack_flush = \"60s\"\nidle_timeout = \"2s\"\n").await;
    let client = sdk::connect(&broker).await;
    let mut received = Received::new(pattern);
    let mut published = sdk::publish_all(&client, TOPIC, pattern, 0..100).await;
    for round in 1..=5 {
        let mut consumer = sdk::consumer(&client, TOPIC, GROUP, 100).await;
        for _ in 0..100 {
            let delivery = sdk::next(&mut consumer).await;
            let number = received.arrived(&arrival(&delivery)).unwrap();
            delivery.ack_durable().await.unwrap();
            received.done(number);
        }
        broker.kill9().await;
        broker.restart().await;
        published.merge(sdk::publish_all(&client, TOPIC, pattern, round * 100..(round + 1) * 100).await);
    }
    all_that_returns(&broker, &client, &mut received).await;
    received.check(&published);
}
