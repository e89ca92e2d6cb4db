//! Sessions: one task per connection, and one per stream.
//!
//! The first stream is the control stream: handshake, then requests. Every other stream is a producer or a subscription,
//! by its first frame. Invariants:
//! - a peer that is slow to introduce itself, or to take in what it is sent, is cut off within `handshake_timeout`;
//! - what a connection may have in flight, waiting and open is bounded, and the bound is heeded before more is read;
//! - what breaks the protocol ends its stream with an error that says so; other connections never notice;
//! - stream tasks are never aborted: when the connection ends they end by themselves, and are joined.

mod connection;
mod control;
mod handshake;
mod outlet;
mod producer;
mod subscription;

pub(crate) use connection::accept;
pub(crate) use handshake::BROKER;
