//! Numbers in filters and in the values of headers.

use std::cmp::Ordering;
use std::fmt;

/// The longest text that is looked at as a number.
const NUMBER_BYTES_MAX: usize = 64;

/// A finite number. Whole numbers are exact, so that ids and amounts in cents compare as they should.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Whole(i64),
    Fraction(f64),
}

impl Number {
    /// Reads an optional sign, digits, and optionally a fraction and an exponent; nothing else is a number.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let unsigned = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
        // Keeps out what Rust takes for a number and SQL does not: `inf`, `NaN`.
        if text.len() > NUMBER_BYTES_MAX || !unsigned.first().is_some_and(|c| c.is_ascii_digit() || *c == b'.') {
            return None;
        }
        let text = str::from_utf8(text).ok()?;
        if let Ok(whole) = text.parse() {
            return Some(Self::Whole(whole));
        }
        text.parse().ok().filter(|fraction: &f64| fraction.is_finite()).map(|fraction| {
            // 2.0 and 2 are one number, and one text.
            let whole = fraction as i64;
            if whole as f64 == fraction && whole.unsigned_abs() < 1 << 53 {
                Self::Whole(whole)
            } else {
                Self::Fraction(fraction)
            }
        })
    }

    pub(super) const fn negated(self) -> Option<Self> {
        match self {
            Self::Whole(whole) => match whole.checked_neg() {
                Some(whole) => Some(Self::Whole(whole)),
                None => None,
            },
            Self::Fraction(fraction) => Some(Self::Fraction(-fraction)),
        }
    }

    pub(super) fn compare(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => Some(a.cmp(&b)),
            (a, b) => a.approximate().partial_cmp(&b.approximate()),
        }
    }

    const fn approximate(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Fraction(fraction) => fraction,
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(whole) => whole.fmt(f),
            // With its exponent, which keeps both large and small ones short.
            Self::Fraction(fraction) => write!(f, "{fraction:e}"),
        }
    }
}
