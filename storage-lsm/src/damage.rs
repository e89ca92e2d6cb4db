//! Damage that readers have met: counted each time, told once for each place.
//!
//! Whoever looks at a damaged place meets it again, and some look every few seconds. A log that repeats itself hides what
//! is new in it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use stentor_core::{Offset, PartitionId};

/// How many places are remembered. A store with more is past telling one from another; they are told anew then.
const PLACES_MAX: usize = 4_096;

/// What was met so far.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    times: AtomicU64,
    // A leaf: nothing else is locked inside.
    places: Mutex<BTreeSet<(PartitionId, Offset)>>,
}

impl Damage {
    /// How often damage was met.
    pub(crate) fn times(&self) -> u64 {
        self.times.load(Ordering::Relaxed)
    }

    /// Damage was met. Says whether it is the first time there.
    pub(crate) fn met(&self, partition: PartitionId, offset: Offset) -> bool {
        self.times.fetch_add(1, Ordering::Relaxed);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= PLACES_MAX {
            places.clear();
        }
        places.insert((partition, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_news_once_and_counts_every_time() {
        let damage = Damage::default();
        assert!(damage.met(PartitionId(1), Offset(7)));
        assert!(!damage.met(PartitionId(1), Offset(7)));
        assert!(damage.met(PartitionId(1), Offset(8)));
        assert!(damage.met(PartitionId(2), Offset(7)));
        assert_eq!(damage.times(), 4);
    }

    #[test]
    fn memory_is_bounded_whatever_the_number_of_places() {
        let damage = Damage::default();
        for offset in 0..3 * PLACES_MAX as u64 {
            assert!(damage.met(PartitionId(1), Offset(offset)));
        }
        assert!(damage.places.lock().unwrap().len() <= PLACES_MAX);
        assert_eq!(damage.times(), 3 * PLACES_MAX as u64);
    }
}
