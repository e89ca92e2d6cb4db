//! Many partitions on one node: it opens soon, costs next to nothing while nobody uses them, and publishing to all of them
//! is nearly as fast as publishing to one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::flood::{self, Until, median};
use crate::meter::Meter;
use crate::support::broker::Broker;
use crate::support::scale::{Scale, scaled};
use crate::support::sdk;
use crate::support::wait::{Stopwatch, pause};

/// Messages of a batch: the same for one partition and for many.
const BATCH: u32 = 64;

const OPENED_WITHIN: Duration = Duration::from_secs(2);
const IDLE_CORE_MAX: f64 = 0.02;
const RATIO_MIN: f64 = 0.7;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_partitions_open_soon_cost_nothing_idle_and_take_messages_nearly_as_fast_as_one() {
    let (partitions, rounds, each, idle) = scaled(
        (20_u32, 1, Duration::from_millis(300), Duration::from_millis(300)),
        (1_000, 1, Duration::from_secs(1), Duration::from_secs(2)),
        (1_000, 5, Duration::from_secs(5), Duration::from_secs(30)),
    );
    let broker = Broker::start().await;
    let client = sdk::connect(&broker).await;
    for (topic, partitions) in [("one", 1), ("many", partitions)] {
        let settings = BTreeMap::from([("partitions".to_owned(), partitions.to_string())]);
        client.admin().create_topic(topic, settings).await.unwrap();
    }
    let body = flood::body(1_024);
    let (one, many) = (flood::producer(&client, "one", BATCH).await, flood::producer(&client, "many", BATCH).await);
    let mut ratios = Vec::new();
    for number in 0..rounds {
        let to_one = flood::publish(&one, &body, Until::Passed(each)).await.per_second;
        let to_many = flood::publish(&many, &body, Until::Passed(each)).await.per_second;
        eprintln!("round {number}: {to_one:.0}/s to one, {to_many:.0}/s to {partitions}: {:.2}", to_many / to_one);
        ratios.push(to_many / to_one);
    }
    one.close().await.unwrap();
    many.close().await.unwrap();
    let shown = broker.show(["topic", "show", "many"]).await;
    let used = shown["partitions"].as_array().unwrap().iter().filter(|partition| partition["end"] != 0).count();
    client.close().await;

    assert!(broker.terminate().await.success());
    let watch = Stopwatch::start();
    broker.restart().await;
    let opened = watch.elapsed();
    let meter = Meter::of(&broker);
    // What opening has left to do is no idling.
    pause(idle / 4).await;
    let before = meter.read();
    pause(idle).await;
    let after = meter.read();
    let core = (after.cpu_seconds - before.cpu_seconds) / idle.as_secs_f64();
    let ratio = median(&ratios);
    eprintln!(
        "{partitions} partitions, {used} of them used: open after {opened:?}, {:.1} % of a core idle, {:.0} MiB, ratio {ratio:.2}",
        core * 100.0,
        after.rss_mib,
    );
    if Scale::of_this_run() == Scale::Long {
        assert!(opened < OPENED_WITHIN, "{opened:?}");
        assert!(core < IDLE_CORE_MAX, "{core}");
        assert!(ratio >= RATIO_MIN, "{ratios:?}");
    }

    // All of them are there and take messages.
    let reopened = broker.show(["topic", "show", "many"]).await;
    // Their bytes may differ: stopping and starting keep books of their own.
    let ends = |shown: &Value| -> Vec<Value> {
        shown["partitions"].as_array().unwrap().iter().map(|partition| partition["end"].clone()).collect()
    };
    assert_eq!(ends(&reopened), ends(&shown));
    assert_eq!(ends(&shown).len(), partitions as usize);
}
