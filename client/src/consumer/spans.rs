//! Sets of offsets, as spans.

use std::collections::BTreeMap;

use stentor_protocol::wire::OffsetSpan;

/// Offsets of one partition. Neighbours are joined, so acknowledging a whole batch one by one makes one span.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans {
    /// From the first offset of a span to the one behind it.
    spans: BTreeMap<u64, u64>,
}

impl Spans {
    pub(super) fn insert(&mut self, offset: u64) {
        let behind = offset.saturating_add(1);
        let before = self.spans.range_mut(..=offset).next_back();
        let start = match before {
            Some((_, end)) if *end > offset => return,
            Some((start, end)) if *end == offset => {
                *end = behind;
                *start
            }
            _ => {
                self.spans.insert(offset, behind);
                offset
            }
        };
        if let Some(end) = self.spans.remove(&behind) {
            self.spans.insert(start, end);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(super) fn to_wire(&self) -> Vec<OffsetSpan> {
        let span = |(start, end): (&u64, &u64)| {
            let mut start = *start;
            let end = *end;
            // A span of more than u32::MAX offsets is said in pieces.
            std::iter::from_fn(move || {
                let count = u32::try_from(end - start).unwrap_or(u32::MAX);
                let span = OffsetSpan { start, count };
                start += u64::from(count);
                (count > 0).then_some(span)
            })
        };
        self.spans.iter().flat_map(span).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_are_joined_whatever_their_order() {
        let mut spans = Spans::default();
        for offset in [5, 7, 6, 1, 0, 9, 6] {
            spans.insert(offset);
        }
        let expected = [(0, 2), (5, 3), (9, 1)].map(|(start, count)| OffsetSpan { start, count });
        assert_eq!(spans.to_wire(), expected);
        assert_eq!(spans.len(), 3);
    }

    proptest! {
        #[test]
        fn spans_hold_what_was_inserted(offsets in proptest::collection::vec(0_u64..60, 0..80)) {
            let mut spans = Spans::default();
            offsets.iter().for_each(|offset| spans.insert(*offset));
            let wire = spans.to_wire();
            let out: Vec<u64> =
                wire.iter().flat_map(|span| span.start..span.start + u64::from(span.count)).collect();
            prop_assert_eq!(&out, &offsets.into_iter().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>());
            prop_assert!(wire.windows(2).all(|pair| pair[0].start + u64::from(pair[0].count) < pair[1].start));
        }
    }
}
