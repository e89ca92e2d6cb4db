//! Where time comes from.
//!
//! Invariant: the engine asks a [`Clock`] and nothing else, so that a simulation or a test decides what time it is.
//! `clippy.toml` bans the other ways.

use std::fmt;

use async_trait::async_trait;

use crate::{Monotonic, Timestamp};

mod manual;
mod system;

pub use manual::ManualClock;
pub use system::SystemClock;

/// The wall clock, the monotonic clock, and timers on the latter.
#[async_trait]
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time on the wall. It may step in either direction.
    fn now(&self) -> Timestamp;

    /// The time on a clock that never steps back.
    fn monotonic(&self) -> Monotonic;

    /// Returns once the monotonic clock has reached `at`. Cancel safe.
    async fn sleep_until(&self, at: Monotonic);
}
