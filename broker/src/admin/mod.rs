//! Requests: what a client, the command line or the HTTP API asks beside publishing and consuming. A file per kind.

mod group;
mod letters;
mod message;
mod node;
mod page;
pub(crate) mod route;
pub(crate) mod start;
mod topic;

use std::sync::Arc;

use bytes::Bytes;
use stentor_protocol::wire::{self, request, response};

use crate::node::Node;

/// Answers a request: what the response says, and the body of its frame.
pub(crate) async fn answer(node: &Arc<Node>, kind: request::Kind) -> (response::Kind, Bytes) {
    match serve(node, kind).await {
        Ok(answer) => answer,
        Err(error) => (response::Kind::Error(error), Bytes::new()),
    }
}

async fn serve(node: &Arc<Node>, kind: request::Kind) -> Result<(response::Kind, Bytes), wire::Error> {
    use request::Kind;
    use response::Kind as Say;

    let done = || Say::Done(wire::Done {});
    let said = match kind {
        Kind::GetRoute(get) => Say::Route(route::get(node, &get).await?),
        Kind::CreateTopic(create) => {
            topic::create(node, create).await?;
            done()
        }
        Kind::ListTopics(list) => Say::Topics(topic::list(node, &list)?),
        Kind::ShowTopic(show) => Say::Topic(topic::show(node, &show).await?),
        Kind::SetTopic(set) => {
            node.catalogue.set_topic(set.name, set.settings.into_iter().collect()).await?;
            done()
        }
        Kind::DeleteTopic(delete) => {
            node.catalogue.delete_topic(delete.name).await?;
            done()
        }
        Kind::CreateGroup(create) => {
            group::create(node, create).await?;
            done()
        }
        Kind::ListGroups(list) => Say::Groups(group::list(node, &list).await?),
        Kind::ShowGroup(show) => Say::Group(group::show(node, &show).await?),
        Kind::SetGroup(set) => {
            node.catalogue.set_group(set.topic, set.group, set.settings.into_iter().collect()).await?;
            done()
        }
        Kind::SeekGroup(seek) => {
            group::seek(node, &seek).await?;
            done()
        }
        Kind::PauseGroup(pause) => {
            node.catalogue.pause_group(pause.topic, pause.group, pause.paused).await?;
            done()
        }
        Kind::DeleteGroup(delete) => {
            node.catalogue.delete_group(delete.topic, delete.group).await?;
            done()
        }
        Kind::ListDeadLetters(list) => {
            let (letters, body) = letters::list(node, &list).await?;
            return Ok((Say::DeadLetters(letters), body));
        }
        Kind::Redrive(redrive) => Say::Count(letters::redrive(node, &redrive).await?),
        Kind::PurgeDeadLetters(purge) => Say::Count(letters::purge(node, &purge).await?),
        Kind::ShowMessage(show) => {
            let (story, body) = message::show(node, &show).await?;
            return Ok((Say::Message(story), body));
        }
        Kind::NodeStatus(_) => Say::Node(node::status(node)),
    };
    Ok((said, Bytes::new()))
}
