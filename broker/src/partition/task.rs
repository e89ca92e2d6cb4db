//! The task of a partition: what it owns, and its turns.
//!
//! A turn waits for anything to happen, takes in what is there of each kind up to a bound, and then moves on what can be
//! moved: letters, progress, deliveries. Nothing is chosen at random, so the same events make the same history.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};
use stentor_core::storage::{PartitionReader, PartitionWriter, StorageError};
use stentor_core::{Durable, Epoch, GroupName, Monotonic, Offset, OffsetRange, Timestamp, TopicName};
use stentor_protocol::{ErrorCode, wire};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::command::{Command, Publish, Reply};
use super::commit::{Outcome, Pending};
use super::dedup::Dedup;
use super::flush::Trim;
use super::groups::Slot;
use super::handle::Partition;
use super::jobs::Done;
use super::recovery::Opened;
use super::tail::Tail;
use crate::error::{refusal, shutting_down};
use crate::group::Now;
use crate::metrics::TopicMetrics;
use crate::node::Node;
use crate::settings::TopicSettings;
use crate::topic::Topic;

/// How many commits may be waiting for their receipts before the task takes no more publishes.
pub(super) const COMMITS_PENDING_MAX: usize = 64;

/// How many commands are taken in one turn.
const COMMANDS_PER_TURN: usize = 64;

/// How often retention, idle producers and the gauges are looked at.
const CARE_INTERVAL: Duration = Duration::from_secs(2);

/// Retention is looked at every so many rounds of care.
const RETENTION_ROUNDS: u32 = 5;

/// The deduplication is written after so many batches, so that recovery reads no more than these …
const DEDUP_BATCHES_MAX: u32 = 2_048;

/// … or so many bytes.
const DEDUP_BYTES_MAX: usize = 32 << 20;

/// The log that the task writes to.
pub(super) struct Log {
    pub(super) writer: Box<dyn PartitionWriter>,
    pub(super) epoch: Epoch,
    /// How far the log is durable, as its latest receipt says.
    pub(super) durable: Durable<Offset>,
}

/// See the module.
pub(super) struct Task {
    pub(super) node: Arc<Node>,
    pub(super) topic: TopicName,
    pub(super) settings: Arc<TopicSettings>,
    pub(super) metrics: TopicMetrics,
    pub(super) partition: Arc<Partition>,
    reader: Option<Arc<dyn PartitionReader>>,
    pub(super) log: Option<Log>,
    /// Why nothing more is taken.
    pub(super) failed: Option<wire::Error>,
    /// Where the log was found to be damaged.
    pub(super) damaged: Option<String>,
    pub(super) dedup: Dedup,
    /// Batches and bytes since the deduplication was written.
    pub(super) dedup_behind: (u32, usize),
    pub(super) groups: BTreeMap<GroupName, Slot>,
    pub(super) generation: u64,
    pub(super) tail: Tail,
    pub(super) last_stored_at: Timestamp,
    pub(super) receipts: FuturesOrdered<BoxFuture<'static, Outcome>>,
    pub(super) pending: VecDeque<Pending>,
    /// How many commits of progress are under way. The usual ones wait for it to be none, so that what comes meanwhile
    /// shares the next.
    pub(super) progress_pending: u32,
    /// Whoever waits for a group's next complete flush.
    pub(super) after_flush: Vec<(GroupName, Reply<()>)>,
    /// When progress is to be written at the latest.
    pub(super) flush_at: Option<Monotonic>,
    /// The storage has refused progress: it is offered again at `flush_at` and not before.
    pub(super) flush_refused: bool,
    pub(super) jobs: JoinSet<Done>,
    /// Whether ages are being looked up for retention.
    pub(super) aging: bool,
    /// How far the log is to be trimmed with the next flush.
    pub(super) trim: Option<Trim>,
    /// The group whose progress was written last.
    pub(super) flushed_last: Option<GroupName>,
    care_at: Monotonic,
    care_rounds: u32,
    /// Whether there is more to do at once.
    pub(super) again: bool,
    pub(super) rng: fastrand::Rng,
}

