//! How the rest of the broker asks the catalogue.

use std::sync::Arc;

use stentor_core::{GroupName, TopicName};
use stentor_protocol::wire;
use tokio::sync::{mpsc, oneshot};

use crate::config::SettingMap;
use crate::error::gone;
use crate::topic::{Group, Topic};

type Reply<T> = oneshot::Sender<Result<T, wire::Error>>;

/// A group that is to be created.
pub(crate) struct NewGroup {
    pub(crate) topic: Arc<Topic>,
    pub(crate) group: GroupName,
    /// Where it begins; nothing: at the latest message.
    pub(crate) from: Option<wire::StartAt>,
    pub(crate) set: SettingMap,
    /// Whether one that exists will do.
    pub(crate) or_existing: bool,
}

pub(crate) enum Operation {
    CreateTopic { name: TopicName, set: SettingMap, reply: Reply<Arc<Topic>> },
    EnsureTopic { name: TopicName, reply: Reply<Arc<Topic>> },
    SetTopic { name: String, set: SettingMap, reply: Reply<()> },
    DeleteTopic { name: String, reply: Reply<()> },
    CreateGroup { order: NewGroup, reply: Reply<Arc<Group>> },
    SetGroup { topic: String, group: String, set: SettingMap, reply: Reply<()> },
    PauseGroup { topic: String, group: String, paused: bool, reply: Reply<()> },
    DeleteGroup { topic: String, group: String, reply: Reply<()> },
    Shutdown,
}

/// A handle on the catalogue's task.
#[derive(Clone)]
pub(crate) struct Handle {
    operations: mpsc::Sender<Operation>,
}

impl Handle {
    pub(super) fn new(operations: mpsc::Sender<Operation>) -> Self {
        Self { operations }
    }

    async fn ask<T>(&self, operation: impl FnOnce(Reply<T>) -> Operation) -> Result<T, wire::Error> {
        let (reply, answer) = oneshot::channel();
        self.operations.send(operation(reply)).await.map_err(gone)?;
        answer.await.map_err(gone)?
    }

    pub(crate) async fn create_topic(&self, name: TopicName, set: SettingMap) -> Result<Arc<Topic>, wire::Error> {
        self.ask(|reply| Operation::CreateTopic { name, set, reply }).await
    }

    /// The topic, created as the configuration says if it is missing.
    pub(crate) async fn ensure_topic(&self, name: TopicName) -> Result<Arc<Topic>, wire::Error> {
        self.ask(|reply| Operation::EnsureTopic { name, reply }).await
    }

    pub(crate) async fn set_topic(&self, name: String, set: SettingMap) -> Result<(), wire::Error> {
        self.ask(|reply| Operation::SetTopic { name, set, reply }).await
    }

    pub(crate) async fn delete_topic(&self, name: String) -> Result<(), wire::Error> {
        self.ask(|reply| Operation::DeleteTopic { name, reply }).await
    }

    pub(crate) async fn create_group(&self, order: NewGroup) -> Result<Arc<Group>, wire::Error> {
        self.ask(|reply| Operation::CreateGroup { order, reply }).await
    }

    pub(crate) async fn set_group(&self, topic: String, group: String, set: SettingMap) -> Result<(), wire::Error> {
        self.ask(|reply| Operation::SetGroup { topic, group, set, reply }).await
    }

    pub(crate) async fn pause_group(&self, topic: String, group: String, paused: bool) -> Result<(), wire::Error> {
        self.ask(|reply| Operation::PauseGroup { topic, group, paused, reply }).await
    }

    pub(crate) async fn delete_group(&self, topic: String, group: String) -> Result<(), wire::Error> {
        self.ask(|reply| Operation::DeleteGroup { topic, group, reply }).await
    }

    /// Ends the task.
    pub(crate) async fn shut_down(&self) {
        // It may have ended already.
        let _ = self.operations.send(Operation::Shutdown).await;
    }
}
