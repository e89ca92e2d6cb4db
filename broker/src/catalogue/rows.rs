//! The rows of the catalogue. Each begins with the version of its format.
//!
//! | key | row |
//! |---|---|
//! | `next-partition` | the number that the next partition gets |
//! | `topic/<name>` | a topic |
//! | `group/<topic>/<name>` | a group |
//!
//! Names hold no `/`, so no key can be taken for another.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use stentor_core::storage::{Key, KeyRange};
use stentor_core::{GroupName, PartitionId, TopicName};
use thiserror::Error;

const VERSION: u8 = 1;

const NEXT_PARTITION: &[u8] = b"next-partition";
const TOPIC: &[u8] = b"topic/";
const GROUP: &[u8] = b"group/";

/// A row that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RowError {
    #[error("the row {key} is of version {version}, which this version of stentor does not know")]
    Version { key: String, version: u8 },
    #[error("the row {key} is damaged: {detail}")]
    Damaged { key: String, detail: String },
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TopicRow {
    #[prost(string, tag = "1")]
    pub(crate) storage: String,
    /// The numbers of its partitions on this node, in the order of their indexes.
    #[prost(uint64, repeated, tag = "2")]
    pub(crate) partitions: Vec<u64>,
    /// What was set for it by name.
    #[prost(btree_map = "string, string", tag = "3")]
    pub(crate) set: BTreeMap<String, String>,
    /// Its deletion has begun, and is to be finished.
    #[prost(bool, tag = "4")]
    pub(crate) deleting: bool,
    /// The version of its route, which grows with every change.
    #[prost(uint64, tag = "5")]
    pub(crate) route_version: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GroupRow {
    /// What was set for it by name, when it was created or later.
    #[prost(btree_map = "string, string", tag = "1")]
    pub(crate) set: BTreeMap<String, String>,
    #[prost(bool, tag = "2")]
    pub(crate) paused: bool,
    /// Its deletion has begun, and is to be finished.
    #[prost(bool, tag = "3")]
    pub(crate) deleting: bool,
}

#[derive(Clone, PartialEq, Message)]
struct NextRow {
    #[prost(uint64, tag = "1")]
    next: u64,
}

/// Everything the catalogue holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Contents {
    pub(crate) next_partition: u64,
    pub(crate) topics: BTreeMap<TopicName, TopicRow>,
    pub(crate) groups: BTreeMap<(TopicName, GroupName), GroupRow>,
}

impl Contents {
    pub(crate) fn new() -> Self {
        // Number 0 is the catalogue itself.
        Self { next_partition: PartitionId::CATALOGUE.0 + 1, ..Self::default() }
    }

    /// Takes one row.
    pub(crate) fn row(&mut self, key: &Key, value: &Bytes) -> Result<(), RowError> {
        let bytes = key.as_ref();
        if bytes == NEXT_PARTITION {
            self.next_partition = decode::<NextRow>(key, value)?.next;
        } else if let Some(name) = bytes.strip_prefix(TOPIC) {
            self.topics.insert(topic_name(key, name)?, decode(key, value)?);
        } else if let Some(names) = bytes.strip_prefix(GROUP) {
            let split = names.iter().position(|byte| *byte == b'/');
            let (topic, group) = split.map_or((names, &[][..]), |at| (&names[..at], &names[at + 1..]));
            let group = str::from_utf8(group).ok().and_then(|group| GroupName::new(group).ok());
            let group = group.ok_or_else(|| damaged(key, "its group has no valid name"))?;
            self.groups.insert((topic_name(key, topic)?, group), decode(key, value)?);
        } else {
            return Err(damaged(key, "it is of an unknown kind"));
        }
        Ok(())
    }
}

pub(crate) fn all() -> KeyRange {
    KeyRange::all()
}

pub(crate) fn next_partition(next: u64) -> (Key, Bytes) {
    (Key::copy_from(NEXT_PARTITION), encode(&NextRow { next }))
}

