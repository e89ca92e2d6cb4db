//! Positions in a partition's log.

use std::fmt;

/// The position of one message in its partition's log, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(pub u64);

impl Offset {
    /// The first offset of a new log.
    pub const ZERO: Self = Self(0);

    /// The offset `count` messages further on, saturating at the largest one.
    #[must_use]
    pub const fn advance(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }

    /// The next offset.
    #[must_use]
    pub const fn next(self) -> Self {
        self.advance(1)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A half-open range of offsets: `start` is inside, `end` is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OffsetRange {
    /// The first offset inside.
    pub start: Offset,
    /// The first offset behind the range.
    pub end: Offset,
}

impl OffsetRange {
    /// The range from `start` up to, and without, `end`. An `end` before `start` makes it empty.
    #[must_use]
    pub const fn new(start: Offset, end: Offset) -> Self {
        Self { start, end: if end.0 < start.0 { start } else { end } }
    }

    /// How many offsets lie inside.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }

    /// Whether nothing lies inside.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether `offset` lies inside.
    #[must_use]
    pub const fn contains(self, offset: Offset) -> bool {
        self.start.0 <= offset.0 && offset.0 < self.end.0
    }
}

impl fmt::Display for OffsetRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// A reign over a partition: every opening of its writer begins a new, greater one, and changes of an older one are
/// refused as [`Deposed`](crate::storage::StorageError::Deposed).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
