//! Filters: SQL-92 conditions over `tag`, `key` and the names of headers.
//!
//! ```text
//! tag = 'paid'                                  tag IN ('paid', 'refunded') AND NOT key LIKE 'test-%'
//! amount >= 100 OR priority IS NOT NULL         "x-region" BETWEEN 'a' AND 'm'
//! ```
//!
//! The rules are those of JMS message selectors (JMS 2.0, 3.8.1): names are case-sensitive, a name that a message does not
//! have is NULL, a comparison with NULL is *unknown*, and so is one of a text that is no number with a number. AND, OR
//! and NOT work on three values, and a message passes only where the whole is true. Of headers that repeat, the first
//! counts. A name that is no plain word stands in double quotes.
//!
//! Invariants: parsing takes bounded time, stack and memory whatever the text; evaluating takes no memory at all; two
//! filters are the same exactly if their normalised texts ([`Display`](fmt::Display)) are.

use std::fmt;

use stentor_core::Record;

mod like;
mod mask;
mod node;
mod number;
mod parse;

pub(crate) use mask::Mask;

use node::Node;

/// The longest text of a filter, in bytes.
pub(crate) const FILTER_BYTES_MAX: usize = 4_096;

/// How deep the parser may nest; a pair of parentheses takes one or two levels.
pub(crate) const FILTER_DEPTH_MAX: usize = 40;

/// A condition on a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Filter {
    node: Node,
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
    /// It is too long.
    #[error("the filter is {0} bytes long: at most {FILTER_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// It is nested too deep.
    #[error("the filter is nested too deep: at most {FILTER_DEPTH_MAX} levels are allowed")]
    TooDeep,
}

impl Filter {
    /// Reads a condition.
    pub(crate) fn parse(text: &str) -> Result<Self, FilterError> {
        Ok(Self { node: parse::parse(text)? })
    }

    /// Whether the condition is true (not false and not unknown) of `record`.
    pub(crate) fn matches(&self, record: &Record) -> bool {
        self.node.eval(record) == Some(true)
    }
}

/// The normalised text, which reads as the same filter.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt(f)
    }
}

#[cfg(test)]
mod tests;
