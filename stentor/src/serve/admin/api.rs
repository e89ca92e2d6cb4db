//! `/api/v1`: what topics, groups and the node look like, read-only, in the JSON of the commands.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
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
    ask(&shared, request::Kind::ListTopics(wire::ListTopics {})).await
}

async fn topic(State(shared): State<Arc<Shared>>, Path(name): Path<String>) -> Response {
    ask(&shared, request::Kind::ShowTopic(wire::ShowTopic { name })).await
}

async fn group(State(shared): State<Arc<Shared>>, Path((topic, group)): Path<(String, String)>) -> Response {
    ask(&shared, request::Kind::ShowGroup(wire::ShowGroup { topic, group })).await
}

async fn node(State(shared): State<Arc<Shared>>) -> Response {
    ask(&shared, request::Kind::NodeStatus(wire::NodeStatus {})).await
}

async fn ask(shared: &Shared, request: request::Kind) -> Response {
    let Some(broker) = shared.broker.get() else {
        return refuse(ErrorCode::Unavailable.kind(), "the node is recovering", "", StatusCode::SERVICE_UNAVAILABLE);
    };
    let (answer, _) = broker.request(request).await;
    match answer {
        response::Kind::Topics(topics) => {
            let topics: Vec<_> = topics.topics.into_iter().map(TopicView::from).collect();
            Json(topics).into_response()
        }
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
