//! `/api/v1`: what topics, groups and the node look like, read-only, in the JSON of the commands.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use serde_json::json;
use stentor_protocol::wire::{self, ErrorCode, request, response};

use super::Shared;
use crate::view::{GroupView, NodeView, TopicView};

pub(super) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/topics", get(topics))
        .route("/topics/{name}", get(topic))
        .route("/topics/{name}/groups/{group}", get(group))
        .route("/node", get(node))
}

async fn topics(State(shared): State<Arc<Shared>>) -> Response {
    let Some(broker) = shared.broker.get() else { return recovering() };
    let (mut all, mut after) = (Vec::new(), Bytes::new());
    loop {
        match broker.request(request::Kind::ListTopics(wire::ListTopics { after })).await.0 {
            response::Kind::Topics(page) => {
                all.extend(page.topics.into_iter().map(TopicView::from));
                if page.next.is_empty() {
                    return Json(all).into_response();
                }
                after = page.next;
            }
            other => return answer(other),
        }
    }
}

async fn topic(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> Response {
    let Some(broker) = shared.broker.get() else { return recovering() };
    let mut topic = match broker.request(request::Kind::ShowTopic(wire::ShowTopic { name })).await.0 {
        response::Kind::Topic(topic) => topic,
        other => return answer(other),
    };
    while !topic.groups_next.is_empty() {
        let list = wire::ListGroups { topic: topic.name.clone(), after: std::mem::take(&mut topic.groups_next) };
        match broker.request(request::Kind::ListGroups(list)).await.0 {
            response::Kind::Groups(page) => {
                topic.groups.extend(page.groups);
                topic.groups_next = page.next;
            }
            other => return answer(other),
        }
    }
    answer(response::Kind::Topic(topic))
}

async fn group(State(shared): State<Arc<Shared>>, Path((topic, group)): Path<(String, String)>) -> Response {
    ask(&shared, request::Kind::ShowGroup(wire::ShowGroup { topic, group })).await
}

async fn node(State(shared): State<Arc<Shared>>) -> Response {
    ask(&shared, request::Kind::NodeStatus(wire::NodeStatus {})).await
}

async fn ask(shared: &Shared, request: request::Kind) -> Response {
    match shared.broker.get() {
        Some(broker) => answer(broker.request(request).await.0),
        None => recovering(),
    }
}

fn recovering() -> Response {
    refuse(ErrorCode::Unavailable.kind(), "the node is recovering", "", StatusCode::SERVICE_UNAVAILABLE)
}

fn answer(answer: response::Kind) -> Response {
    match answer {
        response::Kind::Topic(topic) => Json(TopicView::from(topic)).into_response(),
        response::Kind::Group(group) => Json(GroupView::from(group)).into_response(),
        response::Kind::Node(node) => Json(NodeView::from(node)).into_response(),
        response::Kind::Error(error) => refuse(error.code().kind(), &error.message, &error.hint, status(error.code())),
        _ => refuse("internal", "the broker answered something else", "", StatusCode::INTERNAL_SERVER_ERROR),
    }
}

fn refuse(kind: &str, message: &str, hint: &str, status: StatusCode) -> Response {
    let hint = (!hint.is_empty()).then_some(hint);
    (status, Json(json!({ "error": { "kind": kind, "message": message, "hint": hint } }))).into_response()
}

fn status(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::TopicNotFound
        | ErrorCode::GroupNotFound
        | ErrorCode::PartitionNotFound
        | ErrorCode::MessageNotFound => StatusCode::NOT_FOUND,
        ErrorCode::Invalid => StatusCode::BAD_REQUEST,
        ErrorCode::Unavailable | ErrorCode::ShuttingDown | ErrorCode::LimitReached => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
