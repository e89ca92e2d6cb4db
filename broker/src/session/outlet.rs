//! The sending side of a stream, with a limit to its patience.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use stentor_core::Clock;
use stentor_core::transport::{CloseCode, Connection, Frame, FrameSender, TransportError};
use stentor_protocol::encode_to_client;
use stentor_protocol::wire::{self, to_client};
use thiserror::Error;

/// Why nothing more can be sent.
#[derive(Debug, Error)]
pub(crate) enum SendError {
    /// The stream or the connection is over.
    #[error(transparent)]
    Gone(#[from] TransportError),
    /// The peer does not read.
    #[error("the peer takes in nothing that it is sent")]
    Stalled,
}

/// What a stream is answered through.
pub(crate) struct Outlet {
    sender: Box<dyn FrameSender>,
    connection: Arc<dyn Connection>,
    clock: Arc<dyn Clock>,
    patience: Duration,
}

impl Outlet {
    pub(crate) fn new(
        sender: Box<dyn FrameSender>,
        connection: Arc<dyn Connection>,
        clock: Arc<dyn Clock>,
        patience: Duration,
    ) -> Self {
        Self { sender, connection, clock, patience }
    }

    pub(crate) async fn say(&mut self, kind: to_client::Kind) -> Result<(), SendError> {
        self.send(encode_to_client(kind)).await
    }

    /// Sends a frame. A peer that does not take it in for so long is disconnected.
    pub(crate) async fn send(&mut self, frame: Frame) -> Result<(), SendError> {
        let mut sending = self.sender.send(frame);
        // Nearly always there is room, and then no timer is set.
        if let Some(sent) = sending.as_mut().now_or_never() {
            return Ok(sent?);
        }
        let deadline = self.clock.monotonic().after(self.patience);
        match select(sending, self.clock.sleep_until(deadline)).await {
            Either::Left((sent, _)) => Ok(sent?),
            Either::Right(_) => {
                self.connection.close(CloseCode::TIMEOUT, "the peer does not read");
                Err(SendError::Stalled)
            }
        }
    }

    /// Says nothing more, and waits (within bounds) until the peer's side holds all that was said.
    pub(crate) async fn finish(&mut self) {
        let deadline = self.clock.monotonic().after(self.patience);
        // Whoever has gone does not need the last word.
        let _ = select(self.sender.finished(), self.clock.sleep_until(deadline)).await;
    }

    /// Refuses to open the stream.
    pub(crate) async fn refuse(&mut self, error: wire::Error) {
        if self.say(to_client::Kind::Refused(error)).await.is_ok() {
            self.finish().await;
        }
    }

    /// Ends the stream with a reason.
    pub(crate) async fn end(&mut self, error: wire::Error) {
        if self.say(to_client::Kind::Ended(error)).await.is_ok() {
            self.finish().await;
        }
    }
}
