//! Keys of a partition's table, and ranges of them.

use std::fmt;

use bytes::Bytes;

/// The key of a row: any bytes, up to [`TABLE_KEY_BYTES_MAX`](crate::limits::TABLE_KEY_BYTES_MAX). Rows are ordered by
/// the bytes of their keys.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub Bytes);

impl Key {
    /// A key with these bytes.
    #[must_use]
    pub fn copy_from(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }

    /// The first key after this one.
    #[must_use]
    pub fn successor(&self) -> Self {
        let mut bytes = Vec::with_capacity(self.0.len() + 1);
        bytes.extend_from_slice(&self.0);
        bytes.push(0);
        Self(bytes.into())
    }
}

impl From<Vec<u8>> for Key {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// A half-open range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key inside.
    pub start: Key,
    /// The first key behind the range; none means that there is no bound.
    pub end: Option<Key>,
}

impl KeyRange {
    /// Every key.
    #[must_use]
    pub fn all() -> Self {
        Self { start: Key(Bytes::new()), end: None }
    }

    /// From `start` up to, and without, `end`.
    #[must_use]
    pub const fn new(start: Key, end: Key) -> Self {
        Self { start, end: Some(end) }
    }

    /// One key alone.
    #[must_use]
    pub fn single(key: &Key) -> Self {
        Self { start: key.clone(), end: Some(key.successor()) }
    }

    /// Every key that starts with `prefix`.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        // The first key behind all of them: the prefix, its last byte that can grow grown by one, cut there.
        let end = prefix.iter().rposition(|byte| *byte < u8::MAX).map(|at| {
            let mut end = prefix[..=at].to_vec();
            end[at] += 1;
            Key(end.into())
        });
        Self { start: Key::copy_from(prefix), end }
    }

    /// Whether `key` lies inside.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        *key >= self.start && self.end.as_ref().is_none_or(|end| key < end)
    }

    /// Whether no key can lie inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_covers_exactly_the_keys_that_start_with_it() {
        let range = KeyRange::prefix(b"a\xff");
        for (key, inside) in [(&b"a\xff"[..], true), (b"a\xff\xff", true), (b"a\xfe", false), (b"b", false)] {
            assert_eq!(range.contains(&Key::copy_from(key)), inside, "{key:?}");
        }
        assert!(KeyRange::prefix(b"\xff").contains(&Key::copy_from(b"\xff\xff\xff")));
        assert!(!KeyRange::prefix(b"\xff").contains(&Key::copy_from(b"\xfe")));
    }

    #[test]
    fn a_single_key_has_nothing_next_to_it() {
        let range = KeyRange::single(&Key::copy_from(b"k"));
        assert!(range.contains(&Key::copy_from(b"k")));
        assert!(!range.contains(&Key::copy_from(b"k\0")));
    }
}
