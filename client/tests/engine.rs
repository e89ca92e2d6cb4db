//! The SDK and the real engine, over storage and a network in memory that is cut again and again.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use stentor_broker::{Broker, BrokerConfig, BrokerParts, ProcessStats, SettingMap, StorageKind};
use stentor_client::admin::Which;
use stentor_client::{Client, Consumer, Error, InDoubt, Message, Producer, Receipt, SendError, StartAt};
use stentor_core::NamePattern;
use stentor_core::clock::SystemClock;
use stentor_core::storage::Storage;
use stentor_storage_mem::MemStorage;
use stentor_transport_mem::MemNetwork;

const ADDRESS: &str = "broker:1";
const TOPIC: &str = "orders";

/// Longer than anything takes; whoever waits so long waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

struct Rig {
    network: MemNetwork,
    storage: Arc<dyn Storage>,
    broker: Broker,
    topic: SettingMap,
    group: SettingMap,
}

fn settings(entries: &[(&str, &str)]) -> SettingMap {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn broker(network: &MemNetwork, storage: &Arc<dyn Storage>, topic: &SettingMap, group: &SettingMap) -> Broker {
    let any = || NamePattern::new("*").unwrap();
    let mut all = settings(&[("storage", "memory"), ("partitions", "4")]);
    all.extend(topic.clone());
    let config = BrokerConfig {
        topics: vec![(NamePattern::new(TOPIC).unwrap(), all)],
        groups: vec![(any(), any(), group.clone())],
        ..BrokerConfig::default()
    };
    let parts = BrokerParts {
        config,
        storages: BTreeMap::from([(StorageKind::Memory, Arc::clone(storage))]),
        clock: Arc::new(SystemClock::new()),
        seed: 42,
        process: Arc::new(|| ProcessStats { cpu_seconds: 0.0, rss_bytes: 0 }),
    };
    let broker = Broker::start(parts).await.unwrap();
    broker.serve(Box::new(network.listen(ADDRESS).unwrap()));
    broker
}

impl Rig {
    async fn start(topic: &[(&str, &str)], group: &[(&str, &str)]) -> Self {
        let network = MemNetwork::new();
        let storage: Arc<dyn Storage> = Arc::new(MemStorage::new());
        let (topic, group) = (settings(topic), settings(group));
        let broker = broker(&network, &storage, &topic, &group).await;
        Self { network, storage, broker, topic, group }
    }

    /// Stops in good order and starts again over what is stored.
    async fn restart(&mut self) {
        self.broker.shutdown(Duration::from_secs(5)).await;
        self.broker = broker(&self.network, &self.storage, &self.topic, &self.group).await;
    }

    async fn client(&self, seed: u64) -> Client {
        Client::connect(ADDRESS).transport(Arc::new(self.network.transport())).seed(seed).open().await.unwrap()
    }
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: it did not happen"),
    }
}

/// Sends messages one behind the other without waiting for each.
async fn send_all(producer: &Producer, messages: impl Iterator<Item = Message>) -> Vec<Receipt> {
    let mut pending = Vec::new();
    for message in messages {
        pending.push(producer.enqueue(message).await.unwrap());
    }
    let mut receipts = Vec::new();
    for pending in pending {
        receipts.push(pending.await.unwrap());
    }
    receipts
}

/// Receives and acknowledges until so many different messages were acknowledged for certain.
async fn receive(consumer: &mut Consumer, count: usize) -> BTreeMap<(u32, u64), String> {
    let mut seen = BTreeMap::new();
    while seen.len() < count {
        let delivery = consumer.next().await.unwrap().unwrap();
        let place = (delivery.partition().0, delivery.offset().0);
        let body = String::from_utf8(delivery.body().to_vec()).unwrap();
        // Lost with its connection: it comes again.
        if delivery.ack().await.is_ok() {
            seen.insert(place, body);
        }
    }
    seen
}

