//! Single messages: many tasks of one producer, each of which awaits the receipt of a message before it sends the next.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use stentor_client::{Message, Producer};
use stentor_core::clock::SystemClock;
use stentor_core::{Clock, Monotonic};

use super::Acknowledged;
use crate::bench::options::Until;
use crate::bench::stats::{Amount, Latencies};
use crate::output::Failure;

/// Latencies that a task keeps before it adds them to those of all, so that the tasks do not meet at every message.
const KEPT_MAX: usize = 64;

/// One producer with its tasks.
pub(super) struct Awaited {
    pub(super) producer: Producer,
    pub(super) tasks: u32,
    pub(super) until: Until,
    pub(super) clock: SystemClock,
    pub(super) began: Monotonic,
    pub(super) body: Bytes,
    pub(super) acknowledged: Acknowledged,
}

/// What the tasks share.
struct Shared {
    producer: Producer,
    until: Until,
    clock: SystemClock,
    began: Monotonic,
    body: Bytes,
    acknowledged: Acknowledged,
    /// Messages that have been begun.
    begun: AtomicU64,
    latencies: Mutex<Latencies>,
}

impl Awaited {
    pub(super) async fn go(self) -> Result<(Amount, Latencies), Failure> {
        let Self { producer, tasks, until, clock, began, body, acknowledged } = self;
        let latencies = Mutex::new(Latencies::new()?);
        let begun = AtomicU64::new(0);
        let shared = Arc::new(Shared { producer, until, clock, began, body, acknowledged, begun, latencies });
        let running = (0..tasks).map(|_| tokio::spawn(send_one_after_the_other(Arc::clone(&shared))));
        let ended = try_join_all(running).await.map_err(|error| Failure::new("internal", error.to_string()))?;
        let messages = ended.into_iter().sum::<Result<u64, Failure>>()?;
        let time = shared.clock.monotonic().since(began);
        // The tasks have ended, so nobody else has it.
        let shared = Arc::into_inner(shared).ok_or_else(|| Failure::new("internal", "a task outlived its end"))?;
        shared.producer.close().await?;
        let latencies = shared.latencies.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((Amount { messages, bytes: 0, time }, latencies))
    }
}

async fn send_one_after_the_other(shared: Arc<Shared>) -> Result<u64, Failure> {
    let mut kept = Vec::with_capacity(KEPT_MAX);
    let mut messages = 0;
    let mut at = shared.clock.monotonic();
    loop {
        let number = shared.begun.fetch_add(1, Ordering::Relaxed);
        if shared.until.left(number, at.since(shared.began)) == 0 {
            break;
        }
        shared.producer.send(Message::new(shared.body.clone())).await?;
        let now = shared.clock.monotonic();
        kept.push(now.since(at));
        messages += 1;
        at = now;
        if kept.len() == KEPT_MAX {
            shared.add(&mut kept);
        }
    }
    shared.add(&mut kept);
    Ok(messages)
}

impl Shared {
    fn add(&self, kept: &mut Vec<Duration>) {
        self.acknowledged.add(kept.len() as u64);
        // Held for a handful of additions; one that panicked would have lost some of its own.
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        kept.drain(..).for_each(|latency| latencies.record(latency));
    }
}
