//! One message, and what became of it.

use stentor_core::{MessageId, Offset, PartitionIndex, ProducerId, Record, Timestamp};
use stentor_protocol::wire::{self, request, response};

use super::dead_letters::only_record;
use super::{Admin, GroupStory, topic_name, unexpected};
use crate::error::RequestError;

/// Which message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one with this id.
    Id(MessageId),
    /// The one at this place.
    At(PartitionIndex, Offset),
}

/// A stored message, and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageStory {
    /// Its partition.
    pub partition: PartitionIndex,
    /// Its place in the partition.
    pub offset: Offset,
    /// When the broker stored it.
    pub stored_at: Timestamp,
    /// The opening of a producer that sent it.
    pub producer: ProducerId,
    /// The message.
    pub record: Record,
    /// What became of it in each group.
    pub groups: Vec<GroupStory>,
}

impl Admin {
    /// A message and what became of it.
    ///
    /// # Errors
    /// See [`RequestError`]; `message_not_found` when there is none.
    pub async fn show_message(&self, topic: &str, which: Which) -> Result<MessageStory, RequestError> {
        let topic = topic_name(topic)?;
        let which = match which {
            Which::Id(id) => wire::show_message::Which::Id(id.to_string()),
            Which::At(partition, offset) => {
                wire::show_message::Which::Offset(wire::PartitionOffset { partition: partition.0, offset: offset.0 })
            }
        };
        match self.ask(request::Kind::ShowMessage(wire::ShowMessage { topic, which: Some(which) })).await? {
            (response::Kind::Message(story), body) => Ok(MessageStory {
                partition: PartitionIndex(story.partition),
                offset: Offset(story.offset),
                stored_at: Timestamp(story.stored_at_micros),
                producer: ProducerId(story.producer),
                record: only_record(body)?.0,
                groups: story.groups,
            }),
            (other, _) => Err(unexpected(&other)),
        }
    }
}
