//! Publishing while nobody consumes, the drain of what has gathered, and the disk that is given back.
//!
//! On the way there, fresh groups may read at the tail for a while; what everybody else keeps, the topic of a backlog
//! does not: messages that every group is done with go at once (`retain_for = "0s"`), so that it shows whether the disk
//! comes back.

use std::time::Duration;

use stentor_core::Clock;
use stentor_core::clock::SystemClock;
use tokio::sync::watch;

use super::consume::{self, Latency, Wanted};
use super::options::Options;
use super::produce::{Acknowledged, Stamps, produce};
use super::report::{Drain, Found};
use super::target::Target;
use super::work::create_group;
use crate::output::{Failure, Output};

mod samples;
mod tail;
mod way;

pub(super) use way::Tenth;

use samples::{Phase, Samples};

/// Of how many messages one carries its moment, for the groups that read at the tail.
const STAMPED_ONE_IN: u32 = 256;

/// How often it is looked whether the disk has been given back …
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// … and how many looks in a row must have found nothing new for it to be over …
const QUIET_LOOKS: u32 = 6;

/// … and how many there are at most.
const LOOKS_MAX: u32 = 240;

/// Makes the backlog and drains it.
pub(super) async fn run(
    target: &Target,
    options: &Options,
    clock: &SystemClock,
    acknowledged: &Acknowledged,
    output: Output,
) -> Result<Found, Failure> {
    create_group(target).await?;
    let mut samples = Samples::begin(target, options, clock).await?;
    let stamps = if options.tail.is_some() { Stamps::OneIn(STAMPED_ONE_IN) } else { Stamps::None };

    let (to_tenths, tenth) = watch::channel(way::Place::Tenth(0));
    let producing = async {
        let produced = produce(target, options, stamps, clock, acknowledged).await;
        to_tenths.send_replace(way::Place::Over);
        produced
    };
    let watching = way::watch(&mut samples, options.until(), clock, acknowledged, &to_tenths);
    let reading = tail::read(target, options, clock, tenth);
    let (produced, tenths, tail) = tokio::join!(producing, watching, reading);
    let (produced, mut tenths) = (produced?, tenths?);
    for (number, read) in tail? {
        if let Some(tenth) = tenths.get_mut(number) {
            tenth.tail = Some(read);
        }
    }

    output.note("draining …");
    let full = target.disk_bytes().await;
    samples.enter(Phase::Drain);
    let consuming = consume::begin(target, &Wanted::by(options, Latency::Acknowledgement), clock).await?;
    consuming.expect(produced.amount.messages);
    let counted = consuming.counted();
    let mut ended = Box::pin(consuming.ended());
    let drained = loop {
        tokio::select! {
            drained = &mut ended => break drained?,
            () = samples.due() => samples.take(counted.so_far()).await?,
        }
    };
    samples.take(drained.amount.messages).await?;

    output.note("waiting for the disk to be given back …");
    samples.enter(Phase::GivingBack);
    let after = given_back(target, clock, &mut samples, drained.amount.messages).await?;
    let mut drain = Drain::of(drained.amount);
    (drain.disk_bytes_before, drain.disk_bytes_after) = (full, after);
    drain.median_messages_per_second = samples.median_rate(Phase::Drain);
    samples.close().await;
    Ok(Found { amount: produced.amount, latencies: produced.latencies, tenths, drain: Some(drain) })
}

/// Waits until the folder gets no smaller, and says what it takes then.
async fn given_back(
    target: &Target,
    clock: &SystemClock,
    samples: &mut Samples,
    messages: u64,
) -> Result<Option<u64>, Failure> {
    let mut least = target.disk_bytes().await;
    let mut quiet = 0;
    for _ in 0..LOOKS_MAX {
        if least.is_none() || quiet == QUIET_LOOKS {
            break;
        }
        clock.sleep_until(clock.monotonic().after(LOOK_EVERY)).await;
        if samples.is_due() {
            samples.take(messages).await?;
        }
        let now = target.disk_bytes().await;
        quiet = if now < least { 0 } else { quiet + 1 };
        least = least.min(now);
    }
    samples.take(messages).await?;
    Ok(least)
}
