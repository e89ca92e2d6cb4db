//! Groups.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use stentor_core::{GroupName, Offset, Timestamp};
use stentor_protocol::wire;

use super::page::{self, Page};
use super::{start, topic};
use crate::catalogue::NewGroup;
use crate::error::invalid_name;
use crate::node::Node;
use crate::partition::{Command, Partition, PartitionStats};
use crate::topic::{Group, Topic};

pub(super) async fn create(node: &Node, create: wire::CreateGroup) -> Result<(), wire::Error> {
    let topic = node.topic_or_create(&create.topic).await?;
    let group = GroupName::new(&create.group).map_err(|error| invalid_name(&error))?;
    let set = create.settings.into_iter().collect();
    let order = NewGroup { topic, group, from: create.from, set, or_existing: false };
    node.catalogue.create_group(order).await?;
    Ok(())
}

pub(super) async fn list(node: &Node, list: &wire::ListGroups) -> Result<wire::Groups, wire::Error> {
    let after = page::after_group(&list.after)?;
    let mut topics = Vec::new();
    if list.topic.is_empty() {
        // The one that the last page has ended in, if it is still there, and those behind it.
        topics.extend(after.as_ref().and_then(|(topic, _)| node.topic(topic.as_str()).ok()));
        topics.extend(node.topics_after(after.as_ref().map(|(topic, _)| topic)));
    } else {
        topics.push(node.topic(&list.topic)?);
    }
    let mut page = Page::new();
    for topic in topics {
        let after = after.as_ref().filter(|(name, _)| *name == topic.name).map(|(_, group)| group);
        if topic.groups_after(after).is_empty() {
            continue;
        }
        let stats = topic::stats(&topic).await;
        let next = fill(node, &topic, after, &stats, &mut page).await;
        if !next.is_empty() {
            return Ok(wire::Groups { groups: page.entries, next });
        }
    }
    Ok(wire::Groups { groups: page.entries, next: Bytes::new() })
}

/// Fills a page with the groups of a topic. Says where to go on if it is full before they are all told.
pub(super) async fn fill(
    node: &Node,
    topic: &Topic,
    after: Option<&GroupName>,
    stats: &[PartitionStats],
    page: &mut Page<wire::GroupDescription>,
) -> Bytes {
    for group in topic.groups_after(after) {
        if page.is_full() {
            let last = page.entries.last();
            return last.map_or_else(Bytes::new, |last| page::token_of_group(&last.topic, &last.group));
        }
        page.push(describe(node, topic, &group, stats).await);
    }
    Bytes::new()
}

pub(super) async fn show(node: &Node, show: &wire::ShowGroup) -> Result<wire::GroupDescription, wire::Error> {
    let topic = node.topic(&show.topic)?;
    let group = topic.group(&show.group)?;
    let stats = topic::stats(&topic).await;
    Ok(describe(node, &topic, &group, &stats).await)
}

pub(super) async fn seek(node: &Node, seek: &wire::SeekGroup) -> Result<(), wire::Error> {
    let topic = node.topic(&seek.topic)?;
    let group = topic.group(&seek.group)?;
    let at = seek.to.as_ref().and_then(|to| to.at.as_ref());
    start::check(&topic, at)?;
    let seeking = topic.partitions().iter().map(|partition| {
        let group = group.name.clone();
        async move {
            match start::position(partition, at).await? {
                Some(to) => partition.ask(move |reply| Command::SeekGroup { group, to, reply }).await,
                None => Ok(()),
            }
        }
    });
    // All that can be moved are moved, whatever becomes of the others.
    let moved = join_all(seeking).await;
    let count = moved.iter().filter(|moved| moved.is_ok()).count();
    let failed = moved.into_iter().enumerate().find_map(|(partition, moved)| Some((partition, moved.err()?)));
    failed.map_or(Ok(()), |(partition, error)| {
        let message = format!("moved on {count} partitions, but not on partition {partition}: {}", error.message);
        Err(wire::Error { message, ..error })
    })
}

/// A group, summed up over its partitions.
async fn describe(node: &Node, topic: &Topic, group: &Arc<Group>, stats: &[PartitionStats]) -> wire::GroupDescription {
    let mut description = wire::GroupDescription {
        topic: topic.name.to_string(),
        group: group.name.to_string(),
        paused: group.paused,
        settings: group.settings.entries().into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        ..wire::GroupDescription::default()
    };
    let mut oldest: Option<Timestamp> = None;
    for (partition, stats) in topic.partitions().iter().zip(stats) {
        // They come in the order of their names.
        let Ok(at) = stats.groups.binary_search_by(|(name, _)| name.cmp(&group.name)) else { continue };
        let (_, stats) = &stats.groups[at];
        description.backlog += stats.backlog;
        description.in_flight += stats.in_flight;
        description.retrying += stats.retrying;
        description.dead_letters += stats.dead_letters;
        description.consumers = description.consumers.max(stats.consumers);
        description.partitions.push(wire::GroupPartition {
            partition: partition.index.0,
            floor: stats.floor.0,
            next: stats.next.0,
            backlog: stats.backlog,
        });
        if let Some(offset) = stats.oldest_owed {
            let stored_at = stored_at(partition, offset).await;
            oldest = stored_at.map_or(oldest, |at| Some(oldest.map_or(at, |oldest| oldest.min(at))));
        }
    }
    let now = node.clock.now();
    description.oldest_unacked_seconds = oldest.map(|oldest| now.since(oldest).as_secs_f64());
    description
}

async fn stored_at(partition: &Partition, offset: Offset) -> Option<Timestamp> {
    let batches = partition.reader().ok()?.read(offset, NonZeroU32::MIN).await.ok()?;
    batches.first().map(|stored| stored.batch.stored_at())
}
