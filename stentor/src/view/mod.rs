//! What topics, groups and nodes look like from outside: the JSON of the commands and of the HTTP API, in one place so
//! that the two never differ. Field names are part of the contract with users.

mod group;
mod node;
mod story;
mod topic;

pub(crate) use group::GroupView;
pub(crate) use node::NodeView;
pub(crate) use story::{DeadLetterView, StoryView};
pub(crate) use topic::TopicView;
