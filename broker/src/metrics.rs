//! What the engine counts, and how it is shown to Prometheus.
//!
//! Counters are found once, when a topic or a group appears, and then counted up without a lookup. Gauges are read off
//! what the partitions last said of themselves ([`Gauges`]).

use std::fmt;
use std::sync::Weak;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use stentor_core::{GroupName, TopicName};

use crate::node::Node;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TopicLabels {
    topic: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GroupLabels {
    topic: String,
    group: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StorageLabels {
    storage: &'static str,
}

/// The counters of a topic.
#[derive(Clone, Debug)]
pub(crate) struct TopicMetrics {
    pub(crate) published: Counter,
    pub(crate) published_bytes: Counter,
    pub(crate) duplicates: Counter,
    pub(crate) refused: Counter,
    pub(crate) corrupt: Counter,
    pub(crate) publish_seconds: Histogram,
}

/// The counters of a group.
#[derive(Clone, Debug)]
pub(crate) struct GroupMetrics {
    pub(crate) delivered: Counter,
    pub(crate) redelivered: Counter,
    pub(crate) acked: Counter,
    pub(crate) nacked: Counter,
    /// Came back because their consumer or its lease was lost.
    pub(crate) returned: Counter,
    pub(crate) dead_lettered: Counter,
    pub(crate) expired: Counter,
    pub(crate) delivery_seconds: Histogram,
}

/// From 16 µs to about 8 minutes, each bucket twice the one before.
#[derive(Clone)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(16e-6, 2.0, 26))
    }
}

type ByTopic = Family<TopicLabels, Counter>;
type ByGroup = Family<GroupLabels, Counter>;

/// Everything that is counted.
#[derive(Default)]
pub(crate) struct Metrics {
    published: ByTopic,
    published_bytes: ByTopic,
    duplicates: ByTopic,
    refused_publishes: ByTopic,
    corrupt: ByTopic,
    publish_seconds: Timed<TopicLabels>,
    delivered: ByGroup,
    redelivered: ByGroup,
    acked: ByGroup,
    nacked: ByGroup,
    returned: ByGroup,
    dead_lettered: ByGroup,
    expired: ByGroup,
    delivery_seconds: Timed<GroupLabels>,
    refused: Family<ReasonLabels, Counter>,
}

struct Timed<L>(Family<L, Histogram, Seconds>);

impl<L: Clone + std::hash::Hash + Eq> Default for Timed<L> {
    fn default() -> Self {
        Self(Family::new_with_constructor(Seconds))
    }
}

impl Metrics {
    pub(crate) fn topic(&self, topic: &TopicName) -> TopicMetrics {
        let labels = TopicLabels { topic: topic.to_string() };
        TopicMetrics {
            published: self.published.get_or_create_owned(&labels),
            published_bytes: self.published_bytes.get_or_create_owned(&labels),
            duplicates: self.duplicates.get_or_create_owned(&labels),
            refused: self.refused_publishes.get_or_create_owned(&labels),
            corrupt: self.corrupt.get_or_create_owned(&labels),
            publish_seconds: self.publish_seconds.0.get_or_create_owned(&labels),
        }
    }

    pub(crate) fn group(&self, topic: &TopicName, group: &GroupName) -> GroupMetrics {
        let labels = GroupLabels { topic: topic.to_string(), group: group.to_string() };
        GroupMetrics {
            delivered: self.delivered.get_or_create_owned(&labels),
            redelivered: self.redelivered.get_or_create_owned(&labels),
            acked: self.acked.get_or_create_owned(&labels),
            nacked: self.nacked.get_or_create_owned(&labels),
            returned: self.returned.get_or_create_owned(&labels),
            dead_lettered: self.dead_lettered.get_or_create_owned(&labels),
            expired: self.expired.get_or_create_owned(&labels),
            delivery_seconds: self.delivery_seconds.0.get_or_create_owned(&labels),
        }
    }

    /// A peer or a request was turned away.
    pub(crate) fn refuse(&self, reason: &'static str) {
        self.refused.get_or_create(&ReasonLabels { reason }).inc();
    }

    /// Forgets the counters of a topic that was deleted.
    pub(crate) fn forget_topic(&self, topic: &TopicName) {
        let labels = TopicLabels { topic: topic.to_string() };
        for family in [&self.published, &self.published_bytes, &self.duplicates, &self.refused_publishes, &self.corrupt]
        {
            family.remove(&labels);
        }
        self.publish_seconds.0.remove(&labels);
    }

