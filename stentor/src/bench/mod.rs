//! `stentor bench`: what a broker does, beside what the machine does at most, measured in the same run.
//!
//! Unless a broker is named, one is started in a process of its own, so that the processor time and the memory reported
//! are the broker's; producers and consumers run in this process and share the machine with it.

mod backlog;
mod consume;
mod limit;
mod options;
mod pace;
mod produce;
mod report;
mod runs;
mod stats;
mod target;
mod usage;
mod work;

pub(crate) use options::Options;
pub(crate) use stats::{Latencies, Percentiles, per_second};

use limit::Limit;
use report::{Asked, Report};
use runs::Summary;
use target::Target;

use crate::cli::Context;
use crate::output::Failure;

/// Runs a benchmark as often as is asked for, and prints what it found.
///
/// # Errors
/// When the broker, the topic or the machine does not do.
pub(crate) async fn run(options: Options, context: &Context) -> Result<(), Failure> {
    if options.work == options::Work::EndToEnd && options.size < produce::STAMP_BYTES as u64 {
        let message =
            format!("end-to-end needs bodies of at least {} bytes, for the time in them", produce::STAMP_BYTES);
        return Err(Failure::new("usage", message));
    }
    let mut reports = Vec::new();
    for number in 1..=options.runs {
        if options.runs > 1 {
            context.output.note(&format!("run {number} of {}", options.runs));
        }
        let target = Target::prepare(&options, context).await?;
        let done = measure(&target, &options, context).await;
        let ended = target.end().await;
        let report = done?;
        ended?;
        context.output.either(&report, || report.words())?;
        reports.push(report);
    }
    if let Some(summary) = Summary::of(&reports) {
        context.output.either(&summary, || format!("\n{}", summary.words()))?;
    }
    Ok(())
}

async fn measure(target: &Target, options: &Options, context: &Context) -> Result<Report, Failure> {
    let (storage, durability) = target.kept().await?;
    context.output.note("measuring the machine …");
    let fdatasync_us = if storage == "memory" { None } else { Some(limit::sync(&target.folder()).await?) };
    let (limit, limits) = limits(target, options, &storage).await?;
    context.output.note(&format!("measuring {} …", options.work.word()));
    let work::Run { found, cost } = work::run(target, options, context.output).await?;
    let (amount, node) = (found.amount, target.node().await?);
    let share_of_limit =
        if limit.messages_per_second > 0.0 { amount.messages_per_second() / limit.messages_per_second } else { 0.0 };
    let last_tenth_of_first = match &found.tenths[..] {
        [first, .., last] if first.median_messages_per_second > 0.0 => {
            Some(last.median_messages_per_second / first.median_messages_per_second)
        }
        _ => None,
    };
    Ok(Report {
        work: options.work.word(),
        storage,
        durability,
        asked: Asked::of(options),
        messages: amount.messages,
        bytes: amount.bytes,
        seconds: amount.time.as_secs_f64(),
        messages_per_second: amount.messages_per_second(),
        megabytes_per_second: amount.megabytes_per_second(),
        latency_us: found.latencies.percentiles(),
        broker_cpu_seconds: cost.broker_cpu_seconds,
        broker_cpu_seconds_per_million: report::per_million(cost.broker_cpu_seconds, amount.messages),
        broker_rss_bytes: node.rss_bytes,
        client_cpu_seconds: cost.client_cpu_seconds,
        broker_syncs: cost.syncs,
        device_written_bytes: fdatasync_us.and(cost.device_written_bytes),
        fdatasync_us,
        share_of_limit,
        limit,
        limits,
        last_tenth_of_first,
        tenths: found.tenths,
        drain: found.drain,
    })
}

/// The limits that this work can meet: of the wire always, and of whatever the topic is kept in. The first is the one that
/// holds it up at best, the others are all that were measured.
async fn limits(target: &Target, options: &Options, storage: &str) -> Result<(Limit, Vec<Limit>), Failure> {
    let (batch_bytes, size) = (options.batch_bytes(), options.size);
    let wire = limit::wire(size, options.mtu).await?;
    if storage == "memory" {
        let memory = limit::memory(batch_bytes, size).await?;
        return Ok((lower(&memory, &wire), vec![memory, wire]));
    }
    let by_batch = "a plain file, write and fdatasync at the same batch size";
    let by_group = "a plain file, write and fdatasync of 1 MiB, as of many batches at once";
    let by_batch = limit::disk(by_batch, &target.folder(), batch_bytes, size).await?;
    let by_group = limit::disk(by_group, &target.folder(), limit::GROUP_BYTES.max(batch_bytes), size).await?;
    // Batches that wait are synced together, so the disk's limit is the better of the two.
    let disk = if by_group.megabytes_per_second > by_batch.megabytes_per_second { &by_group } else { &by_batch };
    Ok((lower(disk, &wire), vec![by_batch, by_group, wire]))
}

fn lower(left: &Limit, right: &Limit) -> Limit {
    if left.megabytes_per_second <= right.megabytes_per_second { left.clone() } else { right.clone() }
}
