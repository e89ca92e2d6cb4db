//! Connections over QUIC: quinn, with rustls (ring) and TLS 1.3.
//!
//! [`QuicListener`] takes connections, [`QuicTransport`] makes them; both give what the transport contract of
//! `stentor-core` asks for, and nothing of quinn shows. A stream of the contract is a bidirectional QUIC stream, and a
//! frame on it is `head length (u32 LE), body length (u32 LE), head, body`.
//!
//! Invariants:
//! - Lengths are checked before memory is taken, and memory for a frame grows with what of it has arrived.
//! - `receive window of a connection = streams × receive window of a stream`, so that however many streams go unread,
//!   the rest go on; what a peer makes this side hold is bounded by that window and the frames being put together.
//! - A handshake that stalls or fails ends by `handshake_timeout` and holds up nobody. 0-RTT is off: the first bytes of
//!   a connection can never be a replay.
//! - Certificates that change on disk are taken up without a restart, and bad ones leave the old in force.
//!
//! Closing is as abrupt as QUIC makes it: what was sent and not yet delivered may be lost. A party that wants its last
//! frame to arrive awaits `FrameSender::finished` before it closes; a process that wants its farewell to leave the
//! machine awaits [`QuicListener::idle`] or [`QuicTransport::idle`] before it exits.

mod address;
mod client;
mod congestion;
mod connection;
mod error;
mod framing;
mod handshake;
mod listener;
mod receiver;
mod reset;
mod sender;
mod settings;
mod socket;
mod tls;

pub use client::{ClientConfig, QuicTransport};
pub use listener::{QuicListener, ServerConfig};
pub use reset::ResetKey;
pub use settings::QuicSettings;
pub use tls::{ClientTls, ServerTls};
