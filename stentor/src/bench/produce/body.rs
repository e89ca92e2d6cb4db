//! The bodies of messages, and the moment that some of them carry.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use stentor_core::Monotonic;

/// Where a body has a moment in it: in its first bytes, in microseconds of the run's clock.
pub(crate) const STAMP_BYTES: usize = 8;

/// Which messages carry the moment at which they were due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stamps {
    /// None: all bodies are the same bytes, shared.
    None,
    /// One in so many, beginning with the first; the others have none, and share their bytes.
    OneIn(u32),
}

/// Makes the bodies of one producer.
pub(super) struct Bodies {
    shared: Bytes,
    stamps: Stamps,
    /// How many go by before the next one with a stamp.
    unstamped: u32,
}

impl Bodies {
    /// Bodies of `size` bytes that do not compress, the same in every run.
    pub(super) fn new(size: u64, seed: u32, stamps: Stamps) -> Self {
        let mut body = vec![0; usize::try_from(size).unwrap_or_default()];
        fastrand::Rng::with_seed(seed.into()).fill(&mut body);
        let stamps = if body.len() < STAMP_BYTES { Stamps::None } else { stamps };
        if stamps != Stamps::None {
            // What no stamp can be: none is ever of the clock's first microsecond.
            body[..STAMP_BYTES].fill(0);
        }
        Self { shared: body.into(), stamps, unstamped: 0 }
    }

    /// The next body, of a message that is due at this moment.
    pub(super) fn next(&mut self, due: Monotonic) -> Bytes {
        let Stamps::OneIn(every) = self.stamps else { return self.shared.clone() };
        if let Some(left) = self.unstamped.checked_sub(1) {
            self.unstamped = left;
            return self.shared.clone();
        }
        self.unstamped = every.saturating_sub(1);
        let mut body = BytesMut::from(&self.shared[..]);
        let micros = u64::try_from(due.0.as_micros()).unwrap_or(u64::MAX).max(1);
        body[..STAMP_BYTES].copy_from_slice(&micros.to_le_bytes());
        body.freeze()
    }
}

/// The moment that a body carries, of a run that stamps its bodies.
pub(crate) fn stamp(body: &[u8]) -> Option<Monotonic> {
    let micros = u64::from_le_bytes(*body.first_chunk::<STAMP_BYTES>()?);
    (micros > 0).then_some(Monotonic(Duration::from_micros(micros)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_body_in_so_many_carries_its_moment_and_the_others_share_their_bytes() {
        let mut bodies = Bodies::new(100, 1, Stamps::OneIn(3));
        let due = Monotonic(Duration::from_micros(77));
        let made: Vec<_> = (0..6).map(|_| bodies.next(due)).collect();
        let stamps: Vec<_> = made.iter().map(|body| stamp(body)).collect();
        assert_eq!(stamps, [Some(due), None, None, Some(due), None, None]);
        assert!(made.iter().all(|body| body.len() == 100 && body[STAMP_BYTES..] == made[1][STAMP_BYTES..]));
        assert_eq!(made[1].as_ptr(), made[5].as_ptr());
    }

    #[test]
    fn a_body_without_room_for_a_moment_has_none() {
        assert_eq!(stamp(&Bodies::new(7, 1, Stamps::OneIn(1)).next(Monotonic(Duration::from_secs(1)))), None);
    }
}
