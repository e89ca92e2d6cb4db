//! The transport contract: connections that carry streams of frames.
//!
//! A **frame** is a head and a body, both bytes. A **stream** carries frames in order, in both directions, and has a flow
//! control of its own: a peer that does not read holds up that stream and nothing else. What a frame means is the
//! protocol's affair.
//!
//! Invariants that every transport keeps (`stentor-conformance` checks them): frames of a stream arrive whole, once and
//! in order; streams are independent; a frame that is larger than the limit is refused before memory is taken for it;
//! closing a connection ends all of its streams on both sides.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;

/// The largest head of a frame, in bytes.
pub const FRAME_HEAD_BYTES_MAX: u32 = 1 << 20;

/// One message of the protocol: a small head, and bytes that travel as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// What the frame is: at most [`FRAME_HEAD_BYTES_MAX`].
    pub head: Bytes,
    /// What it carries: the records of a batch, or nothing.
    pub body: Bytes,
}

impl Frame {
    /// A frame without a body.
    #[must_use]
    pub const fn new(head: Bytes) -> Self {
        Self { head, body: Bytes::new() }
    }

    /// Bytes of head and body together.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a stream or a connection was ended on purpose. A small number that travels to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CloseCode(pub u32);

impl CloseCode {
    /// All is well.
    pub const NORMAL: Self = Self(0);
    /// The peer broke the protocol.
    pub const PROTOCOL: Self = Self(1);
    /// The peer took too long.
    pub const TIMEOUT: Self = Self(2);
    /// A limit was reached.
    pub const LIMIT: Self = Self(3);
    /// The node is going down.
    pub const SHUTDOWN: Self = Self(4);
    /// The peer may not do this.
    pub const UNAUTHORIZED: Self = Self(5);
}

/// Why a transport operation failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// No connection could be made.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// Where to.
        address: String,
        /// What stood in the way.
        reason: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which one.
        address: String,
        /// What the operating system said.
        source: Arc<std::io::Error>,
    },
    /// The certificates do not do.
    #[error("{0}")]
    Tls(String),
    /// The transport was set up with what cannot work.
    #[error("{0}")]
    Settings(String),
    /// The connection is over.
    #[error("the connection was closed{}", .0.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default())]
    ConnectionClosed(Option<CloseReason>),
    /// The connection fell silent, or was lost.
    #[error("the connection was lost: {0}")]
    ConnectionLost(String),
    /// The other side ended the stream early.
    #[error("the stream was reset by the peer (code {})", .0.0)]
    Reset(CloseCode),
    /// A frame is larger than allowed. Nothing was taken in for it.
    #[error("a frame of {bytes} bytes is too large: at most {bytes_max}")]
    FrameTooLarge {
        /// What it comes to.
        bytes: u64,
        /// What is allowed.
        bytes_max: u64,
    },
    /// The peer sent what is no frame, or stopped in the middle of one.
    #[error("the peer broke the framing: {0}")]
    Malformed(String),
    /// A send was dropped half-way, so the stream cannot go on.
    #[error("an earlier send on this stream was cancelled half-way")]
    Broken,
    /// This side has already finished, reset or stopped this direction of the stream.
    #[error("this side has ended the stream already")]
    Ended,
}

/// The reason that a peer gave for closing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseReason {
    /// In a number.
    pub code: CloseCode,
    /// In words.
    pub text: String,
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.text, self.code.0)
    }
}

/// Makes connections.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Connects to `address` (`HOST:PORT`). Bounded in time by the transport itself. Cancel safe.
    ///
    /// # Errors
    /// [`Connect`](TransportError::Connect) or [`Tls`](TransportError::Tls).
    async fn connect(&self, address: &str) -> Result<Arc<dyn Connection>, TransportError>;
}

