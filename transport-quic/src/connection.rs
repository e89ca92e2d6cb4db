//! One connection.
//!
//! Invariant: a connection is closed by [`Shared`], from whose drop quinn would otherwise do it without letting the
//! farewell pass.

use std::sync::Arc;

use async_trait::async_trait;
use quinn::{RecvStream, SendStream};
use stentor_core::transport::{CloseCode, Connection, FrameStream, PeerInfo, TransportError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::framing::FRAME_BYTES_FIRST;
use crate::receiver::QuicReceiver;
use crate::sender::QuicSender;
use crate::settings::QuicSettings;
use crate::{congestion, error};

/// The longest reason that is sent with a close: it has to fit in one datagram.
const REASON_BYTES_MAX: usize = 512;

/// What the handle and the streams of a connection hold: it lives as long as any of them.
pub(crate) struct Shared {
    connection: quinn::Connection,
    /// Its place among the connections of the listener.
    _place: Option<OwnedSemaphorePermit>,
    /// Room for frames that are being put together, in units of [`FRAME_BYTES_FIRST`].
    room: Arc<Semaphore>,
    room_units: u32,
}

impl Shared {
    /// Waits for the room that a frame of `bytes` takes until it is whole. A frame has all of its room before it grows, so
    /// frames never wait for each other half-way; it may be larger than what there is and then has it for itself.
    pub(crate) async fn room_for(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(FRAME_BYTES_FIRST)).unwrap_or(u32::MAX).min(self.room_units);
        // It is never closed.
        Arc::clone(&self.room).acquire_many_owned(units).await.ok()
    }

    /// Why the connection is over, if it is.
    pub(crate) fn over(&self) -> Option<TransportError> {
        self.connection.close_reason().map(error::connection)
    }

    fn close(&self, code: CloseCode, reason: &str) {
        // quinn would forget why the connection is over and call it closed by this side.
        if self.connection.close_reason().is_some() {
            return;
        }
        let cut = (0..=reason.len().min(REASON_BYTES_MAX)).rev().find(|at| reason.is_char_boundary(*at)).unwrap_or(0);
        congestion::part(&self.connection);
        self.connection.close(error::varint(code), &reason.as_bytes()[..cut]);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.close(CloseCode::NORMAL, "");
    }
}

/// The handle.
pub(crate) struct QuicConnection {
    shared: Arc<Shared>,
    peer: PeerInfo,
    body_bytes_max: u32,
}

impl QuicConnection {
    pub(crate) fn new(
        connection: quinn::Connection,
        peer: PeerInfo,
        settings: &QuicSettings,
        place: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let room_units = (settings.frames_incoming_bytes_max as usize).div_ceil(FRAME_BYTES_FIRST).max(1);
        let room = Arc::new(Semaphore::new(room_units));
        let room_units = u32::try_from(room_units).unwrap_or(u32::MAX);
        let shared = Arc::new(Shared { connection, _place: place, room, room_units });
        Self { shared, peer, body_bytes_max: settings.frame_body_bytes_max }
    }

    fn stream(&self, (send, receive): (SendStream, RecvStream)) -> FrameStream {
        FrameStream {
            sender: Box::new(QuicSender::new(send, Arc::clone(&self.shared), self.body_bytes_max)),
            receiver: Box::new(QuicReceiver::new(receive, Arc::clone(&self.shared), self.body_bytes_max)),
        }
    }
}

#[async_trait]
impl Connection for QuicConnection {
    async fn open(&self) -> Result<FrameStream, TransportError> {
        self.shared.connection.open_bi().await.map(|halves| self.stream(halves)).map_err(error::connection)
    }

    async fn accept(&self) -> Result<FrameStream, TransportError> {
        self.shared.connection.accept_bi().await.map(|halves| self.stream(halves)).map_err(error::connection)
    }

    fn close(&self, code: CloseCode, reason: &str) {
        self.shared.close(code, reason);
    }

    async fn closed(&self) -> TransportError {
        error::connection(self.shared.connection.closed().await)
    }

    fn peer(&self) -> PeerInfo {
        self.peer.clone()
    }
}
