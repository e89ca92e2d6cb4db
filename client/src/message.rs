//! A message on its way out.

use std::fmt;

use bytes::Bytes;
use stentor_core::batch::{RecordHeader, Text};
use stentor_core::{MessageId, MessageIdError, Record, Timestamp};

/// A message to be sent.
///
/// ```
/// use stentor_client::Message;
///
/// let message = Message::new("{\"order\": 17}").key("order-17").tag("paid").header("trace", "4bf92f35");
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Message {
    body: Bytes,
    id: Option<MessageId>,
    key: Option<Bytes>,
    tag: Option<Text>,
    headers: Vec<RecordHeader>,
}

impl Message {
    /// A message with this body, which may be empty. Text, `Vec<u8>` and `Bytes` are taken over without a copy.
    #[must_use]
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::default() }
    }

    /// Sets the key: messages of one key go to one partition, and stay in the order in which they were sent. Any bytes;
    /// an empty key is a key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the tag, a short text that groups filter by.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<Text>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Adds a header. Names may repeat; their order is kept.
    #[must_use]
    pub fn header(mut self, name: impl Into<Text>, value: impl Into<Bytes>) -> Self {
        self.headers.push(RecordHeader { name: name.into(), value: value.into() });
        self
    }

    /// Gives the message an id of the user's own. Without it the SDK makes a UUID of version 7.
    #[must_use]
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// As [`id`](Self::id), from text of 1 to 255 bytes.
    ///
    /// # Errors
    /// When the text does not do as an id.
    pub fn id_text(self, id: &str) -> Result<Self, MessageIdError> {
        Ok(self.id(id.parse()?))
    }

    /// The record of this message; `random` becomes part of its id, if it has none of its own.
    pub(crate) fn into_record(self, at: Timestamp, random: impl FnOnce() -> u128) -> Record {
        let Self { body, id, key, tag, headers } = self;
        let id = id.unwrap_or_else(|| MessageId::generate(at, random()));
        Record { id, timestamp: at, key, tag, headers, body, deliver_at: None, expires_at: None }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("key", &self.key)
            .field("tag", &self.tag)
            .field("headers", &self.headers.len())
            .field("body_bytes", &self.body.len())
            .finish()
    }
}