/// Takes connections.
#[async_trait]
pub trait Listener: Send + 'static {
    /// Where it listens, with the real port where 0 was asked for.
    fn local_address(&self) -> String;

    /// The next connection whose transport-level handshake is done; `None` once the listener is closed. A handshake
    /// that stalls or fails does not hold up others and is not reported here. Cancel safe.
    async fn accept(&mut self) -> Option<Arc<dyn Connection>>;

    /// Takes no more connections; those there are live on.
    fn close(&self);
}

/// One connection, seen from either side. When the last handle on it and the last of its streams are dropped, it closes
/// with [`CloseCode::NORMAL`].
#[async_trait]
pub trait Connection: Send + Sync + 'static {
    /// Opens a stream. Waits while the peer allows no more. The peer is sure to learn of it only with the first frame on
    /// it, and may learn of it before: whoever accepts a stream cannot count on anything being said on it soon.
    ///
    /// # Errors
    /// When the connection is over.
    async fn open(&self) -> Result<FrameStream, TransportError>;

    /// The next stream that the peer opened. Cancel safe.
    ///
    /// # Errors
    /// When the connection is over.
    async fn accept(&self) -> Result<FrameStream, TransportError>;

    /// Ends the connection and all its streams. What was sent may be lost, unless [`FrameSender::finished`] has returned
    /// for its stream: then the peer still reads it. A second call changes nothing.
    fn close(&self, code: CloseCode, reason: &str);

    /// Returns when the connection is over, with the reason. Cancel safe.
    async fn closed(&self) -> TransportError;

    /// Who is at the other end.
    fn peer(&self) -> PeerInfo;
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerInfo {
    /// The address, as text.
    pub address: String,
    /// The subject of the certificate that the peer presented and that was verified, if any.
    pub certificate_subject: Option<String>,
}

/// The two directions of a stream. They may live in different tasks.
pub struct FrameStream {
    /// What this side says.
    pub sender: Box<dyn FrameSender>,
    /// What the other side says.
    pub receiver: Box<dyn FrameReceiver>,
}

impl fmt::Debug for FrameStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameStream").finish_non_exhaustive()
    }
}

/// The sending direction of a stream. Dropping it without [`finish`](Self::finish) resets it.
#[async_trait]
pub trait FrameSender: Send + 'static {
    /// Sends a frame; returns once the transport has taken all of it, which waits while the peer's window is full. A
    /// call dropped half-way leaves half a frame behind: the sender notices and refuses from then on with
    /// [`Broken`](TransportError::Broken).
    ///
    /// # Errors
    /// When the frame is too large, the peer stopped the stream, or the connection is over.
    async fn send(&mut self, frame: Frame) -> Result<(), TransportError>;

    /// Says that nothing more comes. What was sent still arrives.
    ///
    /// # Errors
    /// When the stream is over already.
    fn finish(&mut self) -> Result<(), TransportError>;

    /// [`finish`](Self::finish)es unless that has been done, and returns once the peer's transport holds all that was
    /// sent: closing the connection afterwards loses none of it. That is how a last word is said before hanging up. Put
    /// a deadline on it, for a peer that does not read may hold it up for ever. Cancel safe.
    ///
    /// # Errors
    /// When the peer stopped the stream, this side reset it, or the connection is over first.
    async fn finished(&mut self) -> Result<(), TransportError>;

    /// Ends this direction at once; the peer gets [`Reset`](TransportError::Reset).
    fn reset(&mut self, code: CloseCode);
}

/// The receiving direction of a stream. Dropping it stops the peer's sending.
#[async_trait]
pub trait FrameReceiver: Send + 'static {
    /// The next frame; `None` once the peer has finished. Cancel safe: a frame that has half arrived stays here.
    ///
    /// # Errors
    /// [`FrameTooLarge`](TransportError::FrameTooLarge) and [`Malformed`](TransportError::Malformed) are the peer's
    /// fault and end the stream; the rest says how it ended.
    async fn receive(&mut self) -> Result<Option<Frame>, TransportError>;

    /// Tells the peer to stop sending; its sends fail with [`Reset`](TransportError::Reset).
    fn stop(&mut self, code: CloseCode);
}
