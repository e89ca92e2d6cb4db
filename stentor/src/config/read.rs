//! From the text of a file to a [`Config`].

use std::path::PathBuf;

use stentor_broker::config::{BrokerConfig, Section as Place, SettingMap};
use stentor_broker::settings::{GroupSettings, NodeSettings, SettingError, TopicSettings};
use stentor_core::NamePattern;
use toml::de::DeTable;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::document::{Entry, Section};
use super::error::{ConfigError, Source};
use super::{Config, Listen, Log, LogFormat, Tls};

/// Reads all of `text`.
pub(super) fn read(file: &str, text: &str) -> Result<Config, ConfigError> {
    let source = Source { file, text };
    let document = DeTable::parse(text).map_err(|error| {
        source.error(error.span().unwrap_or(0..0), error.message(), "the file is no TOML (toml.io)")
    })?;
    let mut root = Section::root(source, &document);
    let mut config = Config::default();

    if let Some(node) = root.section("node")? {
        read_node(node, &mut config)?;
    }
    if let Some(listen) = root.section("listen")? {
        read_listen(listen, &mut config.listen)?;
    }
    config.tls = root.section("tls")?.map(read_tls).transpose()?;
    if let Some(log) = root.section("log")? {
        read_log(log, &mut config.log)?;
    }
    read_topics_and_groups(&mut root, &mut config.broker)?;
    root.done()?;
    Ok(config)
}

fn read_node(mut section: Section<'_>, config: &mut Config) -> Result<(), ConfigError> {
    if let Some(data_dir) = section.string("data_dir")? {
        config.data_dir = PathBuf::from(data_dir);
    }
    if let Some(entry) = section.entry("drain_timeout") {
        config.drain_timeout =
            humantime::parse_duration(&entry.string()?).map_err(|_| entry.wrong("a duration such as \"30s\""))?;
    }
    if let Some(auto_create) = section.boolean("auto_create")? {
        config.broker.auto_create = auto_create;
    }
    for entry in section.others() {
        if !NodeSettings::KEYS.contains(&entry.key) {
            return Err(section.unknown(&entry, NodeSettings::KEYS));
        }
        config.broker.node.set(entry.key, &entry.setting()?).map_err(|error| setting_error(&entry, &error))?;
    }
    Ok(())
}

fn read_listen(mut section: Section<'_>, listen: &mut Listen) -> Result<(), ConfigError> {
    for (key, address) in [("quic", &mut listen.quic), ("admin", &mut listen.admin)] {
        let Some(entry) = section.entry(key) else { continue };
        let text = entry.string()?;
        let port = text.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok()));
        if port.flatten().is_none() {
            let message = format!("`{key} = \"{text}\"` is no address: it takes HOST:PORT");
            return Err(entry.error(message, "port 0 picks a free one; 0.0.0.0 listens on every interface"));
        }
        *address = text;
    }
    section.done()
}

fn read_tls(mut section: Section<'_>) -> Result<Tls, ConfigError> {
    let (cert, _) = section.required("cert")?;
    let (key, _) = section.required("key")?;
    let client_ca = section.string("client_ca")?;
    section.done()?;
    Ok(Tls { cert: cert.into(), key: key.into(), client_ca: client_ca.map(PathBuf::from) })
}

fn read_log(mut section: Section<'_>, log: &mut Log) -> Result<(), ConfigError> {
    if let Some(entry) = section.entry("level") {
        log.level = entry.string()?;
        if !is_log_level(&log.level) {
            let message = format!("`level = \"{}\"` is no level", log.level);
            let hint = "error, warn, info, debug, trace or off; by module: \"info,stentor_broker=debug\"";
            return Err(entry.error(message, hint));
        }
    }
    if let Some(entry) = section.entry("format") {
        log.format = match entry.string()?.as_str() {
            "text" => LogFormat::Text,
            "json" => LogFormat::Json,
            other => return Err(entry.error(format!("`format = \"{other}\"` is no format"), "text or json")),
        };
    }
    section.done()
}

