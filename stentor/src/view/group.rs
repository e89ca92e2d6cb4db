//! A subscriber group.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use stentor_protocol::wire;

use crate::output::{Table, count_text, duration_text};

/// `group show`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct GroupView {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) backlog: u64,
    pub(crate) in_flight: u64,
    pub(crate) retrying: u64,
    pub(crate) dead_letters: u64,
    pub(crate) oldest_unacked_seconds: Option<f64>,
    pub(crate) consumers: u32,
    pub(crate) paused: bool,
    #[serde(skip)]
    pub(crate) settings: BTreeMap<String, String>,
    #[serde(skip)]
    pub(crate) partitions: Vec<wire::GroupPartition>,
}

impl From<wire::GroupDescription> for GroupView {
    fn from(group: wire::GroupDescription) -> Self {
        Self {
            topic: group.topic,
            group: group.group,
            backlog: group.backlog,
            in_flight: group.in_flight,
            retrying: group.retrying,
            dead_letters: group.dead_letters,
            oldest_unacked_seconds: group.oldest_unacked_seconds,
            consumers: group.consumers,
            paused: group.paused,
            settings: group.settings.into_iter().collect(),
            partitions: group.partitions,
        }
    }
}

impl GroupView {
    /// Groups for people, a row each.
    pub(crate) fn table(groups: &[Self]) -> Table {
        let columns = [
            "topic",
            "group",
            ">backlog",
            ">in flight",
            ">retrying",
            ">dead letters",
            ">oldest unacked",
            ">consumers",
            "",
        ];
        let mut table = Table::new(&columns);
        for group in groups {
            table.row([
                group.topic.clone(),
                group.group.clone(),
                count_text(group.backlog),
                count_text(group.in_flight),
                count_text(group.retrying),
                count_text(group.dead_letters),
                group.oldest_text(),
                group.consumers.to_string(),
                if group.paused { "paused".to_owned() } else { String::new() },
            ]);
        }
        table
    }

    fn oldest_text(&self) -> String {
        let oldest = self.oldest_unacked_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        oldest.map_or_else(|| "-".to_owned(), duration_text)
    }

    /// Everything about one group, for people.
    pub(crate) fn words(&self) -> String {
        let mut partitions = Table::new(&["partition", ">done below", ">next", ">backlog"]);
        for partition in &self.partitions {
            partitions.row([partition.partition.into(), partition.floor, partition.next, partition.backlog]);
        }
        let settings: Vec<_> = self.settings.iter().map(|(key, value)| format!("  {key} = {value}")).collect();
        let table = Self::table(std::slice::from_ref(self)).text();
        format!("{table}\n\n{}\n\nsettings\n{}", partitions.text(), settings.join("\n"))
    }
}
