//! The broker is killed in the middle of its work, again and again.
//!
//! These tests were shown to fail when acknowledgements come early: with a `storage-lsm` that resolved its receipts before it
//! wrote the group (and wrote 10 ms later, as a slow disk would), each of the three lost messages within its quick round:
//! 233 of 6,000 acknowledged ones never came in the first, 183 in the second, and the third waited for its own in vain.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::support::broker::Broker;
use crate::support::ledger::{Published, Received};
use crate::support::pattern::Pattern;
use crate::support::scale::{self, scaled};
use crate::support::sdk::{self, arrival};
use crate::support::wait::{DEADLINE, pause, within};

const TOPIC: &str = "orders";
const GROUP: &str = "red-packet";

/// A killed broker cannot say goodbye; the clients find out by the idle time, and these tests have a lot of it.
const CONFIG: &str = "[node]\nidle_timeout = \"2s\"\n";

/// Every so many batches, a consumer insists on durability.
const DURABLE_EVERY: usize = 8;

/// What is published and how often the broker is killed meanwhile.
struct Ordeal {
    seed: u64,
    messages: u64,
    kills: usize,
}

impl Ordeal {
    fn new(seed: u64) -> Self {
        let (messages, kills) = scaled((6_000, 3), (20_000, 6), (100_000, 20));
        Self { seed: scale::seed(seed), messages, kills }
    }

    fn pattern(&self) -> Pattern {
        Pattern { seed: self.seed, bytes: 1_024 }
    }

    /// After how many receipts the broker is killed: moments that the seed chooses.
    fn moments(&self) -> Vec<u64> {
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let mut moments: Vec<u64> = (0..self.kills).map(|_| rng.u64(1..self.messages * 9 / 10)).collect();
        moments.sort_unstable();
        moments
    }

    /// Kills and restarts the broker at its moments; now and then also while it is recovering.
    async fn inflict(&self, broker: &Broker, mut progress: watch::Receiver<u64>) {
        let mut rng = fastrand::Rng::with_seed(!self.seed);
        for moment in self.moments() {
            let reached = progress.wait_for(|acknowledged| *acknowledged >= moment);
            within(DEADLINE * 2, &format!("{moment} receipts"), reached).await.unwrap();
            broker.kill9().await;
            if rng.u8(0..4) == 0 {
                broker.stumble(Duration::from_millis(rng.u64(1..200))).await;
            }
            broker.restart().await;
        }
    }

    /// Publishes everything while the broker is being killed.
    async fn publish(&self, broker: &Broker, topic: &str) -> Published {
        let client = sdk::connect(broker).await;
        let producer = sdk::producer(&client, topic).await;
        let (progress, watched) = watch::channel(0);
        let (published, ()) = tokio::join!(
            sdk::publish(&producer, self.pattern(), 0..self.messages, &progress),
            self.inflict(broker, watched),
        );
        // A producer that waits out its doubts has an answer for everything in the end.
        assert_eq!(published.stored.len() as u64, self.messages, "{published:?}");
        published
    }
}

/// Returns when everything has been published and then nothing has come for long.
async fn silence(told: &watch::Receiver<Option<Published>>) {
    let mut told = told.clone();
    drop(told.wait_for(Option::is_some).await);
    pause(DEADLINE / 2).await;
}

/// Reads a topic from its start to its end.
async fn read_all(broker: &Broker, topic: &str, pattern: Pattern, published: &Published) {
    let client = sdk::connect(broker).await;
    let mut consumer = sdk::consumer(&client, topic, GROUP, 1_000).await;
    let mut received = Received::new(pattern);
    let reading = async {
        while !received.has_all(published) {
            let Ok(batch) = tokio::time::timeout(DEADLINE, consumer.next_batch()).await else { break };
            let batch = batch.unwrap().expect("the consumer is open");
            for delivery in batch.iter() {
                received.arrived(&arrival(delivery));
            }
            batch.ack().await.unwrap();
        }
    };
    within(DEADLINE * 3, "everything to be read", reading).await;
    received.check(published);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_as_synced_survives_kill_9_whole_and_once() {
    let ordeal = Ordeal::new(0xc4a5_0001);
    let broker = Broker::with_config(CONFIG).await;
    broker.run(["topic", "create", TOPIC, "--storage", "lsm", "--durability", "synced"]).await;
    let published = ordeal.publish(&broker, TOPIC).await;
    read_all(&broker, TOPIC, ordeal.pattern(), &published).await;
}

/// `buffered` promises to survive the process, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_as_buffered_survives_kill_9_too() {
    let ordeal = Ordeal { kills: scaled(1, 3, 10), ..Ordeal::new(0xc4a5_0002) };
    let broker = Broker::with_config(CONFIG).await;
    broker.run(["topic", "create", TOPIC, "--storage", "lsm", "--durability", "buffered"]).await;
    let published = ordeal.publish(&broker, TOPIC).await;
    read_all(&broker, TOPIC, ordeal.pattern(), &published).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_acknowledges_meanwhile_misses_nothing_and_is_spared_what_it_finished() {
    let ordeal = Arc::new(Ordeal::new(0xc4a5_0003));
    let broker = Broker::with_config(CONFIG).await;
    broker.run(["topic", "create", TOPIC, "--storage", "lsm", "--durability", "synced"]).await;

    let client = sdk::connect(&broker).await;
    let mut consumer = sdk::consumer(&client, TOPIC, GROUP, 1_000).await;
    let (tell, mut told) = watch::channel(None::<Published>);
    let (pattern, also_told) = (ordeal.pattern(), told.clone());
    let consuming = tokio::spawn(async move {
        let mut received = Received::new(pattern);
        let mut batches = 0;
        loop {
            let batch = tokio::select! {
                batch = consumer.next_batch() => batch.unwrap().expect("the consumer is open"),
                all = told.wait_for(|all| all.as_ref().is_some_and(|all| received.has_all(all))) => {
                    drop(all.unwrap());
                    break;
                }
                // Something is missing; the model will say what.
                () = silence(&also_told) => break,
            };
            let numbers: Vec<_> = batch.iter().filter_map(|delivery| received.arrived(&arrival(delivery))).collect();
            batches += 1;
            // An error means that the broker died first; what became of the acknowledgement will be seen.
            if batches % DURABLE_EVERY == 0 {
                if batch.ack_durable().await.is_ok() {
                    numbers.into_iter().for_each(|number| received.done(number));
                }
            } else {
                let _ = batch.ack().await;
            }
        }
        received
    });

    let published = ordeal.publish(&broker, TOPIC).await;
    tell.send_replace(Some(published.clone()));
    let received = within(DEADLINE * 3, "the consumer to get everything", consuming).await.unwrap();
    eprintln!("{} messages came more than once, and said so", received.repeated());

    // Once more, with nothing on its way: whatever is still owed comes back and says so.
    broker.kill9().await;
    broker.restart().await;
    let mut received = received;
    let mut consumer = sdk::consumer(&client, TOPIC, GROUP, 1_000).await;
    sdk::drain(&broker, (TOPIC, GROUP), &mut consumer, |delivery| {
        received.arrived(&arrival(&delivery));
        async move { delivery.ack().await.unwrap() }
    })
    .await;
    received.check(&published);
}
