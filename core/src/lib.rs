//! The vocabulary and the contracts of stentor.
//!
//! Everything that more than one part of the broker speaks of is named here once: offsets, partitions, names, record
//! batches, durability, limits; and the seams between the engine and what is plugged into it: [`storage`],
//! [`transport`] and [`clock`]. There is no engine here and no I/O.
//!
//! Ranges are half-open everywhere. Sizes are bytes, wall-clock times are microseconds since the Unix epoch
//! ([`Timestamp`]), and the monotonic clock has a type of its own ([`Monotonic`]) so that the two cannot be mixed.

pub mod batch;
pub mod clock;
mod durability;
mod id;
pub mod limits;
mod name;
mod offset;
mod partition;
pub mod storage;
mod time;
pub mod transport;

pub use batch::{Compression, Record, RecordBatch};
pub use clock::Clock;
pub use durability::{Durability, Durable, ParseDurabilityError};
pub use id::{MESSAGE_ID_BYTES_MAX, MessageId, MessageIdError, ProducerId};
pub use name::{GroupName, NAME_BYTES_MAX, NameError, NamePattern, TopicName};
pub use offset::{Epoch, Offset, OffsetRange};
pub use partition::{PartitionId, PartitionIndex, partition_for_key};
pub use time::{Monotonic, Timestamp};
