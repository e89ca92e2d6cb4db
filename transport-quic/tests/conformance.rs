//! QUIC over loopback passes the suite.

use std::sync::Arc;

use async_trait::async_trait;
use stentor_conformance::transport::{Limits, Network, Subject};
use stentor_transport_quic::{ClientConfig, QuicSettings, QuicTransport, ServerConfig};

mod common;

use common::Certificates;

struct Quic(Certificates);

#[async_trait]
impl Subject for Quic {
    async fn network(&self, limits: Limits) -> Network {
        let side = |frame_body_bytes_max| QuicSettings {
            frame_body_bytes_max,
            streams_per_connection_max: limits.streams_per_connection_max,
            ..common::settings()
        };
        let server = ServerConfig { quic: side(limits.server_body_bytes_max), ..self.0.server() };
        let client = ClientConfig { quic: side(limits.client_body_bytes_max), ..self.0.client() };
        Network {
            listener: Box::new(common::bind(server).await.expect("a listener")),
            transport: Arc::new(QuicTransport::new(client).expect("a transport")),
        }
    }

    fn unread_bytes_max(&self) -> usize {
        // What waits unread over there, and what waits here to be sent once more is allowed.
        let settings = common::settings();
        settings.stream_receive_window as usize + settings.send_window as usize
    }
}

stentor_conformance::transport_suite!(Quic(Certificates::new()));
