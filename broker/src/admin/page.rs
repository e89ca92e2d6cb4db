//! Lists, page by page: an answer is bounded, whatever the number of topics and groups.
//!
//! Where a page ends is named by a token, opaque to the client: the name behind which to go on. A list that changes meanwhile
//! shows every entry that was there all the time, once.

use bytes::Bytes;
use prost::Message;
use stentor_core::{GroupName, TopicName};
use stentor_protocol::{ErrorCode, wire};

use crate::error::refusal;

/// How many bytes of descriptions a page holds, if it holds more than one.
const PAGE_BYTES_MAX: usize = 512 << 10;

/// A page that is being filled.
pub(super) struct Page<T> {
    pub(super) entries: Vec<T>,
    bytes: usize,
}

impl<T: Message> Page<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), bytes: 0 }
    }

    pub(super) fn push(&mut self, entry: T) {
        self.bytes += entry.encoded_len();
        self.entries.push(entry);
    }

    /// Whether what comes next is for the next page.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= PAGE_BYTES_MAX
    }
}

fn invalid() -> wire::Error {
    refusal(ErrorCode::Invalid, "the token for the next page is not one of this broker's")
}

/// The topic behind which to go on; none at the beginning.
pub(super) fn after_topic(token: &[u8]) -> Result<Option<TopicName>, wire::Error> {
    if token.is_empty() {
        return Ok(None);
    }
    let name = str::from_utf8(token).map_err(|_| invalid())?;
    TopicName::new(name).map(Some).map_err(|_| invalid())
}

/// The topic to go on with, and the group behind which; none at the beginning.
pub(super) fn after_group(token: &[u8]) -> Result<Option<(TopicName, GroupName)>, wire::Error> {
    if token.is_empty() {
        return Ok(None);
    }
    let names = str::from_utf8(token).ok().and_then(|names| names.split_once('/')).ok_or_else(invalid)?;
    match (TopicName::new(names.0), GroupName::new(names.1)) {
        (Ok(topic), Ok(group)) => Ok(Some((topic, group))),
        _ => Err(invalid()),
    }
}

/// The token of a page that ends with this topic.
pub(super) fn token_of_topic(name: &str) -> Bytes {
    Bytes::copy_from_slice(name.as_bytes())
}

/// The token of a page that ends with this group. Names hold no `/`.
pub(super) fn token_of_group(topic: &str, group: &str) -> Bytes {
    format!("{topic}/{group}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_reads_back_and_a_foreign_one_is_refused() {
        let (topic, group) = (TopicName::new("a.b").unwrap(), GroupName::new("g").unwrap());
        assert_eq!(after_topic(&token_of_topic("a.b")), Ok(Some(topic.clone())));
        assert_eq!(after_group(&token_of_group("a.b", "g")), Ok(Some((topic, group))));
        assert_eq!((after_topic(b""), after_group(b"")), (Ok(None), Ok(None)));
        for foreign in [&b"a/b/c"[..], b"/", b"a", b"\xff/\xff", b"a/"] {
            assert_eq!(after_group(foreign).unwrap_err().code(), ErrorCode::Invalid, "{foreign:?}");
        }
        assert_eq!(after_topic(b"../x").unwrap_err().code(), ErrorCode::Invalid);
    }
}
