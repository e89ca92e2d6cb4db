//! What is wrong with a setting.

use thiserror::Error;

/// Why a key cannot be set as asked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingError {
    /// There is no such key.
    #[error(
        "`{}` is no setting of a {of}{}",
        key.escape_debug(),
        nearest.map_or_else(String::new, |nearest| format!(": did you mean `{nearest}`?"))
    )]
    Unknown {
        /// What the key was to be a setting of.
        of: &'static str,
        /// The key as given.
        key: String,
        /// The valid key that looks most like it, if any does.
        nearest: Option<&'static str>,
    },
    /// The value is of another type, or out of bounds.
    #[error("`{key} = {}` does not do: it takes {expected}", value.escape_debug())]
    Value {
        /// The key.
        key: String,
        /// The value as given.
        value: String,
        /// What would do.
        expected: String,
    },
    /// The key cannot be changed any more.
    #[error("`{key}` is fixed when a topic is opened: {hint}")]
    Fixed {
        /// The key.
        key: String,
        /// What can be done instead.
        hint: &'static str,
    },
}

/// How alike a key must be (Jaro-Winkler, 0 to 1) to be worth a suggestion.
const ALIKE: f64 = 0.75;

impl SettingError {
    pub(crate) fn value(key: &str, value: &str, expected: &str) -> Self {
        Self::Value { key: key.to_owned(), value: value.to_owned(), expected: expected.to_owned() }
    }

    pub(crate) fn unknown(of: &'static str, key: &str, keys: &[&'static str]) -> Self {
        Self::Unknown { of, key: key.to_owned(), nearest: nearest(key, keys) }
    }

    /// The key that the error is about.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Unknown { key, .. } | Self::Value { key, .. } | Self::Fixed { key, .. } => key,
        }
    }
}

/// The one of `keys` that looks most like `key`, if any looks like it at all.
fn nearest(key: &str, keys: &[&'static str]) -> Option<&'static str> {
    let alike = keys.iter().map(|candidate| (strsim::jaro_winkler(key, candidate), *candidate));
    alike.filter(|(alike, _)| *alike >= ALIKE).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, candidate)| candidate)
}
