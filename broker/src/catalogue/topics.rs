//! Creating, setting and deleting topics, and finding them again at start.

use std::sync::Arc;

use futures_util::{FutureExt, StreamExt, stream};
use stentor_core::storage::KeyRange;
use stentor_core::{PartitionId, PartitionIndex, TopicName};
use stentor_protocol::{ErrorCode, wire};

use super::groups::make_group;
use super::rows::{self, Contents, TopicRow};
use super::{Catalogue, Store};
use crate::admin::route;
use crate::broker::StartError;
use crate::config::SettingMap;
use crate::error::{advise, invalid_setting, refusal, refused_by_storage, shutting_down};
use crate::node::{Node, Phase};
use crate::partition::{self, Command};
use crate::settings::{SettingError, StorageKind, TopicSettings};
use crate::topic::Topic;

/// How many partitions are opened at the same time: enough for their syncs to be shared.
const OPENED_AT_ONCE: usize = 64;

/// The keys of a topic that count only when its partitions are opened, and what to do instead of setting them.
const FIXED: [(&str, &str); 5] = [
    ("storage", "create another topic"),
    ("partitions", "create another topic"),
    ("durability", "set it in the configuration and restart the node"),
    ("memory_max", "set it in the configuration and restart the node"),
    ("when_full", "set it in the configuration and restart the node"),
];

/// Brings up everything that the catalogue holds, finishes what was being deleted, and creates the topics that the
/// configuration names.
pub(crate) async fn start(node: Arc<Node>, store: Store, contents: Contents) -> Result<Catalogue, StartError> {
    let mut catalogue = Catalogue { node, store };
    let Contents { topics, groups, .. } = contents;
    for (name, row) in topics {
        let failed = |source| StartError::Storage { context: format!("topic `{name}` cannot be deleted"), source };
        if row.deleting {
            let kind = storage_kind(&name, &row)?;
            catalogue.erase(&name, kind, &row.partitions).await.map_err(failed)?;
            continue;
        }
        let of_topic = groups.iter().filter(|((topic, _), _)| *topic == name);
        let of_topic: Vec<_> = of_topic.map(|((_, group), row)| (group.clone(), row.clone())).collect();
        catalogue.bring_up(&name, &row, of_topic).await?;
    }
    let exact: Vec<TopicName> = catalogue.node.config.exact_topics().collect();
    for name in exact {
        let failed = |error: wire::Error| StartError::Topic { topic: name.to_string(), error: error.to_string() };
        catalogue.ensure_topic(name.clone()).await.map_err(failed)?;
    }
    Ok(catalogue)
}

fn storage_kind(name: &TopicName, row: &TopicRow) -> Result<StorageKind, StartError> {
    let found = StorageKind::ALL.into_iter().find(|kind| kind.as_str() == row.storage);
    found.ok_or_else(|| StartError::Catalogue(format!("topic `{name}` is kept by unknown storage `{}`", row.storage)))
}

impl Catalogue {
    /// Opens the partitions of a topic that the catalogue holds.
    async fn bring_up(
        &mut self,
        name: &TopicName,
        row: &TopicRow,
        groups: Vec<(stentor_core::GroupName, rows::GroupRow)>,
    ) -> Result<(), StartError> {
        let storage = storage_kind(name, row)?;
        if !self.node.storages.contains_key(&storage) {
            return Err(StartError::StorageMissing { topic: name.to_string(), storage });
        }
        let topic_error = |error: String| StartError::Topic { topic: name.to_string(), error };
        // What was fixed when it was created stays, whatever the configuration says now.
        let mut set = row.set.clone();
        set.insert("storage".to_owned(), row.storage.clone());
        set.insert("partitions".to_owned(), row.partitions.len().to_string());
        let settings = self.node.config.topic_settings(name, &set).map_err(|error| topic_error(error.to_string()))?;
        let version = row.route_version.max(route::FIRST_VERSION);
        let topic = Arc::new(Topic::new(name.clone(), settings, self.node.metrics.topic(name), version));
        topic.set_set(row.set.clone());
        let mut unfinished = Vec::new();
        for (group, row) in groups {
            if row.deleting {
                unfinished.push(group);
                continue;
            }
            let made = make_group(&self.node, name, group, row.set, row.paused);
            topic.put_group(Arc::new(made.map_err(|error| topic_error(error.to_string()))?));
        }
        self.open_partitions(&topic, &row.partitions).await;
        for group in unfinished {
            if let Err(error) = self.erase_group(&topic, &group).await {
                // A partition is out of order; the next start tries again.
                tracing::warn!(topic = %name, %group, %error, "a deleted group cannot be swept up yet");
            }
        }
        self.node.put_topic(topic);
        Ok(())
    }

    async fn open_partitions(&mut self, topic: &Arc<Topic>, ids: &[u64]) {
        let opening = (0..).zip(ids.to_vec()).map(|(index, id)| {
            let (node, topic) = (Arc::clone(&self.node), Arc::clone(topic));
            async move { partition::open(&node, &topic, PartitionIndex(index), PartitionId(id)).await }.boxed()
        });
        let opening: Vec<_> = opening.collect();
        // In their order, so that a partition stands at its index.
        let opened: Vec<_> = stream::iter(opening).buffered(OPENED_AT_ONCE).collect().await;
        topic.opened(opened);
    }

    pub(super) async fn ensure_topic(&mut self, name: TopicName) -> Result<Arc<Topic>, wire::Error> {
        match self.node.topic(name.as_str()) {
            Ok(topic) => Ok(topic),
            Err(_) => self.create_topic(name, SettingMap::new()).await,
        }
    }

