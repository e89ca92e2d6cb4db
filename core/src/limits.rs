//! Bounds that every part of the system agrees on. What a node may change lies in its configuration; these are the
//! ceilings of the formats and the defaults of the rest.

/// The largest message (key, tag, headers and body together) unless a topic says otherwise: 4 MiB.
pub const MESSAGE_BYTES_MAX_DEFAULT: u32 = 4 << 20;

/// The largest `message_bytes_max` that a topic may ask for: 64 MiB. A change must fit one journal segment.
pub const MESSAGE_BYTES_MAX_CEILING: u32 = 64 << 20;

/// The largest number of records in one batch.
pub const BATCH_RECORDS_MAX: u32 = 65_536;

/// What the records of a batch may come to beyond one message of the largest size, uncompressed: a batch holds either
/// one large message or many small ones.
pub const BATCH_BYTES_SLACK: u32 = 1 << 20;

/// The longest key, in bytes.
pub const MESSAGE_KEY_BYTES_MAX: u32 = 64 << 10;

/// The longest tag, in bytes of UTF-8.
pub const MESSAGE_TAG_BYTES_MAX: u32 = 255;

/// The largest number of headers of a message.
pub const MESSAGE_HEADERS_MAX: u32 = 1_024;

/// The longest key of a row in a partition's table, in bytes.
pub const TABLE_KEY_BYTES_MAX: usize = 1_024;

/// The largest number of partitions of a topic.
pub const TOPIC_PARTITIONS_MAX: u32 = 4_096;
