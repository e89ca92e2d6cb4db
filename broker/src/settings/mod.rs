//! Settings as data: every key of a topic, a group and a node, with its type, its default and its text form in one place.
//!
//! Invariants: a settings value that exists has every key within its bounds; what [`entries`](TopicSettings::entries)
//! writes, [`set`](TopicSettings::set) reads back; a wrong key or value is an error that names the key, what was
//! expected, and the nearest key there is.
//!
//! Where a setting comes from (built-in, configuration, `topic set`) is decided in [`crate::config`].

use std::time::Duration;

use stentor_core::Durability;
use stentor_core::limits::{MESSAGE_BYTES_MAX_CEILING, MESSAGE_BYTES_MAX_DEFAULT, TOPIC_PARTITIONS_MAX};
use stentor_core::storage::WhenFull;

mod error;
mod value;

pub use error::SettingError;
pub use value::{Percent, Size, StorageKind};

use value::SettingValue;

/// The shortest time that a setting may name where zero would make no sense.
const SHORTEST: Duration = Duration::from_millis(1);

/// The longest time that a setting may name: ten years.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// What a partition in memory gets at least: with less it could hold no message worth the name.
const PARTITION_MEMORY_MIN: Size = Size(64 << 10);

/// Makes a struct of settings: its fields are its keys.
macro_rules! settings {
    (
        $(#[$doc:meta])*
        $name:ident of $of:literal {
            $($(#[$field_doc:meta])* $key:ident: $type:ty = $default:expr $(, in $range:expr)?;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $name {
            /// Every key there is.
            pub const KEYS: &'static [&'static str] = &[$(stringify!($key),)*];

            /// Sets `key` to what `value` says in text: `64KiB`, `30s`, `true`, … On an error nothing has changed.
            ///
            /// # Errors
            /// When there is no such key, or the value is of another type or out of bounds.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
                match key {
                    $(stringify!($key) => {
                        let parsed = <$type as SettingValue>::parse(value)
                            .ok_or_else(|| SettingError::value(key, value, <$type as SettingValue>::EXPECTED))?;
                        $(
                            let range = $range;
                            if !range.contains(&parsed) {
                                let (least, most) = (range.start().show(), range.end().show());
                                let expected = format!(
                                    "{} from {least} to {most}",
                                    <$type as SettingValue>::EXPECTED,
                                );
                                return Err(SettingError::value(key, value, &expected));
                            }
                        )?
                        self.$key = parsed;
                        Ok(())
                    })*
                    _ => Err(SettingError::unknown($of, key, Self::KEYS)),
                }
            }

            /// Every key with its value in text, in the order of the keys' declaration.
            #[must_use]
            pub fn entries(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($key), SettingValue::show(&self.$key)),)*]
            }
        }
    };
}

settings! {
    /// The settings of a topic.
    TopicSettings of "topic" {
        /// Where its messages are kept. Fixed for the topic's life.
        storage: StorageKind = StorageKind::Lsm;
        /// What an acknowledged publish survives; `auto` is the storage's own.
        durability: Option<Durability> = None;
        /// How many partitions it has. Fixed for the topic's life.
        partitions: u32 = 4, in 1..=TOPIC_PARTITIONS_MAX;
        /// What a topic in memory may take, all partitions together.
        memory_max: Size = Size(1 << 30), in Size(64 << 10)..=Size(1 << 50);
        /// What happens when a topic in memory has taken that.
        when_full: WhenFull = WhenFull::Reject;
        /// How long messages are kept though every group is done with them.
        retain_for: Duration = Duration::from_secs(24 * 3_600), in Duration::ZERO..=LONGEST;
        /// At most so many bytes are kept of what every group is done with, all partitions together.
        retain_bytes: Option<Size> = None;
        /// Messages older than this are dropped even if a group still owes them.
        expire_owed_after: Option<Duration> = None;
        /// The largest message: key, tag, headers and body together.
        message_bytes_max: Size = Size(MESSAGE_BYTES_MAX_DEFAULT as u64),
            in Size(1)..=Size(MESSAGE_BYTES_MAX_CEILING as u64);
    }
}

settings! {
    /// The settings of a subscriber group.
    GroupSettings of "group" {
        /// Which messages the group wants; nothing means all.
        filter: String = String::new();
        /// Whether messages of one key go out one at a time, in order.
        ordered: bool = false;
        /// How long a consumer holds a message before it comes back.
        lease: Duration = Duration::from_secs(30), in SHORTEST..=LONGEST;
        /// After so many failed deliveries a message goes to the dead letters.
        max_attempts: u32 = 16, in 1..=1_000_000;
        /// How long a refused message waits the first time.
        retry_delay: Duration = Duration::from_secs(1), in Duration::ZERO..=LONGEST;
        /// The wait doubles up to this.
        retry_delay_max: Duration = Duration::from_secs(2 * 3_600), in Duration::ZERO..=LONGEST;
        /// With so many messages being retried, new ones wait in the log.
        retrying_max: u32 = 100_000, in 1..=1_000_000;
    }
}

