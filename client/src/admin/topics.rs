//! Topics.

use bytes::Bytes;
use stentor_protocol::wire::{self, request, response};

use super::{Admin, Route, Settings, TopicDescription, topic_name, unexpected};
use crate::error::RequestError;

impl Admin {
    /// Creates a topic. What `settings` does not say comes from the broker's configuration.
    ///
    /// # Errors
    /// See [`RequestError`]; `topic_exists` when there is one of this name.
    pub async fn create_topic(&self, topic: &str, settings: Settings) -> Result<(), RequestError> {
        let name = topic_name(topic)?;
        self.order(request::Kind::CreateTopic(wire::CreateTopic { name, settings })).await
    }

    /// All topics, without their groups.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn list_topics(&self) -> Result<Vec<TopicDescription>, RequestError> {
        let (mut all, mut after) = (Vec::new(), Bytes::new());
        loop {
            match self.ask(request::Kind::ListTopics(wire::ListTopics { after })).await? {
                (response::Kind::Topics(page), _) => {
                    all.extend(page.topics);
                    if page.next.is_empty() {
                        return Ok(all);
                    }
                    after = page.next;
                }
                (other, _) => return Err(unexpected(&other)),
            }
        }
    }

    /// A topic with its partitions and groups.
    ///
    /// # Errors
    /// See [`RequestError`]; `topic_not_found` when there is none.
    pub async fn show_topic(&self, topic: &str) -> Result<TopicDescription, RequestError> {
        let name = topic_name(topic)?;
        match self.ask(request::Kind::ShowTopic(wire::ShowTopic { name })).await? {
            (response::Kind::Topic(mut topic), _) => {
                let next = std::mem::take(&mut topic.groups_next);
                if !next.is_empty() {
                    self.list_groups_behind(&topic.name, next, &mut topic.groups).await?;
                }
                Ok(topic)
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Changes settings of a topic; the others stay.
    ///
    /// # Errors
    /// See [`RequestError`]; `invalid` when a key or a value does not do.
    pub async fn set_topic(&self, topic: &str, settings: Settings) -> Result<(), RequestError> {
        let name = topic_name(topic)?;
        self.order(request::Kind::SetTopic(wire::SetTopic { name, settings })).await
    }

    /// Deletes a topic, with its messages and groups.
    ///
    /// # Errors
    /// See [`RequestError`]; `topic_not_found` when there is none.
    pub async fn delete_topic(&self, topic: &str) -> Result<(), RequestError> {
        let name = topic_name(topic)?;
        self.order(request::Kind::DeleteTopic(wire::DeleteTopic { name })).await
    }

    /// Where the partitions of a topic are.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn route(&self, topic: &str) -> Result<Route, RequestError> {
        let topic = topic_name(topic)?;
        match self.ask(request::Kind::GetRoute(wire::GetRoute { topic })).await? {
            (response::Kind::Route(route), _) => Ok(route),
            (other, _) => Err(unexpected(&other)),
        }
    }
}
