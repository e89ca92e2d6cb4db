//! Filters: SQL-92 conditions over `tag`, `key` and header names.

use std::fmt;

use stentor_core::Record;

/// A condition on a message. Its [`Display`](fmt::Display) text is normalised: two filters are the same if the texts are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Filter {
    text: String,
}

/// Why a text is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FilterError {
    /// It is not SQL.
    #[error("the filter cannot be read: {0}")]
    Syntax(String),
    /// SQL, but not what filters take.
    #[error("a filter takes no {0}")]
    Unsupported(String),
    /// Too long, or nested too deep.
    #[error("the filter is too large: {0}")]
    TooLarge(String),
}

impl Filter {
    /// Reads a condition.
    pub(crate) fn parse(text: &str) -> Result<Self, FilterError> {
        todo!()
    }

    /// Whether the condition is true (not false and not unknown) of `record`.
    pub(crate) fn matches(&self, record: &Record) -> bool {
        todo!()
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// Which messages of a batch a filter lets through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mask {
    /// Ranges of indexes in the batch, ascending, apart from each other.
    ranges: Vec<std::ops::Range<u32>>,
}

impl Mask {
    /// Says of the next message (in the order of the batch) whether it is let through: `index` only ever grows.
    pub(crate) fn push(&mut self, index: u32, matches: bool) {
        todo!()
    }

    pub(crate) fn ranges(&self) -> &[std::ops::Range<u32>] {
        &self.ranges
    }
}
