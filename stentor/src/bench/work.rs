//! The works that are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use stentor_client::StartAt;
use stentor_core::Clock;
use stentor_core::clock::SystemClock;
use tokio::sync::oneshot;

use super::consume::{self, Latency};
use super::options::{Options, Until, Work};
use super::produce::{Acknowledged, produce};
use super::report::{Drain, Found, Tenth};
use super::stats::per_second;
use super::target::Target;
use crate::output::{Failure, Output};

/// How often a backlog's growth is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What was found, and what it cost the broker.
pub(super) struct Run {
    pub(super) found: Found,
    pub(super) cpu_seconds: f64,
}

/// Does the work that the options name.
pub(super) async fn run(target: &Target, options: &Options, output: Output) -> Result<Run, Failure> {
    let clock = SystemClock::new();
    let acknowledged = Acknowledged::default();
    if options.work == Work::Consume {
        output.note("filling the topic …");
        create_group(target).await?;
        let filled = produce(target, options, options.until(), &clock, &acknowledged).await?;
        let before = target.node().await?.cpu_seconds;
        let consuming = consume::begin(target, options, &clock, Latency::Acknowledgement).await?;
        let (amount, latencies) = consuming.until(filled.amount.messages).await?;
        let cpu_seconds = target.node().await?.cpu_seconds - before;
        return Ok(Run { found: Found { amount, latencies, tenths: Vec::new(), drain: None }, cpu_seconds });
    }

    let before = target.node().await?.cpu_seconds;
    let found = match options.work {
        Work::Publish | Work::Consume => {
            let produced = produce(target, options, options.until(), &clock, &acknowledged).await?;
            Found { amount: produced.amount, latencies: produced.latencies, tenths: Vec::new(), drain: None }
        }
        Work::EndToEnd | Work::FanOut => {
            let latency = if options.rate().is_some() { Latency::Delivery } else { Latency::Acknowledgement };
            let consuming = consume::begin(target, options, &clock, latency).await?;
            let produced = produce(target, options, options.until(), &clock, &acknowledged).await?;
            let (amount, latencies) = consuming.until(produced.amount.messages).await?;
            Found { amount, latencies, tenths: Vec::new(), drain: None }
        }
        Work::Backlog => backlog(target, options, &clock, &acknowledged, output).await?,
    };
    let cpu_seconds = target.node().await?.cpu_seconds - before;
    Ok(Run { found, cpu_seconds })
}

/// The group that owes everything, before there is anything.
async fn create_group(target: &Target) -> Result<(), Failure> {
    let client = target.client().await?;
    // The consumers of the run take it up; that it is there already, on a topic of the user's, is as good.
    let consumer = client.consumer(target.topic(), "bench-0").from(StartAt::Earliest).open().await?;
    consumer.close().await;
    client.close().await;
    Ok(())
}

async fn backlog(
    target: &Target,
    options: &Options,
    clock: &SystemClock,
    acknowledged: &Acknowledged,
    output: Output,
) -> Result<Found, Failure> {
    create_group(target).await?;
    let until = options.until();
    let (done, produced) = oneshot::channel::<()>();
    let producing = async {
        let produced = produce(target, options, until, clock, acknowledged).await;
        // The watcher may have failed first.
        let _ = done.send(());
        produced
    };
    let watching = watch(target, until, clock, Arc::clone(acknowledged), produced);
    let (produced, tenths) = tokio::join!(producing, watching);
    let (produced, tenths) = (produced?, tenths?);
    output.note("draining …");
    let consuming = consume::begin(target, options, clock, Latency::Acknowledgement).await?;
    let (drained, _) = consuming.until(produced.amount.messages).await?;
    let drain = Some(Drain::of(drained));
    Ok(Found { amount: produced.amount, latencies: produced.latencies, tenths, drain })
}

/// Looks at every tenth of the way: how fast it was, and what the broker's memory is.
async fn watch(
    target: &Target,
    until: Until,
    clock: &SystemClock,
    acknowledged: Arc<AtomicU64>,
    mut produced: oneshot::Receiver<()>,
) -> Result<Vec<Tenth>, Failure> {
    let client = target.client().await?;
    let began = clock.monotonic();
    let (mut tenths, mut last, mut last_at) = (Vec::new(), 0, began);
    loop {
        let over = tokio::select! {
            _ = &mut produced => true,
            () = clock.sleep_until(clock.monotonic().after(LOOK_EVERY)) => false,
        };
        let (messages, now) = (acknowledged.load(Ordering::Relaxed), clock.monotonic());
        let next = tenths.len() as u64 + 1;
        let reached = match until {
            Until::Count(count) => messages >= count * next / 10,
            Until::Time(duration) => now.since(began) * 10 >= duration * u32::try_from(next).unwrap_or(u32::MAX),
        };
        if messages > last && (over || reached) {
            tenths.push(Tenth {
                messages,
                messages_per_second: per_second(messages - last, now.since(last_at)),
                broker_rss_bytes: client.admin().node_status().await?.rss_bytes,
            });
            (last, last_at) = (messages, now);
        }
        if over {
            client.close().await;
            return Ok(tenths);
        }
    }
}
