//! Which segments are worth rewriting: those that are kept alive by little.
//!
//! What a segment *needs* is what is owed in it and what moving that takes besides ([`ROW_BYTES`] a row): what it would
//! take elsewhere. A segment is *sparse* when it needs less than two thirds of what it takes, so that rewriting it costs at
//! most twice what it frees. Rewriting begins once the sparse segments hold so much that nobody owes, and goes on with the
//! sparsest first until they hold half of that.
//!
//! The bound that follows: the segments that are not sparse take at most 3/2 of what they need, the sparse ones waste at
//! most an eighth of what all need and the slack, and a round has written at most another eighth and the slack before the
//! segments that it empties are released. So the journal stays below
//!
//! > needed × (1 + 3/4) + 2 × slack
//!
//! and the segment that is being written, the spares, and what is free already and waits for a flush or a reader. This
//! holds as long as rewriting keeps up, which it does not hold publishers up for.

use std::cmp::Ordering;

use crate::format::row::Owed;

/// What moving a row takes besides its bytes: two headers of parts, and what is said of the row.
pub(crate) const ROW_BYTES: u64 = 65;

/// A segment that needs less than this share of what it takes is sparse.
const SPARSE: (u64, u64) = (2, 3);

/// What sparse segments may waste, and what a round may write: this part of what all segments need …
const NEEDED_PART: u64 = 8;

/// A segment, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) generation: u64,
    pub(crate) capacity: u64,
    pub(crate) owed: Owed,
    /// Whether it may be rewritten: it is complete, the index reflects all of it, and it was not tried in vain.
    pub(crate) eligible: bool,
}

/// What rewriting goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// … and so many bytes.
    pub(crate) slack: u64,
    /// Set when there is no plenty of room: then anything sparse is worth it, but all that is written must fit here.
    pub(crate) room: Option<u64>,
}

/// The segments to rewrite next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The sparsest first.
    pub(crate) generations: Vec<u64>,
    /// Whether far more is wasted than should be, or room is short.
    pub(crate) urgent: bool,
}

/// What the rows that point to a segment would take elsewhere.
pub(crate) const fn needed(owed: Owed) -> u64 {
    owed.bytes + owed.rows * ROW_BYTES
}

/// Chooses what to rewrite; nothing if it is not worth it.
pub(crate) fn choose(segments: impl IntoIterator<Item = Candidate>, limits: Limits) -> Choice {
    let mut needed_by_all = 0;
    let mut wasted = 0;
    let mut sparse = Vec::new();
    for segment in segments {
        let needs = needed(segment.owed);
        needed_by_all += needs;
        // One that nothing is owed in is free anyhow.
        if segment.eligible && !segment.owed.is_none() && SPARSE.1 * needs < SPARSE.0 * segment.capacity {
            wasted += segment.capacity - needs;
            sparse.push((segment, needs));
        }
    }
    let allowed = match limits.room {
        Some(_) => 0,
        None => needed_by_all / NEEDED_PART + limits.slack,
    };
    if wasted <= allowed {
        return Choice::default();
    }
    let urgent = limits.room.is_some() || wasted > 2 * allowed;
    sparse.sort_by(|(a, a_needs), (b, b_needs)| sparser((a, *a_needs), (b, *b_needs)));
    let write_max = limits.room.unwrap_or(needed_by_all / NEEDED_PART + limits.slack);
    let mut generations = Vec::new();
    let mut written = 0;
    for (segment, needs) in sparse {
        // With plenty of room one segment is always taken, however little is allowed.
        let fits = written + needs <= write_max || (generations.is_empty() && limits.room.is_none());
        if wasted <= allowed / 2 || !fits {
            break;
        }
        wasted -= segment.capacity - needs;
        written += needs;
        generations.push(segment.generation);
    }
    Choice { urgent: urgent && !generations.is_empty(), generations }
}

