//! A topic whose group was forgotten early shares the journal with fifty busy ones. What it is owed stays; the rest of the
//! journal does not stay with it.

use std::collections::BTreeMap;

use stentor_client::StartAt;

use crate::flood::{self, Until};
use crate::meter::disk_mib;
use crate::support::broker::Broker;
use crate::support::scale::{Scale, scaled};
use crate::support::sdk;
use crate::support::wait::pause;

const FORGOTTEN: &str = "forgotten";
const GROUP: &str = "services";
const BUSY: u64 = 50;
const BODY_BYTES: u64 = 16 << 10;
const BATCH: u32 = 4;

/// The most that the disk may hold, beyond twice what is owed: a few segments, and the index.
const BESIDE_MIB_MAX: f64 = 1_024.0;

/// How often it is looked whether the disk has been given back, and how many looks must find nothing new.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(500);
const QUIET_LOOKS: u32 = 10;

fn settings() -> BTreeMap<String, String> {
    BTreeMap::from([("partitions", "1"), ("retain_for", "0s")].map(|(key, value)| (key.to_owned(), value.to_owned())))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_group_keeps_what_it_is_owed_and_not_the_journal() {
    // How much is published in all, and in how many steps: the group is forgotten after the first.
    let (mib, steps) = scaled((32_u64, 4), (768, 20), (10_240, 100));
    let broker = Broker::start().await;
    let client = sdk::connect(&broker).await;
    let body = flood::body(usize::try_from(BODY_BYTES).unwrap());
    let mut producers = Vec::new();
    let topics: Vec<String> =
        std::iter::once(FORGOTTEN.to_owned()).chain((0..BUSY).map(|number| format!("busy-{number}"))).collect();
    for topic in &topics {
        client.admin().create_topic(topic, settings()).await.unwrap();
        client.admin().create_group(topic, GROUP, Some(StartAt::Earliest), Default::default()).await.unwrap();
        producers.push(flood::producer(&client, topic, BATCH).await);
    }
    let mut busy = Vec::new();
    for topic in &topics[1..] {
        busy.push(sdk::consumer(&client, topic, GROUP, 256).await);
    }

    // Everybody publishes as much, a step at a time.
    let total = mib << 20;
    let each = (total / steps / BODY_BYTES / (BUSY + 1)).max(1);
    let mut forgotten = Some(sdk::consumer(&client, FORGOTTEN, GROUP, 256).await);
    for _ in 0..steps {
        for (at, producer) in producers.iter().enumerate() {
            flood::publish(producer, &body, Until::Messages(each)).await;
            if let Some(consumer) = at.checked_sub(1).and_then(|at| busy.get_mut(at)) {
                flood::take(consumer, each).await;
            }
        }
        // From then on nobody comes for it any more.
        if let Some(mut consumer) = forgotten.take() {
            flood::take(&mut consumer, each).await;
            consumer.close().await;
        }
    }
    let published_mib = (each * steps * (BUSY + 1) * BODY_BYTES) as f64 / f64::from(1 << 20);
    let owed = each * (steps - 1);
    let owed_mib = (owed * BODY_BYTES) as f64 / f64::from(1 << 20);

    let (mut least, mut quiet) = (disk_mib(broker.data_folder()), 0);
    let at_the_end = least;
    while quiet < QUIET_LOOKS {
        pause(LOOK_EVERY).await;
        let now = disk_mib(broker.data_folder());
        // The index moves a little, always.
        quiet = if now < least - 1.0 { 0 } else { quiet + 1 };
        least = least.min(now);
    }
    eprintln!(
        "published {published_mib:.0} MiB, owed {owed_mib:.0} MiB; the disk held {at_the_end:.0} MiB at the end, {least:.0} MiB when no more was given back"
    );
    if Scale::of_this_run() == Scale::Long {
        assert!(least < 2.0 * owed_mib + BESIDE_MIB_MAX, "{least:.0} MiB on the disk, {owed_mib:.0} MiB owed");
    }

    // Whatever became of the segments: all that is owed is there, also after a start.
    let shown = broker.show(["group", "show", FORGOTTEN, GROUP]).await;
    assert_eq!(shown["backlog"], owed, "{shown}");
    broker.kill9().await;
    broker.restart().await;
    let client = sdk::connect(&broker).await;
    let mut consumer = sdk::consumer(&client, FORGOTTEN, GROUP, 256).await;
    let mut taken = 0;
    while taken < owed {
        let delivery = sdk::next(&mut consumer).await;
        assert_eq!(delivery.body(), &body);
        delivery.ack().await.unwrap();
        taken += 1;
    }
}
