//! Where the partitions of a topic are.

use stentor_protocol::wire;

use crate::node::Node;
use crate::topic::Topic;

/// There is one node, so routes never change.
const VERSION: u64 = 1;

pub(super) async fn get(node: &Node, get: &wire::GetRoute) -> Result<wire::Route, wire::Error> {
    Ok(of(node, &*node.topic_or_create(&get.topic).await?))
}

/// The route of a topic.
pub(crate) fn of(node: &Node, topic: &Topic) -> wire::Route {
    let settings = topic.settings();
    let partitions = topic.partitions().iter().map(|partition| wire::RoutePartition {
        index: partition.index.0,
        node: node.config.node.id,
        address: String::new(),
    });
    wire::Route {
        topic: topic.name.to_string(),
        version: VERSION,
        storage: settings.storage.as_str().to_owned(),
        durability: settings.durability_in_force().as_str().to_owned(),
        message_bytes_max: u32::try_from(settings.message_bytes_max.0).unwrap_or(u32::MAX),
        keyed_partitions: settings.partitions,
        partitions: partitions.collect(),
    }
}
