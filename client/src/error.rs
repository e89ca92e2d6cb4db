//! What can go wrong, by operation, and what may be concluded from it.
//!
//! Every error has a [`kind`](Error::kind), one of the words of [`stentor_protocol::error::kinds`], for programs; its
//! `Display`, one line that says what failed and why, for people; and often a `hint`, which says what to do next.
//!
//! Invariant: an operation that may have been done although no answer came is an `OutcomeUnknown`, never a failure.

use std::sync::Arc;
use std::time::Duration;

use stentor_core::batch::BatchError;
use stentor_core::transport::TransportError;
use stentor_core::{NameError, Offset, PartitionIndex};
use stentor_protocol::error::{ErrorCode, Verdict};
use stentor_protocol::wire;
use thiserror::Error;

use crate::profile::ProfileError;

/// What a broker answered instead of doing as it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct BrokerError {
    /// The code, for programs.
    pub code: ErrorCode,
    /// What failed and why, one line.
    pub message: String,
    /// What to do next; may be empty.
    pub hint: String,
}

impl BrokerError {
    /// What the code says about the request.
    pub(crate) fn verdict(&self) -> Verdict {
        self.code.verdict()
    }

    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: String::new() }
    }
}

impl From<wire::Error> for BrokerError {
    fn from(error: wire::Error) -> Self {
        Self { code: error.code(), message: error.message, hint: error.hint }
    }
}

/// Why no connection could be made.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The profile cannot be read.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Neither an address nor a profile says where to.
    #[error("no server to connect to")]
    NoServer,
    /// Neither a transport was given, nor what QUIC needs.
    #[error("no way to connect: {0}")]
    NoTransport(&'static str),
    /// The network or TLS stood in the way.
    #[error("{0}")]
    Transport(#[from] TransportError),
    /// The broker does not take this client: its version, its certificate, a limit.
    #[error("{address} refused the connection: {error}")]
    Refused {
        /// Which broker.
        address: String,
        /// What it said.
        error: BrokerError,
    },
    /// It did not say welcome in time.
    #[error("{address} did not answer the handshake within {} s", after.as_secs_f32())]
    TimedOut {
        /// Which broker.
        address: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// What it said makes no sense; it may not be a stentor broker.
    #[error("{address} broke the protocol: {what}")]
    Protocol {
        /// Which broker.
        address: String,
        /// What is wrong.
        what: String,
    },
}

impl ConnectError {
    /// The code that this error counts as.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Profile(_) | Self::NoServer | Self::NoTransport(_) => ErrorCode::Invalid,
            Self::Transport(TransportError::Tls(_)) => ErrorCode::Unauthorized,
            Self::Transport(_) => ErrorCode::Unavailable,
            Self::Refused { error, .. } => error.code,
            Self::TimedOut { .. } => ErrorCode::Timeout,
            Self::Protocol { .. } => ErrorCode::Protocol,
        }
    }

    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Refused { error, .. } => not_empty(&error.hint),
            Self::NoServer => Some("give an address, or a profile that lists `servers`"),
            Self::NoTransport(_) => Some("give a profile or a CA file, or hand the builder a transport"),
            Self::Transport(TransportError::Connect { .. }) | Self::TimedOut { .. } => {
                Some("check that the broker runs and that the address is its `listen.quic`")
            }
            Self::Transport(TransportError::Tls(_)) => {
                Some("check `ca`, and `cert` and `key` if the broker asks for them")
            }
            _ => None,
        }
    }
}

/// Why a request (a route, an admin request) got no good answer.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It was not done.
    #[error(transparent)]
    Refused(BrokerError),
    /// There was no connection in time. It was not done.
    #[error("no connection to a broker within {} s{}", waited.as_secs_f32(), because(last.as_deref()))]
    Unavailable {
        /// How long it was waited for.
        waited: Duration,
        /// What the last try to connect met.
        last: Option<Arc<ConnectError>>,
    },
    /// It may or may not have been done: the answer never came.
    #[error("it may or may not have been done: {reason}")]
    OutcomeUnknown {
        /// What came instead.
        reason: String,
    },
    /// The answer makes no sense.
    #[error("the broker's answer makes no sense: {0}")]
    Protocol(String),
    /// An argument is not valid; nothing was asked.
    #[error("{0}")]
    Invalid(String),
    /// The client has been closed.
    #[error("the client has been closed")]
    Closed,
}

