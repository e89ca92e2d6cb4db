//! Ten groups on one topic, of which one never acknowledges and one refuses everything: neither the publisher nor the
//! other eight notice, and what those two owe lies in the log, not in memory.
//!
//! Rates are printed in every run. They are compared only in the long suite, on a machine that has nothing else to do:
//! nothing that is timed decides over an ordinary test.

use std::time::Duration;

use stentor_client::{Client, Consumer};
use tokio::task::JoinHandle;

use crate::support::broker::Broker;
use crate::support::ledger::Received;
use crate::support::pattern::Pattern;
use crate::support::scale::{Scale, scaled};
use crate::support::sdk::{self, arrival};
use crate::support::wait::{DEADLINE, Stopwatch, within};

const CALM: &str = "calm";
const TROUBLED: &str = "troubled";
const HEALTHY: usize = 8;

/// The publishers' rate with the two in trouble must be at least so much of the rate without them.
const RATIO_MIN: f64 = 0.9;

const CONFIG: &str = "[defaults]\npartitions = 4\n\
    [[group]]\ntopic = \"*\"\ngroup = \"refuses\"\nmax_attempts = 1000000\n\
    [[group]]\ntopic = \"*\"\ngroup = \"never-acknowledges\"\nlease = \"1h\"\n";

/// A group that acknowledges whatever comes, and ends when it has had `messages`.
fn healthy(mut consumer: Consumer, pattern: Pattern, messages: u64) -> JoinHandle<(Consumer, Received)> {
    tokio::spawn(async move {
        let mut received = Received::new(pattern);
        while (received.len() as u64) < messages {
            let batch =
                within(DEADLINE, "a batch", consumer.next_batch()).await.unwrap().expect("the consumer is open");
            for delivery in batch.iter() {
                received.arrived(&arrival(delivery));
            }
            batch.ack().await.unwrap();
        }
        (consumer, received)
    })
}

/// The group that refuses everything, as long as it is let.
fn refuses(mut consumer: Consumer) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Ok(Some(delivery)) = consumer.next().await {
            if delivery.nack().reason("never").send().await.is_err() {
                return;
            }
        }
    })
}

async fn healthy_groups(client: &Client, topic: &str) -> Vec<Consumer> {
    let mut consumers = Vec::new();
    for number in 0..HEALTHY {
        consumers.push(sdk::consumer(client, topic, &format!("healthy-{number}"), 2_000).await);
    }
    consumers
}

/// Publishes a round to `topic` while its healthy groups take it; the publishers' rate, in messages a second.
async fn round(client: &Client, topic: &str, consumers: &mut Vec<Consumer>, pattern: Pattern, each: u64) -> f64 {
    let watch = Stopwatch::start();
    let consuming: Vec<_> = consumers.drain(..).map(|consumer| healthy(consumer, pattern, each)).collect();
    let published = sdk::publish_all(client, topic, pattern, 0..each).await;
    let rate = each as f64 / watch.elapsed().as_secs_f64();
    for task in consuming {
        let (consumer, received) = within(DEADLINE * 2, "a healthy group to get everything", task).await.unwrap();
        received.check(&published);
        consumers.push(consumer);
    }
    rate
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_groups_in_trouble_are_noticed_neither_by_the_publisher_nor_by_the_other_eight_nor_in_memory() {
    let (rounds, each) = scaled((2, 3_000), (3, 10_000), (7, 50_000));
    let broker = Broker::with_config(CONFIG).await;
    let client = sdk::connect(&broker).await;
    let mut calm = healthy_groups(&client, CALM).await;
    let mut troubled = healthy_groups(&client, TROUBLED).await;
    // Holds what its credit allows, and sits.
    let _holder = sdk::consumer(&client, TROUBLED, "never-acknowledges", 500).await;
    let refusing = refuses(sdk::consumer(&client, TROUBLED, "refuses", 500).await);

    let mut ratios = Vec::new();
    for number in 0..rounds {
        let pattern = Pattern { seed: 0xfa_0001 + number, bytes: 1_024 };
        // The order alternates, so that neither always runs on the warmer machine.
        let (without, with) = if number % 2 == 0 {
            let without = round(&client, CALM, &mut calm, pattern, each).await;
            (without, round(&client, TROUBLED, &mut troubled, pattern, each).await)
        } else {
            let with = round(&client, TROUBLED, &mut troubled, pattern, each).await;
            (round(&client, CALM, &mut calm, pattern, each).await, with)
        };
        eprintln!("round {number}: {without:.0} messages/s without, {with:.0} with: {:.2}", with / without);
        ratios.push(with / without);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    eprintln!("ratio of the publisher's rates: median {median:.2} of {rounds} rounds");
    if Scale::of_this_run() == Scale::Long {
        assert!(median >= RATIO_MIN, "the publisher noticed: {ratios:?}");
    }

    let total = rounds * each;
    let owed = broker.show(["group", "show", TROUBLED, "never-acknowledges"]).await;
    assert_eq!(owed["backlog"], total, "{owed}");
    let owed = broker.show(["group", "show", TROUBLED, "refuses"]).await;
    let accounted = owed["backlog"].as_u64().unwrap() + owed["dead_letters"].as_u64().unwrap();
    assert_eq!(accounted, total, "{owed}");
    refusing.abort();
}

/// Twice the same amount is published on top of a warm-up. If memory followed what is owed, the second half would show
/// it; allocators and caches have filled up by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_broker_s_memory_does_not_grow_with_what_two_groups_owe() {
    const BYTES: usize = 8 << 10;
    let each = scaled(6_000_u64, 12_000, 60_000);
    let broker = Broker::with_config(CONFIG).await;
    let client = sdk::connect(&broker).await;
    let _holder = sdk::consumer(&client, TROUBLED, "never-acknowledges", 100).await;
    let refusing = refuses(sdk::consumer(&client, TROUBLED, "refuses", 100).await);
    let pattern = Pattern { seed: 0xfa_0002, bytes: BYTES };

    let mut resident = Vec::new();
    for half in 0..3 {
        sdk::publish_all(&client, TROUBLED, pattern, half * each..(half + 1) * each).await;
        // The refusing group is given its time to fail.
        crate::support::wait::pause(Duration::from_secs(1)).await;
        resident.push(broker.resident_bytes().await);
    }
    let owed_more = each * BYTES as u64;
    let grown = resident[2].saturating_sub(resident[1]);
    eprintln!("resident: {resident:?} bytes; owed more by each group: {owed_more} bytes");
    assert!(grown < owed_more / 2, "memory grew by {grown} bytes while each group came to owe {owed_more} more");
    refusing.abort();
}
