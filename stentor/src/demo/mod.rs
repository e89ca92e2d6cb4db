//! `stentor demo`: the story that the broker is for. A user registers, and ten services must hear of it.
//!
//! A publisher that calls them all waits for the sum of their steps, or for the slowest, and shares the fate of the one
//! that is broken. A publisher that hands one message to the broker does not. The demo shows that with real messages
//! through a real broker (a process of its own, over QUIC, in a temporary folder), on one topic per backend, and says at
//! the end whether it was so: the publisher never slowed, and every healthy service heard of every registration.

mod board;
mod direct;
mod publisher;
mod services;
mod subscriber;
mod summary;

use std::sync::Arc;
use std::time::Duration;

use stentor_core::Clock;
use stentor_core::clock::SystemClock;
use tokio::sync::watch;

use crate::child::ChildBroker;
use crate::cli::Context;
use crate::output::Failure;
use board::Board;
use publisher::Published;
use services::{Health, SERVICES};
use subscriber::Heard;
use summary::Summary;

/// How long registrations come in.
const PUBLISH_FOR: Duration = Duration::from_secs(12);

/// How many a second, on each topic.
const REGISTRATIONS_PER_SECOND: u64 = 150;

/// How long the healthy services may take for the rest, once no more come in.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(15);

/// How often the table is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(500);

/// The topics: one for each backend there is.
const TOPICS: [(&str, &str); 2] = [("registrations.memory", "memory"), ("registrations.lsm", "lsm")];

/// A topic of the demo while it runs.
struct Scene {
    topic: &'static str,
    storage: &'static str,
    published: Arc<Published>,
    /// In the order of [`SERVICES`].
    heard: Vec<Arc<Heard>>,
}

/// Runs the demo.
///
/// # Errors
/// When something fails, or the promise was not kept.
pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    let output = context.output;
    output.note("a user registers, and ten services must hear of it: one is broken, one is slow");
    output.note("first without a broker: the publisher performs the ten steps itself …");
    let direct = direct::measure().await?;
    output.note("now with a broker of its own, in memory and synced to disk …");
    let broker = ChildBroker::start().await?;
    let done = play(&broker, context, direct).await;
    let stopped = broker.stop().await;
    let summary = done?;
    stopped?;
    output.either(&summary, || summary.words())?;
    match summary.complaint() {
        None => Ok(()),
        Some(complaint) => {
            Err(Failure::new("demo", complaint).hint("on a machine that is busy with other work, try again"))
        }
    }
}

async fn play(broker: &ChildBroker, context: &Context, direct: direct::Direct) -> Result<Summary, Failure> {
    let clock = SystemClock::new();
    let mut scenes = Vec::new();
    for (topic, storage) in TOPICS {
        scenes.push(Scene::prepare(broker, topic, storage).await?);
    }
    let scenes = Arc::new(scenes);
    let (ending, ended) = watch::channel(false);
    let mut subscribers = Vec::new();
    for scene in scenes.iter() {
        for (service, heard) in SERVICES.iter().zip(&scene.heard) {
            let consumer = subscriber::open(broker, scene.topic, service).await?;
            subscribers.push(tokio::spawn(subscriber::run(consumer, *service, Arc::clone(heard), ended.clone())));
        }
    }
    let mut publishers = Vec::new();
    for scene in scenes.iter() {
        let client = broker.client().await?;
        let published = Arc::clone(&scene.published);
        publishers.push(tokio::spawn(publisher::run(client, scene.topic, published, clock.clone())));
    }

    // The table is drawn while the publishers publish, and until the healthy services have heard everything.
    let admin = broker.client().await?;
    let mut board = Board::new(context.output, TOPICS.len() * SERVICES.len());
    let began = clock.monotonic();
    let mut done_publishing = None;
    loop {
        let now = clock.monotonic();
        if done_publishing.is_none() && publishers.iter().all(tokio::task::JoinHandle::is_finished) {
            done_publishing = Some(now);
        }
        board.draw(&admin, &scenes, now.since(began)).await?;
        let late = done_publishing.is_some_and(|at| now.since(at) > CATCH_UP_WITHIN);
        if done_publishing.is_some() && scenes.iter().all(Scene::healthy_heard_everything) || late {
            break;
        }
        clock.sleep_until(now.after(DRAW_EVERY)).await;
    }
    ending.send_replace(true);
    let failed = |error: tokio::task::JoinError| Failure::new("internal", error.to_string());
    for publisher in publishers {
        publisher.await.map_err(failed)??;
    }
    for subscriber in subscribers {
        subscriber.await.map_err(failed)??;
    }
    let summary = Summary::of(&admin, &scenes, direct).await;
    admin.close().await;
    summary
}

impl Scene {
    /// Makes the topic and its groups.
    async fn prepare(broker: &ChildBroker, topic: &'static str, storage: &'static str) -> Result<Self, Failure> {
        let client = broker.client().await?;
        let settings = [("storage".to_owned(), storage.to_owned())].into();
        client.admin().create_topic(topic, settings).await?;
        for service in SERVICES {
            // So that within the demo the broken one is seen to be tried again, and to be given up.
            let settings = [("retry_delay", "500ms"), ("retry_delay_max", "1s"), ("max_attempts", "3")];
            let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            client.admin().create_group(topic, service.name, None, settings).await?;
        }
        client.close().await;
        let heard = SERVICES.iter().map(|_| Arc::default()).collect();
        Ok(Self { topic, storage, published: Arc::new(Published::new()?), heard })
    }

    /// Whether every service that works as it should has heard of every registration.
    fn healthy_heard_everything(&self) -> bool {
        let published = self.published.count();
        let healthy = SERVICES.iter().zip(&self.heard).filter(|(service, _)| service.health == Health::Healthy);
        healthy.into_iter().all(|(_, heard)| heard.distinct() >= published)
    }
}