/// Orders by the share that is needed; of equal ones the older first.
fn sparser((a, a_needs): (&Candidate, u64), (b, b_needs): (&Candidate, u64)) -> Ordering {
    let (left, right) = (u128::from(a_needs) * u128::from(b.capacity), u128::from(b_needs) * u128::from(a.capacity));
    left.cmp(&right).then(a.generation.cmp(&b.generation))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment(generation: u64, owed: u64) -> Candidate {
        Candidate { generation, capacity: 1_000, owed: Owed { bytes: owed, rows: 0 }, eligible: true }
    }

    const PLENTY: Limits = Limits { slack: 1_000, room: None };

    #[test]
    fn little_waste_is_left_alone_and_much_is_cut_in_half_the_sparsest_first() {
        let dense = (10..20).map(|generation| segment(generation, 900));
        let few = dense.clone().chain([segment(1, 10), segment(2, 20)]);
        assert_eq!(choose(few, PLENTY), Choice::default());
        let many = dense.chain([segment(1, 300), segment(2, 20), segment(3, 10), segment(4, 990)]);
        let choice = choose(many, PLENTY);
        // 2,670 are wasted; allowed are 1,000 and an eighth of 10,320, so it goes on until half of that is left.
        assert_eq!(choice.generations, [3, 2]);
        assert!(!choice.urgent);
    }

    #[test]
    fn what_moving_takes_counts_so_tiny_rows_are_not_moved_round_and_round() {
        let tiny = Owed { bytes: 600, rows: 6 };
        let segments = (1..100).map(|generation| Candidate { owed: tiny, ..segment(generation, 0) });
        assert_eq!(choose(segments, Limits { slack: 0, room: None }), Choice::default());
    }

    #[test]
    fn when_room_is_short_anything_sparse_is_worth_it_that_fits() {
        let tight = |room| choose([segment(1, 600), segment(2, 100)], Limits { room: Some(room), ..PLENTY });
        assert_eq!(tight(50), Choice::default());
        assert_eq!(tight(150), Choice { generations: vec![2], urgent: true });
        assert_eq!(tight(700), Choice { generations: vec![2, 1], urgent: true });
    }

    #[test]
    fn what_may_not_be_rewritten_is_not_chosen() {
        let barred = Candidate { eligible: false, ..segment(1, 1) };
        assert_eq!(choose([barred, segment(2, 0)], Limits { slack: 0, room: None }), Choice::default());
    }

    proptest! {
        /// Whatever the segments, rewriting ends, and what is left then is within the bound.
        #[test]
        fn rewriting_ends_within_the_bound(
            owed in proptest::collection::vec((0_u64..=1_000, 0_u64..3), 0..60),
            slack in 0_u64..3_000,
        ) {
            let mut segments: Vec<Candidate> = owed
                .iter()
                .enumerate()
                .map(|(at, (bytes, rows))| Candidate {
                    owed: Owed { bytes: (*bytes).min(1_000 - rows * ROW_BYTES), rows: *rows },
                    ..segment(at as u64 + 1, 0)
                })
                .filter(|segment| !segment.owed.is_none())
                .collect();
            let limits = Limits { slack, room: None };
            let (mut next, mut open) = (1_000, 0);
            for _ in 0..1_000 {
                let choice = choose(segments.iter().copied(), limits);
                if choice.generations.is_empty() {
                    break;
                }
                // What the chosen ones need fills new segments, the last of which goes on being written.
                let mut moved: u64 = 0;
                segments.retain(|segment| {
                    let chosen = choice.generations.contains(&segment.generation);
                    moved += if chosen { needed(segment.owed) } else { 0 };
                    !chosen
                });
                while moved > 0 {
                    let filled = moved.min(1_000 - open);
                    (open, moved) = (open + filled, moved - filled);
                    if open == 1_000 {
                        next += 1;
                        segments.push(segment(next, std::mem::take(&mut open)));
                    }
                }
            }
            segments.push(Candidate { eligible: false, ..segment(next + 1, open) });
            prop_assert_eq!(choose(segments.iter().copied(), limits), Choice::default());
            let needs: u64 = segments.iter().map(|segment| needed(segment.owed)).sum();
            let taken = segments.iter().map(|segment| segment.capacity).sum::<u64>();
            prop_assert!(taken <= needs * 7 / 4 + 2 * slack + 1_000, "{taken} for {needs}");
        }
    }
}
