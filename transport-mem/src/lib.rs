//! Connections inside one process, for tests and simulation.
//!
//! A [`MemNetwork`] is a set of addresses. [`MemNetwork::listen`] takes one, [`MemNetwork::transport`] connects to it,
//! and frames go over by reference: nothing is copied. It keeps the transport contract as strictly as a real network
//! would, so that what works here does not rest on its kindness: a direction of a stream holds a bounded number of bytes
//! and frames, a peer that does not read holds up its sender, and a send that is dropped while it waits breaks its
//! stream.
//!
//! Tests can do to it what networks do: [`cut`](MemNetwork::cut) the connections of an address, or
//! [`stall`](MemNetwork::stall) them, after which neither side hears the other until [`resume`](MemNetwork::resume).
//!
//! Invariant: `queued bytes ≤ max(stream_bytes_max, one frame)` in each direction of each stream.

mod connection;
mod link;
mod network;
mod pipe;
mod queue;
mod stream;

pub use network::{MemLimits, MemListener, MemNetwork, MemTransport};