impl RequestError {
    /// The code that this error counts as.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(error) => error.code,
            Self::Unavailable { .. } | Self::Closed => ErrorCode::Unavailable,
            Self::OutcomeUnknown { .. } => ErrorCode::OutcomeUnknown,
            Self::Protocol(_) => ErrorCode::Protocol,
            Self::Invalid(_) => ErrorCode::Invalid,
        }
    }

    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => not_empty(&error.hint),
            Self::Unavailable { last, .. } => last.as_deref().and_then(ConnectError::hint),
            Self::OutcomeUnknown { .. } => Some("look whether it was done before trying again"),
            _ => None,
        }
    }
}

impl From<NameError> for RequestError {
    fn from(error: NameError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// Why a producer or a consumer could not be opened.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name of the topic or the group is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A setting of the builder is out of bounds.
    #[error("{0}")]
    Setting(String),
    /// The broker does not open it.
    #[error(transparent)]
    Refused(BrokerError),
    /// There was no connection in time.
    #[error("no connection to a broker within {} s{}", waited.as_secs_f32(), because(last.as_deref()))]
    Unavailable {
        /// How long it was waited for.
        waited: Duration,
        /// What the last try to connect met.
        last: Option<Arc<ConnectError>>,
    },
    /// The connection was lost meanwhile, or the answer never came.
    #[error("the broker did not answer: {0}")]
    Lost(String),
    /// The answer makes no sense.
    #[error("the broker's answer makes no sense: {0}")]
    Protocol(String),
    /// The client has been closed.
    #[error("the client has been closed")]
    Closed,
}

impl OpenError {
    /// The code that this error counts as.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Name(_) | Self::Setting(_) => ErrorCode::Invalid,
            Self::Refused(error) => error.code,
            Self::Unavailable { .. } | Self::Lost(_) | Self::Closed => ErrorCode::Unavailable,
            Self::Protocol(_) => ErrorCode::Protocol,
        }
    }

    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => not_empty(&error.hint),
            Self::Unavailable { last, .. } => last.as_deref().and_then(ConnectError::hint),
            _ => None,
        }
    }
}

/// Why a message was not acknowledged. Only [`OutcomeUnknown`](Self::OutcomeUnknown) leaves open whether it was stored;
/// after every other error it was not.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// It is larger than the topic allows. It was not sent.
    #[error("a message of {bytes} bytes is too large: {topic} takes at most {bytes_max}")]
    TooLarge {
        /// Key, tag, headers and body together.
        bytes: usize,
        /// What the topic allows.
        bytes_max: u32,
        /// Which topic.
        topic: String,
    },
    /// It is beyond a ceiling of the format. It was not sent.
    #[error("the message does not do: {0}")]
    Invalid(#[from] BatchError),
    /// The broker does not store it, and would not if it were sent again. It was not stored.
    #[error(transparent)]
    Refused(BrokerError),
    /// It was tried for as long as the producer tries. It was not stored, and may be sent again.
    #[error("not stored: {reason}")]
    NotStored {
        /// What the last try met.
        reason: BrokerError,
    },
    /// It may or may not have been stored.
    #[error("it may or may not have been stored: {reason}")]
    OutcomeUnknown {
        /// What the last try met.
        reason: BrokerError,
    },
    /// The producer has been closed. It was not stored.
    #[error("the producer has been closed")]
    Closed,
}

impl SendError {
    /// Whether the message may have been stored all the same.
    #[must_use]
    pub const fn may_be_stored(&self) -> bool {
        matches!(self, Self::OutcomeUnknown { .. })
    }

    /// The code that this error counts as.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::TooLarge { .. } => ErrorCode::MessageTooLarge,
            Self::Invalid(_) => ErrorCode::Invalid,
            Self::Refused(error) => error.code,
            Self::NotStored { reason } => reason.code,
            Self::OutcomeUnknown { .. } => ErrorCode::OutcomeUnknown,
            Self::Closed => ErrorCode::Unavailable,
        }
    }

    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => not_empty(&error.hint),
            Self::NotStored { reason } => not_empty(&reason.hint).or(Some("it may be sent again")),
            Self::OutcomeUnknown { .. } => {
                Some("sending it again may store it twice; give it an id of its own, so that consumers can tell")
            }
            Self::TooLarge { .. } => Some("raise `message_bytes_max` of the topic, or send a reference to the data"),
            _ => None,
        }
    }
}

