//! Consumers of a benchmark.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::try_join_all;
use stentor_client::{Consumer, Delivery, Settlement, StartAt};
use stentor_core::clock::SystemClock;
use stentor_core::{Clock, Monotonic};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::options::{Ack, Options};
use super::produce::stamp;
use super::stats::{Amount, Latencies};
use super::target::Target;
use crate::output::Failure;

/// Acknowledgements that a consumer waits for at a time.
const ACKNOWLEDGEMENTS_MAX: usize = 16_384;

/// Messages after which a consumer looks at the clock and for answers; it shares the cores with the broker.
const STRIDE: u64 = 32;

/// When this long nothing comes although something is still due, it never will.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which latency is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Latency {
    /// From an acknowledgement to the broker's answer.
    Acknowledgement,
    /// From the moment the message was due to its delivery, of those that carry it.
    Delivery,
}

/// Which consumers are wanted.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The groups' names.
    pub(super) groups: Vec<String>,
    /// Of each group.
    pub(super) consumers: u32,
    pub(super) ack: Ack,
    pub(super) credit: u32,
    pub(super) from: StartAt,
    pub(super) latency: Latency,
    /// Of a message.
    pub(super) size: u64,
}

impl Wanted {
    /// What the options ask for: all groups from the start of the topic.
    pub(super) fn by(options: &Options, latency: Latency) -> Self {
        Self {
            groups: (0..options.groups()).map(group).collect(),
            consumers: options.consumers,
            ack: options.ack(),
            credit: options.credit,
            from: StartAt::Earliest,
            latency,
            size: options.size,
        }
    }
}

/// What the group of this number is called.
pub(super) fn group(number: u32) -> String {
    format!("bench-{number}")
}

/// Consumers at work.
pub(super) struct Consuming {
    /// How many messages are to be delivered to each group; none while that is not known.
    expected: watch::Sender<Option<u64>>,
    groups: Vec<Group>,
    size: u64,
}

struct Group {
    progress: Arc<Progress>,
    consumers: Vec<JoinHandle<Result<Taken, Failure>>>,
}

/// What the consumers of a group have taken together.
#[derive(Default)]
struct Progress {
    taken: AtomicU64,
    done: watch::Sender<bool>,
}

/// Tells how much has been taken.
pub(super) struct Counted(Vec<Arc<Progress>>);

impl Counted {
    pub(super) fn so_far(&self) -> u64 {
        self.0.iter().map(|progress| progress.taken.load(Ordering::Relaxed)).sum()
    }
}

/// What consumers took.
pub(super) struct Taken {
    pub(super) amount: Amount,
    first: Option<Monotonic>,
    last: Option<Monotonic>,
    pub(super) latencies: Latencies,
}

impl Taken {
    fn nothing() -> Result<Self, Failure> {
        Ok(Self { amount: Amount::default(), first: None, last: None, latencies: Latencies::new()? })
    }

    /// Adds what others took, at the same time.
    fn merge(&mut self, other: &Self) {
        self.amount.messages += other.amount.messages;
        self.latencies.merge(&other.latencies);
        self.first = self.first.into_iter().chain(other.first).min();
        self.last = self.last.max(other.last);
    }
}

/// Opens all groups and consumers; they begin at once with what there is.
pub(super) async fn begin(target: &Target, wanted: &Wanted, clock: &SystemClock) -> Result<Consuming, Failure> {
    let (expected, expected_seen) = watch::channel(None);
    let mut groups = Vec::new();
    for group in &wanted.groups {
        let progress = Arc::new(Progress::default());
        let mut consumers = Vec::new();
        for _ in 0..wanted.consumers {
            let client = target.client().await?;
            let builder = client.consumer(target.topic(), group).from(wanted.from).credit(wanted.credit);
            let run = Run {
                consumer: builder.open().await?,
                ack: wanted.ack,
                clock: clock.clone(),
                latency: wanted.latency,
                progress: Arc::clone(&progress),
                done: progress.done.subscribe(),
                expected: expected_seen.clone(),
                waiting: VecDeque::new(),
                now: Monotonic::default(),
                took: false,
                taken: Taken::nothing()?,
            };
            consumers.push(tokio::spawn(async move {
                let taken = run.go().await;
                client.close().await;
                taken
            }));
        }
        groups.push(Group { progress, consumers });
    }
    Ok(Consuming { expected, groups, size: wanted.size })
}

impl Consuming {
    /// What tells how much all groups together have taken so far.
    pub(super) fn counted(&self) -> Counted {
        Counted(self.groups.iter().map(|group| Arc::clone(&group.progress)).collect())
    }

    /// Tells how many messages each group is to be delivered.
    pub(super) fn expect(&self, messages: u64) {
        self.expected.send_replace(Some(messages));
    }

    /// Waits until every group has been delivered as many messages as are expected.
    pub(super) async fn ended(self) -> Result<Taken, Failure> {
        let mut all = Taken::nothing()?;
        for group in self.groups {
            let joined =
                try_join_all(group.consumers).await.map_err(|error| Failure::new("internal", error.to_string()))?;
            for taken in joined {
                all.merge(&taken?);
            }
        }
        all.amount.bytes = all.amount.messages * self.size;
        if let (Some(first), Some(last)) = (all.first, all.last) {
            all.amount.time = last.since(first);
        }
        Ok(all)
    }

    /// Lets every consumer end with what it has.
    pub(super) async fn stop(self) -> Result<Taken, Failure> {
        for group in &self.groups {
            group.progress.done.send_replace(true);
        }
        self.ended().await
    }
}

