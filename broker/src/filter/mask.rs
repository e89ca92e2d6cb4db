//! Which messages of a batch a filter lets through.

use std::ops::Range;

/// The indexes in a batch that are let through, as ranges.
///
/// Invariant: the ranges are not empty, ascending, and neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mask {
    ranges: Vec<Range<u32>>,
}

impl Mask {
    /// Says of the message at `index` whether it is let through. Indexes must come in ascending order.
    pub(crate) fn push(&mut self, index: u32, matches: bool) {
        if !matches {
            return;
        }
        match self.ranges.last_mut() {
            Some(last) if last.end == index => last.end = index + 1,
            _ => self.ranges.push(index..index + 1),
        }
    }

    /// The parts of `start..end` that are let through, ascending.
    pub(crate) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.ranges.partition_point(|range| u64::from(range.end) <= start);
        let behind = self.ranges[first..].iter().map(|range| u64::from(range.start)..u64::from(range.end));
        behind.take_while(move |range| range.start < end).map(move |range| range.start.max(start)..range.end.min(end))
    }

    /// How many messages are let through.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.ranges.iter().map(|range| u64::from(range.end - range.start)).sum()
    }
}

/// From whether each message of a batch, in order, is let through.
impl FromIterator<bool> for Mask {
    fn from_iter<I: IntoIterator<Item = bool>>(iter: I) -> Self {
        let mut mask = Self::default();
        for (index, matches) in (0..).zip(iter) {
            mask.push(index, matches);
        }
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_cut_to_what_is_asked_for() {
        let mask: Mask = [true, true, false, true, false, false, true, true].into_iter().collect();
        assert_eq!(mask.within(0, 8).collect::<Vec<_>>(), [0..2, 3..4, 6..8]);
        assert_eq!(mask.within(1, 7).collect::<Vec<_>>(), [1..2, 3..4, 6..7]);
        assert_eq!(mask.within(4, 6).count(), 0);
        assert_eq!(mask.count(), 5);
    }
}
