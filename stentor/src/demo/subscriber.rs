//! A service that subscribes: it does its step for every registration that it is delivered.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use stentor_client::{Client, Consumer, Delivery, MessageId};
use stentor_core::Clock;
use stentor_core::clock::SystemClock;
use tokio::sync::watch;

use super::services::{Health, Service};
use crate::child::ChildBroker;
use crate::output::Failure;

/// What a service has heard.
#[derive(Debug, Default)]
pub(super) struct Heard {
    done: Mutex<BTreeSet<MessageId>>,
    refused: AtomicU64,
}

impl Heard {
    /// Registrations that its step was done for.
    pub(super) fn distinct(&self) -> u64 {
        self.done().len() as u64
    }

    /// Deliveries that it refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Which registrations they were.
    pub(super) fn ids(&self) -> BTreeSet<MessageId> {
        self.done().clone()
    }

    fn done(&self) -> std::sync::MutexGuard<'_, BTreeSet<MessageId>> {
        // Held for one operation of the set.
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A service that is ready to hear.
pub(super) struct Subscriber {
    client: Client,
    consumer: Consumer,
}

/// Connects a service, as the process of its own that it would be.
pub(super) async fn open(broker: &ChildBroker, topic: &str, service: &Service) -> Result<Subscriber, Failure> {
    let client = broker.client().await?;
    let credit = u32::try_from(service.at_a_time).unwrap_or(1);
    let consumer = client.consumer(topic, service.name).credit(credit).existing_only().open().await?;
    Ok(Subscriber { client, consumer })
}

/// Works until the demo ends.
pub(super) async fn run(
    mut subscriber: Subscriber,
    service: Service,
    heard: Arc<Heard>,
    mut ended: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let clock = SystemClock::new();
    let mut at_work = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => break,
            Some(done) = at_work.next(), if !at_work.is_empty() => done?,
            delivery = subscriber.consumer.next(), if at_work.len() < service.at_a_time => {
                let Some(delivery) = delivery? else { break };
                at_work.push(work(delivery, service, &heard, &clock));
            }
        }
    }
    // What is still at work comes back to the group, as from a service that is shut down.
    drop(at_work);
    subscriber.consumer.close().await;
    subscriber.client.close().await;
    Ok(())
}

/// One step for one registration.
async fn work(delivery: Delivery, service: Service, heard: &Heard, clock: &SystemClock) -> Result<(), Failure> {
    clock.sleep_until(clock.monotonic().after(service.step)).await;
    if service.health == Health::Broken {
        heard.refused.fetch_add(1, Ordering::Relaxed);
        delivery.nack().reason("the partner's interface answers 503").send().await?;
        return Ok(());
    }
    let id = delivery.id().clone();
    delivery.ack().await?;
    heard.done().insert(id);
    Ok(())
}