#[tokio::test]
async fn every_group_gets_everything_once_and_keys_keep_their_order() {
    in_time("delivery", async {
        let rig = Rig::start(&[], &[]).await;
        let client = rig.client(1).await;
        let mut consumers = Vec::new();
        for group in ["a", "b"] {
            consumers.push(client.consumer(TOPIC, group).from(StartAt::Earliest).open().await.unwrap());
        }
        let producer = client.producer(TOPIC).open().await.unwrap();
        let message = |number: u32| Message::new(number.to_string()).key(format!("key-{}", number % 7));
        let receipts = send_all(&producer, (0..3_000).map(message)).await;
        assert_eq!(receipts.iter().map(|r| (r.partition, r.offset)).collect::<BTreeSet<_>>().len(), 3_000);
        for consumer in &mut consumers {
            let seen = receive(consumer, 3_000).await;
            let mut last: BTreeMap<(u32, u32), u32> = BTreeMap::new();
            for ((partition, _), body) in seen {
                let number: u32 = body.parse().unwrap();
                let before = last.insert((partition, number % 7), number);
                assert!(before.is_none_or(|before| before < number), "{before:?} before {number}");
            }
        }
        for consumer in consumers {
            consumer.close().await;
        }
        producer.close().await.unwrap();
        client.close().await;
        rig.broker.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn every_message_is_stored_once_though_the_connection_is_cut_again_and_again() {
    in_time("publishing", async {
        let rig = Rig::start(&[], &[]).await;
        let client = rig.client(2).await;
        let builder = client.producer(TOPIC).in_doubt(InDoubt::Wait).batch_records(10).send_timeout(PATIENCE);
        let producer = builder.open().await.unwrap();
        let mut pending = Vec::new();
        for number in 0..4_000 {
            pending.push(producer.enqueue(Message::new(number.to_string())).await.unwrap());
            if number % 100 == 50 {
                // In the middle of what was just sent.
                for _ in 0..number / 100 {
                    tokio::task::yield_now().await;
                }
                rig.network.cut(ADDRESS);
            }
        }
        let mut receipts = BTreeMap::new();
        for (number, pending) in pending.into_iter().enumerate() {
            let receipt = pending.await.unwrap();
            let taken = receipts.insert((receipt.partition.0, receipt.offset.0), number.to_string());
            assert_eq!(taken, None, "two messages have one place");
        }
        // As many places as messages, and each holds what its receipt says: nothing lost, nothing twice.
        let topic = client.admin().show_topic(TOPIC).await.unwrap();
        assert_eq!(topic.partitions.iter().map(|partition| partition.end - partition.start).sum::<u64>(), 4_000);
        let mut consumer = client.consumer(TOPIC, "g").from(StartAt::Earliest).open().await.unwrap();
        assert_eq!(receive(&mut consumer, 4_000).await, receipts);
    })
    .await;
}

#[tokio::test]
async fn a_credit_smaller_than_the_batches_gets_everything_through_a_hundred_reconnects() {
    in_time("delivery", async {
        let rig =
            Rig::start(&[], &[("max_attempts", "1000"), ("retry_delay", "1ms"), ("retry_delay_max", "5ms")]).await;
        let client = rig.client(3).await;
        let producer = client.producer(TOPIC).batch_records(100).linger(Duration::from_millis(5)).open().await.unwrap();
        let receipts = send_all(&producer, (0..3_000).map(|number| Message::new(number.to_string()))).await;
        let builder = client.consumer(TOPIC, "g").from(StartAt::Earliest).credit(10);
        let mut consumer = builder.open().await.unwrap();
        let mut acked = BTreeSet::new();
        let mut deliveries = 0;
        while acked.len() < receipts.len() {
            let delivery = consumer.next().await.unwrap().unwrap();
            deliveries += 1;
            if deliveries % 30 == 0 && deliveries <= 3_000 {
                rig.network.cut(ADDRESS);
            }
            let place = (delivery.partition(), delivery.offset());
            if delivery.ack().await.is_ok() {
                assert!(acked.insert(place), "acknowledged before, and delivered again");
            }
        }
        consumer.close().await;
        let group = client.admin().show_group(TOPIC, "g").await.unwrap();
        assert_eq!((group.backlog, group.in_flight, group.dead_letters), (0, 0, 0), "{group:?}");
    })
    .await;
}

#[tokio::test]
async fn a_broker_that_drains_and_comes_back_loses_nothing() {
    in_time("publishing", async {
        let mut rig = Rig::start(&[], &[]).await;
        let client = rig.client(4).await;
        let producer = Arc::new(client.producer(TOPIC).batch_records(5).send_timeout(PATIENCE).open().await.unwrap());
        let mut consumer = client.consumer(TOPIC, "g").from(StartAt::Earliest).open().await.unwrap();
        let sending = {
            let producer = Arc::clone(&producer);
            tokio::spawn(async move {
                let mut receipts = BTreeSet::new();
                for number in 0..1_000 {
                    let receipt = producer.send(Message::new(number.to_string())).await.unwrap();
                    assert!(receipts.insert((receipt.partition.0, receipt.offset.0)));
                }
                receipts
            })
        };
        let receiving = tokio::spawn(async move { receive(&mut consumer, 1_000).await });
        for _ in 0..5 {
            for _ in 0..500 {
                tokio::task::yield_now().await;
            }
            rig.restart().await;
            // It serves again before it stops again.
            client.admin().show_topic(TOPIC).await.unwrap();
        }
        let receipts = sending.await.unwrap();
        assert_eq!(receiving.await.unwrap().into_keys().collect::<BTreeSet<_>>(), receipts);
    })
    .await;
}

#[tokio::test]
async fn a_full_topic_refuses_for_certain_and_takes_again_when_there_is_room() {
    in_time("publishing", async {
        let rig = Rig::start(&[("memory_max", "64KiB"), ("partitions", "1"), ("retain_for", "0s")], &[]).await;
        let client = rig.client(5).await;
        let mut consumer = client.consumer(TOPIC, "g").from(StartAt::Earliest).open().await.unwrap();
        let builder = client.producer(TOPIC).retry_for(Duration::from_millis(200));
        let producer = builder.open().await.unwrap();
        let mut stored = 0;
        let error = loop {
            match producer.send(Message::new(vec![7; 1_000])).await {
                Ok(_) => stored += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(&error, SendError::NotStored { .. }), "{error:?}");
        assert_eq!(error.kind(), "storage_full");
        assert!(stored > 10);
        for _ in 0..stored {
            let delivery = consumer.next().await.unwrap().unwrap();
            delivery.ack_durable().await.unwrap();
        }
        let again = client.producer(TOPIC).open().await.unwrap();
        again.send(Message::new(vec![7; 1_000])).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn administration_does_what_it_says() -> Result<(), Error> {
    in_time("administration", async {
        let rig = Rig::start(&[], &[("max_attempts", "2"), ("retry_delay", "1ms"), ("retry_delay_max", "1ms")]).await;
        let client = rig.client(6).await;
        let admin = client.admin();
        admin.create_topic("letters", settings(&[("storage", "memory"), ("partitions", "1")])).await?;
        let exists = admin.create_topic("letters", BTreeMap::new()).await.unwrap_err();
        assert_eq!(exists.kind(), "topic_exists");
        admin.create_group("letters", "g", Some(StartAt::Earliest), BTreeMap::new()).await?;
        let names: Vec<_> = admin.list_topics().await?.into_iter().map(|topic| topic.name).collect();
        assert!(names.contains(&"letters".to_owned()), "{names:?}");
        assert_eq!(admin.route("letters").await?.partitions.len(), 1);
        assert!(admin.node_status().await?.connections >= 1);

        let producer = client.producer("letters").open().await?;
        let receipt = producer.send(Message::new("bad").tag("t")).await?;
        let mut consumer = client.consumer("letters", "g").open().await?;
        for attempt in 1..=2 {
            let delivery = consumer.next().await?.unwrap();
            assert_eq!(delivery.attempt(), attempt);
            delivery.nack().reason(format!("reason {attempt}")).after(Duration::ZERO).send().await?;
        }
        let mut letters = admin.dead_letters("letters", "g");
        let found = letters.next().await?.unwrap();
        assert!(letters.next().await?.is_none());
        assert_eq!(found[0].record.body.as_ref(), b"bad");
        let reasons: Vec<_> = found[0].reasons.iter().map(|reason| reason.reason.as_str()).collect();
        assert_eq!(reasons, ["reason 1", "reason 2"]);
        let one = admin.dead_letter("letters", "g", receipt.partition, receipt.offset).await?;
        assert_eq!(one.as_ref(), found.first());
        let story = admin.show_message("letters", Which::At(receipt.partition, receipt.offset)).await?;
        assert_eq!((story.record.id, story.groups[0].state.as_str()), (receipt.id.clone(), "dead-lettered"));

        assert_eq!(admin.redrive("letters", "g", "tag = 'other'", true).await?.messages, 0);
        assert_eq!(admin.redrive("letters", "g", "", true).await?.messages, 1);
        assert_eq!(admin.redrive("letters", "g", "", false).await?.messages, 1);
        let again = consumer.next().await?.unwrap();
        assert_eq!((again.id(), again.offset()), (&receipt.id, receipt.offset));
        again.reject().reason("for good").await?;
        assert_eq!(admin.purge_dead_letters("letters", "g").await?.messages, 1);

        admin.pause_group("letters", "g").await?;
        assert!(admin.show_group("letters", "g").await?.paused);
        admin.resume_group("letters", "g").await?;
        admin.set_group("letters", "g", settings(&[("max_attempts", "5")])).await?;
        let group = admin.show_group("letters", "g").await?;
        assert_eq!(group.settings.get("max_attempts").map(String::as_str), Some("5"));
        let invalid = admin.set_topic("letters", settings(&[("retain_forr", "1h")])).await.unwrap_err();
        assert_eq!(invalid.kind(), "invalid");
        admin.seek_group("letters", "g", StartAt::Earliest).await?;
        assert_eq!(consumer.next().await?.unwrap().offset(), receipt.offset);
        consumer.close().await;
        admin.delete_group("letters", "g").await?;
        assert!(admin.list_groups(Some("letters")).await?.is_empty());
        producer.close().await?;
        admin.delete_topic("letters").await?;
        assert_eq!(admin.show_topic("letters").await.unwrap_err().kind(), "topic_not_found");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn open_producers_and_consumers_go_by_what_a_topic_is_set_to_meanwhile() {
    in_time("the change", async {
        let mut rig = Rig::start(&[("partitions", "1")], &[]).await;
        let client = rig.client(7).await;
        let producer = client.producer(TOPIC).open().await.unwrap();
        let mut consumer = client.consumer(TOPIC, "g").open().await.unwrap();
        let large = || Message::new(vec![7_u8; 6 << 20]);
        let set = |value: &str| [("message_bytes_max".to_owned(), value.to_owned())].into_iter().collect();
        assert!(matches!(producer.send(large()).await, Err(SendError::TooLarge { .. })));
        for restarted in [false, true] {
            if restarted {
                rig.restart().await;
            }
            client.admin().set_topic(TOPIC, set("8MiB")).await.unwrap();
            // The news comes on another stream than the answer.
            while let Err(error) = producer.send(large()).await {
                assert!(matches!(error, SendError::TooLarge { .. }), "{error}");
                tokio::task::yield_now().await;
            }
            let delivery = consumer.next().await.unwrap().unwrap();
            assert_eq!(delivery.body().len(), 6 << 20);
            delivery.ack_durable().await.unwrap();
            client.admin().set_topic(TOPIC, set("1KiB")).await.unwrap();
            loop {
                match producer.send(Message::new(vec![7_u8; 2 << 10])).await {
                    Err(SendError::TooLarge { bytes_max: 1_024, .. }) => break,
                    Ok(_) => consumer.next().await.unwrap().unwrap().ack_durable().await.unwrap(),
                    // The broker knows before this side does.
                    Err(error) => assert_eq!(error.kind(), "message_too_large", "{error}"),
                };
            }
        }
    })
    .await;
}

/// Asks for many things at a time.
async fn all<T>(asked: impl Iterator<Item = impl Future<Output = Result<T, stentor_client::RequestError>>>) {
    let asking = futures_util::stream::iter(asked).buffer_unordered(16);
    asking.try_for_each(|_| std::future::ready(Ok(()))).await.unwrap();
}

#[tokio::test]
async fn tens_of_thousands_of_groups_and_partitions_are_listed() {
    const TOPICS: usize = 20;
    const GROUPS_EACH: usize = 1_000;
    in_time("listing", async {
        let rig = Rig::start(&[], &[]).await;
        let client = rig.client(8).await;
        let admin = client.admin();
        let small = |partitions: &str| {
            let set = [("storage", "memory"), ("memory_max", "512MiB"), ("partitions", partitions)];
            set.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().collect()
        };
        let topics: Vec<String> = (0..TOPICS).map(|number| format!("t{number:02}")).collect();
        all(topics.iter().map(|topic| admin.create_topic(topic, small("1")))).await;
        let groups: Vec<String> = (0..GROUPS_EACH).map(|number| format!("g{number:04}")).collect();
        let pairs = topics.iter().flat_map(|topic| groups.iter().map(move |group| (topic, group)));
        all(pairs.clone().map(|(topic, group)| admin.create_group(topic, group, None, Default::default()))).await;

        let listed = admin.list_groups(None).await.unwrap();
        let listed: Vec<_> = listed.iter().map(|group| (&group.topic, &group.group)).collect();
        assert_eq!(listed.len(), TOPICS * GROUPS_EACH);
        assert!(listed.into_iter().eq(pairs));
        let shown = admin.show_topic("t07").await.unwrap();
        assert!(shown.groups.iter().map(|group| &group.group).eq(&groups));

        for name in ["wide-a", "wide-b", "wide-c"] {
            admin.create_topic(name, small("3400")).await.unwrap();
        }
        let listed = admin.list_topics().await.unwrap();
        assert_eq!(listed.len(), TOPICS + 3 + 1);
        assert_eq!(listed.iter().map(|topic| topic.partitions.len()).sum::<usize>(), TOPICS + 3 * 3_400 + 4);
        // A group alone says more of so many partitions than a frame's head holds.
        let wide: Vec<String> = (0..20).map(|number| format!("wide-{number:02}")).collect();
        all(wide.iter().map(|group| admin.create_group("wide-b", group, None, Default::default()))).await;
        let shown = admin.show_topic("wide-b").await.unwrap();
        assert_eq!((shown.partitions.len(), shown.groups.len()), (3_400, 20));
        assert!(shown.groups.iter().all(|group| group.partitions.len() == 3_400));
    })
    .await;
}
