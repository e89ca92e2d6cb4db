//! One connection.

use async_trait::async_trait;
use quinn::{RecvStream, SendStream};
use stentor_core::transport::{CloseCode, Connection, FrameStream, PeerInfo, TransportError};
use tokio::sync::OwnedSemaphorePermit;

use crate::error;
use crate::receiver::QuicReceiver;
use crate::sender::QuicSender;

/// The longest reason that is sent with a close: it has to fit in one datagram.
const REASON_BYTES_MAX: usize = 512;

pub(crate) struct QuicConnection {
    connection: quinn::Connection,
    peer: PeerInfo,
    body_bytes_max: u32,
    /// Its place among the connections of the listener.
    _place: Option<OwnedSemaphorePermit>,
}

impl QuicConnection {
    pub(crate) fn new(
        connection: quinn::Connection,
        peer: PeerInfo,
        body_bytes_max: u32,
        place: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { connection, peer, body_bytes_max, _place: place }
    }

    fn stream(&self, (send, receive): (SendStream, RecvStream)) -> FrameStream {
        FrameStream {
            sender: Box::new(QuicSender::new(send, self.connection.clone(), self.body_bytes_max)),
            receiver: Box::new(QuicReceiver::new(receive, self.body_bytes_max)),
        }
    }
}

#[async_trait]
impl Connection for QuicConnection {
    async fn open(&self) -> Result<FrameStream, TransportError> {
        self.connection.open_bi().await.map(|halves| self.stream(halves)).map_err(error::connection)
    }

    async fn accept(&self) -> Result<FrameStream, TransportError> {
        self.connection.accept_bi().await.map(|halves| self.stream(halves)).map_err(error::connection)
    }

    fn close(&self, code: CloseCode, reason: &str) {
        // quinn would forget why the connection is over and call it closed by this side.
        if self.connection.close_reason().is_some() {
            return;
        }
        let cut = (0..=reason.len().min(REASON_BYTES_MAX)).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
        self.connection.close(error::varint(code), &reason.as_bytes()[..cut]);
    }

    async fn closed(&self) -> TransportError {
        error::connection(self.connection.closed().await)
    }

    fn peer(&self) -> PeerInfo {
        self.peer.clone()
    }
}