    /// Forgets the counters of a group that was deleted.
    pub(crate) fn forget_group(&self, topic: &TopicName, group: &GroupName) {
        let labels = GroupLabels { topic: topic.to_string(), group: group.to_string() };
        for family in [
            &self.delivered,
            &self.redelivered,
            &self.acked,
            &self.nacked,
            &self.returned,
            &self.dead_lettered,
            &self.expired,
        ] {
            family.remove(&labels);
        }
        self.delivery_seconds.0.remove(&labels);
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let topics = [
            ("published", "Messages stored", &self.published),
            ("published_bytes", "Bytes of batches stored", &self.published_bytes),
            (
                "duplicates",
                "Batches that were stored before and were answered with the first receipt",
                &self.duplicates,
            ),
            ("publish_refused", "Batches that the storage refused", &self.refused_publishes),
            ("corrupt_reads", "Groups stopped at damaged data", &self.corrupt),
        ];
        for (name, help, family) in topics {
            registry.register(name, help, family.clone());
        }
        let groups = [
            ("delivered", "Messages sent to consumers", &self.delivered),
            ("redelivered", "Messages sent that may have been delivered before", &self.redelivered),
            ("acked", "Messages acknowledged", &self.acked),
            ("nacked", "Messages refused by consumers", &self.nacked),
            ("returned", "Messages that came back because a consumer or a lease was lost", &self.returned),
            ("dead_lettered", "Messages moved to the dead letters", &self.dead_lettered),
            ("expired", "Owed messages dropped because of their age or a full memory topic", &self.expired),
        ];
        for (name, help, family) in groups {
            registry.register(name, help, family.clone());
        }
        let help = "From a publish coming in to its answer";
        registry.register_with_unit("publish", help, Unit::Seconds, self.publish_seconds.0.clone());
        let help = "From a message being stored to its first being sent to a consumer";
        registry.register_with_unit("delivery", help, Unit::Seconds, self.delivery_seconds.0.clone());
        registry.register("refused", "Peers and requests turned away, by reason", self.refused.clone());
    }
}

/// Figures that are read when they are asked for.
pub(crate) struct Gauges {
    node: Weak<Node>,
}

impl Gauges {
    pub(crate) fn new(node: Weak<Node>) -> Self {
        Self { node }
    }
}

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gauges").finish_non_exhaustive()
    }
}

/// A gauge of groups: its name, its help, and what it is of the figures of one group.
type GroupGauge = (&'static str, &'static str, fn(&GroupFigures) -> f64);

const GROUP_GAUGES: [GroupGauge; 5] = [
    ("backlog", "Messages a group is not done with", |figures| figures.backlog as f64),
    ("in_flight", "Messages held by consumers", |figures| figures.in_flight as f64),
    ("retrying", "Messages waiting for another try", |figures| figures.retrying as f64),
    ("dead_letters", "Dead letters of a group", |figures| figures.dead_letters as f64),
    ("oldest_unacked_seconds", "Age of the oldest message a group is not done with", |figures| figures.oldest),
];

#[derive(Default)]
struct GroupFigures {
    backlog: u64,
    in_flight: u64,
    retrying: u64,
    dead_letters: u64,
    oldest: f64,
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(node) = self.node.upgrade() else { return Ok(()) };
        let figures = group_figures(&node);
        for (name, help, of) in GROUP_GAUGES {
            let gauge = ConstGauge::new(0.0);
            let mut family = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            for (labels, figures) in &figures {
                ConstGauge::new(of(figures)).encode(family.encode_family(labels)?)?;
            }
        }
        let connections = ConstGauge::new(node.connections() as f64);
        let metric =
            encoder.encode_descriptor("connections", "Connections of clients", None, connections.metric_type())?;
        connections.encode(metric)?;
        self.encode_storages(&node, &mut encoder)
    }
}

impl Gauges {
    fn encode_storages(&self, node: &Node, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let usage: Vec<_> = node
            .storages
            .iter()
            .map(|(kind, storage)| (StorageLabels { storage: kind.as_str() }, storage.usage()))
            .collect();
        type Figure = (&'static str, &'static str, fn(&stentor_core::storage::Usage) -> f64);
        let gauges: [Figure; 4] = [
            ("storage_bytes", "Bytes taken by a storage", |usage| usage.bytes as f64),
            ("storage_live_bytes", "Bytes of it that some partition still holds", |usage| usage.bytes_live as f64),
            ("storage_full", "Whether a storage refuses new data", |usage| f64::from(u8::from(usage.full))),
            ("storage_poisoned", "Whether a failed sync has ended writing", |usage| {
                f64::from(u8::from(usage.poisoned))
            }),
        ];
        for (name, help, of) in gauges {
            let gauge = ConstGauge::new(0.0);
            let mut family = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            for (labels, usage) in &usage {
                ConstGauge::new(of(usage)).encode(family.encode_family(labels)?)?;
            }
        }
        type Count = (&'static str, &'static str, fn(&stentor_core::storage::Usage) -> u64);
        let counters: [Count; 2] = [
            ("fsyncs", "Syncs done by a storage", |usage| usage.syncs),
            ("corruptions", "Damaged places met by a storage", |usage| usage.corruptions),
        ];
        for (name, help, of) in counters {
            let counter = ConstCounter::new(0_u64);
            let mut family = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            for (labels, usage) in &usage {
                ConstCounter::new(of(usage)).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

fn group_figures(node: &Node) -> Vec<(GroupLabels, GroupFigures)> {
    let now = node.clock.now();
    let mut all = Vec::new();
    for topic in node.topics() {
        let mut of_topic: std::collections::BTreeMap<GroupName, GroupFigures> = std::collections::BTreeMap::new();
        for partition in topic.partitions() {
            for (group, stats) in partition.glance().groups {
                let figures = of_topic.entry(group).or_default();
                figures.backlog += stats.backlog;
                figures.in_flight += stats.in_flight;
                figures.retrying += stats.retrying;
                figures.dead_letters += stats.dead_letters;
                let age = stats.oldest_stored_at.map_or(0.0, |at| now.since(at).as_secs_f64());
                figures.oldest = figures.oldest.max(age);
            }
        }
        let labelled = of_topic
            .into_iter()
            .map(|(group, figures)| (GroupLabels { topic: topic.name.to_string(), group: group.to_string() }, figures));
        all.extend(labelled);
    }
    all
}
