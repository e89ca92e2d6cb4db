//! Topics and their groups, as sessions and requests find them. What is durable of them lies in the catalogue and in the
//! partitions' tables.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use stentor_core::{GroupName, TopicName};
use stentor_protocol::wire;
use tokio::sync::watch;

use crate::config::SettingMap;
use crate::error::{group_not_found, partition_not_found};
use crate::filter::Filter;
use crate::group::Rules;
use crate::metrics::{GroupMetrics, TopicMetrics};
use crate::partition::{GroupOrder, Partition};
use crate::settings::{GroupSettings, TopicSettings};

/// A topic of this node.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: TopicName,
    pub(crate) metrics: TopicMetrics,
    // Read by every request, written by `topic set`; never held across an await.
    settings: RwLock<Arc<TopicSettings>>,
    /// What was set for it by name.
    set: RwLock<SettingMap>,
    groups: RwLock<BTreeMap<GroupName, Arc<Group>>>,
    partitions: OnceLock<Arc<[Arc<Partition>]>>,
    /// Grows with every change that clients have to learn of.
    route_version: AtomicU64,
    /// Turns true when the topic is deleted.
    pub(crate) deleted: watch::Sender<bool>,
}

impl Topic {
    pub(crate) fn new(name: TopicName, settings: TopicSettings, metrics: TopicMetrics, route_version: u64) -> Self {
        Self {
            name,
            metrics,
            settings: RwLock::new(Arc::new(settings)),
            set: RwLock::default(),
            groups: RwLock::default(),
            partitions: OnceLock::new(),
            route_version: AtomicU64::new(route_version),
            deleted: watch::Sender::new(false),
        }
    }

    /// Its partitions are open now. Nobody sees a topic before.
    pub(crate) fn opened(&self, partitions: Vec<Arc<Partition>>) {
        let _ = self.partitions.set(partitions.into());
    }

    pub(crate) fn settings(&self) -> Arc<TopicSettings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_settings(&self, settings: TopicSettings) -> Arc<TopicSettings> {
        let settings = Arc::new(settings);
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&settings);
        settings
    }

    pub(crate) fn route_version(&self) -> u64 {
        self.route_version.load(Ordering::Acquire)
    }

    /// After whatever it stands for has changed: whoever sees the version sees the change too.
    pub(crate) fn set_route_version(&self, version: u64) {
        self.route_version.store(version, Ordering::Release);
    }

    pub(crate) fn set(&self) -> SettingMap {
        self.set.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_set(&self, set: SettingMap) {
        *self.set.write().unwrap_or_else(PoisonError::into_inner) = set;
    }

    pub(crate) fn partitions(&self) -> &[Arc<Partition>] {
        self.partitions.get().map_or(&[], |partitions| partitions)
    }

    /// The same, to be kept.
    pub(crate) fn shared_partitions(&self) -> Arc<[Arc<Partition>]> {
        self.partitions.get().map_or_else(|| Arc::from([]), Arc::clone)
    }

    pub(crate) fn partition(&self, index: u32) -> Result<&Arc<Partition>, wire::Error> {
        let found = self.partitions().get(index as usize);
        found.ok_or_else(|| partition_not_found(self.name.as_str(), index))
    }

    pub(crate) fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The groups behind `after`, by name; all of them without.
    pub(crate) fn groups_after(&self, after: Option<&GroupName>) -> Vec<Arc<Group>> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        groups.range::<GroupName, _>((start, Bound::Unbounded)).map(|(_, group)| Arc::clone(group)).collect()
    }

    pub(crate) fn group(&self, name: &str) -> Result<Arc<Group>, wire::Error> {
        let groups = self.groups.read().unwrap_or_else(PoisonError::into_inner);
        groups.get(name).cloned().ok_or_else(|| group_not_found(self.name.as_str(), name))
    }

    pub(crate) fn put_group(&self, group: Arc<Group>) {
        self.groups.write().unwrap_or_else(PoisonError::into_inner).insert(group.name.clone(), group);
    }

    pub(crate) fn remove_group(&self, name: &GroupName) -> Option<Arc<Group>> {
        self.groups.write().unwrap_or_else(PoisonError::into_inner).remove(name)
    }
}

/// A group of a topic. Changed settings make a new one in its place.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: GroupName,
    /// What was set for it by name.
    pub(crate) set: SettingMap,
    /// What is in force.
    pub(crate) settings: GroupSettings,
    pub(crate) filter: Option<Arc<Filter>>,
    pub(crate) paused: bool,
    pub(crate) metrics: GroupMetrics,
    /// Turns true when the group is deleted; shared by all that take its place.
    pub(crate) deleted: Arc<watch::Sender<bool>>,
}

impl Group {
    /// How the partitions are to serve it.
    pub(crate) fn order(&self) -> GroupOrder {
        let settings = &self.settings;
        GroupOrder {
            name: self.name.clone(),
            rules: Rules {
                lease: settings.lease,
                max_attempts: settings.max_attempts,
                retry_delay: settings.retry_delay,
                retry_delay_max: settings.retry_delay_max,
                retrying_max: settings.retrying_max,
                ordered: settings.ordered,
            },
            filter: self.filter.clone(),
            paused: self.paused,
            metrics: self.metrics.clone(),
        }
    }

    /// The filter in its normal form; empty when there is none.
    pub(crate) fn filter_text(&self) -> String {
        self.filter.as_ref().map_or_else(String::new, |filter| filter.to_string())
    }
}