impl Task {
    pub(super) fn new(
        node: &Arc<Node>,
        topic: &Topic,
        partition: Arc<Partition>,
        opened: Result<Opened, wire::Error>,
    ) -> Self {
        let mut task = Self {
            node: Arc::clone(node),
            topic: topic.name.clone(),
            settings: topic.settings(),
            metrics: topic.metrics.clone(),
            partition,
            reader: None,
            log: None,
            failed: None,
            damaged: None,
            dedup: Dedup::default(),
            dedup_behind: (0, 0),
            groups: BTreeMap::new(),
            generation: 0,
            tail: Tail::new(Arc::clone(&node.tail_bytes)),
            last_stored_at: Timestamp::default(),
            receipts: FuturesOrdered::new(),
            pending: VecDeque::new(),
            progress_pending: 0,
            after_flush: Vec::new(),
            flush_at: None,
            flush_refused: false,
            jobs: JoinSet::new(),
            aging: false,
            trim: None,
            flushed_last: None,
            care_at: node.clock.monotonic().after(CARE_INTERVAL),
            care_rounds: 0,
            again: false,
            rng: node.rng(),
        };
        match opened {
            Ok(opened) => task.take_over(opened),
            Err(error) => task.failed = Some(error),
        }
        task.show();
        task
    }

    fn take_over(&mut self, opened: Opened) {
        let Opened { writer, epoch, reader, durable, dedup, groups, last_stored_at, damaged } = opened;
        self.reader = Some(reader);
        self.log = Some(Log { writer, epoch, durable });
        self.dedup = dedup;
        self.last_stored_at = last_stored_at;
        self.damaged = damaged;
        for (order, state) in groups {
            self.generation += 1;
            self.groups.insert(order.name.clone(), Slot::new(order, state, self.generation));
        }
    }

