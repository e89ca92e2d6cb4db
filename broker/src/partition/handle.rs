//! A partition as everybody but its task sees it.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use stentor_core::storage::PartitionReader;
use stentor_core::{PartitionId, PartitionIndex};
use stentor_protocol::{ErrorCode, wire};
use tokio::sync::{Notify, mpsc, oneshot};

use super::command::{Command, GroupOrder, PartitionStats, Publish, Reply};
use super::task::Task;
use crate::error::{refusal, shutting_down};
use crate::node::Node;
use crate::topic::Topic;

/// How many publishes wait for the task, all producers together. What they hold is bounded by the in-flight bytes.
const PUBLISHES_WAITING_MAX: usize = 512;

/// How many commands wait for the task.
const COMMANDS_WAITING_MAX: usize = 256;

/// A partition of a topic on this node.
pub(crate) struct Partition {
    pub(crate) index: PartitionIndex,
    pub(crate) id: PartitionId,
    publishes: mpsc::Sender<Publish>,
    commands: mpsc::Sender<Command>,
    /// None when the partition could not be opened.
    reader: Option<Arc<dyn PartitionReader>>,
    pub(super) wake: Notify,
    /// Whether a consumer has left since the task looked.
    pub(super) left: AtomicBool,
    /// Whether the task has panicked.
    panicked: AtomicBool,
    /// What the task last said of itself, for whoever cannot wait for an answer.
    glance: Mutex<PartitionStats>,
}

/// Opens a partition, recovers what its groups were doing, and starts its task. A partition that cannot be opened is
/// there all the same, and says why.
pub(crate) async fn open(node: &Arc<Node>, topic: &Topic, index: PartitionIndex, id: PartitionId) -> Arc<Partition> {
    let (publishes, publishes_in) = mpsc::channel(PUBLISHES_WAITING_MAX);
    let (commands, commands_in) = mpsc::channel(COMMANDS_WAITING_MAX);
    let groups: Vec<GroupOrder> = topic.groups().iter().map(|group| group.order()).collect();
    let opened = super::recovery::open(node, topic, id, groups).await;
    let reader = opened.as_ref().ok().map(|opened| Arc::clone(&opened.reader));
    if let Err(error) = &opened {
        tracing::error!(topic = %topic.name, partition = %index, %error, "the partition cannot be opened");
    }
    let partition = Arc::new(Partition {
        index,
        id,
        publishes,
        commands,
        reader,
        wake: Notify::new(),
        left: AtomicBool::new(false),
        panicked: AtomicBool::new(false),
        glance: Mutex::default(),
    });
    let task = Task::new(node, topic, Arc::clone(&partition), opened);
    node.partition_tasks.spawn(watch(Arc::clone(&partition), task.run(publishes_in, commands_in)));
    partition
}

/// Runs the task of a partition. Should it panic, the partition says so, and the others go on.
async fn watch(partition: Arc<Partition>, task: impl Future<Output = ()>) {
    // What the task owned goes with it; what it shares are channels, counters and the glance, whole at any moment.
    if AssertUnwindSafe(task).catch_unwind().await.is_err() {
        tracing::error!(partition = %partition.id, "the task of the partition panicked");
        let state = "failed: its task panicked; restart the node to open it again".to_owned();
        partition.show(PartitionStats { state, ..partition.glance() });
        partition.panicked.store(true, Ordering::Release);
    }
}

impl Partition {
    /// Hands a batch to the task. Waits while too many wait: that is how a slow disk slows its publishers.
    pub(crate) async fn publish(&self, publish: Publish) {
        if let Err(mpsc::error::SendError(publish)) = self.publishes.send(publish).await {
            publish.answer.refused(self.gone());
        }
    }

    /// Asks the task and waits for its answer.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, wire::Error> {
        let (reply, answer) = oneshot::channel();
        self.tell(command(reply)).await?;
        answer.await.map_err(|_| self.gone())?
    }

    /// Tells the task something.
    pub(crate) async fn tell(&self, command: Command) -> Result<(), wire::Error> {
        self.commands.send(command).await.map_err(|_| self.gone())
    }

    /// Why the task does not answer: the node goes down, or the task has panicked.
    fn gone(&self) -> wire::Error {
        if self.panicked.load(Ordering::Acquire) {
            return refusal(ErrorCode::Unavailable, self.glance().state);
        }
        shutting_down()
    }

    /// Ends the task; returns when everything is durable and the writer is gone.
    pub(crate) async fn shut_down(&self) {
        // It may have ended already.
        let _ = self.tell(Command::Shutdown).await;
        self.commands.closed().await;
    }

    /// Has the task look again whether its groups can be served.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Has the task look for consumers that have left.
    pub(crate) fn consumer_left(&self) {
        self.left.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// A reader of the log and the table.
    pub(crate) fn reader(&self) -> Result<&Arc<dyn PartitionReader>, wire::Error> {
        let missing = || refusal(ErrorCode::Unavailable, self.glance().state);
        self.reader.as_ref().ok_or_else(missing)
    }

    /// What the task last said of itself.
    pub(crate) fn glance(&self) -> PartitionStats {
        self.glance.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn show(&self, stats: PartitionStats) {
        *self.glance.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition").field("index", &self.index).field("id", &self.id).finish_non_exhaustive()
    }
}