/// Why a consumer has no next message to give.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The subscription is over for good: the topic or the group is gone, or changed. Nothing comes after it.
    #[error("the subscription has ended: {0}")]
    Ended(BrokerError),
    /// Messages arrived damaged. They were refused, so that they come again or go to the dead letters; what comes after
    /// them can be received.
    #[error("partition {partition}, offset {offset} and up: {error}")]
    Corrupt {
        /// Where they are from.
        partition: PartitionIndex,
        /// The first of them.
        offset: Offset,
        /// What is wrong with them.
        error: BatchError,
    },
    /// The group has stopped on this partition: what it would get next there is damaged in the broker's store, and damage is
    /// never skipped. Said once for each place. The other partitions go on, so more can be received; this one goes on
    /// when the group is moved past the damage (`seek`).
    #[error("{}", stopped(*partition, *offset, error))]
    Stopped {
        /// Which partition.
        partition: PartitionIndex,
        /// Where in it; none when the damage lies beside its log.
        offset: Option<Offset>,
        /// What the broker says.
        error: BrokerError,
    },
    /// The client has been closed.
    #[error("the client has been closed")]
    Closed,
}

impl ReceiveError {
    /// The code that this error counts as.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Ended(error) => error.code,
            Self::Corrupt { .. } => ErrorCode::Corrupt,
            Self::Stopped { error, .. } => error.code,
            Self::Closed => ErrorCode::Unavailable,
        }
    }

    /// Whether the subscription is over: after any other error more can be received.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Closed)
    }

    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Ended(error) | Self::Stopped { error, .. } => not_empty(&error.hint),
            _ => None,
        }
    }
}

/// Why the broker did not take what became of a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettleError {
    /// The message is not held by this consumer any more: its lease ran out, or the connection was lost before this was
    /// sent. It was not settled; it is delivered again.
    #[error("partition {partition}, offset {offset} is no longer held: {reason}")]
    LeaseLost {
        /// Where the message is.
        partition: PartitionIndex,
        /// Where in the partition; the first, if there are several.
        offset: Offset,
        /// How it was lost.
        reason: String,
    },
    /// The broker did not do it.
    #[error(transparent)]
    Refused(BrokerError),
    /// The broker may or may not have taken it. If not, the message is delivered again.
    #[error("it may or may not have been settled: {reason}")]
    OutcomeUnknown {
        /// What came instead of an answer.
        reason: String,
    },
}

impl SettleError {
    /// The code that this error counts as.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::LeaseLost { .. } => ErrorCode::LeaseLost,
            Self::Refused(error) => error.code,
            Self::OutcomeUnknown { .. } => ErrorCode::OutcomeUnknown,
        }
    }

    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::LeaseLost { .. } => Some("the message comes again; `extend` it while working, or raise `lease`"),
            Self::Refused(error) => not_empty(&error.hint),
            Self::OutcomeUnknown { .. } => None,
        }
    }
}

/// Any of them, for a program that does not tell them apart.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Connecting failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A producer or a consumer was not opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A message was not acknowledged.
    #[error(transparent)]
    Send(#[from] SendError),
    /// A consumer has nothing more to give.
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// What became of a message was not taken.
    #[error(transparent)]
    Settle(#[from] SettleError),
}

impl Error {
    /// The code that this error counts as.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Connect(error) => error.code(),
            Self::Request(error) => error.code(),
            Self::Open(error) => error.code(),
            Self::Send(error) => error.code(),
            Self::Receive(error) => error.code(),
            Self::Settle(error) => error.code(),
        }
    }

    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Connect(error) => error.hint(),
            Self::Request(error) => error.hint(),
            Self::Open(error) => error.hint(),
            Self::Send(error) => error.hint(),
            Self::Receive(error) => error.hint(),
            Self::Settle(error) => error.hint(),
        }
    }
}

macro_rules! kinds {
    ($($error:ty),*) => {
        $(impl $error {
            /// The word for this error, for programs.
            #[must_use]
            pub fn kind(&self) -> &'static str {
                self.code().kind()
            }
        })*
    };
}

kinds!(ConnectError, RequestError, OpenError, SendError, ReceiveError, SettleError, Error);

fn stopped(partition: PartitionIndex, offset: Option<Offset>, error: &BrokerError) -> String {
    let at = offset.map(|offset| format!(" at offset {offset}")).unwrap_or_default();
    format!("the group has stopped on partition {partition}{at}: {error}")
}

fn not_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn because(last: Option<&ConnectError>) -> String {
    last.map(|error| format!(": {error}")).unwrap_or_default()
}