settings! {
    /// The settings of a node, as far as the engine heeds them.
    NodeSettings of "node" {
        /// The number of this node.
        id: u64 = 1, in 1..=u64::MAX;
        /// Acknowledgements of consumers become durable at least this often.
        ack_flush: Duration = Duration::from_millis(100), in SHORTEST..=Duration::from_secs(60);
        /// Publishing is refused when the disk is this full.
        disk_watermark: Percent = Percent(95);
        /// Kept free for acknowledgements, compaction and recovery.
        disk_reserve: Size = Size(64 << 20);
        /// The most connections of clients.
        connections_max: u32 = 10_000, in 1..=1_000_000;
        /// The most streams of one connection: its producers and subscriptions.
        streams_per_connection_max: u32 = 1_024, in 2..=65_536;
        /// What producers may have sent without an answer, all connections together. One connection may take a quarter.
        in_flight_bytes_max: Size = Size(256 << 20), in Size(1 << 20)..=Size(1 << 50);
        /// A connection that is silent for so long is over.
        idle_timeout: Duration = Duration::from_secs(30), in SHORTEST..=LONGEST;
        /// How long a peer may take for its handshake, and to take in what it is sent.
        handshake_timeout: Duration = Duration::from_secs(10), in SHORTEST..=LONGEST;
    }
}

impl TopicSettings {
    /// What an acknowledged publish survives: as set, or as the storage has it by itself.
    #[must_use]
    pub fn durability_in_force(&self) -> Durability {
        self.durability.unwrap_or(self.storage.durabilities()[0])
    }

    /// Checks what no single key can tell.
    ///
    /// # Errors
    /// When the storage does not keep the durability, or a partition gets too little memory.
    pub fn check(&self) -> Result<(), SettingError> {
        let least = Size(PARTITION_MEMORY_MIN.0 * u64::from(self.partitions));
        if self.storage == StorageKind::Memory && self.memory_max < least {
            let expected = format!("at least {}, {PARTITION_MEMORY_MIN} for each partition", least.show());
            return Err(SettingError::value("memory_max", &self.memory_max.show(), &expected));
        }
        let (wanted, kept) = (self.durability_in_force(), self.storage.durabilities());
        if kept.contains(&wanted) {
            return Ok(());
        }
        let kept: Vec<_> = kept.iter().map(|durability| durability.as_str()).collect();
        let expected = format!("{} (storage {} keeps no other)", kept.join(" or "), self.storage.as_str());
        Err(SettingError::value("durability", wanted.as_str(), &expected))
    }
}

impl GroupSettings {
    /// Checks what no single key can tell. The filter is checked by whoever compiles it.
    ///
    /// # Errors
    /// When the delays contradict each other.
    pub fn check(&self) -> Result<(), SettingError> {
        if self.retry_delay <= self.retry_delay_max {
            return Ok(());
        }
        let expected = format!("at most retry_delay_max, which is {}", self.retry_delay_max.show());
        Err(SettingError::value("retry_delay", &self.retry_delay.show(), &expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_reads_back_as_it_was_written() {
        let (mut topic, mut group, mut node) =
            (TopicSettings::default(), GroupSettings::default(), NodeSettings::default());
        for (key, value) in topic.entries() {
            topic.set(key, &value).unwrap();
        }
        for (key, value) in group.entries() {
            group.set(key, &value).unwrap();
        }
        for (key, value) in node.entries() {
            node.set(key, &value).unwrap();
        }
        assert_eq!(topic, TopicSettings::default());
        assert_eq!(group, GroupSettings::default());
        assert_eq!(node, NodeSettings::default());
    }

    #[test]
    fn text_forms_are_understood() {
        let mut topic = TopicSettings::default();
        for (key, value) in [
            ("storage", "memory"),
            ("durability", "memory"),
            ("memory_max", "2GiB"),
            ("when_full", "drop-oldest"),
            ("retain_for", "72h"),
            ("retain_bytes", "10 MiB"),
            ("expire_owed_after", "500ms"),
        ] {
            topic.set(key, value).unwrap();
        }
        assert_eq!(topic.memory_max, Size(2 << 30));
        assert_eq!(topic.when_full, WhenFull::DropOldest);
        assert_eq!(topic.retain_for, Duration::from_secs(72 * 3_600));
        assert_eq!(topic.retain_bytes, Some(Size(10 << 20)));
        assert_eq!(topic.expire_owed_after, Some(Duration::from_millis(500)));
        topic.set("expire_owed_after", "never").unwrap();
        assert_eq!(topic.expire_owed_after, None);
    }

    #[test]
    fn a_wrong_key_names_the_nearest_one() {
        let error = TopicSettings::default().set("retain_fro", "1h").unwrap_err();
        assert_eq!(error.to_string(), "`retain_fro` is no setting of a topic: did you mean `retain_for`?");
    }

    #[test]
    fn a_wrong_value_says_what_is_expected_and_changes_nothing() {
        let mut topic = TopicSettings::default();
        for (key, value, expected) in [
            ("partitions", "0", "a whole number from 1 to 4096"),
            ("partitions", "many", "a whole number"),
            ("message_bytes_max", "65MiB", "a size such as 64KiB from 1B to 64MiB"),
            ("retain_for", "soon", "a duration such as 30s"),
            ("storage", "disk", "memory, lsm or replicated"),
        ] {
            let error = topic.set(key, value).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(key) && error.contains(value), "{error}");
        }
        assert_eq!(topic, TopicSettings::default());
    }

    #[test]
    fn a_storage_is_asked_only_for_what_it_keeps() {
        let mut topic = TopicSettings::default();
        assert_eq!(topic.durability_in_force(), Durability::Synced);
        topic.set("durability", "buffered").unwrap();
        topic.check().unwrap();
        topic.set("storage", "memory").unwrap();
        let error = topic.check().unwrap_err().to_string();
        assert!(error.contains("buffered") && error.contains("memory"), "{error}");
    }
}
