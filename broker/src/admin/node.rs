//! The node itself.

use stentor_protocol::wire;

use crate::node::Node;
use crate::session::BROKER;

pub(super) fn status(node: &Node) -> wire::NodeDescription {
    let process = (node.process)();
    let mut status = wire::NodeDescription {
        id: node.config.node.id,
        broker: BROKER.to_owned(),
        cpu_seconds: process.cpu_seconds,
        rss_bytes: process.rss_bytes,
        uptime_millis: u64::try_from(node.clock.monotonic().since(node.started).as_millis()).unwrap_or(u64::MAX),
        connections: node.connections(),
        ..wire::NodeDescription::default()
    };
    for storage in node.storages.values() {
        let usage = storage.usage();
        status.storage_bytes += usage.bytes;
        status.storage_bytes_live += usage.bytes_live;
        status.syncs += usage.syncs;
        status.corruptions += usage.corruptions;
    }
    status
}
