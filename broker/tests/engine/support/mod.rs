//! A broker over memory, with a clock that the test moves, and peers that speak the protocol frame by frame.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use stentor_broker::{Broker, BrokerConfig, BrokerParts, ProcessStats, SettingMap, StorageKind};
use stentor_core::clock::ManualClock;
use stentor_core::storage::Storage;
use stentor_core::transport::Listener;
use stentor_core::{Clock, NamePattern, Timestamp};
use stentor_protocol::wire::{self, request, response};
use stentor_storage_mem::MemStorage;
use stentor_transport_mem::MemNetwork;

mod consumer;
pub mod faulty;
pub mod peer;
mod producer;

pub use consumer::{Consumer, Got, acks};
pub use peer::Peer;
pub use producer::{Producer, batch_of, record, sequenced};

pub const TOPIC: &str = "orders";

/// Long after anything should have happened: a test that gets here has failed.
const PATIENCE: Duration = Duration::from_secs(20);

pub const ADDRESS: &str = "broker:7411";

/// Waits for something that must happen.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: it did not happen"),
    }
}

pub fn settings(entries: &[(&str, &str)]) -> SettingMap {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A configuration of one topic in memory with these settings, and of every group with those.
pub fn config(topic: &[(&str, &str)], group: &[(&str, &str)]) -> BrokerConfig {
    let mut topic_settings = settings(&[("storage", "memory"), ("partitions", "1")]);
    topic_settings.extend(settings(topic));
    let any = || NamePattern::new("*").unwrap();
    BrokerConfig {
        topics: vec![(NamePattern::new(TOPIC).unwrap(), topic_settings)],
        groups: vec![(any(), any(), settings(group))],
        ..BrokerConfig::default()
    }
}

/// A running broker and all that it stands on.
pub struct Rig {
    pub config: BrokerConfig,
    pub storage: Arc<dyn Storage>,
    pub clock: ManualClock,
    pub network: MemNetwork,
    pub broker: Broker,
}

impl Rig {
    pub async fn start(config: BrokerConfig) -> Self {
        Self::over(config, Arc::new(MemStorage::new())).await
    }

    /// Over a storage that the test brings.
    pub async fn over(config: BrokerConfig, storage: Arc<dyn Storage>) -> Self {
        let clock = ManualClock::new(Timestamp(1_700_000_000_000_000));
        Self::on(config, storage, clock).await
    }

    async fn on(config: BrokerConfig, storage: Arc<dyn Storage>, clock: ManualClock) -> Self {
        let network = MemNetwork::new();
        let parts = BrokerParts {
            config: config.clone(),
            storages: BTreeMap::from([(StorageKind::Memory, Arc::clone(&storage))]),
            clock: Arc::new(clock.clone()),
            seed: 42,
            process: Arc::new(|| ProcessStats { cpu_seconds: 1.5, rss_bytes: 1 << 20 }),
        };
        let broker = within("the broker starts", Broker::start(parts)).await.unwrap();
        let listener: Box<dyn Listener> = Box::new(network.listen(ADDRESS).unwrap());
        broker.serve(listener);
        Self { config, storage, clock, network, broker }
    }

    /// Stops in good order, and starts again over the same storage.
    pub async fn restart(self) -> Self {
        self.stop().await;
        Self::on(self.config, self.storage, self.clock).await
    }

    /// Starts again over the same storage as if the process had died: what was not durable by then is forgotten, and the
    /// old broker, deposed, changes nothing any more.
    pub async fn crash(self) -> Self {
        Self::on(self.config, self.storage, self.clock).await
    }

    pub async fn stop(&self) {
        within("the broker stops", self.broker.shutdown(Duration::from_secs(5))).await;
    }

    /// The time on the broker's wall.
    pub fn clock_micros(&self) -> u64 {
        self.clock.now().0
    }

    pub async fn connect(&self) -> Peer {
        Peer::connect(&self.network).await
    }

    /// Asks without a connection.
    pub async fn ask(&self, kind: request::Kind) -> Result<(response::Kind, Bytes), wire::Error> {
        match within("an answer", self.broker.request(kind)).await {
            (response::Kind::Error(error), _) => Err(error),
            answer => Ok(answer),
        }
    }

    pub async fn group(&self, group: &str) -> wire::GroupDescription {
        let show = wire::ShowGroup { topic: TOPIC.into(), group: group.into() };
        match self.ask(request::Kind::ShowGroup(show)).await.unwrap() {
            (response::Kind::Group(group), _) => group,
            other => panic!("{other:?}"),
        }
    }

    pub async fn topic(&self) -> wire::TopicDescription {
        match self.ask(request::Kind::ShowTopic(wire::ShowTopic { name: TOPIC.into() })).await.unwrap() {
            (response::Kind::Topic(topic), _) => topic,
            other => panic!("{other:?}"),
        }
    }

    /// Looks at a group until it is as it should be.
    pub async fn until(&self, what: &str, group: &str, holds: impl Fn(&wire::GroupDescription) -> bool) {
        let mut last = None;
        let looking = async {
            loop {
                let seen = self.group(group).await;
                if holds(&seen) {
                    return;
                }
                last = Some(seen);
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(PATIENCE, looking).await.is_err() {
            panic!("{what}: it did not happen; last seen: {last:#?}");
        }
    }

    pub async fn letters(&self, group: &str) -> Vec<wire::DeadLetter> {
        let list = wire::ListDeadLetters { topic: TOPIC.into(), group: group.into(), ..Default::default() };
        match self.ask(request::Kind::ListDeadLetters(list)).await.unwrap() {
            (response::Kind::DeadLetters(letters), body) => {
                assert_eq!(letters.letters.iter().map(|letter| letter.bytes as usize).sum::<usize>(), body.len());
                letters.letters
            }
            other => panic!("{other:?}"),
        }
    }

    pub async fn redrive(&self, group: &str) -> u64 {
        let redrive = wire::Redrive { topic: TOPIC.into(), group: group.into(), ..Default::default() };
        match self.ask(request::Kind::Redrive(redrive)).await.unwrap() {
            (response::Kind::Count(count), _) => count.messages,
            other => panic!("{other:?}"),
        }
    }

    pub async fn seek(&self, group: &str, at: wire::start_at::At) -> Result<(), wire::Error> {
        let to = Some(wire::StartAt { at: Some(at) });
        self.ask(request::Kind::SeekGroup(wire::SeekGroup { topic: TOPIC.into(), group: group.into(), to })).await?;
        Ok(())
    }

    pub async fn pause(&self, group: &str, paused: bool) {
        let pause = wire::PauseGroup { topic: TOPIC.into(), group: group.into(), paused };
        self.ask(request::Kind::PauseGroup(pause)).await.unwrap();
    }

    /// Creates a group that begins with the first message.
    pub async fn group_from_start(&self, group: &str, set: &[(&str, &str)]) {
        let create = wire::CreateGroup {
            topic: TOPIC.into(),
            group: group.into(),
            from: Some(earliest()),
            settings: settings(set).into_iter().collect(),
        };
        self.ask(request::Kind::CreateGroup(create)).await.unwrap();
    }
}

pub fn earliest() -> wire::StartAt {
    wire::StartAt { at: Some(wire::start_at::At::Earliest(true)) }
}

/// What a consumer of a group that may be new asks for.
pub fn subscribe(group: &str) -> wire::Subscribe {
    wire::Subscribe {
        topic: TOPIC.into(),
        group: group.into(),
        from: Some(earliest()),
        consumer: "test".into(),
        ..Default::default()
    }
}
