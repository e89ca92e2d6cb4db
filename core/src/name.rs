//! Names of topics and groups, and patterns over them: validated in one place, so that a name that exists is a good one.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NameError {
    /// There is nothing in it.
    #[error("a name is empty: it takes 1 to {NAME_BYTES_MAX} bytes")]
    Empty,
    /// It is too long.
    #[error("a name is {0} bytes long: at most {NAME_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// It starts with a dot.
    #[error("`{0}` starts with a dot, which is kept for internal names")]
    LeadingDot(String),
    /// A character is not allowed.
    #[error("`{name}` holds {character:?}: names take letters, digits, `.`, `_` and `-`", name = name.escape_debug())]
    Character {
        /// The text as it was given.
        name: String,
        /// The first character that does not fit.
        character: char,
    },
}

/// The one validator: letters, digits, `.`, `_`, `-`, 1 to 255 bytes, no leading dot; `*` only where `wildcards` says so.
fn validate(text: &str, wildcards: bool) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong(text.len()));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') || (wildcards && c == '*');
    if let Some(character) = text.chars().find(|c| !allowed(*c)) {
        return Err(NameError::Character { name: text.to_owned(), character });
    }
    if text.starts_with('.') {
        return Err(NameError::LeadingDot(text.to_owned()));
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, wildcards: $wildcards:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Takes `text` as a name.
            ///
            /// # Errors
            /// When it breaks a rule of names; see [`NameError`].
            pub fn new(text: &str) -> Result<Self, NameError> {
                validate(text, $wildcards)?;
                Ok(Self(text.into()))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

name! {
    /// The name of a topic.
    TopicName, wildcards: false
}

name! {
    /// The name of a subscriber group of a topic.
    GroupName, wildcards: false
}

name! {
    /// A name in which `*` stands for any run of characters, dots too.
    NamePattern, wildcards: true
}

impl NamePattern {
    /// Whether the pattern covers `name`.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        // Greedy with one point of return: the last star. Linear in practice, at worst the product of the lengths.
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, n));
                    p += 1;
                }
                Some(c) if *c == name[n] => {
                    p += 1;
                    n += 1;
                }
                _ => match star {
                    Some((at, taken)) => {
                        star = Some((at, taken + 1));
                        p = at + 1;
                        n = taken + 1;
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|c| *c == b'*')
    }

    /// How many characters are literal: among patterns that match, the one with the most wins.
    #[must_use]
    pub fn literals(&self) -> usize {
        self.0.bytes().filter(|c| *c != b'*').count()
    }

    /// Whether there is no `*`, so that it is the name of one thing.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !self.0.contains('*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_to_the_rules() {
        for good in ["a", "trade.order-paid", "A_9", "-", &"x".repeat(255)] {
            assert!(TopicName::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "../x", ".hidden", "a/b", "a b", "ä", "a\0", "*", "a*", &"x".repeat(256)] {
            assert!(TopicName::new(bad).is_err(), "{bad:?}");
            assert!(GroupName::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(TopicName::new(""), Err(NameError::Empty));
        assert_eq!(TopicName::new(&"x".repeat(256)), Err(NameError::TooLong(256)));
    }

    #[test]
    fn a_star_matches_any_run_of_characters() {
        let cases = [
            ("*", "anything.at-all", true),
            ("trade.*", "trade.order.paid", true),
            ("trade.*", "trade", false),
            ("*.dead", "a.dead", true),
            ("a*b*c", "aXXbYYc", true),
            ("a*b*c", "aXXbYY", false),
            ("a*ab", "aaab", true),
            ("exact", "exact", true),
            ("exact", "exactly", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(NamePattern::new(pattern).unwrap().matches(name), expected, "{pattern} on {name}");
        }
    }
}
