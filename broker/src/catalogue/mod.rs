//! The catalogue: which topics and groups there are, durably.
//!
//! It lives in the table of an internal partition, and one task changes it, so that creating, setting and deleting
//! happen one after the other. Looking up a topic or a group does not come here.
//!
//! Invariants:
//! - a topic's row is durable before its partitions exist, and goes after they are gone: a crash in between leaves work
//!   that the next start finishes, never a partition that nobody knows;
//! - a group's row is durable only after every partition knows the group, and stays until none does;
//! - numbers of partitions are never used twice.

mod groups;
mod handle;
mod rows;
mod store;
mod topics;

pub(crate) use handle::{Handle, NewGroup};
pub(crate) use store::Store;
pub(crate) use topics::start;

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::node::Node;
use handle::Operation;

/// How many operations wait for the catalogue.
const OPERATIONS_WAITING_MAX: usize = 64;

/// A handle on a catalogue, and what its task will take operations from.
pub(crate) fn channel() -> (Handle, mpsc::Receiver<Operation>) {
    let (operations, taken) = mpsc::channel(OPERATIONS_WAITING_MAX);
    (Handle::new(operations), taken)
}

/// The task of the catalogue.
pub(crate) struct Catalogue {
    node: Arc<Node>,
    store: Store,
}

impl Catalogue {
    /// Takes operations until it is told to end.
    pub(crate) async fn run(mut self, mut operations: mpsc::Receiver<Operation>) {
        while let Some(operation) = operations.recv().await {
            match operation {
                Operation::CreateTopic { name, set, reply } => drop(reply.send(self.create_topic(name, set).await)),
                Operation::EnsureTopic { name, reply } => drop(reply.send(self.ensure_topic(name).await)),
                Operation::SetTopic { name, set, reply } => drop(reply.send(self.set_topic(&name, set).await)),
                Operation::DeleteTopic { name, reply } => drop(reply.send(self.delete_topic(&name).await)),
                Operation::CreateGroup { order, reply } => drop(reply.send(self.create_group(order).await)),
                Operation::SetGroup { topic, group, set, reply } => {
                    drop(reply.send(self.set_group(&topic, &group, set).await));
                }
                Operation::PauseGroup { topic, group, paused, reply } => {
                    drop(reply.send(self.pause_group(&topic, &group, paused).await));
                }
                Operation::DeleteGroup { topic, group, reply } => {
                    drop(reply.send(self.delete_group(&topic, &group).await));
                }
                Operation::Shutdown => break,
            }
        }
    }
}
