//! What is wrong with a configuration file: one error, with file, line and what would be right.

use std::fmt;
use std::ops::Range;

use thiserror::Error;

/// The first thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}: {message}")]
pub(crate) struct ConfigError {
    /// The file as the user named it.
    pub(crate) file: String,
    /// The line, from 1.
    pub(crate) line: usize,
    /// What is wrong.
    pub(crate) message: String,
    /// What would be right; may be empty.
    pub(crate) hint: String,
}

/// A file's name and text: what turns a place into a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    /// The file as the user named it.
    pub(crate) file: &'a str,
    /// All of it.
    pub(crate) text: &'a str,
}

impl Source<'_> {
    /// An error at a place of the file.
    pub(crate) fn error(self, at: Range<usize>, message: impl fmt::Display, hint: impl Into<String>) -> ConfigError {
        let before = self.text.as_bytes().get(..at.start).unwrap_or(self.text.as_bytes());
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        ConfigError { file: self.file.to_owned(), line, message: message.to_string(), hint: hint.into() }
    }
}

/// The known word that a user most likely meant, if any is near.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Below this similarity a suggestion is a guess at random.
    const SIMILAR: f64 = 0.7;
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate)
}
