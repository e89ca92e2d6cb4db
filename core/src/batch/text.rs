//! Text that shares the bytes it was read from.

use std::fmt;
use std::ops::Deref;

use bytes::Bytes;

/// UTF-8 text inside shared bytes. Cloning copies nothing.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text(Bytes);

impl Text {
    /// Takes bytes that are UTF-8; gives others back as none.
    #[must_use]
    pub fn from_utf8(bytes: Bytes) -> Option<Self> {
        str::from_utf8(&bytes).is_ok().then_some(Self(bytes))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Checked when it was made; `unsafe` is forbidden here and the check costs little for a tag.
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The bytes of the text.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}
