//! The in-process transport passes the suite.

use std::sync::Arc;

use async_trait::async_trait;
use stentor_conformance::transport::{Limits, Network, Subject};
use stentor_transport_mem::{MemLimits, MemNetwork};

struct Memory;

#[async_trait]
impl Subject for Memory {
    async fn network(&self, limits: Limits) -> Network {
        let side = |frame_body_bytes_max| MemLimits {
            frame_body_bytes_max,
            streams_per_connection_max: limits.streams_per_connection_max as usize,
            ..MemLimits::default()
        };
        let network = MemNetwork::with_limits(side(limits.server_body_bytes_max));
        let listener = network.listen("server:0").expect("a listener");
        let transport = network.limited(side(limits.client_body_bytes_max)).transport();
        Network { listener: Box::new(listener), transport: Arc::new(transport) }
    }

    fn unread_bytes_max(&self) -> usize {
        MemLimits::default().stream_bytes_max
    }
}

stentor_conformance::transport_suite!(Memory);
