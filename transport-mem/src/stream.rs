//! The two halves of a stream as one side holds them.

use std::sync::Arc;

use async_trait::async_trait;
use stentor_core::transport::{CloseCode, FRAME_HEAD_BYTES_MAX, Frame, FrameReceiver, FrameSender, TransportError};
use tokio::sync::OwnedSemaphorePermit;

use crate::connection::{Announcement, Side};
use crate::pipe::{End, Pipe, Pulled};

/// The sending half.
pub(crate) struct MemSender {
    pipe: Arc<Pipe>,
    side: Arc<Side>,
    announcement: Option<Announcement>,
    state: Sending,
    /// Gives the stream back to the peer's allowance when both halves of the accepting side are gone.
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Open,
    /// A send is under way; found by the next call, it was dropped.
    Busy,
    Finished,
    Reset,
}

impl MemSender {
    pub(crate) fn new(
        pipe: Arc<Pipe>,
        side: Arc<Side>,
        announcement: Option<Announcement>,
        permit: Option<Arc<OwnedSemaphorePermit>>,
    ) -> Self {
        Self { pipe, side, announcement, state: Sending::Open, _permit: permit }
    }

    fn announce(&mut self) {
        if let Some(announcement) = self.announcement.take() {
            announcement.announce();
        }
    }

    /// What of the connection or the peer forbids to go on.
    fn obstacle(&self) -> Option<TransportError> {
        let view = self.side.link.view();
        // A stop by a peer that is not heard is not known yet.
        let stopped = if view.stalled { None } else { self.pipe.stopped() };
        view.over.or(stopped.map(TransportError::Reset))
    }
}

#[async_trait]
impl FrameSender for MemSender {
    async fn send(&mut self, frame: Frame) -> Result<(), TransportError> {
        match self.state {
            Sending::Open => {}
            Sending::Busy => return Err(TransportError::Broken),
            Sending::Finished | Sending::Reset => return Err(TransportError::Ended),
        }
        check(&frame, self.side.limits.frame_body_bytes_max)?;
        self.state = Sending::Busy;
        let mut frame = Some(frame);
        let mut views = self.side.link.subscribe();
        let result = loop {
            if let Some(obstacle) = self.obstacle() {
                break Err(obstacle);
            }
            self.pipe.push(&mut frame);
            if frame.is_none() {
                self.announce();
                break Ok(());
            }
            tokio::select! {
                () = self.pipe.drained.notified() => {}
                _ = views.changed() => {}
            }
        };
        // Nothing of the frame has gone out when it failed, and what made it fail stays.
        self.state = Sending::Open;
        result
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        match self.state {
            Sending::Open => {}
            Sending::Busy => return Err(TransportError::Broken),
            Sending::Finished | Sending::Reset => return Err(TransportError::Ended),
        }
        if let Some(obstacle) = self.obstacle() {
            return Err(obstacle);
        }
        self.state = Sending::Finished;
        self.pipe.end(End::Finished);
        self.announce();
        Ok(())
    }

    async fn finished(&mut self) -> Result<(), TransportError> {
        if self.state != Sending::Finished {
            self.finish()?;
        }
        let mut views = self.side.link.subscribe();
        // What is in the pipe is with the peer, unless the line is silent. An error means that the side is gone.
        let view = views.wait_for(|view| view.over.is_some() || !view.stalled).await;
        match view.ok().and_then(|view| view.over.clone()) {
            Some(over) => Err(over),
            None => Ok(()),
        }
    }

    fn reset(&mut self, code: CloseCode) {
        if self.state != Sending::Reset {
            self.state = Sending::Reset;
            self.pipe.end(End::Reset(code));
            self.announce();
        }
    }
}

impl Drop for MemSender {
    fn drop(&mut self) {
        if self.state != Sending::Finished {
            self.reset(CloseCode::NORMAL);
        }
    }
}

/// The receiving half.
pub(crate) struct MemReceiver {
    pipe: Arc<Pipe>,
    side: Arc<Side>,
    /// How it ended, once it has.
    ended: Option<Result<(), TransportError>>,
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl MemReceiver {
    pub(crate) fn new(pipe: Arc<Pipe>, side: Arc<Side>, permit: Option<Arc<OwnedSemaphorePermit>>) -> Self {
        Self { pipe, side, ended: None, _permit: permit }
    }

    fn end(&mut self, how: Result<(), TransportError>) -> Result<Option<Frame>, TransportError> {
        self.ended = Some(how.clone());
        how.map(|()| None)
    }
}

#[async_trait]
impl FrameReceiver for MemReceiver {
    async fn receive(&mut self) -> Result<Option<Frame>, TransportError> {
        if let Some(how) = &self.ended {
            return how.clone().map(|()| None);
        }
        let mut views = self.side.link.subscribe();
        loop {
            let view = self.side.link.view();
            if view.cut {
                self.pipe.lose();
            }
            if !view.stalled {
                match self.pipe.pull() {
                    Pulled::Frame(frame) => match check(&frame, self.side.limits.frame_body_bytes_max) {
                        Ok(()) => return Ok(Some(frame)),
                        Err(error) => {
                            self.pipe.stop(CloseCode::LIMIT);
                            return self.end(Err(error));
                        }
                    },
                    Pulled::End(End::Finished) if !view.cut => return self.end(Ok(())),
                    Pulled::End(End::Reset(code)) if view.over.is_none() => {
                        return self.end(Err(TransportError::Reset(code)));
                    }
                    Pulled::End(_) | Pulled::Empty => {}
                }
            }
            if let Some(over) = view.over {
                return self.end(Err(over));
            }
            tokio::select! {
                () = self.pipe.arrived.notified() => {}
                _ = views.changed() => {}
            }
        }
    }

    fn stop(&mut self, code: CloseCode) {
        if self.ended.is_none() {
            self.pipe.stop(code);
            self.ended = Some(Err(TransportError::Ended));
        }
    }
}

impl Drop for MemReceiver {
    fn drop(&mut self) {
        self.stop(CloseCode::NORMAL);
    }
}

/// Refuses a frame that is larger than allowed.
fn check(frame: &Frame, body_bytes_max: u32) -> Result<(), TransportError> {
    for (part, bytes_max) in [(&frame.head, FRAME_HEAD_BYTES_MAX), (&frame.body, body_bytes_max)] {
        let (bytes, bytes_max) = (part.len() as u64, u64::from(bytes_max));
        if bytes > bytes_max {
            return Err(TransportError::FrameTooLarge { bytes, bytes_max });
        }
    }
    Ok(())
}
