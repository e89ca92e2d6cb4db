//! The way to a backlog, in tenths.

use serde::Serialize;
use stentor_core::Clock;
use stentor_core::clock::SystemClock;
use tokio::sync::watch;

use super::samples::{Sample, Samples, median};
use super::tail::TailRead;
use crate::bench::options::Until;
use crate::bench::produce::Acknowledged;
use crate::bench::stats::per_second;
use crate::output::Failure;

/// How often it is looked how far it has come.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(20);

/// A tenth of the way to a backlog.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Tenth {
    /// Published by its end.
    pub(crate) messages: u64,
    /// Over the whole of it.
    pub(crate) messages_per_second: f64,
    /// The median of the samples in it.
    pub(crate) median_messages_per_second: f64,
    /// The most that was seen in it.
    pub(crate) broker_rss_bytes: u64,
    /// At its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk_bytes: Option<u64>,
    /// What a fresh group found at the tail meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tail: Option<TailRead>,
}

/// Where the producers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the tenth of this number, the first being 0.
    Tenth(usize),
    /// At the end, or gone.
    Over,
}

/// Looks after the samples and puts them together to tenths, until the producers are done; says in which tenth they are.
pub(super) async fn watch(
    samples: &mut Samples,
    until: Until,
    clock: &SystemClock,
    acknowledged: &Acknowledged,
    place: &watch::Sender<Place>,
) -> Result<Vec<Tenth>, Failure> {
    let began = clock.monotonic();
    let (mut tenths, mut last, mut last_at, mut sampled) = (Vec::new(), 0, began, 0);
    let mut seen = place.subscribe();
    loop {
        let over = tokio::select! {
            over = seen.wait_for(|place| *place == Place::Over) => {
                drop(over);
                true
            }
            () = clock.sleep_until(clock.monotonic().after(LOOK_EVERY)) => false,
        };
        let (messages, now) = (acknowledged.so_far(), clock.monotonic());
        let next = u32::try_from(tenths.len()).unwrap_or(u32::MAX).saturating_add(1);
        let reached = match until {
            Until::Count(count) => messages >= count * u64::from(next) / 10,
            Until::Time(duration) => now.since(began) * 10 >= duration * next,
        };
        let ends = messages > last && (reached || over);
        if ends || samples.is_due() {
            samples.take(messages).await?;
        }
        if ends {
            let of_tenth = &samples.taken[sampled..];
            let rate = per_second(messages - last, now.since(last_at));
            tenths.push(tenth(messages, rate, of_tenth));
            (last, last_at, sampled) = (messages, now, samples.taken.len());
            place.send_if_modified(|place| {
                // What is over stays so.
                let goes_on = *place != Place::Over;
                if goes_on {
                    *place = Place::Tenth(tenths.len());
                }
                goes_on
            });
        }
        if over {
            return Ok(tenths);
        }
    }
}

fn tenth(messages: u64, rate: f64, samples: &[Sample]) -> Tenth {
    // The last one is cut short by the end of the tenth, and says little where there are others.
    let whole = if samples.len() > 2 { &samples[..samples.len() - 1] } else { samples };
    Tenth {
        messages,
        messages_per_second: rate,
        median_messages_per_second: median(whole.iter().map(|sample| sample.messages_per_second)).unwrap_or(rate),
        broker_rss_bytes: samples.iter().map(|sample| sample.broker_rss_bytes).max().unwrap_or_default(),
        disk_bytes: samples.last().and_then(|sample| sample.disk_bytes),
        tail: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::backlog::samples::Phase;

    #[test]
    fn a_tenth_is_the_median_and_the_greatest_memory_of_its_samples() {
        let sample = |rate: f64, rss| Sample {
            phase: Phase::Publish,
            seconds: 1.0,
            messages: 1,
            messages_per_second: rate,
            broker_cpu_seconds: 0.0,
            broker_rss_bytes: rss,
            disk_bytes: Some(rss),
            storage_bytes: 0,
            storage_bytes_live: 0,
        };
        let samples = [sample(10.0, 1), sample(30.0, 9), sample(20.0, 2), sample(1.0, 3)];
        let tenth = tenth(7, 15.0, &samples);
        assert!((tenth.median_messages_per_second - 20.0).abs() < 1e-9);
        assert_eq!((tenth.broker_rss_bytes, tenth.disk_bytes), (9, Some(3)));
    }
}
