//! Partitions: one task each, which alone writes to the partition and keeps what its groups are doing.
//!
//! The task gathers whatever publishes wait into one change, answers them when the receipt comes, serves the groups from
//! the tail that it keeps in memory or from reads beside it, writes the groups' progress, buries what is out of attempts
//! and trims what is done with. Logic that needs no task lies in modules of its own: [`dedup`], [`retention`], [`tail`].
//!
//! Invariants:
//! - publishers are answered from [`Durable`](stentor_core::Durable) alone, in the order of the commits;
//! - groups are offered only what is durable;
//! - nothing in the task waits for a consumer, a publisher, another partition or a read of the log;
//! - once a commit has failed, nothing more is written: the partition says why, and the others go on.

mod bury;
mod command;
mod commit;
mod dedup;
mod describe;
mod flush;
mod groups;
mod handle;
mod jobs;
mod publish;
mod recovery;
mod redrive;
mod retention;
mod serve;
mod settle;
mod stop;
mod tail;
mod task;

pub(crate) use command::{
    Answer, Answered, Command, GroupOrder, Nack, PartitionStats, Publish, Settlement, Story, Unsettled,
};
pub(crate) use handle::{Partition, open};
pub(crate) use jobs::{LETTER_BYTES_PER_CHANGE, letters, pick, single};
pub(crate) use serve::PICK_BELOW;