/// A level, or several with commas between them, all but one for a module. Stricter than `tracing`, which takes a level that
/// is misspelt for the name of a module and then logs nothing.
fn is_log_level(text: &str) -> bool {
    let level = |text: &str| text.parse::<LevelFilter>().is_ok() && !text.is_empty();
    text.split(',').map(str::trim).all(|part| match part.split_once('=') {
        Some((module, of_module)) => !module.is_empty() && level(of_module),
        None => level(part),
    }) && EnvFilter::try_new(text).is_ok()
}

fn read_topics_and_groups<'a>(root: &mut Section<'a>, broker: &mut BrokerConfig) -> Result<(), ConfigError> {
    // The settings' own types say what is wrong with a value; each is tried on scratch settings for its line.
    let topic_setting = |key: &str, value: &str| TopicSettings::default().set(key, value);
    let group_setting = |key: &str, value: &str| GroupSettings::default().set(key, value);

    if let Some(section) = root.section("defaults")? {
        let keys = [TopicSettings::KEYS, GroupSettings::KEYS].concat();
        broker.defaults = read_settings(&section, &keys, |key, value| {
            if TopicSettings::KEYS.contains(&key) { topic_setting(key, value) } else { group_setting(key, value) }
        })?;
    }
    let (mut topics, mut groups) = (Vec::new(), Vec::new());
    for mut section in root.sections("topic")? {
        let (name, at) = pattern(&mut section, "name")?;
        let settings = read_settings(&section, TopicSettings::KEYS, topic_setting)?;
        topics.push((at, section_entries(&section)));
        broker.topics.push((name, settings));
    }
    for mut section in root.sections("group")? {
        let (topic, at) = pattern(&mut section, "topic")?;
        let (group, _) = pattern(&mut section, "group")?;
        let settings = read_settings(&section, GroupSettings::KEYS, group_setting)?;
        groups.push((at, section_entries(&section)));
        broker.groups.push((topic, group, settings));
    }

    // What no single key can tell: whether the settings of an entry fit together.
    let Err(error) = broker.validate() else { return Ok(()) };
    let empty = Vec::new();
    let (header, entries) = match error.section {
        Place::Defaults => {
            let entries = root.section("defaults")?.map_or(empty, |section| section_entries(&section));
            (entries.first().cloned(), entries)
        }
        Place::Topic(index) => topics.swap_remove(index),
        Place::Group(index) => groups.swap_remove(index),
    };
    let at = entries.into_iter().find(|entry| entry.key == error.source.key()).or(header);
    match at {
        Some(entry) => Err(setting_error(&entry, &error.source)),
        None => Err(root.error(&error.source)),
    }
}

fn section_entries<'a>(section: &Section<'a>) -> Vec<Entry<'a>> {
    section.entries().collect()
}

/// The settings of a section: whatever it was not asked for so far.
fn read_settings(
    section: &Section<'_>,
    keys: &[&'static str],
    check: impl Fn(&str, &str) -> Result<(), SettingError>,
) -> Result<SettingMap, ConfigError> {
    let mut settings = SettingMap::new();
    for entry in section.others() {
        if !keys.contains(&entry.key) {
            return Err(section.unknown(&entry, keys));
        }
        let value = entry.setting()?;
        check(entry.key, &value).map_err(|error| setting_error(&entry, &error))?;
        settings.insert(entry.key.to_owned(), value);
    }
    Ok(settings)
}

/// A name or a pattern that must be there, with its entry for later errors.
fn pattern<'a>(section: &mut Section<'a>, key: &'static str) -> Result<(NamePattern, Option<Entry<'a>>), ConfigError> {
    let (text, entry) = section.required(key)?;
    let pattern =
        NamePattern::new(&text).map_err(|error| entry.error(error, "`*` stands for any run of characters"))?;
    Ok((pattern, Some(entry)))
}

fn setting_error(entry: &Entry<'_>, error: &SettingError) -> ConfigError {
    entry.error(error, "")
}
