//! Producers of a benchmark.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::try_join_all;
use stentor_client::{Message, PendingSend};
use stentor_core::clock::SystemClock;
use stentor_core::{Clock, Monotonic};

use super::options::{Options, Until};
use super::pace::Pace;
use super::stats::{Amount, Latencies};
use super::target::Target;
use crate::output::Failure;

/// A body begins with the moment the message was due, in microseconds of the run's clock, if it has room for it.
pub(super) const STAMP_BYTES: usize = 8;

/// What the producers did.
pub(super) struct Produced {
    /// What was acknowledged, in the time from the first message to the last acknowledgement.
    pub(super) amount: Amount,
    /// From the moment a message was due (or handed over, at no fixed rate) to its acknowledgement.
    pub(super) latencies: Latencies,
}

/// What has been acknowledged so far, by all producers together: others look at it while they run.
pub(super) type Acknowledged = Arc<AtomicU64>;

/// Runs the producers until they are done.
pub(super) async fn produce(
    target: &Target,
    options: &Options,
    until: Until,
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
        producers.push((number, client, builder.open().await?));
    }
    let share = u64::from(options.producers);
    let began = clock.monotonic();
    let runs = producers.into_iter().map(|(number, client, producer)| {
        let until = match until {
            Until::Time(duration) => Until::Time(duration),
            // The first ones take what does not divide.
            Until::Count(count) => Until::Count(count / share + u64::from(u64::from(number) < count % share)),
        };
        let run = Run {
            producer,
            until,
            pace: options.rate().map(|rate| Pace::new(clock, (rate / share).max(1))),
            clock: clock.clone(),
            began,
            body: body(options.size, number),
            waiting: VecDeque::new(),
            waiting_max: options.in_flight as usize,
            acknowledged: Arc::clone(acknowledged),
            messages: 0,
        };
        tokio::spawn(async move {
            let done = run.go().await;
            client.close().await;
            done
        })
    });
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

/// Bytes that do not compress, the same in every run.
fn body(size: u64, seed: u32) -> Bytes {
    let mut body = vec![0; usize::try_from(size).unwrap_or_default()];
    fastrand::Rng::with_seed(seed.into()).fill(&mut body);
    body.into()
}

/// One producer at work.
struct Run {
    producer: stentor_client::Producer,
    until: Until,
    pace: Option<Pace>,
    clock: SystemClock,
    began: Monotonic,
    body: Bytes,
    /// In the order of sending, which is that of the answers but for partitions that overtake each other: a latency may
    /// hold a little of its neighbour's.
    waiting: VecDeque<(PendingSend, Monotonic)>,
    waiting_max: usize,
    acknowledged: Acknowledged,
    messages: u64,
}

impl Run {
    async fn go(mut self) -> Result<(Amount, Latencies), Failure> {
        let mut latencies = Latencies::new()?;
        while !self.is_over() {
            let due = self.due(&mut latencies).await?;
            if self.waiting.len() >= self.waiting_max {
                self.answer(&mut latencies).await?;
            }
            self.answers_that_are_there(&mut latencies)?;
            let message = Message::new(self.stamped(due));
            self.waiting.push_back((self.producer.enqueue(message).await?, due));
            self.messages += 1;
        }
        while !self.waiting.is_empty() {
            self.answer(&mut latencies).await?;
        }
        let time = self.clock.monotonic().since(self.began);
        self.producer.close().await?;
        Ok((Amount { messages: self.messages, bytes: 0, time }, latencies))
    }

    fn is_over(&self) -> bool {
        match self.until {
            Until::Count(count) => self.messages >= count,
            Until::Time(duration) => self.clock.monotonic().since(self.began) >= duration,
        }
    }

    /// The moment the next message is due: now, or what the pace says. Answers are taken while it is waited for.
    async fn due(&mut self, latencies: &mut Latencies) -> Result<Monotonic, Failure> {
        loop {
            let Some(pace) = &mut self.pace else { return Ok(self.clock.monotonic()) };
            let Some((pending, sent)) = self.waiting.front_mut() else { return Ok(pace.next().await) };
            tokio::select! {
                biased;
                due = pace.next() => return Ok(due),
                answer = pending => {
                    answer?;
                    latencies.record(self.clock.monotonic().since(*sent));
                    self.waiting.pop_front();
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Waits for the oldest answer.
    async fn answer(&mut self, latencies: &mut Latencies) -> Result<(), Failure> {
        let Some((pending, sent)) = self.waiting.pop_front() else { return Ok(()) };
        pending.await?;
        latencies.record(self.clock.monotonic().since(sent));
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the answers that are there, from the oldest on.
    fn answers_that_are_there(&mut self, latencies: &mut Latencies) -> Result<(), Failure> {
        while let Some((pending, sent)) = self.waiting.front_mut() {
            let Some(answer) = pending.now_or_never() else { return Ok(()) };
            answer?;
            latencies.record(self.clock.monotonic().since(*sent));
            self.waiting.pop_front();
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The body, with the moment it was due in front where a fixed rate makes that worth knowing.
    fn stamped(&self, due: Monotonic) -> Bytes {
        if self.pace.is_none() || self.body.len() < STAMP_BYTES {
            return self.body.clone();
        }
        let mut body = BytesMut::from(&self.body[..]);
        let micros = u64::try_from(due.0.as_micros()).unwrap_or(u64::MAX);
        body[..STAMP_BYTES].copy_from_slice(&micros.to_le_bytes());
        body.freeze()
    }
}
