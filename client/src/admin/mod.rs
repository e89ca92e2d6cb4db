//! Requests about topics, groups, dead letters, messages and nodes.
//!
//! A request that only reads is asked again by itself when the connection is lost meanwhile; one that changes something
//! is then an [`OutcomeUnknown`](RequestError::OutcomeUnknown).

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use stentor_core::{GroupName, TopicName};
use stentor_protocol::wire::{self, request, response};

use crate::error::RequestError;
use crate::link::Link;

mod dead_letters;
mod groups;
mod messages;
mod topics;

pub use dead_letters::{DeadLetter, DeadLetters, DeadLettersPage, Moved, PartitionFailure, Redriven};
pub use messages::{MessageStory, Which};
pub use stentor_protocol::wire::{
    GroupDescription, GroupPartition, GroupStory, NodeDescription, PartitionDescription, Reason, Route, RoutePartition,
    TopicDescription,
};

/// Settings of a topic or a group, by key, as they are written in a configuration.
pub type Settings = BTreeMap<String, String>;

/// Asks the broker to do what is not sending or receiving.
#[derive(Clone)]
pub struct Admin {
    link: Link,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}

impl Admin {
    pub(crate) const fn new(link: Link) -> Self {
        Self { link }
    }

    /// The state of the node that this client is connected to.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn node_status(&self) -> Result<NodeDescription, RequestError> {
        match self.ask(request::Kind::NodeStatus(wire::NodeStatus {})).await? {
            (response::Kind::Node(node), _) => Ok(node),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// The answer to any request, and the bytes that came with it.
    async fn ask(&self, kind: request::Kind) -> Result<(response::Kind, Bytes), RequestError> {
        self.link.request(kind).await
    }

    /// Asks for something to be done of which nothing is to be told.
    async fn order(&self, kind: request::Kind) -> Result<(), RequestError> {
        // Whatever else than an error is said, it was done.
        self.ask(kind).await.map(|_| ())
    }
}

fn unexpected(kind: &response::Kind) -> RequestError {
    let what = match kind {
        response::Kind::Error(_) => "an error",
        response::Kind::Done(_) => "that it is done",
        response::Kind::Route(_) => "a route",
        response::Kind::Topics(_) => "topics",
        response::Kind::Topic(_) => "a topic",
        response::Kind::Groups(_) => "groups",
        response::Kind::Group(_) => "a group",
        response::Kind::DeadLetters(_) => "dead letters",
        response::Kind::Count(_) => "a count",
        response::Kind::Message(_) => "a message",
        response::Kind::Node(_) => "a node",
        response::Kind::InBody(_) => "what stands in the body",
    };
    RequestError::Protocol(format!("it was asked for something else than {what}"))
}

/// A name that a topic can have, as text.
fn topic_name(topic: &str) -> Result<String, RequestError> {
    Ok(TopicName::new(topic)?.to_string())
}

/// Names that a topic and its group can have, as text.
fn names(topic: &str, group: &str) -> Result<(String, String), RequestError> {
    Ok((topic_name(topic)?, GroupName::new(group)?.to_string()))
}
