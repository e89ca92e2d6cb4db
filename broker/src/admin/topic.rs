//! Topics.

use bytes::Bytes;
use futures_util::future::join_all;
use stentor_core::TopicName;
use stentor_protocol::wire;

use super::group;
use super::page::{self, Page};
use crate::error::invalid_name;
use crate::node::Node;
use crate::partition::{Command, PartitionStats};
use crate::topic::Topic;

pub(super) async fn create(node: &Node, create: wire::CreateTopic) -> Result<(), wire::Error> {
    let name = TopicName::new(&create.name).map_err(|error| invalid_name(&error))?;
    node.catalogue.create_topic(name, create.settings.into_iter().collect()).await?;
    Ok(())
}

/// The topics, as they last showed themselves.
pub(super) fn list(node: &Node, list: &wire::ListTopics) -> Result<wire::Topics, wire::Error> {
    let after = page::after_topic(&list.after)?;
    let mut page = Page::new();
    let mut next = Bytes::new();
    for topic in node.topics_after(after.as_ref()) {
        if page.is_full() {
            next = page.entries.last().map_or(next, |last: &wire::TopicDescription| page::token_of_topic(&last.name));
            break;
        }
        let stats: Vec<_> = topic.partitions().iter().map(|partition| partition.glance()).collect();
        page.push(description(node, &topic, &stats));
    }
    Ok(wire::Topics { topics: page.entries, next })
}

pub(super) async fn show(node: &Node, show: &wire::ShowTopic) -> Result<wire::TopicDescription, wire::Error> {
    let topic = node.topic(&show.name)?;
    let stats = stats(&topic).await;
    let mut page = Page::new();
    let groups_next = group::fill(node, &topic, None, &stats, &mut page).await;
    Ok(wire::TopicDescription { groups: page.entries, groups_next, ..description(node, &topic, &stats) })
}

/// What each partition says of itself now; one that cannot answer as it last showed itself.
pub(super) async fn stats(topic: &Topic) -> Vec<PartitionStats> {
    let asking = topic.partitions().iter().map(|partition| async move {
        partition.ask(|reply| Command::Describe { reply }).await.unwrap_or_else(|_| partition.glance())
    });
    join_all(asking).await
}

/// A topic without its groups.
fn description(node: &Node, topic: &Topic, stats: &[PartitionStats]) -> wire::TopicDescription {
    let settings = topic.settings();
    let partitions = topic.partitions().iter().zip(stats).map(|(partition, stats)| wire::PartitionDescription {
        partition: partition.index.0,
        node: node.config.node.id,
        start: stats.log.start.0,
        end: stats.log.end.0,
        bytes: stats.bytes,
        replicas: 1,
        leader: node.config.node.id,
        lag: 0,
        state: stats.state.clone(),
    });
    wire::TopicDescription {
        name: topic.name.to_string(),
        storage: settings.storage.as_str().to_owned(),
        durability: settings.durability_in_force().as_str().to_owned(),
        partitions: partitions.collect(),
        groups: Vec::new(),
        groups_next: Bytes::new(),
        settings: settings.entries().into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    }
}
