//! The machine's own clocks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

use super::Clock;
use crate::{Monotonic, Timestamp};

/// The machine's wall clock, its monotonic clock, and tokio's timers.
#[derive(Clone, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts at zero now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clocks")]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clocks")]
    fn now(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::default().after(since_epoch)
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic(self.origin.elapsed())
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that sets the machine's timers")]
    async fn sleep_until(&self, at: Monotonic) {
        match self.origin.checked_add(at.0) {
            Some(instant) => tokio::time::sleep_until(instant.into()).await,
            // Further away than the machine can count.
            None => std::future::pending().await,
        }
    }
}
