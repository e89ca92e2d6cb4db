//! Ten groups each owe a different share of a large backlog, and one of them refuses whatever it gets: publishing goes on
//! as fast as to a topic without any, and the broker's memory stays where it was.

use std::time::Duration;

use stentor_client::StartAt;
use tokio::task::JoinHandle;

use crate::flood::{self, Until, median};
use crate::meter::Meter;
use crate::support::broker::Broker;
use crate::support::scale::{Scale, scaled};
use crate::support::sdk;

const FREE: &str = "free";
const OWED: &str = "owed";
const GROUPS: u64 = 10;
const BODY_BYTES: usize = 100;
const BATCH: u32 = 512;

/// The rate with what is owed must be at least so much of the rate without it.
const RATIO_MIN: f64 = 0.9;

/// Memory may differ by so much from one look to another, as caches and the allocator have it.
const GROWTH_MIB_MAX: f64 = 96.0;

const CONFIG: &str =
    "[defaults]\npartitions = 4\n[[group]]\ntopic = \"*\"\ngroup = \"owes-9\"\nmax_attempts = 1000000\n";

/// The group that owes most refuses everything, for as long as it is let.
async fn refuse(broker: &Broker) -> JoinHandle<()> {
    let client = sdk::connect(broker).await;
    let mut consumer = sdk::consumer(&client, OWED, "owes-9", 500).await;
    tokio::spawn(async move {
        while let Ok(Some(delivery)) = consumer.next().await {
            if delivery.nack().reason("never").send().await.is_err() {
                return;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishing_goes_on_as_fast_while_ten_groups_each_owe_a_different_share() {
    let (backlog, rounds, each) = scaled(
        (20_000_u64, 2, Duration::from_millis(300)),
        (500_000, 3, Duration::from_secs(1)),
        (10_000_000, 7, Duration::from_secs(5)),
    );
    let broker = Broker::with_config(CONFIG).await;
    let client = sdk::connect(&broker).await;
    let body = flood::body(BODY_BYTES);
    for topic in [FREE, OWED] {
        client.admin().create_topic(topic, Default::default()).await.unwrap();
    }
    for number in 0..GROUPS {
        let group = format!("owes-{number}");
        client.admin().create_group(OWED, &group, Some(StartAt::Earliest), Default::default()).await.unwrap();
    }
    let owed = flood::producer(&client, OWED, BATCH).await;
    let free = flood::producer(&client, FREE, BATCH).await;
    let filled = flood::publish(&owed, &body, Until::Messages(backlog)).await;
    eprintln!("filled: {} messages at {:.0}/s", filled.messages, filled.per_second);

    // Group n owes (n + 1) tenths.
    for number in 0..GROUPS {
        let mut consumer = sdk::consumer(&client, OWED, &format!("owes-{number}"), 16_384).await;
        flood::take(&mut consumer, backlog * (GROUPS - 1 - number) / GROUPS).await;
        consumer.close().await;
    }
    let refusing = refuse(&broker).await;

    let meter = Meter::of(&broker);
    let (mut ratios, mut memory, mut published) = (Vec::new(), vec![meter.read().rss_mib], 0);
    for number in 0..rounds {
        // The order alternates, so that neither always runs on the warmer machine.
        let mut rates = [0.0; 2];
        for turn in [number % 2, 1 - number % 2] {
            let producer = if turn == 0 { &free } else { &owed };
            let flood = flood::publish(producer, &body, Until::Passed(each)).await;
            rates[turn] = flood.per_second;
            published += if turn == 1 { flood.messages } else { 0 };
        }
        memory.push(meter.read().rss_mib);
        let ratio = rates[1] / rates[0];
        eprintln!("round {number}: {:.0}/s without, {:.0}/s with: {ratio:.2}", rates[0], rates[1]);
        ratios.push(ratio);
    }
    let ratio = median(&ratios);
    eprintln!("ratio of the rates: median {ratio:.2} of {rounds} rounds; memory, MiB: {memory:.0?}");
    if Scale::of_this_run() == Scale::Long {
        assert!(ratio >= RATIO_MIN, "the publisher noticed: {ratios:?}");
        let grown = memory[memory.len() - 1] - memory[1];
        assert!(grown < GROWTH_MIB_MAX, "memory grew: {memory:?}");
    }

    refusing.abort();
    let shown = broker.show(["group", "show", OWED, "owes-9"]).await;
    let accounted = shown["backlog"].as_u64().unwrap() + shown["dead_letters"].as_u64().unwrap();
    assert_eq!(accounted, backlog + published, "what was refused is owed still: {shown}");
}
