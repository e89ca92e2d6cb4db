//! What a node is configured to do, and which of several settings is in force.
//!
//! Precedence, lowest first: built-in, `[defaults]`, the pattern with the most literal characters (the later entry on a
//! tie), the exact entry, what `topic set` and `group set` said.

use std::collections::BTreeMap;

use stentor_core::{GroupName, NamePattern, TopicName};
use thiserror::Error;

use crate::filter::{Filter, FilterError};
use crate::settings::{GroupSettings, NodeSettings, SettingError, TopicSettings};

/// Keys and their values in text, as a user wrote them.
pub type SettingMap = BTreeMap<String, String>;

/// The configuration of a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Of the node itself.
    pub node: NodeSettings,
    /// Of topics and groups that nothing else is said about: keys of either.
    pub defaults: SettingMap,
    /// By the name of the topic, patterns allowed, in the order of the file. A topic with an exact name is created at
    /// start.
    pub topics: Vec<(NamePattern, SettingMap)>,
    /// By the names of topic and group, patterns allowed, in the order of the file.
    pub groups: Vec<(NamePattern, NamePattern, SettingMap)>,
    /// Whether a topic is created when it is first asked for.
    pub auto_create: bool,
}

/// Which part of a configuration an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The defaults.
    Defaults,
    /// The topic entry with this index.
    Topic(usize),
    /// The group entry with this index.
    Group(usize),
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {source}", self.place())]
pub struct ConfigError {
    /// Where.
    pub section: Section,
    /// What.
    pub source: SettingError,
}

impl ConfigError {
    fn place(&self) -> String {
        match self.section {
            Section::Defaults => "[defaults]".to_owned(),
            Section::Topic(index) => format!("[[topic]] number {}", index + 1),
            Section::Group(index) => format!("[[group]] number {}", index + 1),
        }
    }
}

impl BrokerConfig {
    /// Checks every key and value, and that the settings of each entry fit together.
    ///
    /// # Errors
    /// The first that does not, with its place.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let at = |section| move |source| ConfigError { section, source };
        self.validate_defaults().map_err(at(Section::Defaults))?;
        for (index, (pattern, settings)) in self.topics.iter().enumerate() {
            // As for a topic that this entry is the last word on.
            let checked = self.topic_layers(pattern.as_str(), settings).and_then(|settings| settings.check());
            checked.map_err(at(Section::Topic(index)))?;
        }
        for (index, (topic, group, settings)) in self.groups.iter().enumerate() {
            let checked = self.group_layers(topic.as_str(), group.as_str(), settings);
            let checked = checked.and_then(|settings| {
                settings.check()?;
                check_filter(&settings.filter)
            });
            checked.map_err(at(Section::Group(index)))?;
        }
        Ok(())
    }

    fn validate_defaults(&self) -> Result<(), SettingError> {
        let keys: Vec<_> = TopicSettings::KEYS.iter().chain(GroupSettings::KEYS).copied().collect();
        if let Some(key) = self.defaults.keys().find(|key| !keys.contains(&key.as_str())) {
            return Err(SettingError::unknown("topic or group", key, &keys));
        }
        // Names that no entry can match exactly.
        self.topic_layers("", &SettingMap::new())?.check()?;
        let group = self.group_layers("", "", &SettingMap::new())?;
        group.check()?;
        check_filter(&group.filter)
    }

    /// The settings in force for a topic, given what `topic set` said.
    ///
    /// # Errors
    /// When `set` holds what is no setting, or the settings do not fit together.
    pub fn topic_settings(&self, topic: &TopicName, set: &SettingMap) -> Result<TopicSettings, SettingError> {
        let settings = self.topic_layers(topic.as_str(), set)?;
        settings.check()?;
        Ok(settings)
    }

    /// The settings in force for a group, given what `group set` said.
    ///
    /// # Errors
    /// When `set` holds what is no setting, or the settings do not fit together.
    pub fn group_settings(
        &self,
        topic: &TopicName,
        group: &GroupName,
        set: &SettingMap,
    ) -> Result<GroupSettings, SettingError> {
        let settings = self.group_layers(topic.as_str(), group.as_str(), set)?;
        settings.check()?;
        check_filter(&settings.filter)?;
        Ok(settings)
    }

    /// The topics that are named exactly, which exist from the start.
    pub fn exact_topics(&self) -> impl Iterator<Item = TopicName> + '_ {
        let exact = self.topics.iter().filter(|(pattern, _)| pattern.is_exact());
        // A pattern without a star keeps to the rules of names.
        exact.filter_map(|(pattern, _)| TopicName::new(pattern.as_str()).ok())
    }

    fn topic_layers(&self, topic: &str, set: &SettingMap) -> Result<TopicSettings, SettingError> {
        let mut settings = TopicSettings::default();
        let defaults = self.defaults.iter().filter(|(key, _)| TopicSettings::KEYS.contains(&key.as_str()));
        let matching = self.topics.iter().filter(|(pattern, _)| pattern.matches(topic));
        let entries = in_force(matching.map(|(pattern, map)| ((pattern.is_exact(), pattern.literals()), map)));
        for (key, value) in defaults.chain(entries.into_iter().flatten()).chain(set) {
            settings.set(key, value)?;
        }
        Ok(settings)
    }

    fn group_layers(&self, topic: &str, group: &str, set: &SettingMap) -> Result<GroupSettings, SettingError> {
        let mut settings = GroupSettings::default();
        let defaults = self.defaults.iter().filter(|(key, _)| GroupSettings::KEYS.contains(&key.as_str()));
        let matching = self.groups.iter().filter(|(t, g, _)| t.matches(topic) && g.matches(group));
        let entries =
            in_force(matching.map(|(t, g, map)| ((t.is_exact() && g.is_exact(), t.literals() + g.literals()), map)));
        for (key, value) in defaults.chain(entries.into_iter().flatten()).chain(set) {
            settings.set(key, value)?;
        }
        Ok(settings)
    }
}

