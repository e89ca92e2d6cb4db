//! The works that are measured.

use stentor_client::StartAt;
use stentor_core::clock::SystemClock;

use super::backlog;
use super::consume::{self, Latency, Wanted, group};
use super::options::{Options, Work};
use super::produce::{Acknowledged, Stamps, produce};
use super::report::Found;
use super::target::Target;
use super::usage;
use crate::output::{Failure, Output};

/// What was found, and what it cost.
pub(super) struct Run {
    pub(super) found: Found,
    pub(super) cost: Cost,
}

/// What a work costs.
pub(super) struct Cost {
    pub(super) broker_cpu_seconds: f64,
    pub(super) client_cpu_seconds: f64,
    pub(super) syncs: u64,
    pub(super) device_written_bytes: Option<u64>,
}

/// How things stood before a work.
struct Meter {
    broker_cpu_seconds: f64,
    client_cpu_seconds: f64,
    syncs: u64,
    device_written_bytes: Option<u64>,
}

impl Meter {
    async fn begin(target: &Target) -> Result<Self, Failure> {
        let node = target.node().await?;
        Ok(Self {
            broker_cpu_seconds: node.cpu_seconds,
            client_cpu_seconds: usage::own_cpu_seconds(),
            syncs: node.syncs,
            device_written_bytes: usage::device_written_bytes(&target.folder()),
        })
    }

    async fn end(self, target: &Target) -> Result<Cost, Failure> {
        // First what goes on counting while the broker is asked.
        let (client_cpu_seconds, written) = (usage::own_cpu_seconds(), usage::device_written_bytes(&target.folder()));
        let node = target.node().await?;
        Ok(Cost {
            broker_cpu_seconds: node.cpu_seconds - self.broker_cpu_seconds,
            client_cpu_seconds: client_cpu_seconds - self.client_cpu_seconds,
            syncs: node.syncs.saturating_sub(self.syncs),
            device_written_bytes: written
                .zip(self.device_written_bytes)
                .map(|(after, before)| after.saturating_sub(before)),
        })
    }
}

/// Does the work that the options name.
pub(super) async fn run(target: &Target, options: &Options, output: Output) -> Result<Run, Failure> {
    let clock = SystemClock::new();
    let acknowledged = Acknowledged::default();
    let owed = if options.work == Work::Consume {
        output.note("filling the topic …");
        create_group(target).await?;
        produce(target, options, Stamps::None, &clock, &acknowledged).await?.amount.messages
    } else {
        0
    };
    let meter = Meter::begin(target).await?;
    let found = match options.work {
        Work::Publish => {
            let produced = produce(target, options, Stamps::None, &clock, &acknowledged).await?;
            Found::of(produced.amount, produced.latencies)
        }
        Work::Consume => {
            let consuming = consume::begin(target, &Wanted::by(options, Latency::Acknowledgement), &clock).await?;
            consuming.expect(owed);
            let taken = consuming.ended().await?;
            Found::of(taken.amount, taken.latencies)
        }
        Work::EndToEnd | Work::FanOut => {
            let (latency, stamps) = if options.rate().is_some() {
                (Latency::Delivery, Stamps::OneIn(1))
            } else {
                (Latency::Acknowledgement, Stamps::None)
            };
            let consuming = consume::begin(target, &Wanted::by(options, latency), &clock).await?;
            let produced = produce(target, options, stamps, &clock, &acknowledged).await?;
            consuming.expect(produced.amount.messages);
            let taken = consuming.ended().await?;
            Found::of(taken.amount, taken.latencies)
        }
        Work::Backlog => backlog::run(target, options, &clock, &acknowledged, output).await?,
    };
    Ok(Run { found, cost: meter.end(target).await? })
}

/// The group that owes everything, before there is anything.
pub(super) async fn create_group(target: &Target) -> Result<(), Failure> {
    let client = target.client().await?;
    // The consumers of the run take it up; that it is there already, on a topic of the user's, is as good.
    let consumer = client.consumer(target.topic(), group(0)).from(StartAt::Earliest).open().await?;
    consumer.close().await;
    client.close().await;
    Ok(())
}
