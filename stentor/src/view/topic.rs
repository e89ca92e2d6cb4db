//! A topic with its partitions and groups.

use std::collections::BTreeMap;

use serde::Serialize;
use stentor_protocol::wire;

use super::GroupView;
use crate::output::{Table, bytes_text, count_text};

/// `topic show`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TopicView {
    pub(crate) name: String,
    pub(crate) storage: String,
    pub(crate) durability: String,
    pub(crate) partitions: Vec<PartitionView>,
    pub(crate) groups: Vec<GroupView>,
    #[serde(skip)]
    settings: BTreeMap<String, String>,
}

/// A partition of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PartitionView {
    partition: u32,
    node: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) bytes: u64,
    replicas: u32,
    leader: u64,
    lag: u64,
    /// `ok`, or what keeps the partition from working.
    state: String,
}

impl From<wire::TopicDescription> for TopicView {
    fn from(topic: wire::TopicDescription) -> Self {
        Self {
            name: topic.name,
            storage: topic.storage,
            durability: topic.durability,
            partitions: topic.partitions.into_iter().map(PartitionView::from).collect(),
            groups: topic.groups.into_iter().map(GroupView::from).collect(),
            settings: topic.settings.into_iter().collect(),
        }
    }
}

impl From<wire::PartitionDescription> for PartitionView {
    fn from(partition: wire::PartitionDescription) -> Self {
        Self {
            partition: partition.partition,
            node: partition.node,
            start: partition.start,
            end: partition.end,
            bytes: partition.bytes,
            replicas: partition.replicas,
            leader: partition.leader,
            lag: partition.lag,
            state: partition.state,
        }
    }
}

impl TopicView {
    /// Messages kept, in all partitions.
    pub(crate) fn messages(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.end.saturating_sub(partition.start)).sum()
    }

    /// Topics for people, a row each.
    pub(crate) fn table(topics: &[Self]) -> Table {
        let mut table = Table::new(&["topic", "storage", "durability", ">partitions", ">messages", ">bytes"]);
        for topic in topics {
            table.row([
                topic.name.clone(),
                topic.storage.clone(),
                topic.durability.clone(),
                topic.partitions.len().to_string(),
                count_text(topic.messages()),
                bytes_text(topic.partitions.iter().map(|partition| partition.bytes).sum()),
            ]);
        }
        table
    }

    /// Everything about one topic, for people.
    pub(crate) fn words(&self) -> String {
        let mut partitions = Table::new(&["partition", ">node", ">start", ">end", ">bytes", "durability", "state"]);
        for partition in &self.partitions {
            partitions.row([
                partition.partition.to_string(),
                partition.node.to_string(),
                partition.start.to_string(),
                partition.end.to_string(),
                bytes_text(partition.bytes),
                self.durability.clone(),
                partition.state.clone(),
            ]);
        }
        let settings: Vec<_> = self.settings.iter().map(|(key, value)| format!("  {key} = {value}")).collect();
        let groups =
            if self.groups.is_empty() { "no groups".to_owned() } else { GroupView::table(&self.groups).text() };
        format!(
            "{}: storage {}, durability {}\n\n{}\n\n{groups}\n\nsettings\n{}",
            self.name,
            self.storage,
            self.durability,
            partitions.text(),
            settings.join("\n"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_has_the_fields_of_the_contract() {
        let group = wire::GroupDescription { topic: "t".into(), group: "g".into(), backlog: 3, ..Default::default() };
        let topic = TopicView::from(wire::TopicDescription {
            name: "t".into(),
            storage: "lsm".into(),
            durability: "synced".into(),
            partitions: vec![wire::PartitionDescription { end: 7, state: "ok".into(), ..Default::default() }],
            groups: vec![group],
            ..Default::default()
        });
        assert_eq!(
            serde_json::to_string(&topic).unwrap(),
            r#"{"name":"t","storage":"lsm","durability":"synced","partitions":[{"partition":0,"node":0,"start":0,"#
                .to_owned()
                + r#""end":7,"bytes":0,"replicas":0,"leader":0,"lag":0,"state":"ok"}],"groups":[{"topic":"t","#
                + r#""group":"g","backlog":3,"in_flight":0,"retrying":0,"dead_letters":0,"#
                + r#""oldest_unacked_seconds":null,"consumers":0,"paused":false}]}"#,
        );
    }
}