pub(crate) fn topic_key(topic: &TopicName) -> Key {
    [TOPIC, topic.as_str().as_bytes()].concat().into()
}

pub(crate) fn group_key(topic: &TopicName, group: &GroupName) -> Key {
    [GROUP, topic.as_str().as_bytes(), b"/", group.as_str().as_bytes()].concat().into()
}

/// The groups of a topic.
pub(crate) fn groups_of(topic: &TopicName) -> KeyRange {
    KeyRange::prefix(&[GROUP, topic.as_str().as_bytes(), b"/"].concat())
}

pub(crate) fn encode(row: &impl Message) -> Bytes {
    let mut bytes = Vec::with_capacity(1 + row.encoded_len());
    bytes.push(VERSION);
    bytes.extend_from_slice(&row.encode_to_vec());
    bytes.into()
}

fn decode<R: Message + Default>(key: &Key, value: &Bytes) -> Result<R, RowError> {
    match value.first() {
        Some(&VERSION) => R::decode(value.slice(1..)).map_err(|error| damaged(key, &error.to_string())),
        Some(&version) => Err(RowError::Version { key: format!("{key:?}"), version }),
        None => Err(damaged(key, "it is empty")),
    }
}

fn topic_name(key: &Key, name: &[u8]) -> Result<TopicName, RowError> {
    let name = str::from_utf8(name).ok().and_then(|name| TopicName::new(name).ok());
    name.ok_or_else(|| damaged(key, "its topic has no valid name"))
}

fn damaged(key: &Key, detail: &str) -> RowError {
    RowError::Damaged { key: format!("{key:?}"), detail: detail.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings() -> impl Strategy<Value = BTreeMap<String, String>> {
        proptest::collection::btree_map("[a-z_]{1,12}", ".{0,12}", 0..4)
    }

    proptest! {
        #[test]
        fn rows_read_back_as_they_were(
            next in any::<u64>(),
            topic in "[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,20}",
            group in "[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,20}",
            partitions in proptest::collection::vec(any::<u64>(), 0..5),
            (topic_set, group_set) in (settings(), settings()),
            (paused, deleting) in any::<(bool, bool)>(),
        ) {
            let (topic, group) = (TopicName::new(&topic).unwrap(), GroupName::new(&group).unwrap());
            let topic_row =
                TopicRow { storage: "lsm".into(), partitions, set: topic_set, deleting, route_version: next };
            let group_row = GroupRow { set: group_set, paused, deleting };
            let mut contents = Contents::new();
            let (key, value) = next_partition(next);
            contents.row(&key, &value).unwrap();
            contents.row(&topic_key(&topic), &encode(&topic_row)).unwrap();
            let key = group_key(&topic, &group);
            prop_assert!(groups_of(&topic).contains(&key));
            contents.row(&key, &encode(&group_row)).unwrap();
            prop_assert_eq!(contents.next_partition, next);
            prop_assert_eq!(&contents.topics[&topic], &topic_row);
            prop_assert_eq!(&contents.groups[&(topic, group)], &group_row);
        }

        #[test]
        fn garbage_is_an_error_and_no_panic(
            key in proptest::collection::vec(any::<u8>(), 0..20),
            value in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let _ = Contents::new().row(&Key::copy_from(&[TOPIC, &key].concat()), &value.clone().into());
            let _ = Contents::new().row(&Key::copy_from(&[GROUP, &key].concat()), &value.clone().into());
            let _ = Contents::new().row(&Key::copy_from(&key), &value.into());
        }
    }

    #[test]
    fn a_row_of_a_later_version_is_refused_by_name() {
        let key = topic_key(&TopicName::new("orders").unwrap());
        let error = Contents::new().row(&key, &Bytes::from_static(&[9])).unwrap_err();
        assert_eq!(error, RowError::Version { key: format!("{key:?}"), version: 9 });
    }
}
