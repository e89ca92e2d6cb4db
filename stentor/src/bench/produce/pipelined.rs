//! A producer that hands over one message after the other and takes the receipts as they come: the SDK makes the batches.
//!
//! It shares the cores with the broker, so it is made to cost little: the clock is read once for a stride of messages,
//! which can only make latencies look longer, and receipts are looked for as rarely.

use std::collections::VecDeque;

use futures_util::FutureExt;
use stentor_client::{Message, PendingSend, Producer};
use stentor_core::clock::SystemClock;
use stentor_core::{Clock, Monotonic};

use super::Acknowledged;
use super::body::Bodies;
use crate::bench::options::Until;
use crate::bench::pace::Pace;
use crate::bench::stats::{Amount, Latencies};
use crate::output::Failure;

/// Messages that go with one look at the clock.
const STRIDE: u64 = 32;

/// One producer at work.
pub(super) struct Pipelined {
    pub(super) producer: Producer,
    pub(super) until: Until,
    pub(super) pace: Option<Pace>,
    pub(super) clock: SystemClock,
    pub(super) began: Monotonic,
    pub(super) bodies: Bodies,
    /// In the order of sending, which is that of the answers but for partitions that overtake each other: a latency may
    /// hold a little of its neighbour's.
    pub(super) waiting: VecDeque<(PendingSend, Monotonic)>,
    pub(super) waiting_max: usize,
    pub(super) acknowledged: Acknowledged,
    pub(super) messages: u64,
    pub(super) latencies: Latencies,
}

impl Pipelined {
    pub(super) async fn go(mut self) -> Result<(Amount, Latencies), Failure> {
        loop {
            let now = self.clock.monotonic();
            let left = self.until.left(self.messages, now.since(self.began));
            if left == 0 {
                break;
            }
            if self.pace.is_some() {
                let due = self.due().await?;
                self.send(due).await?;
            } else {
                for _ in 0..left.min(STRIDE) {
                    self.send(now).await?;
                }
            }
            self.answers_that_are_there()?;
        }
        while !self.waiting.is_empty() {
            self.answer().await?;
        }
        let time = self.clock.monotonic().since(self.began);
        self.producer.close().await?;
        Ok((Amount { messages: self.messages, bytes: 0, time }, self.latencies))
    }

    async fn send(&mut self, due: Monotonic) -> Result<(), Failure> {
        while self.waiting.len() >= self.waiting_max {
            self.answer().await?;
        }
        let message = Message::new(self.bodies.next(due));
        self.waiting.push_back((self.producer.enqueue(message).await?, due));
        self.messages += 1;
        Ok(())
    }

    /// Waits until the next message is due, and takes answers meanwhile.
    async fn due(&mut self) -> Result<Monotonic, Failure> {
        loop {
            let Some(pace) = &mut self.pace else { return Ok(self.clock.monotonic()) };
            let answer = async {
                match self.waiting.front_mut() {
                    Some((pending, _)) => pending.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = pace.wait() => {
                    let due = pace.due();
                    pace.advance();
                    return Ok(due);
                }
                answer = answer => {
                    answer?;
                    self.taken();
                }
            }
        }
    }

    /// Waits for the oldest answer, and takes those that came with it.
    async fn answer(&mut self) -> Result<(), Failure> {
        let Some((pending, _)) = self.waiting.front_mut() else { return Ok(()) };
        pending.await?;
        self.taken();
        self.answers_that_are_there()
    }

    /// The oldest answer has just been taken.
    fn taken(&mut self) {
        if let Some((_, sent)) = self.waiting.pop_front() {
            self.latencies.record(self.clock.monotonic().since(sent));
            self.acknowledged.add(1);
        }
    }

    /// Takes the answers that are there, from the oldest on.
    fn answers_that_are_there(&mut self) -> Result<(), Failure> {
        let mut now = None;
        // Messages of a stride were sent at one moment, and mostly are answered at one.
        let (mut same, mut since) = (0, Monotonic::default());
        let mut all = 0;
        while let Some((pending, sent)) = self.waiting.front_mut() {
            let Some(answer) = pending.now_or_never() else { break };
            answer?;
            let now = *now.get_or_insert_with(|| self.clock.monotonic());
            if *sent != since {
                self.latencies.record_many(now.since(since), same);
                (same, since) = (0, *sent);
            }
            (same, all) = (same + 1, all + 1);
            self.waiting.pop_front();
        }
        if let Some(now) = now {
            self.latencies.record_many(now.since(since), same);
            self.acknowledged.add(all);
        }
        Ok(())
    }
}