    pub(super) async fn create_topic(&mut self, name: TopicName, set: SettingMap) -> Result<Arc<Topic>, wire::Error> {
        if self.node.phase() != Phase::Running {
            return Err(shutting_down());
        }
        if self.node.topic(name.as_str()).is_ok() {
            return Err(refusal(ErrorCode::TopicExists, format!("there is a topic `{name}` already")));
        }
        let settings = self.node.config.topic_settings(&name, &set).map_err(|error| invalid_setting(&error))?;
        self.check_storage(&settings)?;
        let first = self.store.next_partition;
        let ids: Vec<u64> = (first..).take(settings.partitions as usize).collect();
        let row = TopicRow {
            storage: settings.storage.as_str().to_owned(),
            partitions: ids.clone(),
            set: set.clone(),
            deleting: false,
            route_version: route::FIRST_VERSION,
        };
        let next = first + u64::from(settings.partitions);
        let puts = vec![rows::next_partition(next), (rows::topic_key(&name), rows::encode(&row))];
        self.store.write(puts, Vec::new()).await.map_err(|error| refused_by_storage(&error))?;
        self.store.next_partition = next;
        let topic = Topic::new(name.clone(), settings, self.node.metrics.topic(&name), row.route_version);
        let topic = Arc::new(topic);
        topic.set_set(set);
        self.open_partitions(&topic, &ids).await;
        self.node.put_topic(Arc::clone(&topic));
        tracing::info!(topic = %name, storage = %topic.settings().storage, partitions = ids.len(), "topic created");
        Ok(topic)
    }

    fn check_storage(&self, settings: &TopicSettings) -> Result<(), wire::Error> {
        let Some(storage) = self.node.storages.get(&settings.storage) else {
            let there: Vec<_> = self.node.storages.keys().map(|kind| kind.as_str()).collect();
            let message = format!("this node has no storage `{}`", settings.storage);
            return Err(advise(ErrorCode::Invalid, message, &format!("use {}", there.join(" or "))));
        };
        let durability = settings.durability_in_force();
        if storage.keeps().contains(&durability) {
            return Ok(());
        }
        let message = format!("storage `{}` does not keep durability `{durability}`", settings.storage);
        Err(refusal(ErrorCode::DurabilityUnsupported, message))
    }

    pub(super) async fn set_topic(&mut self, name: &str, set: SettingMap) -> Result<(), wire::Error> {
        let topic = self.node.topic(name)?;
        for (key, hint) in FIXED {
            if set.contains_key(key) {
                let error = SettingError::Fixed { key: key.to_owned(), hint };
                return Err(invalid_setting(&error));
            }
        }
        let mut row = self.topic_row(&topic);
        row.set.extend(set);
        row.route_version += 1;
        let mut all = row.set.clone();
        all.insert("storage".to_owned(), row.storage.clone());
        all.insert("partitions".to_owned(), row.partitions.len().to_string());
        let settings = self.node.config.topic_settings(&topic.name, &all).map_err(|error| invalid_setting(&error))?;
        self.put_topic_row(&topic.name, &row).await?;
        topic.set_set(row.set);
        let settings = topic.set_settings(settings);
        topic.set_route_version(row.route_version);
        self.node.route_changes.send_modify(|changes| *changes += 1);
        for partition in topic.partitions() {
            partition.tell(Command::Settings { settings: Arc::clone(&settings) }).await?;
        }
        Ok(())
    }

    pub(super) async fn delete_topic(&mut self, name: &str) -> Result<(), wire::Error> {
        let topic = self.node.topic(name)?;
        let row = TopicRow { deleting: true, ..self.topic_row(&topic) };
        self.put_topic_row(&topic.name, &row).await?;
        self.node.remove_topic(name);
        topic.deleted.send_replace(true);
        for partition in topic.partitions() {
            partition.shut_down().await;
        }
        for group in topic.groups() {
            self.node.metrics.forget_group(&topic.name, &group.name);
        }
        self.node.metrics.forget_topic(&topic.name);
        let erased = self.erase(&topic.name, topic.settings().storage, &row.partitions).await;
        erased.map_err(|error| refused_by_storage(&error))?;
        tracing::info!(topic = %topic.name, "topic deleted");
        Ok(())
    }

    /// The rest of a deletion: the partitions, and then the rows.
    async fn erase(
        &mut self,
        name: &TopicName,
        storage: StorageKind,
        partitions: &[u64],
    ) -> Result<(), stentor_core::storage::StorageError> {
        if let Some(storage) = self.node.storages.get(&storage) {
            for id in partitions {
                storage.delete(PartitionId(*id)).await?;
            }
        }
        let deletes = vec![rows::groups_of(name), KeyRange::single(&rows::topic_key(name))];
        self.store.write(Vec::new(), deletes).await
    }

    fn topic_row(&self, topic: &Topic) -> TopicRow {
        TopicRow {
            storage: topic.settings().storage.as_str().to_owned(),
            partitions: topic.partitions().iter().map(|partition| partition.id.0).collect(),
            set: topic.set(),
            deleting: false,
            route_version: topic.route_version(),
        }
    }

    async fn put_topic_row(&mut self, name: &TopicName, row: &TopicRow) -> Result<(), wire::Error> {
        let puts = vec![(rows::topic_key(name), rows::encode(row))];
        self.store.write(puts, Vec::new()).await.map_err(|error| refused_by_storage(&error))
    }
}
