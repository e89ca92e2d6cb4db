//! What identifies a message and a producer.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use thiserror::Error;
use uuid::Uuid;

use crate::Timestamp;

/// The longest message id, in bytes of its text.
pub const MESSAGE_ID_BYTES_MAX: usize = 255;

/// Identifies a message for its whole life, across partitions, retries and copies.
///
/// The SDK makes UUIDs of version 7 (RFC 9562), which carry the time they were made at; a user may bring any text of 1
/// to 255 bytes instead. The text is the identity: an id given as the text of a UUID is that UUID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageId {
    /// A UUID, kept in its 16 bytes.
    Uuid(Uuid),
    /// A text of the user's own, which is not the canonical text of a UUID.
    Text(Box<str>),
}

/// Why a text or a row of bytes is no message id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MessageIdError {
    /// Its length is out of bounds.
    #[error("a message id of {0} bytes: it takes 1 to {MESSAGE_ID_BYTES_MAX}")]
    Length(usize),
    /// It is not text.
    #[error("a message id is not UTF-8")]
    NotText,
}

impl MessageId {
    /// A UUID of version 7: `at` to the millisecond, then `random`.
    #[must_use]
    pub fn generate(at: Timestamp, random: u128) -> Self {
        let random = random.to_le_bytes();
        let mut bits = [0; 10];
        bits.copy_from_slice(&random[..10]);
        Self::Uuid(uuid::Builder::from_unix_timestamp_millis(at.0 / 1_000, &bits).into_uuid())
    }

    /// When the id was made, to the millisecond, if it is a UUID of version 7.
    #[must_use]
    pub fn made_at(&self) -> Option<Timestamp> {
        match self {
            Self::Uuid(uuid) if uuid.get_version_num() == 7 => {
                let millis = uuid.as_u128() >> 80;
                u64::try_from(millis).ok().map(|millis| Timestamp(millis.saturating_mul(1_000)))
            }
            _ => None,
        }
    }

    /// The id in as few bytes as it takes; [`from_bytes`](Self::from_bytes) reads them back. 16 bytes that are no valid
    /// text of their own cannot be mistaken: a UUID is marked by a leading zero byte, which no text of ours holds.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        match self {
            Self::Uuid(uuid) => {
                let mut bytes = [0; 17];
                bytes[1..].copy_from_slice(uuid.as_bytes());
                Bytes::copy_from_slice(&bytes)
            }
            Self::Text(text) => Bytes::copy_from_slice(text.as_bytes()),
        }
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// When the bytes are neither a marked UUID nor a text of 1 to 255 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MessageIdError> {
        if let Some((0, uuid)) = bytes.split_first().map(|(mark, rest)| (*mark, rest)) {
            return Uuid::from_slice(uuid).map(Self::Uuid).map_err(|_| MessageIdError::Length(bytes.len()));
        }
        str::from_utf8(bytes).map_err(|_| MessageIdError::NotText)?.parse()
    }
}

impl FromStr for MessageId {
    type Err = MessageIdError;

    fn from_str(text: &str) -> Result<Self, MessageIdError> {
        if text.is_empty() || text.len() > MESSAGE_ID_BYTES_MAX {
            return Err(MessageIdError::Length(text.len()));
        }
        if text.starts_with('\0') {
            return Err(MessageIdError::NotText);
        }
        // Only the canonical text is folded into 16 bytes: any other spelling must come back as it was written.
        match Uuid::try_parse(text) {
            Ok(uuid) if uuid.as_hyphenated().to_string() == text => Ok(Self::Uuid(uuid)),
            _ => Ok(Self::Text(text.into())),
        }
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => uuid.as_hyphenated().fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// One opening of a producer. Chosen at random by the client; sequences are counted per producer, epoch and partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId(pub u64);

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_round_trips_as_text_and_as_bytes() {
        let made = MessageId::generate(Timestamp(1_700_000_000_123_456), 42);
        assert_eq!(made.made_at(), Some(Timestamp(1_700_000_000_123_000)));
        for id in [made, "order-17".parse().unwrap(), "Ünïcode".parse().unwrap(), "sixteen-bytes-ok".parse().unwrap()]
        {
            assert_eq!(id.to_string().parse::<MessageId>(), Ok(id.clone()));
            assert_eq!(MessageId::from_bytes(&id.to_bytes()), Ok(id));
        }
    }

    #[test]
    fn an_id_out_of_bounds_is_refused() {
        assert_eq!("".parse::<MessageId>(), Err(MessageIdError::Length(0)));
        assert_eq!("x".repeat(256).parse::<MessageId>(), Err(MessageIdError::Length(256)));
        assert_eq!(MessageId::from_bytes(&[0, 1]), Err(MessageIdError::Length(2)));
        assert_eq!(MessageId::from_bytes(&[0xff]), Err(MessageIdError::NotText));
    }
}