    /// Takes turns until it is told to end.
    pub(super) async fn run(mut self, mut publishes: mpsc::Receiver<Publish>, mut commands: mpsc::Receiver<Command>) {
        let clock = Arc::clone(&self.node.clock);
        let partition = Arc::clone(&self.partition);
        let mut alarm: Option<(Monotonic, BoxFuture<'_, ()>)> = None;
        loop {
            // Set anew only when an earlier time is wanted: one that rings too early costs less than a timer each turn.
            let wanted = self.next_alarm();
            if alarm.as_ref().is_none_or(|(at, _)| wanted < *at) {
                alarm = Some((wanted, clock.sleep_until(wanted)));
            }
            let mut command = None;
            let mut publish = None;
            let mut rang = false;
            tokio::select! {
                biased;
                Some(outcome) = self.receipts.next(), if !self.receipts.is_empty() => self.receipt(outcome),
                Some(done) = self.jobs.join_next(), if !self.jobs.is_empty() => self.job(done).await,
                taken = commands.recv() => match taken {
                    Some(taken) => command = Some(taken),
                    None => break,
                },
                () = partition.wake.notified() => self.woken(),
                Some(taken) = publishes.recv(), if self.pending.len() < COMMITS_PENDING_MAX => publish = Some(taken),
                () = ring(&mut alarm) => rang = true,
                () = std::future::ready(()), if self.again => {}
            }
            self.again = false;
            if rang {
                alarm = None;
                self.tick();
            }
            // Whatever else has come meanwhile is taken in the same turn, each kind up to a bound.
            while let Some(Some(outcome)) = self.receipts.next().now_or_never() {
                self.receipt(outcome);
            }
            let mut taken = command.into_iter().chain(std::iter::from_fn(|| commands.try_recv().ok()));
            let mut commands_left = COMMANDS_PER_TURN;
            let mut over = false;
            while commands_left > 0
                && let Some(command) = taken.next()
            {
                commands_left -= 1;
                over = self.command(command).await;
                if over {
                    break;
                }
            }
            drop(taken);
            self.again |= commands_left == 0;
            if over {
                // It has been taken out of its queue already, and is certainly not stored.
                if let Some(publish) = publish {
                    publish.answer.refused(shutting_down());
                }
                break;
            }
            if publish.is_none() && self.pending.len() < COMMITS_PENDING_MAX {
                publish = publishes.try_recv().ok();
            }
            if let Some(publish) = publish {
                self.take_publishes(publish, &mut publishes).await;
            }
            self.move_on().await;
        }
        publishes.close();
        while let Ok(publish) = publishes.try_recv() {
            publish.answer.refused(shutting_down());
        }
        // Commands that come now are dropped with their channel, when all is done: that is how the end is seen.
        self.wind_up().await;
    }

    /// Takes a command; says whether it was the last.
    async fn command(&mut self, command: Command) -> bool {
        match command {
            Command::Describe { reply } => drop(reply.send(Ok(self.stats()))),
            Command::Story { offset, reply } => self.spawn_stories(offset, reply),
            Command::Settings { settings } => {
                self.settings = settings;
                self.care_rounds = 0;
            }
            Command::Shutdown => return true,
            group => self.group_command(group).await,
        }
        false
    }

    /// What a turn ends with.
    async fn move_on(&mut self) {
        if self.failed.is_some() {
            return;
        }
        self.start_moves();
        self.flush_if_due().await;
        self.serve_groups();
        // Serving may have used up a horizon: the flush that raises it is the next turn's, and nothing else may come
        // to start that.
        self.again |= self.progress_pending == 0 && self.flush_is_urgent();
    }

    /// Something outside has changed: credit was granted, room was made, or a consumer has left.
    fn woken(&mut self) {
        if self.partition.left.swap(false, Ordering::AcqRel) {
            let now = self.now();
            self.part_with_consumers(now);
        }
        for slot in self.groups.values_mut() {
            slot.ready |= !slot.consumers.is_empty();
        }
    }

    /// Takes in what a job has brought.
    async fn job(&mut self, done: Result<Done, tokio::task::JoinError>) {
        let done = match done {
            Ok(done) => done,
            Err(error) => {
                // Whatever it was for would wait without end: better that the partition says what is wrong.
                self.fail(&StorageError::Invalid(format!("a read beside the partition panicked: {error}")));
                return;
            }
        };
        match done {
            Done::Read { group, generation, want, outcome } => self.read_done(&group, generation, want, outcome),
            Done::Redriven { group, generation, offset, outcome } => {
                self.redriven_fetched(&group, generation, offset, outcome);
            }
            Done::Graves { group, generation, outcome } => self.bury(&group, generation, outcome).await,
            Done::Letters { group, generation, outcome, reply } => {
                self.redrive(&group, generation, outcome, reply).await;
            }
            Done::Purge { group, generation, outcome, purged, reply } => {
                self.purge(&group, generation, outcome, (purged, reply)).await;
            }
            Done::Removal { range, outcome, reply } => self.remove_rows(range, outcome, reply).await,
            Done::Stories { offset, rows, reply } => drop(reply.send(Ok(self.stories(offset, &rows)))),
            Done::Ages { outcome } => self.retain(outcome),
            Done::Oldest { group, generation, offset, stored_at } => {
                if let Some(slot) = self.slot_of(&group, generation) {
                    slot.oldest = stored_at.map(|stored_at| (offset, stored_at));
                }
            }
        }
    }

    /// When the task has something to do of its own.
    fn next_alarm(&self) -> Monotonic {
        let now = self.now();
        let mut at = self.care_at;
        let mut sooner = |other: Option<Monotonic>| at = other.map_or(at, |other| at.min(other));
        // While a commit of progress is out, its receipt is what the next one waits for.
        sooner(self.flush_at.filter(|_| self.progress_pending == 0));
        for slot in self.groups.values() {
            sooner(slot.state.next_deadline());
            sooner(slot.retry_at);
            sooner(slot.bury_at);
            // What is due already waits for a consumer, not for time.
            let due = slot.state.next_due().filter(|due| *due > now.wall);
            sooner(due.map(|due| now.monotonic.after(due.since(now.wall))));
        }
        at
    }

    /// Some time has come.
    fn tick(&mut self) {
        let now = self.now();
        for slot in self.groups.values_mut() {
            if slot.state.next_deadline().is_some_and(|deadline| deadline <= now.monotonic) {
                slot.order.metrics.returned.inc_by(slot.state.expire(now));
                slot.ready = true;
            }
            if slot.retry_at.is_some_and(|at| at <= now.monotonic) {
                slot.retry_at = None;
                slot.ready = true;
            }
            slot.bury_at = slot.bury_at.filter(|at| *at > now.monotonic);
            slot.ready |= slot.state.next_due().is_some_and(|due| due <= now.wall);
        }
        if self.care_at <= now.monotonic {
            self.care_at = now.monotonic.after(CARE_INTERVAL);
            self.take_care();
        }
    }

    /// What is looked at every now and then.
    fn take_care(&mut self) {
        if self.care_rounds.is_multiple_of(RETENTION_ROUNDS) && self.failed.is_none() && !self.aging {
            self.aging = true;
            self.dedup.expire(self.node.clock.now());
            self.spawn_ages();
        }
        self.care_rounds = self.care_rounds.wrapping_add(1);
        self.notice_drops();
        self.look_up_ages();
        self.show();
    }

    /// A storage in memory may have dropped its oldest batches by itself.
    fn notice_drops(&mut self) {
        let start = self.log_bounds().start;
        for slot in self.groups.values_mut() {
            if slot.state.floor() < start {
                slot.order.metrics.expired.inc_by(slot.state.trimmed(start));
                slot.ready = true;
            }
            if slot.state.retrying() == 0 {
                slot.due.clear();
            }
        }
    }

    /// Whether the deduplication's rows are so far behind that recovery would take too long.
    pub(super) fn dedup_is_behind(&self) -> bool {
        self.dedup_behind.0 >= DEDUP_BATCHES_MAX || self.dedup_behind.1 >= DEDUP_BYTES_MAX
    }

    /// Ends in good order: whatever was acknowledged is durable afterwards, and what was never delivered does not say
    /// that it was.
    async fn wind_up(&mut self) {
        let now = self.now();
        self.jobs.shutdown().await;
        self.part_with_consumers(now);
        for slot in self.groups.values_mut() {
            slot.moving = false;
            for steering in slot.steering.drain(..) {
                steering.refuse(shutting_down());
            }
        }
        self.await_receipts().await;
        for slot in self.groups.values_mut() {
            slot.state.seal();
        }
        // A flush takes as much as fits one change; a handful empties any backlog of progress.
        while self.failed.is_none() && self.anything_to_flush() {
            if !self.flush(true).await {
                break;
            }
            self.await_receipts().await;
        }
        self.show();
        self.log = None;
    }

    async fn await_receipts(&mut self) {
        while let Some(outcome) = self.receipts.next().await {
            self.receipt(outcome);
        }
    }

    pub(super) fn now(&self) -> Now {
        Now { wall: self.node.clock.now(), monotonic: self.node.clock.monotonic() }
    }

    pub(super) fn reader(&self) -> Result<Arc<dyn PartitionReader>, wire::Error> {
        let missing = || refusal(ErrorCode::Unavailable, "the partition is not open");
        self.reader.clone().ok_or_else(missing)
    }

    /// The durable log.
    pub(super) fn log_bounds(&self) -> OffsetRange {
        self.reader.as_ref().map_or_else(OffsetRange::default, |reader| reader.bounds())
    }

    /// How far the groups may be served.
    pub(super) fn durable_end(&self) -> Offset {
        self.log.as_ref().map_or(Offset::ZERO, |log| *log.durable.get())
    }
}

/// Waits for the alarm, wherever it is set.
async fn ring(alarm: &mut Option<(Monotonic, BoxFuture<'_, ()>)>) {
    match alarm {
        Some((_, sleep)) => Pin::new(sleep).await,
        None => std::future::pending().await,
    }
}
