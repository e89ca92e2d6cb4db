//! Where the partitions of a topic are, and what else of it clients go by.
//!
//! A route has a version, which is kept with the topic and grows with every change. A session remembers which topics its
//! client asked for (by a request, or by opening a producer), and tells the client of newer routes unasked
//! ([`Followed`]). Until then the client goes on with what it knows, and is refused where that has become wrong.
//!
//! Invariant: a client that has followed a topic hears of every version that is in force for long enough, in their order;
//! what changes while a topic begins to be followed is told too, if need be twice.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use stentor_core::TopicName;

use stentor_protocol::wire;

use crate::node::Node;
use crate::topic::Topic;

/// The version of a new topic's route.
pub(crate) const FIRST_VERSION: u64 = 1;

/// The topics that a client follows, each with the version that it has been told. Bounded by the number of topics.
#[derive(Default)]
pub(crate) struct Followed {
    // A few looks into a map long, never held across an await.
    told: Mutex<BTreeMap<TopicName, u64>>,
}

impl Followed {
    /// The client is about to be told the route: called before that is read, so that no change falls in between.
    pub(crate) fn add(&self, topic: &Topic) {
        let version = topic.route_version();
        self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(topic.name.clone(), version);
    }

    /// The routes that have changed since the client was told.
    pub(crate) fn news(&self, node: &Node) -> Vec<wire::Route> {
        let mut news = Vec::new();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|name, told| {
            // Of the end of a topic its streams tell.
            let Ok(topic) = node.topic(name.as_str()) else { return false };
            if topic.route_version() > *told {
                let route = of(node, &topic);
                *told = route.version;
                news.push(route);
            }
            true
        });
        news
    }
}

pub(super) async fn get(node: &Node, get: &wire::GetRoute) -> Result<wire::Route, wire::Error> {
    Ok(of(node, &*node.topic_or_create(&get.topic).await?))
}

/// The route of a topic.
pub(crate) fn of(node: &Node, topic: &Topic) -> wire::Route {
    // First: the settings are at least as new.
    let version = topic.route_version();
    let settings = topic.settings();
    let partitions = topic.partitions().iter().map(|partition| wire::RoutePartition {
        index: partition.index.0,
        node: node.config.node.id,
        address: String::new(),
    });
    wire::Route {
        topic: topic.name.to_string(),
        version,
        storage: settings.storage.as_str().to_owned(),
        durability: settings.durability_in_force().as_str().to_owned(),
        message_bytes_max: u32::try_from(settings.message_bytes_max.0).unwrap_or(u32::MAX),
        keyed_partitions: settings.partitions,
        partitions: partitions.collect(),
    }
}
