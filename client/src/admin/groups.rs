//! Subscriber groups.

use bytes::Bytes;
use stentor_protocol::wire::{self, request, response};

use super::{Admin, GroupDescription, Settings, names, topic_name, unexpected};
use crate::consumer::StartAt;
use crate::error::RequestError;

impl Admin {
    /// Creates a group, which starts at the latest unless `from` says otherwise.
    ///
    /// # Errors
    /// See [`RequestError`]; `group_exists` when there is one of this name.
    pub async fn create_group(
        &self,
        topic: &str,
        group: &str,
        from: Option<StartAt>,
        settings: Settings,
    ) -> Result<(), RequestError> {
        let (topic, group) = names(topic, group)?;
        let create = wire::CreateGroup { topic, group, from: from.map(Into::into), settings };
        self.order(request::Kind::CreateGroup(create)).await
    }

    /// The groups of a topic, or of all topics.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn list_groups(&self, topic: Option<&str>) -> Result<Vec<GroupDescription>, RequestError> {
        let topic = topic.map(topic_name).transpose()?.unwrap_or_default();
        let mut all = Vec::new();
        self.list_groups_behind(&topic, Bytes::new(), &mut all).await?;
        Ok(all)
    }

    /// Adds the groups behind `after` to `all`, page by page.
    pub(super) async fn list_groups_behind(
        &self,
        topic: &str,
        mut after: Bytes,
        all: &mut Vec<GroupDescription>,
    ) -> Result<(), RequestError> {
        loop {
            let list = wire::ListGroups { topic: topic.to_owned(), after };
            match self.ask(request::Kind::ListGroups(list)).await? {
                (response::Kind::Groups(page), _) => {
                    all.extend(page.groups);
                    if page.next.is_empty() {
                        return Ok(());
                    }
                    after = page.next;
                }
                (other, _) => return Err(unexpected(&other)),
            }
        }
    }

    /// How a group is doing.
    ///
    /// # Errors
    /// See [`RequestError`]; `group_not_found` when there is none.
    pub async fn show_group(&self, topic: &str, group: &str) -> Result<GroupDescription, RequestError> {
        let (topic, group) = names(topic, group)?;
        match self.ask(request::Kind::ShowGroup(wire::ShowGroup { topic, group })).await? {
            (response::Kind::Group(group), _) => Ok(group),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Changes settings of a group; the others stay.
    ///
    /// # Errors
    /// See [`RequestError`]; `invalid` when a key or a value does not do.
    pub async fn set_group(&self, topic: &str, group: &str, settings: Settings) -> Result<(), RequestError> {
        let (topic, group) = names(topic, group)?;
        self.order(request::Kind::SetGroup(wire::SetGroup { topic, group, settings })).await
    }

    /// Moves a group: it goes on from there, whatever it has acknowledged.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn seek_group(&self, topic: &str, group: &str, to: StartAt) -> Result<(), RequestError> {
        let (topic, group) = names(topic, group)?;
        self.order(request::Kind::SeekGroup(wire::SeekGroup { topic, group, to: Some(to.into()) })).await
    }

    /// Stops the deliveries to a group.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn pause_group(&self, topic: &str, group: &str) -> Result<(), RequestError> {
        self.set_paused(topic, group, true).await
    }

    /// Lets the deliveries to a group go on.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn resume_group(&self, topic: &str, group: &str) -> Result<(), RequestError> {
        self.set_paused(topic, group, false).await
    }

    async fn set_paused(&self, topic: &str, group: &str, paused: bool) -> Result<(), RequestError> {
        let (topic, group) = names(topic, group)?;
        self.order(request::Kind::PauseGroup(wire::PauseGroup { topic, group, paused })).await
    }

    /// Deletes a group, with its dead letters and all it remembers.
    ///
    /// # Errors
    /// See [`RequestError`]; `group_not_found` when there is none.
    pub async fn delete_group(&self, topic: &str, group: &str) -> Result<(), RequestError> {
        let (topic, group) = names(topic, group)?;
        self.order(request::Kind::DeleteGroup(wire::DeleteGroup { topic, group })).await
    }
}
