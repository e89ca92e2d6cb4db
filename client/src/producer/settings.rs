//! How a producer behaves.

use std::time::Duration;

use stentor_core::limits::{BATCH_BYTES_SLACK, BATCH_RECORDS_MAX};
use stentor_core::{Compression, PartitionIndex};

use crate::error::OpenError;

/// The greatest number of batches that may be unanswered in one partition: a broker remembers the receipts of so many,
/// so that any of them can be sent again and is stored once.
pub const IN_FLIGHT_BATCHES_MAX: u32 = 64;

/// What a producer does with a message whose outcome is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InDoubt {
    /// Sends it again where it was, where it is stored once; after `in_doubt_timeout` sends it, under the same id, to
    /// another partition, and it may then be stored twice. A message that is bound to its partition stays.
    #[default]
    Move,
    /// Sends it again where it was, for as long as the producer tries. It is never stored twice by this producer.
    Wait,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) compression: Compression,
    pub(super) linger: Duration,
    pub(super) batch_bytes: usize,
    pub(super) batch_records: u32,
    pub(super) in_flight_bytes: u32,
    pub(super) in_flight_batches: u32,
    pub(super) in_doubt: InDoubt,
    pub(super) in_doubt_timeout: Duration,
    pub(super) retry_for: Duration,
    pub(super) send_timeout: Duration,
    pub(super) partition: Option<PartitionIndex>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            compression: Compression::None,
            linger: Duration::ZERO,
            batch_bytes: 64 << 10,
            batch_records: 4_096,
            in_flight_bytes: 32 << 20,
            in_flight_batches: 16,
            in_doubt: InDoubt::default(),
            in_doubt_timeout: Duration::from_secs(3),
            retry_for: Duration::from_secs(10),
            send_timeout: Duration::from_secs(30),
            partition: None,
        }
    }
}

impl Settings {
    pub(super) fn check(&self) -> Result<(), OpenError> {
        // What a batch may come to beyond one message of the largest size.
        let batch_bytes_max = BATCH_BYTES_SLACK as usize;
        let complaint = if self.batch_bytes == 0 || self.batch_bytes > batch_bytes_max {
            format!("batch_bytes is {}: it takes 1 to {batch_bytes_max}", self.batch_bytes)
        } else if self.batch_records == 0 || self.batch_records > BATCH_RECORDS_MAX {
            format!("batch_records is {}: it takes 1 to {BATCH_RECORDS_MAX}", self.batch_records)
        } else if self.in_flight_batches == 0 || self.in_flight_batches > IN_FLIGHT_BATCHES_MAX {
            format!("in_flight_batches is {}: it takes 1 to {IN_FLIGHT_BATCHES_MAX}", self.in_flight_batches)
        } else if self.in_flight_bytes == 0 {
            "in_flight_bytes is 0: nothing could ever be sent".to_owned()
        } else {
            return Ok(());
        };
        Err(OpenError::Setting(complaint))
    }
}
