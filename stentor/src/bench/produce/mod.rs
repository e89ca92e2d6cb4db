//! Producers of a benchmark.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::try_join_all;
use stentor_core::Clock;
use stentor_core::clock::SystemClock;

use super::options::{Options, Until};
use super::pace::Pace;
use super::stats::{Amount, Latencies};
use super::target::Target;
use crate::output::Failure;

mod awaited;
mod body;
mod pipelined;

pub(super) use body::{STAMP_BYTES, Stamps, stamp};

use awaited::Awaited;
use body::Bodies;
use pipelined::Pipelined;

/// What the producers did.
pub(super) struct Produced {
    /// What was acknowledged, in the time from the first message to the last acknowledgement.
    pub(super) amount: Amount,
    /// From the moment a message was due (or handed over, at no fixed rate) to its acknowledgement.
    pub(super) latencies: Latencies,
}

/// What has been acknowledged so far, by all producers together: others look at it while they run.
#[derive(Clone, Debug, Default)]
pub(super) struct Acknowledged(Arc<AtomicU64>);

impl Acknowledged {
    fn add(&self, messages: u64) {
        self.0.fetch_add(messages, Ordering::Relaxed);
    }

    /// How many.
    pub(super) fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs the producers until they are done.
pub(super) async fn produce(
    target: &Target,
    options: &Options,
    stamps: Stamps,
    clock: &SystemClock,
    acknowledged: &Acknowledged,
) -> Result<Produced, Failure> {
    // Opened before the first one begins, so that none waits for another's handshake.
    let mut producers = Vec::new();
    for number in 0..options.producers {
        let client = target.client().await?;
        let mut builder = client.producer(target.topic());
        if let Some(records) = options.batch {
            builder = builder.batch_records(records);
        }
        if let Some(linger) = options.linger {
            builder = builder.linger(linger);
        }
        producers.push((number, client, builder.open().await?));
    }
    let share = u64::from(options.producers);
    let began = clock.monotonic();
    let mut runs = Vec::new();
    for (number, client, producer) in producers {
        let until = match options.until() {
            Until::Time(duration) => Until::Time(duration),
            // The first ones take what does not divide.
            Until::Count(count) => Until::Count(count / share + u64::from(u64::from(number) < count % share)),
        };
        let (clock, acknowledged) = (clock.clone(), acknowledged.clone());
        let mut bodies = Bodies::new(options.size, number, stamps);
        let run = if options.awaited {
            let (tasks, body) = (options.in_flight(), bodies.next(began));
            let run = Awaited { producer, tasks, until, clock, began, body, acknowledged };
            tokio::spawn(async move { ended(client, run.go().await).await })
        } else {
            let run = Pipelined {
                producer,
                until,
                pace: options.rate().map(|rate| Pace::new(&clock, (rate / share).max(1))),
                clock,
                began,
                bodies,
                waiting: VecDeque::new(),
                waiting_max: options.in_flight() as usize,
                acknowledged,
                messages: 0,
                latencies: Latencies::new()?,
            };
            tokio::spawn(async move { ended(client, run.go().await).await })
        };
        runs.push(run);
    }
    let runs = try_join_all(runs).await.map_err(|error| Failure::new("internal", error.to_string()))?;
    let mut latencies = Latencies::new()?;
    let (mut messages, mut time) = (0, Duration::ZERO);
    for run in runs {
        let (amount, of_run) = run?;
        latencies.merge(&of_run);
        messages += amount.messages;
        time = time.max(amount.time);
    }
    Ok(Produced { amount: Amount { messages, bytes: messages * options.size, time }, latencies })
}

async fn ended<T>(client: stentor_client::Client, done: T) -> T {
    client.close().await;
    done
}
