//! What lies on disk: segments, groups and frames of the journal, the payload of a frame, and the rows of the index.
//! Plain functions over bytes, without I/O.
//!
//! Invariant: decoding never panics, and takes no more memory than the bytes that it is given.

pub(crate) mod group;
pub(crate) mod payload;
mod reader;
pub(crate) mod row;
pub(crate) mod segment;

pub(crate) use reader::ByteReader;

/// Writes are padded to this, so that the kernel never has to read a page before it can write it.
pub(crate) const PAGE_BYTES: u64 = 4_096;

/// Why bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// `position` rounded up to a whole page.
pub(crate) const fn page_end(position: u64) -> u64 {
    position.next_multiple_of(PAGE_BYTES)
}
