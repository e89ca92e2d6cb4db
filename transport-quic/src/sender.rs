//! The sending direction of a stream.

use std::sync::Arc;

use async_trait::async_trait;
use quinn::{SendStream, StoppedError};
use stentor_core::transport::{CloseCode, Frame, FrameSender, TransportError};

use crate::connection::Shared;
use crate::{error, framing};

pub(crate) struct QuicSender {
    stream: SendStream,
    shared: Arc<Shared>,
    body_bytes_max: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// A send is under way; found by the next call, it was dropped, and half a frame lies in the stream.
    Busy,
    Finished,
    Reset,
}

impl QuicSender {
    pub(crate) fn new(stream: SendStream, shared: Arc<Shared>, body_bytes_max: u32) -> Self {
        Self { stream, shared, body_bytes_max, state: State::Open }
    }

    fn usable(&self) -> Result<(), TransportError> {
        match self.state {
            State::Open => Ok(()),
            State::Busy => Err(TransportError::Broken),
            State::Finished | State::Reset => Err(TransportError::Ended),
        }
    }
}

#[async_trait]
impl FrameSender for QuicSender {
    async fn send(&mut self, frame: Frame) -> Result<(), TransportError> {
        self.usable()?;
        let mut pieces = framing::encode(frame, self.body_bytes_max)?;
        self.state = State::Busy;
        let used = if pieces[1].is_empty() { 1 } else { 2 };
        let result = self.stream.write_all_chunks(&mut pieces[..used]).await;
        // A failed write fails again, so the state says nothing that the stream does not.
        self.state = State::Open;
        result.map_err(error::write)
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        self.usable()?;
        // quinn finishes a stream of a dead connection without a word.
        if let Some(over) = self.shared.over() {
            return Err(over);
        }
        self.stream.finish().map_err(|_| TransportError::Ended)?;
        self.state = State::Finished;
        Ok(())
    }

    async fn finished(&mut self) -> Result<(), TransportError> {
        if self.state != State::Finished {
            self.finish()?;
        }
        match self.stream.stopped().await {
            Ok(None) => Ok(()),
            Ok(Some(stop)) => Err(TransportError::Reset(error::code(stop))),
            Err(StoppedError::ConnectionLost(why)) => Err(error::connection(why)),
            // Impossible: 0-RTT is off.
            Err(why @ StoppedError::ZeroRttRejected) => Err(TransportError::ConnectionLost(why.to_string())),
        }
    }

    fn reset(&mut self, code: CloseCode) {
        if self.state != State::Reset {
            self.state = State::Reset;
            // An error says that everything has been delivered, or the connection is over.
            let _ = self.stream.reset(error::varint(code));
        }
    }
}

impl Drop for QuicSender {
    fn drop(&mut self) {
        // quinn would finish it, and half an answer would look like a whole one.
        if self.state != State::Finished {
            self.reset(CloseCode::NORMAL);
        }
    }
}
