//! Creating, setting, pausing and deleting groups.

use std::sync::Arc;

use futures_util::future::join_all;
use stentor_core::storage::KeyRange;
use stentor_core::{GroupName, TopicName};
use stentor_protocol::{ErrorCode, wire};
use tokio::sync::watch;

use super::Catalogue;
use super::handle::NewGroup;
use super::rows::{self, GroupRow};
use crate::config::SettingMap;
use crate::error::{invalid_filter, invalid_setting, refusal, refused_by_storage};
use crate::filter::Filter;
use crate::node::Node;
use crate::partition::Command;
use crate::settings::SettingError;
use crate::topic::{Group, Topic};

/// The keys of a group that are what it is: its consumers rely on them.
const FIXED: [&str; 2] = ["filter", "ordered"];

/// A group as its settings make it.
pub(super) fn make_group(
    node: &Node,
    topic: &TopicName,
    name: GroupName,
    set: SettingMap,
    paused: bool,
) -> Result<Group, wire::Error> {
    // A filter given by a consumer gets the code of its own.
    let given = set.get("filter").filter(|filter| !filter.is_empty());
    given.map(|filter| Filter::parse(filter)).transpose().map_err(|error| invalid_filter(&error))?;
    let settings = node.config.group_settings(topic, &name, &set).map_err(|error| invalid_setting(&error))?;
    let filter = (!settings.filter.is_empty()).then(|| Filter::parse(&settings.filter).map(Arc::new));
    Ok(Group {
        metrics: node.metrics.group(topic, &name),
        filter: filter.transpose().map_err(|error| invalid_filter(&error))?,
        name,
        set,
        settings,
        paused,
        deleted: Arc::new(watch::Sender::new(false)),
    })
}

impl Catalogue {
    pub(super) async fn create_group(&mut self, order: NewGroup) -> Result<Arc<Group>, wire::Error> {
        let NewGroup { topic, group: name, from, set, or_existing } = order;
        // The topic may have gone, and come again, since whoever asks has seen it.
        let topic = self.node.topic(topic.name.as_str())?;
        if let Ok(existing) = topic.group(name.as_str()) {
            return if or_existing {
                Ok(existing)
            } else {
                Err(refusal(ErrorCode::GroupExists, format!("topic `{}` has a group `{name}` already", topic.name)))
            };
        }
        let group = Arc::new(make_group(&self.node, &topic.name, name, set, false)?);
        let positions = crate::admin::start::positions(&topic, from.as_ref()).await?;
        let adding = topic.partitions().iter().zip(positions).map(|(partition, at)| {
            let order = group.order();
            partition.ask(move |reply| Command::AddGroup { order, at, reply })
        });
        let added: Result<Vec<()>, wire::Error> = join_all(adding).await.into_iter().collect();
        let stored = match added {
            Ok(_) => self.put_group_row(&topic, &group, false).await,
            Err(error) => Err(error),
        };
        if let Err(error) = stored {
            // Nobody knows of it yet. What cannot be taken back now is swept when a group of this name is created.
            let _ = remove_from_partitions(&topic, &group.name).await;
            return Err(error);
        }
        topic.put_group(Arc::clone(&group));
        tracing::info!(topic = %topic.name, group = %group.name, "group created");
        Ok(group)
    }

    pub(super) async fn set_group(&mut self, topic: &str, group: &str, set: SettingMap) -> Result<(), wire::Error> {
        let topic = self.node.topic(topic)?;
        let before = topic.group(group)?;
        if let Some(key) = FIXED.into_iter().find(|key| set.contains_key(*key)) {
            let hint = "delete the group, or create another one";
            return Err(invalid_setting(&SettingError::Fixed { key: key.to_owned(), hint }));
        }
        let mut all = before.set.clone();
        all.extend(set);
        self.change_group(&topic, &before, all, before.paused).await
    }

    pub(super) async fn pause_group(&mut self, topic: &str, group: &str, paused: bool) -> Result<(), wire::Error> {
        let topic = self.node.topic(topic)?;
        let before = topic.group(group)?;
        self.change_group(&topic, &before, before.set.clone(), paused).await
    }

    async fn change_group(
        &mut self,
        topic: &Topic,
        before: &Group,
        set: SettingMap,
        paused: bool,
    ) -> Result<(), wire::Error> {
        let mut after = make_group(&self.node, &topic.name, before.name.clone(), set, paused)?;
        after.deleted = Arc::clone(&before.deleted);
        // The very same filter, so that what was found out about batches in memory stays good.
        after.filter.clone_from(&before.filter);
        let after = Arc::new(after);
        self.put_group_row(topic, &after, false).await?;
        topic.put_group(Arc::clone(&after));
        let telling = topic.partitions().iter().map(|partition| {
            let order = after.order();
            partition.ask(move |reply| Command::UpdateGroup { order, reply })
        });
        // A partition that is out of order learns of it when it is opened again: the row tells.
        note_failures(&topic.name, &after.name, "does not know of the change", join_all(telling).await);
        Ok(())
    }

    pub(super) async fn delete_group(&mut self, topic: &str, group: &str) -> Result<(), wire::Error> {
        let topic = self.node.topic(topic)?;
        let group = topic.group(group)?;
        self.put_group_row(&topic, &group, true).await?;
        topic.remove_group(&group.name);
        group.deleted.send_replace(true);
        self.erase_group(&topic, &group.name).await?;
        self.node.metrics.forget_group(&topic.name, &group.name);
        tracing::info!(topic = %topic.name, group = %group.name, "group deleted");
        Ok(())
    }

    /// The rest of a deletion: the rows in the partitions, and then the group's own. That stays while a partition is out
    /// of order, so that the deletion is finished when the node is started again.
    pub(super) async fn erase_group(&mut self, topic: &Topic, group: &GroupName) -> Result<(), wire::Error> {
        let removed = remove_from_partitions(topic, group).await;
        if note_failures(&topic.name, group, "keeps rows of the deleted group for now", removed) > 0 {
            return Ok(());
        }
        let deletes = vec![KeyRange::single(&rows::group_key(&topic.name, group))];
        self.store.write(Vec::new(), deletes).await.map_err(|error| refused_by_storage(&error))
    }

    async fn put_group_row(&mut self, topic: &Topic, group: &Group, deleting: bool) -> Result<(), wire::Error> {
        let row = GroupRow { set: group.set.clone(), paused: group.paused, deleting };
        let puts = vec![(rows::group_key(&topic.name, &group.name), rows::encode(&row))];
        self.store.write(puts, Vec::new()).await.map_err(|error| refused_by_storage(&error))
    }
}

/// One partition that is out of order does not keep the others from going on. Says how many are.
fn note_failures(topic: &TopicName, group: &GroupName, what: &str, outcomes: Vec<Result<(), wire::Error>>) -> usize {
    let mut failures = 0;
    for (partition, outcome) in outcomes.into_iter().enumerate() {
        if let Err(error) = outcome {
            failures += 1;
            tracing::warn!(%topic, partition, %group, %error, "the partition {what}");
        }
    }
    failures
}

async fn remove_from_partitions(topic: &Topic, group: &GroupName) -> Vec<Result<(), wire::Error>> {
    let removing = topic.partitions().iter().map(|partition| {
        let group = group.clone();
        partition.ask(move |reply| Command::RemoveGroup { group, reply })
    });
    join_all(removing).await
}
