//! Fresh groups that read at the tail while a backlog grows: one in each tenth of the way, for a while.

use std::time::Duration;

use serde::Serialize;
use stentor_client::StartAt;
use stentor_core::Clock;
use stentor_core::clock::SystemClock;
use tokio::sync::watch;

use super::way::Place;
use crate::bench::consume::{self, Latency, Wanted};
use crate::bench::options::{Ack, Options};
use crate::bench::stats::{Percentiles, per_second};
use crate::bench::target::Target;
use crate::output::Failure;

/// What a fresh group found at the tail.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct TailRead {
    pub(crate) messages: u64,
    pub(crate) messages_per_second: f64,
    /// From the moment a message was due, or was handed over to the SDK, to its delivery.
    pub(crate) latency_us: Percentiles,
}

/// Reads in each tenth, as long as the options say, until the producers are done; what was found, by tenth.
pub(super) async fn read(
    target: &Target,
    options: &Options,
    clock: &SystemClock,
    mut place: watch::Receiver<Place>,
) -> Result<Vec<(usize, TailRead)>, Failure> {
    let mut reads = Vec::new();
    let Some(duration) = options.tail else { return Ok(reads) };
    loop {
        let now = *place.borrow_and_update();
        let Place::Tenth(number) = now else { return Ok(reads) };
        if let Some(read) = read_for(target, options, clock, number, duration, &mut place).await? {
            reads.push((number, read));
        }
        // Either it has come further meanwhile, or it is waited for.
        if *place.borrow_and_update() == now && place.changed().await.is_err() {
            return Ok(reads);
        }
    }
}

async fn read_for(
    target: &Target,
    options: &Options,
    clock: &SystemClock,
    number: usize,
    duration: Duration,
    place: &mut watch::Receiver<Place>,
) -> Result<Option<TailRead>, Failure> {
    let group = format!("bench-tail-{number}");
    let wanted = Wanted {
        groups: vec![group.clone()],
        consumers: 1,
        ack: Ack::Batch,
        credit: options.credit,
        from: StartAt::Latest,
        latency: Latency::Delivery,
        size: options.size,
    };
    let consuming = consume::begin(target, &wanted, clock).await?;
    let end = clock.monotonic().after(duration);
    tokio::select! {
        () = clock.sleep_until(end) => {}
        over = place.wait_for(|place| *place == Place::Over) => drop(over),
    }
    let taken = consuming.stop().await?;
    let client = target.client().await?;
    // It would be owed everything from here on.
    client.admin().delete_group(target.topic(), &group).await?;
    client.close().await;
    let latency_us = taken.latencies.percentiles();
    let read = TailRead {
        messages: taken.amount.messages,
        messages_per_second: per_second(taken.amount.messages, taken.amount.time),
        latency_us,
    };
    // What nothing was found by says nothing.
    Ok((latency_us.max > 0).then_some(read))
}
