//! What can be wrong with a batch.

use thiserror::Error;

use crate::MessageIdError;

/// Why bytes are no batch, or a message does not fit one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The bytes end too soon.
    #[error("the batch ends too soon")]
    Truncated,
    /// The format is of another version.
    #[error("the batch is of format version {0}, which this version does not read")]
    Version(u8),
    /// The header contradicts itself.
    #[error("the batch's header makes no sense: {0}")]
    Header(&'static str),
    /// There are more or fewer bytes of records than the header says.
    #[error("the batch says it holds {stated} bytes of records, but {found} are there")]
    Length {
        /// What the header says.
        stated: u32,
        /// What is there.
        found: usize,
    },
    /// The checksum does not hold.
    #[error("the batch's checksum is {found:#010x} and should be {stated:#010x}")]
    Checksum {
        /// What the header says.
        stated: u32,
        /// What the bytes come to.
        found: u32,
    },
    /// A record does not decode.
    #[error("a record is malformed: {0}")]
    Record(&'static str),
    /// A record's id does not decode.
    #[error(transparent)]
    Id(#[from] MessageIdError),
    /// The block cannot be uncompressed.
    #[error("the batch cannot be uncompressed: {0}")]
    Decompress(String),
    /// The records would take more than the caller allows.
    #[error("the batch takes {bytes} bytes uncompressed: at most {bytes_max} are allowed")]
    TooLarge {
        /// What the header says.
        bytes: u32,
        /// What is allowed.
        bytes_max: u32,
    },
    /// A message is larger than allowed.
    #[error("a message of {bytes} bytes is too large: at most {bytes_max} are allowed")]
    MessageTooLarge {
        /// Key, tag, headers and body together.
        bytes: usize,
        /// What is allowed.
        bytes_max: u32,
    },
    /// A part of a message is beyond the ceiling of the format.
    #[error("{what} of {found} is beyond the limit of {limit}")]
    Limit {
        /// Which part.
        what: &'static str,
        /// How much there is.
        found: usize,
        /// How much is allowed.
        limit: usize,
    },
}