/// One consumer at work.
struct Run {
    consumer: Consumer,
    ack: Ack,
    clock: SystemClock,
    latency: Latency,
    progress: Arc<Progress>,
    done: watch::Receiver<bool>,
    expected: watch::Receiver<Option<u64>>,
    waiting: VecDeque<(Settlement, Monotonic, u64)>,
    /// The last look at the clock.
    now: Monotonic,
    /// Whether anything has been taken since it last waited.
    took: bool,
    taken: Taken,
}

/// What a wait came to.
enum Waited<T> {
    Took(T),
    /// Nothing, but it is worth another look.
    Other,
    /// Nothing more will come.
    Over,
}

impl Run {
    async fn go(mut self) -> Result<Taken, Failure> {
        // As long as messages are there more is due, so what is expected is looked at only before waiting.
        while !self.done.has_changed().unwrap_or(true) {
            let more = match self.ack {
                Ack::Each => self.take_one().await?,
                Ack::Batch => self.take_batch().await?,
            };
            if !more {
                break;
            }
            // Where everything is there already, nothing above waits, and others have to run.
            tokio::task::coop::consume_budget().await;
        }
        self.caught_up();
        self.answers(0).await?;
        self.consumer.close().await;
        Ok(self.taken)
    }

    /// Takes a message; false when there will be no more.
    async fn take_one(&mut self) -> Result<bool, Failure> {
        let delivery = match self.consumer.next().now_or_never() {
            Some(delivery) => delivery?,
            None => match self.wait(async |consumer| Ok(consumer.next().await?)).await? {
                Waited::Took(delivery) => delivery,
                Waited::Other => return Ok(true),
                Waited::Over => return Ok(false),
            },
        };
        let Some(delivery) = delivery else { return Ok(false) };
        if self.latency == Latency::Delivery || self.taken.amount.messages.is_multiple_of(STRIDE) {
            self.now = self.clock.monotonic();
        }
        self.note(&delivery);
        self.waiting.push_back((delivery.ack(), self.now, 1));
        self.count(1);
        if self.taken.amount.messages.is_multiple_of(STRIDE) || self.waiting.len() > ACKNOWLEDGEMENTS_MAX {
            self.answers(ACKNOWLEDGEMENTS_MAX).await?;
        }
        Ok(true)
    }

    /// Takes the messages that came together; false when there will be no more.
    async fn take_batch(&mut self) -> Result<bool, Failure> {
        let batch = match self.consumer.next_batch().now_or_never() {
            Some(batch) => batch?,
            None => match self.wait(async |consumer| Ok(consumer.next_batch().await?)).await? {
                Waited::Took(batch) => batch,
                Waited::Other => return Ok(true),
                Waited::Over => return Ok(false),
            },
        };
        let Some(batch) = batch else { return Ok(false) };
        self.now = self.clock.monotonic();
        if self.latency == Latency::Delivery {
            batch.iter().for_each(|delivery| self.note(delivery));
        }
        let messages = batch.len() as u64;
        self.waiting.push_back((batch.ack(), self.now, messages));
        self.count(messages);
        self.answers(ACKNOWLEDGEMENTS_MAX).await?;
        Ok(true)
    }

    /// Waits for what `take` takes, unless nothing more is due.
    async fn wait<T>(
        &mut self,
        take: impl AsyncFnOnce(&mut Consumer) -> Result<T, Failure>,
    ) -> Result<Waited<T>, Failure> {
        self.caught_up();
        self.answers(ACKNOWLEDGEMENTS_MAX).await?;
        let expected = *self.expected.borrow_and_update();
        let taken = || self.progress.taken.load(Ordering::Relaxed);
        if expected.is_some_and(|expected| taken() >= expected) {
            self.progress.done.send_replace(true);
            return Ok(Waited::Over);
        }
        tokio::select! {
            biased;
            took = take(&mut self.consumer) => took.map(Waited::Took),
            // Another consumer took the last one, or it became known how many there are.
            _ = self.done.changed() => Ok(Waited::Over),
            _ = self.expected.changed() => Ok(Waited::Other),
            () = self.clock.sleep_until(self.clock.monotonic().after(PATIENCE)), if expected.is_some() => {
                let message = format!("{} of {} messages came, and then none", taken(), expected.unwrap_or_default());
                Err(Failure::new("nothing_received", message))
            }
        }
    }

    /// All that was there has been taken.
    fn caught_up(&mut self) {
        if std::mem::take(&mut self.took) {
            self.taken.last = Some(self.clock.monotonic());
        }
    }

    fn note(&mut self, delivery: &Delivery) {
        if self.latency == Latency::Delivery
            && let Some(due) = stamp(delivery.body())
        {
            self.taken.latencies.record(self.now.since(due));
        }
    }

    fn count(&mut self, messages: u64) {
        self.taken.first.get_or_insert(self.now);
        self.took = true;
        self.taken.amount.messages += messages;
        self.progress.taken.fetch_add(messages, Ordering::Relaxed);
    }

    /// Takes the answers that are there, and waits for more until at most so many are open.
    async fn answers(&mut self, open_max: usize) -> Result<(), Failure> {
        let mut now = None;
        loop {
            let must = self.waiting.len() > open_max;
            let Some((settlement, at, messages)) = self.waiting.front_mut() else { return Ok(()) };
            match settlement.now_or_never() {
                Some(answer) => answer?,
                None if must => {
                    settlement.await?;
                    now = None;
                }
                None => return Ok(()),
            }
            if self.latency == Latency::Acknowledgement {
                let now = *now.get_or_insert_with(|| self.clock.monotonic());
                self.taken.latencies.record_many(now.since(*at), *messages);
            }
            self.waiting.pop_front();
        }
    }
}