/// Of the entries that match, each with whether it is exact and its number of literals: the pattern that counts, and the
/// exact entry, in that order.
fn in_force<'a>(
    matching: impl Iterator<Item = ((bool, usize), &'a SettingMap)>,
) -> impl IntoIterator<Item = &'a SettingMap> {
    let (mut pattern, mut exact): (Option<(usize, &SettingMap)>, Option<&SettingMap>) = (None, None);
    for ((is_exact, literals), map) in matching {
        if is_exact {
            exact = Some(map);
        } else if pattern.is_none_or(|(most, _)| literals >= most) {
            pattern = Some((literals, map));
        }
    }
    pattern.map(|(_, map)| map).into_iter().chain(exact)
}

/// Whether a filter can be read.
fn check_filter(filter: &str) -> Result<(), SettingError> {
    if filter.is_empty() {
        return Ok(());
    }
    let wrong = |error: FilterError| SettingError::value("filter", filter, &format!("a condition, and {error}"));
    Filter::parse(filter).map(|_| ()).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> SettingMap {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn pattern(text: &str) -> NamePattern {
        NamePattern::new(text).unwrap()
    }

    #[test]
    fn the_more_exact_setting_wins_and_the_others_show_through() {
        let config = BrokerConfig {
            defaults: map(&[("partitions", "2"), ("retain_for", "2h"), ("message_bytes_max", "2MiB")]),
            topics: vec![
                (pattern("trade.order-*"), map(&[("partitions", "3"), ("retain_for", "3h")])),
                (pattern("trade.*"), map(&[("partitions", "9")])),
                (pattern("trade.order-paid"), map(&[("partitions", "4")])),
                (pattern("*.order-??".trim_end_matches('?')), map(&[("partitions", "8")])),
            ],
            ..BrokerConfig::default()
        };
        let settings = |name: &str, set: &[(&str, &str)]| {
            config.topic_settings(&TopicName::new(name).unwrap(), &map(set)).unwrap()
        };
        let paid = settings("trade.order-paid", &[]);
        assert_eq!((paid.partitions, paid.retain_for.as_secs() / 3_600, paid.message_bytes_max.0), (4, 3, 2 << 20));
        assert_eq!(settings("trade.order-new", &[]).partitions, 3);
        assert_eq!(settings("trade.x", &[]).partitions, 9);
        assert_eq!(settings("other", &[]).partitions, 2);
        assert_eq!(settings("trade.order-paid", &[("partitions", "7")]).partitions, 7);
    }

    #[test]
    fn of_two_patterns_with_as_many_literals_the_later_one_counts() {
        let config = BrokerConfig {
            groups: vec![
                (pattern("a*"), pattern("*"), map(&[("max_attempts", "1")])),
                (pattern("*"), pattern("g*"), map(&[("max_attempts", "2")])),
            ],
            ..BrokerConfig::default()
        };
        let (topic, group) = (TopicName::new("ab").unwrap(), GroupName::new("gh").unwrap());
        assert_eq!(config.group_settings(&topic, &group, &SettingMap::new()).unwrap().max_attempts, 2);
    }

    #[test]
    fn validation_names_the_place_of_the_error() {
        let config = BrokerConfig {
            topics: vec![
                (pattern("a"), map(&[])),
                (pattern("b"), map(&[("storage", "memory"), ("durability", "synced")])),
            ],
            ..BrokerConfig::default()
        };
        assert_eq!(config.validate().unwrap_err().section, Section::Topic(1));
        let config = BrokerConfig { defaults: map(&[("leese", "1s")]), ..BrokerConfig::default() };
        let error = config.validate().unwrap_err().to_string();
        assert_eq!(error, "[defaults]: `leese` is no setting of a topic or group: did you mean `lease`?");
    }
}
