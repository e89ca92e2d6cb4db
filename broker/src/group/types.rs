//! What the group and its partition's task say to each other.

use std::time::Duration;

use stentor_core::{Monotonic, Offset, OffsetRange, Timestamp};

/// A consumer, by its number on this node. Numbers are never used twice while the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConsumerId(pub u64);

/// Now, on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// Due times go by it.
    pub wall: Timestamp,
    /// Leases go by it.
    pub monotonic: Monotonic,
}

/// What the group's settings say about delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// How long a consumer holds a message before it comes back.
    pub lease: Duration,
    /// With so many failed attempts a message goes to the dead letters; at least 1.
    pub max_attempts: u32,
    /// The pause after the first failure; it doubles with each further one …
    pub retry_delay: Duration,
    /// … up to this.
    pub retry_delay_max: Duration,
    /// With so many messages waiting for another try or for their key, new ones stay in the log.
    pub retrying_max: u32,
    /// Whether messages of one key are delivered one at a time, in order.
    pub ordered: bool,
}

/// What the group would take next; see [`GroupState::wants`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// The batch of the log that holds this offset, for [`GroupState::offer`]: a message waiting there is due.
    Due(Offset),
    /// The redriven message at this offset (the row [`redriven_key`]), for [`GroupState::offer_redriven`]: it is due.
    Redriven(Offset),
    /// The batch of the log that holds this offset (or begins there), for [`GroupState::offer`]: new messages.
    Log(Offset),
    /// Nothing until time passes ([`GroupState::next_due`]), something is settled, a flush is done
    /// ([`GroupState::must_flush`]), or messages arrive.
    Nothing,
}

/// A batch as the group needs to see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    /// The offsets of its messages.
    pub offsets: OffsetRange,
    /// What it takes on the wire, in bytes; shared out evenly among its messages for the credit.
    pub bytes: u32,
    /// What the group's filter lets through; none: everything.
    pub matching: Option<&'a crate::filter::Mask>,
    /// Needed when the group is ordered: for each message the hash of its key, none for a message without one.
    pub keys: Option<&'a [Option<u64>]>,
}

/// How much a consumer still takes. Messages are exact; the last message may overdraw the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credit {
    pub messages: u32,
    pub bytes: u64,
}

/// Messages leased by one offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leased {
    /// The offsets, contiguous.
    pub offsets: OffsetRange,
    /// 1 for the first known delivery.
    pub attempt: u32,
    /// Whether it may have been delivered before.
    pub redelivered: bool,
}

/// How a consumer refuses a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Try again: after `delay`, or after the group's growing one.
    Retry { delay: Option<Duration> },
    /// Straight to the dead letters.
    Reject,
    /// It was never looked at: comes back at once, and the attempt does not count.
    Release,
}

/// The message is held by another consumer, or done with: `LEASE_LOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is held by another consumer, or done with")]
pub(crate) struct LeaseLost;

/// A message that is to go to the dead letters; see [`GroupState::deaths`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    pub offset: Offset,
    /// How often it was tried.
    pub attempts: u32,
    /// When the last attempt failed.
    pub at: Timestamp,
    /// Whether its bytes lie in the row [`redriven_key`] rather than in the log.
    pub redriven: bool,
}

/// What is known of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// Not yet delivered; perhaps the filter will exclude it.
    Untouched,
    /// Held back: an earlier message of its key is not done.
    Held,
    Leased {
        consumer: ConsumerId,
        until: Monotonic,
        attempt: u32,
    },
    /// Waiting until `due`, after so many failed attempts.
    Waiting {
        due: Timestamp,
        attempts: u32,
    },
    /// On its way to the dead letters.
    Dying {
        attempts: u32,
    },
    /// Acknowledged, filtered out, dead-lettered or skipped.
    Done,
}
