//! A small credit against large batches, with a connection that does not last.

use stentor_client::Message;

use crate::support::broker::Broker;
use crate::support::ledger::Received;
use crate::support::pattern::Pattern;
use crate::support::scale::seed;
use crate::support::sdk::{self, arrival};

const TOPIC: &str = "orders";
const GROUP: &str = "red-packet";
const BATCHES: u64 = 30;
const BATCH: u64 = 100;
const CREDIT: u32 = 10;
const RECONNECTS: u64 = 100;

/// Each time, some of what came is acknowledged, some is held, and some has not been looked at when the connection goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credit_of_10_over_batches_of_100_and_100_reconnects_leaves_nothing_stuck_or_lost() {
    let pattern = Pattern { seed: seed(0xc4ed_0001), bytes: 64 };
    // A connection that ends counts as a failed attempt of what was held; here that must not make dead letters.
    let config =
        "[defaults]\npartitions = 2\nmax_attempts = 1000000\nretry_delay = \"1ms\"\nretry_delay_max = \"1ms\"\n";
    let broker = Broker::with_config(config).await;
    let client = sdk::connect(&broker).await;
    let mut published = crate::support::ledger::Published::default();
    for batch in 0..BATCHES {
        // One that opens, sends and closes fills its batches whatever its linger.
        published.merge(sdk::publish_all(&client, TOPIC, pattern, batch * BATCH..(batch + 1) * BATCH).await);
    }

    let mut rng = fastrand::Rng::with_seed(pattern.seed);
    let mut received = Received::new(pattern);
    for _ in 0..RECONNECTS {
        let client = sdk::connect(&broker).await;
        let mut consumer = sdk::consumer(&client, TOPIC, GROUP, CREDIT).await;
        let mut held = Vec::new();
        for _ in 0..rng.u32(1..3 * CREDIT) {
            // No more than the credit can be held at a time, or nothing would come.
            if held.len() as u32 == CREDIT - 1 {
                break;
            }
            let delivery = sdk::next(&mut consumer).await;
            let number = received.arrived(&arrival(&delivery));
            if rng.u8(0..3) == 0 {
                held.push(delivery);
            } else {
                delivery.ack_durable().await.unwrap();
                number.into_iter().for_each(|number| received.done(number));
            }
        }
        if rng.bool() {
            consumer.close().await;
        }
    }

    let mut consumer = sdk::consumer(&client, TOPIC, GROUP, CREDIT).await;
    sdk::drain(&broker, (TOPIC, GROUP), &mut consumer, |delivery| {
        received.arrived(&arrival(&delivery));
        async move { delivery.ack().await.unwrap() }
    })
    .await;
    eprintln!("{} of {} messages came more than once", received.repeated(), BATCHES * BATCH);
    received.check(&published);

    // And the credit itself is whole: new messages come.
    let producer = sdk::producer(&client, TOPIC).await;
    for number in 0..3 * u64::from(CREDIT) {
        producer.send(Message::new(format!("later {number}"))).await.unwrap();
        sdk::next(&mut consumer).await.ack().await.unwrap();
    }
}
