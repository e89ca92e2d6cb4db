//! The receiving direction of a stream.

use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use quinn::RecvStream;
use stentor_core::transport::{CloseCode, Frame, FrameReceiver, TransportError};
use tokio::sync::OwnedSemaphorePermit;

use crate::connection::Shared;
use crate::error;
use crate::framing::{Decoder, FRAME_BYTES_FIRST};

/// Pieces taken out of quinn at a time: each time costs its lock, and small frames come many to a piece.
const PIECES_MAX: usize = 16;

pub(crate) struct QuicReceiver {
    stream: RecvStream,
    shared: Arc<Shared>,
    decoder: Decoder,
    /// The room of a large frame until it is whole.
    room: Option<OwnedSemaphorePermit>,
    pieces: [Bytes; PIECES_MAX],
    /// Those not yet used up.
    next: usize,
    end: usize,
    /// How it ended, once it has.
    ended: Option<Result<(), TransportError>>,
}

impl QuicReceiver {
    pub(crate) fn new(stream: RecvStream, shared: Arc<Shared>, body_bytes_max: u32) -> Self {
        Self {
            stream,
            shared,
            decoder: Decoder::new(body_bytes_max),
            room: None,
            pieces: Default::default(),
            next: 0,
            end: 0,
            ended: None,
        }
    }

    /// The next frame out of the pieces that are here.
    fn decode(&mut self) -> Result<Option<Frame>, TransportError> {
        while self.next < self.end {
            let piece = &mut self.pieces[self.next];
            let decoded = self.decoder.take(piece)?;
            if piece.is_empty() {
                // Let go of the datagram.
                *piece = Bytes::new();
                self.next += 1;
            }
            if let ControlFlow::Break(frame) = decoded {
                self.room = None;
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    fn end(&mut self, how: Result<(), TransportError>) -> Result<Option<Frame>, TransportError> {
        self.pieces = Default::default();
        self.decoder = Decoder::new(0);
        self.room = None;
        self.ended = Some(how.clone());
        how.map(|()| None)
    }
}

#[async_trait]
impl FrameReceiver for QuicReceiver {
    async fn receive(&mut self) -> Result<Option<Frame>, TransportError> {
        if let Some(how) = &self.ended {
            return how.clone().map(|()| None);
        }
        loop {
            match self.decode() {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) => {}
                Err(error) => {
                    // An error says that the stream is over, which is what was wanted.
                    let _ = self.stream.stop(error::varint(CloseCode::LIMIT));
                    return self.end(Err(error));
                }
            }
            // Before more of a large frame is taken in: many half frames of one peer must not add up. Until then the
            // stream's window holds the peer up. Dropped while it waits, the call has changed nothing.
            if self.room.is_none() && self.decoder.claimed() > FRAME_BYTES_FIRST {
                self.room = self.shared.room_for(self.decoder.claimed()).await;
            }
            // Whatever this await brings is stored before anything else happens, so the call may be dropped.
            match self.stream.read_chunks(&mut self.pieces).await {
                Ok(Some(count)) => (self.next, self.end) = (0, count),
                Ok(None) if self.decoder.is_midway() => {
                    let error = TransportError::Malformed("the stream ended in the middle of a frame".to_owned());
                    return self.end(Err(error));
                }
                Ok(None) => return self.end(Ok(())),
                Err(error) => return self.end(Err(error::read(error))),
            }
        }
    }

    fn stop(&mut self, code: CloseCode) {
        if self.ended.is_none() {
            let _ = self.stream.stop(error::varint(code));
            let _ = self.end(Err(TransportError::Ended));
        }
    }
}
