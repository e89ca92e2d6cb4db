//! The service that registers users: it publishes one message per registration and goes on.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use stentor_client::{Client, Message, MessageId};
use stentor_core::clock::SystemClock;
use stentor_core::{Clock, Monotonic};

use super::{PUBLISH_FOR, REGISTRATIONS_PER_SECOND};
use crate::bench::{Latencies, per_second};
use crate::output::Failure;

/// The windows in which rates are compared.
pub(super) const WINDOWS: usize = 3;

/// What a publisher has published.
pub(super) struct Published(Mutex<State>);

struct State {
    ids: BTreeSet<MessageId>,
    latencies: Latencies,
    /// Acknowledged in each window.
    windows: [u64; WINDOWS],
    failed: u64,
}

impl Published {
    pub(super) fn new() -> Result<Self, Failure> {
        let latencies = Latencies::new()?;
        Ok(Self(Mutex::new(State { ids: BTreeSet::new(), latencies, windows: [0; WINDOWS], failed: 0 })))
    }

    /// How many registrations are stored.
    pub(super) fn count(&self) -> u64 {
        self.lock().ids.len() as u64
    }

    /// Whether every one of `heard` and nothing else was published, and nothing of it is missing.
    pub(super) fn is_all(&self, heard: &BTreeSet<MessageId>) -> bool {
        self.lock().ids == *heard
    }

    /// How long the publisher waited for an acknowledgement.
    pub(super) fn latencies(&self) -> Latencies {
        self.lock().latencies.clone()
    }

    /// Registrations a second in each window.
    pub(super) fn rates(&self) -> [f64; WINDOWS] {
        self.lock().windows.map(|count| per_second(count, window()))
    }

    pub(super) fn failed(&self) -> u64 {
        self.lock().failed
    }

    fn acknowledged(&self, id: MessageId, at: Duration, latency: Duration) {
        let mut state = self.lock();
        state.ids.insert(id);
        state.latencies.record(latency);
        let window = usize::try_from(at.as_nanos() / window().as_nanos().max(1)).unwrap_or(WINDOWS);
        if let Some(count) = state.windows.get_mut(window) {
            *count += 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Held for one update; a poisoned one has lost at most that.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn window() -> Duration {
    PUBLISH_FOR / u32::try_from(WINDOWS).unwrap_or(1)
}

/// Publishes registrations at an even rate, each as soon as it is due, whatever became of the one before.
pub(super) async fn run(
    client: Client,
    topic: &'static str,
    published: std::sync::Arc<Published>,
    clock: SystemClock,
) -> Result<(), Failure> {
    let producer = client.producer(topic).open().await?;
    let began = clock.monotonic();
    let mut number = 0;
    let mut under_way = FuturesUnordered::new();
    loop {
        let due = began.after(Duration::from_nanos(number * 1_000_000_000 / REGISTRATIONS_PER_SECOND));
        if due.since(began) >= PUBLISH_FOR {
            break;
        }
        tokio::select! {
            () = clock.sleep_until(due) => {
                number += 1;
                under_way.push(register(&producer, number, &clock));
            }
            Some(sent) = under_way.next(), if !under_way.is_empty() => note(&published, sent, began),
        }
    }
    while let Some(sent) = under_way.next().await {
        note(&published, sent, began);
    }
    drop(under_way);
    producer.close().await.ok();
    client.close().await;
    Ok(())
}

type Sent = Option<(MessageId, Monotonic, Duration)>;

/// One registration: what the user waits for.
async fn register(producer: &stentor_client::Producer, number: u64, clock: &SystemClock) -> Sent {
    let message = Message::new(format!("{{\"user\":{number},\"event\":\"registered\"}}"))
        .key(format!("user-{number}"))
        .tag("registered");
    let began = clock.monotonic();
    let receipt = producer.send(message).await.ok()?;
    let now = clock.monotonic();
    Some((receipt.id, now, now.since(began)))
}

fn note(published: &Published, sent: Sent, began: Monotonic) {
    match sent {
        Some((id, at, latency)) => published.acknowledged(id, at.since(began), latency),
        None => published.lock().failed += 1,
    }
}
