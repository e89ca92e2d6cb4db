//! Consumers of a benchmark.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::try_join_all;
use stentor_client::{Consumer, Settlement, StartAt};
use stentor_core::clock::SystemClock;
use stentor_core::{Clock, Monotonic};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::options::Options;
use super::produce::STAMP_BYTES;
use super::stats::{Amount, Latencies};
use super::target::Target;
use crate::output::Failure;

/// Acknowledgements that a consumer waits for at a time.
const ACKNOWLEDGEMENTS_MAX: usize = 16_384;

/// How much a consumer lets the broker send ahead.
const CREDIT: u32 = 16_384;

/// When this long nothing comes although something is still due, it never will.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which latency is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Latency {
    /// From an acknowledgement to the broker's answer.
    Acknowledgement,
    /// From the moment the message was due to its delivery.
    Delivery,
}

/// Consumers at work.
pub(super) struct Consuming {
    /// How many messages are to be delivered to each group; none while that is not known.
    expected: watch::Sender<Option<u64>>,
    groups: Vec<Vec<JoinHandle<Result<Taken, Failure>>>>,
    size: u64,
}

/// What consumers took.
struct Taken {
    messages: u64,
    first: Option<Monotonic>,
    last: Option<Monotonic>,
    latencies: Latencies,
}

/// Opens all groups and consumers; they begin at once with what there is, from the start of the topic.
pub(super) async fn begin(
    target: &Target,
    options: &Options,
    clock: &SystemClock,
    latency: Latency,
) -> Result<Consuming, Failure> {
    let (expected, expected_seen) = watch::channel(None);
    let mut groups = Vec::new();
    for group in 0..options.groups() {
        // Shared by the consumers of the group: together they take what the group is owed.
        let counted = watch::Sender::new(0_u64);
        let mut consumers = Vec::new();
        for _ in 0..options.consumers {
            let client = target.client().await?;
            let consumer = client
                .consumer(target.topic(), format!("bench-{group}"))
                .from(StartAt::Earliest)
                .credit(CREDIT)
                .open()
                .await?;
            let run = Run {
                consumer,
                clock: clock.clone(),
                latency,
                counted: counted.clone(),
                expected: expected_seen.clone(),
                waiting: VecDeque::new(),
                taken: Taken { messages: 0, first: None, last: None, latencies: Latencies::new()? },
            };
            consumers.push(tokio::spawn(async move {
                let taken = run.go().await;
                client.close().await;
                taken
            }));
        }
        groups.push(consumers);
    }
    Ok(Consuming { expected, groups, size: options.size })
}

impl Consuming {
    /// Waits until every group has been delivered so many messages.
    pub(super) async fn until(self, messages: u64) -> Result<(Amount, Latencies), Failure> {
        self.expected.send_replace(Some(messages));
        let mut latencies = Latencies::new()?;
        let (mut amount, mut first, mut last) = (Amount::default(), None, None);
        for consumers in self.groups {
            let joined = try_join_all(consumers).await.map_err(|error| Failure::new("internal", error.to_string()))?;
            for taken in joined {
                let taken = taken?;
                amount.messages += taken.messages;
                latencies.merge(&taken.latencies);
                first = earlier(first, taken.first);
                last = last.max(taken.last);
            }
        }
        amount.bytes = amount.messages * self.size;
        if let (Some(first), Some(last)) = (first, last) {
            amount.time = last.since(first);
        }
        Ok((amount, latencies))
    }
}

fn earlier(left: Option<Monotonic>, right: Option<Monotonic>) -> Option<Monotonic> {
    left.into_iter().chain(right).min()
}

/// One consumer at work.
struct Run {
    consumer: Consumer,
    clock: SystemClock,
    latency: Latency,
    /// What the consumers of the group have taken together.
    counted: watch::Sender<u64>,
    expected: watch::Receiver<Option<u64>>,
    waiting: VecDeque<(Settlement, Monotonic)>,
    taken: Taken,
}

impl Run {
    async fn go(mut self) -> Result<Taken, Failure> {
        let mut counted = self.counted.subscribe();
        loop {
            let (so_far, expected) = (*counted.borrow_and_update(), *self.expected.borrow_and_update());
            if expected.is_some_and(|expected| so_far >= expected) {
                break;
            }
            let delivery = tokio::select! {
                biased;
                delivery = self.consumer.next() => delivery?,
                // Another consumer took the last one, or it became known how many there are.
                _ = counted.changed() => continue,
                _ = self.expected.changed() => continue,
                () = sleep(&self.clock, PATIENCE), if expected.is_some() => {
                    let message = format!("{so_far} of {} messages came, and then none", expected.unwrap_or_default());
                    return Err(Failure::new("nothing_received", message));
                }
            };
            let Some(delivery) = delivery else { break };
            let now = self.clock.monotonic();
            self.taken.first.get_or_insert(now);
            self.taken.last = Some(now);
            self.taken.messages += 1;
            if self.latency == Latency::Delivery {
                let stamp = delivery.body().first_chunk::<STAMP_BYTES>().map(|stamp| u64::from_le_bytes(*stamp));
                let due = Monotonic(Duration::from_micros(stamp.unwrap_or_default()));
                self.taken.latencies.record(now.since(due));
            }
            self.waiting.push_back((delivery.ack(), now));
            self.counted.send_modify(|count| *count += 1);
            self.answers(ACKNOWLEDGEMENTS_MAX).await?;
        }
        self.answers(0).await?;
        self.consumer.close().await;
        Ok(self.taken)
    }

    /// Takes the answers that are there, and waits for more until at most so many are open.
    async fn answers(&mut self, open_max: usize) -> Result<(), Failure> {
        loop {
            let must = self.waiting.len() > open_max;
            let Some((settlement, at)) = self.waiting.front_mut() else { return Ok(()) };
            if must {
                settlement.await?;
            } else {
                match settlement.now_or_never() {
                    Some(answer) => answer?,
                    None => return Ok(()),
                }
            }
            if self.latency == Latency::Acknowledgement {
                self.taken.latencies.record(self.clock.monotonic().since(*at));
            }
            self.waiting.pop_front();
        }
    }
}

async fn sleep(clock: &SystemClock, duration: Duration) {
    clock.sleep_until(clock.monotonic().after(duration)).await;
}
