//! A broker that is asked to stop finishes what it has promised, and says so by its exit status.

use rustix::process::Signal;

use crate::support::broker::Broker;
use crate::support::ledger::Received;
use crate::support::pattern::Pattern;
use crate::support::scale::scaled;
use crate::support::sdk::{self, arrival};
use crate::support::wait::{DEADLINE, until, within};

use tokio::sync::watch;

const TOPIC: &str = "orders";
const GROUP: &str = "red-packet";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_terminated_under_load_loses_nothing_and_returns_nothing_that_was_acknowledged() {
    let pattern = Pattern { seed: 0x5d_0001, bytes: 512 };
    let (stops, each) = scaled((2, 4_000), (4, 8_000), (10, 20_000));
    let messages = stops * each;
    // So long that only the stop itself can have flushed the acknowledgements.
    let broker = Broker::with_config("[node]\nack_flush = \"60s\"\n").await;
    let client = sdk::connect(&broker).await;
    let producer = sdk::producer(&client, TOPIC).await;
    let mut consumer = sdk::consumer(&client, TOPIC, GROUP, 1_000).await;

    let (progress, mut receipts) = watch::channel(0);
    let publishing = tokio::spawn(async move { sdk::publish(&producer, pattern, 0..messages, &progress).await });
    let (tell, mut told) = watch::channel(false);
    let consuming = tokio::spawn(async move {
        let mut received = Received::new(pattern);
        loop {
            let delivery = tokio::select! {
                delivery = consumer.next() => delivery.unwrap().expect("the consumer is open"),
                _ = told.wait_for(|over| *over) => break,
            };
            let number = received.arrived(&arrival(&delivery));
            // Accepted is enough here: an orderly stop makes durable what it has accepted.
            if delivery.ack().await.is_ok() {
                number.into_iter().for_each(|number| received.done(number));
            }
        }
        received
    });

    for stop in 1..=stops {
        let moment = stop * each * 3 / 4;
        let reached = receipts.wait_for(|acknowledged| *acknowledged >= moment);
        within(DEADLINE * 2, &format!("{moment} receipts"), reached).await.unwrap();
        let status = broker.terminate().await;
        assert!(status.success(), "{status}:\n{}", broker.log());
        broker.restart().await;
    }
    let published = within(DEADLINE * 2, "everything to be published", publishing).await.unwrap();
    assert_eq!(published.stored.len() as u64, messages, "something was not stored");
    tell.send_replace(true);
    let mut received = consuming.await.unwrap();

    let mut consumer = sdk::consumer(&client, TOPIC, GROUP, 1_000).await;
    sdk::drain(&broker, (TOPIC, GROUP), &mut consumer, |delivery| {
        received.arrived(&arrival(&delivery));
        async move { delivery.ack().await.unwrap() }
    })
    .await;
    received.check(&published);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_nothing_in_does_not_hold_up_the_stop() {
    let broker = Broker::with_config("[node]\ndrain_timeout = \"2s\"\n").await;
    let client = sdk::connect(&broker).await;
    sdk::publish_all(&client, TOPIC, Pattern { seed: 0x5d_0002, bytes: 8 << 10 }, 0..1_000).await;
    // Held and never settled; the window of the SDK and of QUIC are full.
    let _consumer = sdk::consumer(&client, TOPIC, GROUP, 10_000).await;
    let status = broker.terminate().await;
    assert!(status.success(), "{status}:\n{}", broker.log());
    broker.restart().await;
    let group = broker.show(["group", "show", TOPIC, GROUP]).await;
    assert_eq!(group["backlog"], 1_000, "{group}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_a_broker_at_once_that_would_go_on_draining() {
    for second in [Signal::TERM, Signal::INT] {
        // Longer than anybody waits here: only the second signal can end it.
        let broker = Broker::with_config("[node]\ndrain_timeout = \"1h\"\nhandshake_timeout = \"1h\"\n").await;
        let client = sdk::connect(&broker).await;
        sdk::publish_all(&client, TOPIC, Pattern { seed: 0x5d_0003, bytes: 100 }, 0..10).await;
        // Its farewell is never acknowledged, since its process stands still: the broker waits for that.
        let mut standing = broker.cli().spawn(["subscribe", TOPIC, "--group", GROUP, "--from", "earliest"]);
        standing.line(DEADLINE).await.unwrap();
        standing.signal(Signal::STOP);
        broker.signal(Signal::TERM).await;
        let draining = || async { broker.log() };
        until("the broker to drain", draining, |log| log.contains("draining")).await;
        broker.signal(second).await;
        let status = broker.ended().await;
        assert_eq!(status.code(), Some(1), "{status}:\n{}", broker.log());
        assert!(broker.log().contains("ended at once"), "{}", broker.log());
        // What was acknowledged is safe.
        broker.restart().await;
        let topic = broker.show(["topic", "show", TOPIC]).await;
        let ends = topic["partitions"].as_array().unwrap().iter().map(|partition| partition["end"].as_u64().unwrap());
        assert_eq!(ends.sum::<u64>(), 10);
    }
}
