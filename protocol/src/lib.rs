//! The wire protocol of stentor: what frames mean.
//!
//! The messages are laid out in `proto/stentor.proto` and compiled into [`wire`]. A frame's head is one envelope,
//! [`wire::ToBroker`] or [`wire::ToClient`]; a record batch travels with its header inside the envelope and its records as
//! the frame's body, so that they are neither copied nor looked at on the way. [`frame`] puts the two together.
//!
//! Invariants: every decoded batch has been checked against its checksum; an unknown envelope is an error of the peer and
//! never a panic; error codes are mapped to words, and to what a sender may conclude from them, in [`error`] alone.

pub mod error;
pub mod frame;
pub mod version;

/// The messages, as `proto/stentor.proto` lays them out and documents them.
#[allow(missing_docs, clippy::all, unreachable_pub, reason = "generated; the .proto file holds the documentation")]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/stentor.v1.rs"));
}

pub use error::ErrorCode;
pub use frame::{DecodeError, decode_to_broker, decode_to_client, encode_to_broker, encode_to_client};

/// What a connection of this protocol calls itself in the TLS handshake (ALPN).
pub const ALPN: &str = "stentor/1";
