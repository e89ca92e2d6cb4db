//! The key of stateless resets: how a listener that was started anew tells the peers of the one before that their
//! connections are over.
//!
//! A peer that goes on sending on a connection that its listener has never heard of is answered by a stateless reset
//! (RFC 9000, 10.3): a token which only somebody can make who holds the key of the listener that made the connection. With
//! a key that outlives the process, a killed and restarted broker ends its clients' connections at their next packet,
//! instead of leaving them to find out by their idle time.
//!
//! Invariants: the key never appears in a log; a connection id is never used again under the same key, since its token may
//! have been given away (RFC 9000, 10.3.2), so with a lasting key the ids are all random.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use quinn::EndpointConfig;
use quinn_proto::RandomConnectionIdGenerator;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use stentor_core::transport::TransportError;

/// Bytes of a connection id. 64 random bits do not come again in the life of a key; quinn's own ids are as long, but 40 of
/// their bits are a signature under another key, so a restarted listener would not even look at a packet of before.
const CONNECTION_ID_BYTES: usize = 8;

/// quinn: 20 ms, which would take minutes to reset the connections of ten thousand clients. A reset is smaller than the
/// packet that it answers, so a flood is never amplified.
const RESET_INTERVAL_MIN: Duration = Duration::from_millis(1);

/// A key to sign stateless resets with. Keep it where only the listener's user can read it, across restarts.
#[derive(Clone)]
pub struct ResetKey(Arc<[u8; ResetKey::BYTES]>);

impl ResetKey {
    /// How long a key is.
    pub const BYTES: usize = 32;

    /// A new key, from the operating system's randomness.
    ///
    /// # Errors
    /// [`Settings`](TransportError::Settings) when there is none.
    pub fn generate() -> Result<Self, TransportError> {
        let mut bytes = [0; Self::BYTES];
        let none = |_| TransportError::Settings("the operating system gives no random bytes".to_owned());
        SystemRandom::new().fill(&mut bytes).map_err(none)?;
        Ok(Self::from_bytes(bytes))
    }

    /// The key that [`bytes`](Self::bytes) gave.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(Arc::new(bytes))
    }

    /// The key, to be kept.
    #[must_use]
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// Has an endpoint reset what a listener with the same key had before it.
    pub(crate) fn set(&self, config: &mut EndpointConfig) {
        config
            .reset_key(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &*self.0)))
            .cid_generator(|| Box::new(RandomConnectionIdGenerator::new(CONNECTION_ID_BYTES)))
            .min_reset_interval(RESET_INTERVAL_MIN);
    }
}

impl fmt::Debug for ResetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResetKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_and_is_not_shown() {
        let (key, other) = (ResetKey::generate().unwrap(), ResetKey::generate().unwrap());
        assert_eq!(ResetKey::from_bytes(*key.bytes()).bytes(), key.bytes());
        assert_ne!(key.bytes(), other.bytes());
        assert_eq!(format!("{key:?}"), "ResetKey(..)");
    }
}
