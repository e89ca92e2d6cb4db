//! Everything at once, chosen by a seed: clients that publish, acknowledge, refuse, reject, extend, hold, disconnect and
//! pause, and a broker that is stopped, killed and started; against a model of what must be delivered.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use stentor_client::Delivery;
use tokio::sync::watch;

use crate::support::broker::Broker;
use crate::support::ledger::{Published, Received};
use crate::support::pattern::Pattern;
use crate::support::scale::{scaled, seed};
use crate::support::sdk::{self, arrival};
use crate::support::wait::{DEADLINE, pause, within};

const TOPIC: &str = "orders";
const GROUPS: [&str; 2] = ["red-packet", "billing"];
const CONSUMERS_OF_A_GROUP: u64 = 3;
const PUBLISHERS: u64 = 3;

const CONFIG: &str = "[node]\nidle_timeout = \"3s\"\n[defaults]\npartitions = 3\nlease = \"2s\"\nmax_attempts = 8\n\
    retry_delay = \"1ms\"\nretry_delay_max = \"20ms\"\n";

type Model = Arc<Mutex<Received>>;

/// One consumer of a group, until it is told that the storm is over. Connections of its own, which it drops now and then.
async fn consume(broker: Arc<Broker>, group: &'static str, model: Model, seed: u64, mut over: watch::Receiver<bool>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    while !*over.borrow() {
        let client = sdk::connect_when_up(&broker).await;
        let mut consumer = sdk::consumer(&client, TOPIC, group, rng.u32(1..200)).await;
        let mut held = Vec::new();
        for _ in 0..rng.u32(1..400) {
            let delivery = tokio::select! {
                delivery = consumer.next() => delivery.unwrap().expect("the consumer is open"),
                _ = over.wait_for(|over| *over) => break,
            };
            let number = model.lock().unwrap().arrived(&arrival(&delivery));
            if rng.u8(0..50) == 0 {
                held.push(delivery);
                continue;
            }
            let durable = settle(delivery, rng.u8(0..20)).await;
            if let (true, Some(number)) = (durable, number) {
                model.lock().unwrap().done(number);
            }
        }
        if rng.bool() {
            consumer.close().await;
        }
    }
}

/// Does one of several things with a message; whether it was acknowledged durably. Errors are part of the storm.
async fn settle(delivery: Delivery, what: u8) -> bool {
    match what {
        0 => drop(delivery.nack().reason("a bad day").send().await),
        1 => drop(delivery.nack().reason("later").after(Duration::from_millis(5)).send().await),
        2 => drop(delivery.reject().send().await),
        3 => {
            let _ = delivery.extend().await;
            return delivery.ack_durable().await.is_ok();
        }
        4 | 5 => return delivery.ack_durable().await.is_ok(),
        _ => drop(delivery.ack().await),
    }
    false
}

/// Stops, kills and starts the broker, and pauses groups meanwhile.
async fn storm(broker: &Broker, rounds: usize, rng: &mut fastrand::Rng) {
    for _ in 0..rounds {
        pause(Duration::from_millis(rng.u64(100..900))).await;
        let group = *rng.choice(&GROUPS).unwrap();
        match rng.u8(0..4) {
            0 => {
                broker.run(["group", "pause", TOPIC, group]).await;
                pause(Duration::from_millis(100)).await;
                broker.run(["group", "resume", TOPIC, group]).await;
            }
            1 => drop(broker.run(["dead-letters", "redrive", TOPIC, group]).await),
            2 => {
                let status = broker.terminate().await;
                assert!(status.success(), "{status}:\n{}", broker.log());
                broker.restart().await;
            }
            _ => {
                broker.kill9().await;
                broker.restart().await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_clients_and_broker_go_through_every_group_gets_every_message() {
    let (rounds, each) = scaled((5, 3_000), (15, 10_000), (100, 100_000));
    let pattern = Pattern { seed: seed(0x50a_0001), bytes: 200 };
    let broker = Arc::new(Broker::with_config(CONFIG).await);
    for group in GROUPS {
        broker.run(["group", "create", TOPIC, group, "--from", "earliest"]).await;
    }
    let models = GROUPS.map(|group| (group, Arc::new(Mutex::new(Received::new(pattern)))));
    let (tell, over) = watch::channel(false);
    let mut consumers = Vec::new();
    for (group, model) in &models {
        for number in 0..CONSUMERS_OF_A_GROUP {
            let (broker, model) = (Arc::clone(&broker), Arc::clone(model));
            consumers.push(tokio::spawn(consume(
                broker,
                group,
                model,
                pattern.seed.wrapping_add(number),
                over.clone(),
            )));
        }
    }
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|number| {
            let broker = Arc::clone(&broker);
            tokio::spawn(async move {
                let client = sdk::connect_when_up(&broker).await;
                let producer = sdk::producer(&client, TOPIC).await;
                let numbers = number * each..(number + 1) * each;
                sdk::publish(&producer, pattern, numbers, &watch::Sender::new(0)).await
            })
        })
        .collect();

    storm(&broker, rounds, &mut fastrand::Rng::with_seed(pattern.seed)).await;
    let mut published = Published::default();
    for publisher in publishers {
        published.merge(within(DEADLINE * 3, "a publisher to end", publisher).await.unwrap());
    }
    assert_eq!(published.stored.len() as u64, PUBLISHERS * each, "{:?}", published.refused);
    tell.send_replace(true);
    for consumer in consumers {
        within(DEADLINE, "a consumer to end", consumer).await.unwrap();
    }

    let client = sdk::connect(&broker).await;
    for (group, model) in models {
        let mut received = Arc::try_unwrap(model).unwrap().into_inner().unwrap();
        let mut consumer = sdk::consumer(&client, TOPIC, group, 1_000).await;
        // First what is owed, then what was rejected or failed too often.
        for _ in 0..2 {
            sdk::drain(&broker, (TOPIC, group), &mut consumer, |delivery| {
                received.arrived(&arrival(&delivery));
                // The lease is short, and may have run out on the way; then the message comes again.
                async move { drop(delivery.ack().await) }
            })
            .await;
            broker.run(["dead-letters", "redrive", TOPIC, group]).await;
        }
        let shown = broker.show(["group", "show", TOPIC, group]).await;
        assert_eq!((&shown["backlog"], &shown["dead_letters"]), (&0.into(), &0.into()), "{shown}");
        eprintln!("{group}: {} messages came more than once", received.repeated());
        received.check(&published);
    }
}
