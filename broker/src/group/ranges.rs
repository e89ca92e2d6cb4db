//! A set of offsets kept as ranges: its cost follows the number of ranges, not of offsets.
//!
//! Invariant: the ranges are not empty, ascending, and neither overlap nor touch.

use std::collections::BTreeMap;

/// A set of numbers below `u64::MAX`, as half-open ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeSet {
    /// Start → end.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }

    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        if let Some((before, until)) = self.ranges.range(..start).next_back()
            && *until >= start
        {
            start = *before;
            end = end.max(*until);
        }
        // Whatever begins inside, or right behind, is swallowed. Mostly there is none or one.
        while let Some((&next, &until)) = self.ranges.range(start..=end).next() {
            self.ranges.remove(&next);
            end = end.max(until);
        }
        self.ranges.insert(start, end);
    }

    pub(super) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if let Some((&before, &until)) = self.ranges.range(..start).next_back()
            && until > start
        {
            self.ranges.insert(before, start);
            if until > end {
                self.ranges.insert(end, until);
                return;
            }
        }
        while let Some((&next, &until)) = self.ranges.range(start..end).next() {
            self.ranges.remove(&next);
            if until > end {
                self.ranges.insert(end, until);
            }
        }
    }

    /// The end of the range that holds `at`, if one does.
    pub(super) fn end_of(&self, at: u64) -> Option<u64> {
        self.ranges.range(..=at).next_back().map(|(_, end)| *end).filter(|end| *end > at)
    }

    pub(super) fn contains(&self, at: u64) -> bool {
        self.end_of(at).is_some()
    }

    pub(super) fn first(&self) -> Option<(u64, u64)> {
        self.ranges.first_key_value().map(|(start, end)| (*start, *end))
    }

    pub(super) fn last(&self) -> Option<(u64, u64)> {
        self.ranges.last_key_value().map(|(start, end)| (*start, *end))
    }

    pub(super) fn pop_first(&mut self) -> Option<(u64, u64)> {
        self.ranges.pop_first()
    }

    /// The parts of the set inside `start..end`, ascending.
    pub(super) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let from = self.ranges.range(..=start).next_back().map_or(start, |(before, _)| *before);
        let (from, until) = if start < end { (from, end) } else { (start, start) };
        self.ranges.range(from..until).map(move |(a, b)| ((*a).max(start), (*b).min(end))).filter(|(a, b)| a < b)
    }

    /// The parts of `start..end` outside the set, ascending.
    pub(super) fn gaps(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut at = start;
        let behind = (end, end);
        self.within(start, end).chain(std::iter::once(behind)).filter_map(move |(a, b)| {
            let gap = (at, a);
            at = b;
            (gap.0 < gap.1).then_some(gap)
        })
    }

    /// How many offsets of `start..end` are in the set.
    pub(super) fn count_within(&self, start: u64, end: u64) -> u64 {
        self.within(start, end).map(|(a, b)| b - a).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(start, end)| (*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn plain(set: &RangeSet) -> BTreeSet<u64> {
        set.iter().flat_map(|(start, end)| start..end).collect()
    }

    proptest! {
        #[test]
        fn it_behaves_as_a_plain_set_does(steps in vec((any::<bool>(), 0..60u64, 0..20u64), 0..60), window in (0..80u64, 0..80u64)) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (insert, start, len) in steps {
                if insert {
                    set.insert(start, start + len);
                    model.extend(start..start + len);
                } else {
                    set.remove(start, start + len);
                    model.retain(|at| !(start..start + len).contains(at));
                }
                let mut last = None;
                for (start, end) in set.iter() {
                    prop_assert!(start < end && last.is_none_or(|last| last < start), "{set:?}");
                    last = Some(end);
                }
                prop_assert_eq!(plain(&set), model.clone());
            }
            let (start, end) = (window.0.min(window.1), window.0.max(window.1));
            let inside: BTreeSet<u64> = set.within(start, end).flat_map(|(a, b)| a..b).collect();
            let outside: BTreeSet<u64> = set.gaps(start, end).flat_map(|(a, b)| a..b).collect();
            prop_assert_eq!(&inside, &model.range(start..end).copied().collect());
            prop_assert_eq!(&outside, &(start..end).filter(|at| !model.contains(at)).collect());
            prop_assert_eq!(set.count_within(start, end), inside.len() as u64);
            for at in 0..80 {
                prop_assert_eq!(set.contains(at), model.contains(&at));
            }
        }
    }
}
