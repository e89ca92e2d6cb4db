//! The sending direction of a stream, for a task that must listen while it sends.

use std::future::{Future, pending};
use std::pin::Pin;

use stentor_core::transport::{Frame, FrameSender, TransportError};
use stentor_core::{Clock, Monotonic};

type Carrying = Pin<Box<dyn Future<Output = (Box<dyn FrameSender>, Result<(), TransportError>)> + Send>>;

/// Free, or carrying a frame. A send may not be dropped half-way, and it may take long; so it lives on here while its task
/// hears what comes in.
pub(crate) enum Line {
    Free(Box<dyn FrameSender>),
    Carrying(Carrying),
}

impl Line {
    pub(crate) const fn new(sender: Box<dyn FrameSender>) -> Self {
        Self::Free(sender)
    }

    pub(crate) const fn is_free(&self) -> bool {
        matches!(self, Self::Free(_))
    }

    /// Begins to send a frame on a free line.
    pub(crate) fn carry(self, frame: Frame) -> Self {
        match self {
            Self::Free(mut sender) => Self::Carrying(Box::pin(async move {
                let sent = sender.send(frame).await;
                (sender, sent)
            })),
            busy @ Self::Carrying(_) => {
                debug_assert!(false, "a line carries one frame at a time");
                busy
            }
        }
    }

    /// Returns once the line has become free; never, if it is. Cancel safe.
    pub(crate) async fn carried(&mut self) -> Result<(), TransportError> {
        match self {
            Self::Carrying(carrying) => {
                let (sender, sent) = carrying.as_mut().await;
                *self = Self::Free(sender);
                sent
            }
            Self::Free(_) => pending().await,
        }
    }

    /// Says that nothing more comes. False: not yet, for something is still under way.
    pub(crate) fn finish(&mut self) -> bool {
        match self {
            Self::Free(sender) => {
                // A stream that is over already needs no end.
                let _ = sender.finish();
                true
            }
            Self::Carrying(_) => false,
        }
    }
}

/// Returns at a point of time; never, if there is none. Cancel safe.
pub(crate) async fn sleep_until(clock: &dyn Clock, at: Option<Monotonic>) {
    match at {
        Some(at) => clock.sleep_until(at).await,
        None => pending().await,
    }
}
