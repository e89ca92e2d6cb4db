//! Topics.

use futures_util::future::join_all;
use stentor_core::TopicName;
use stentor_protocol::wire;

use super::group;
use crate::error::invalid_name;
use crate::node::Node;
use crate::partition::{Command, PartitionStats};
use crate::topic::Topic;

pub(super) async fn create(node: &Node, create: wire::CreateTopic) -> Result<(), wire::Error> {
    let name = TopicName::new(&create.name).map_err(|error| invalid_name(&error))?;
    node.catalogue.create_topic(name, create.settings.into_iter().collect()).await?;
    Ok(())
}

/// Every topic, as it last showed itself.
pub(super) fn list(node: &Node) -> wire::Topics {
    let describe = |topic: &Topic| {
        let stats: Vec<_> = topic.partitions().iter().map(|partition| partition.glance()).collect();
        description(node, topic, &stats, Vec::new())
    };
    wire::Topics { topics: node.topics().iter().map(|topic| describe(topic)).collect() }
}

pub(super) async fn show(node: &Node, show: &wire::ShowTopic) -> Result<wire::TopicDescription, wire::Error> {
    let topic = node.topic(&show.name)?;
    let stats = stats(&topic).await;
    let mut groups = Vec::new();
    for group in topic.groups() {
        groups.push(group::describe(node, &topic, &group, &stats).await);
    }
    Ok(description(node, &topic, &stats, groups))
}

/// What each partition says of itself now; one that cannot answer as it last showed itself.
pub(super) async fn stats(topic: &Topic) -> Vec<PartitionStats> {
    let asking = topic.partitions().iter().map(|partition| async move {
        partition.ask(|reply| Command::Describe { reply }).await.unwrap_or_else(|_| partition.glance())
    });
    join_all(asking).await
}

fn description(
    node: &Node,
    topic: &Topic,
    stats: &[PartitionStats],
    groups: Vec<wire::GroupDescription>,
) -> wire::TopicDescription {
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
        groups,
        settings: settings.entries().into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    }
}
