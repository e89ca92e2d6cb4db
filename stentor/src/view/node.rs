//! A node.

use serde::Serialize;
use stentor_protocol::wire;

/// What a node says about itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct NodeView {
    pub(crate) id: u64,
    pub(crate) broker: String,
    pub(crate) cpu_seconds: f64,
    pub(crate) rss_bytes: u64,
    pub(crate) uptime_seconds: f64,
    pub(crate) connections: u64,
    pub(crate) storage_bytes: u64,
    pub(crate) storage_bytes_live: u64,
    pub(crate) syncs: u64,
    pub(crate) corruptions: u64,
}

impl From<wire::NodeDescription> for NodeView {
    fn from(node: wire::NodeDescription) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a process does not live for 2^53 milliseconds")]
        let uptime_seconds = node.uptime_millis as f64 / 1e3;
        Self {
            id: node.id,
            broker: node.broker,
            cpu_seconds: node.cpu_seconds,
            rss_bytes: node.rss_bytes,
            uptime_seconds,
            connections: node.connections,
            storage_bytes: node.storage_bytes,
            storage_bytes_live: node.storage_bytes_live,
            syncs: node.syncs,
            corruptions: node.corruptions,
        }
    }
}
