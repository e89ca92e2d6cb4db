//! What a benchmark is asked to do.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::cli::args::{duration, rate, size};

/// Which work is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Messages acknowledged to producers; latency from handing over to acknowledgement
    Publish,
    /// A backlog taken by one group, each message acknowledged; latency of the acknowledgements
    Consume,
    /// From the moment a message is due at a fixed rate to its delivery
    EndToEnd,
    /// Publishing while nobody consumes, rate and memory per tenth of the way; then the drain
    Backlog,
    /// Publishing to several groups at once, each acknowledging each message; messages are deliveries
    FanOut,
}

impl Work {
    /// The word for it.
    pub(crate) fn word(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// How consumers settle what they were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ack {
    /// Each message by itself
    Each,
    /// The messages that came together by one word
    Batch,
}

/// The options of `stentor bench`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// What to measure
    pub(crate) work: Work,
    /// Use this topic as it is, instead of one made for the run
    #[arg(long, value_name = "T", conflicts_with_all = ["storage", "durability", "partitions"])]
    pub(crate) topic: Option<String>,
    /// Storage of the topic made for the run
    #[arg(long, value_name = "S", default_value = "lsm")]
    pub(crate) storage: String,
    /// Its durability [default: the storage's own]
    #[arg(long, value_name = "D")]
    pub(crate) durability: Option<String>,
    /// Its partitions
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) partitions: u32,
    /// Size of a message's body
    #[arg(long, value_name = "BYTES", default_value = "1KiB", value_parser = size)]
    pub(crate) size: u64,
    /// Messages of a batch at most [default: as the SDK batches, up to 64 KiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch: Option<u32>,
    /// How long a batch that could be sent waits for more messages [default: as the SDK does, not at all]
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) linger: Option<Duration>,
    /// Producers, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) producers: u32,
    /// Consumers of each group, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) consumers: u32,
    /// Subscriber groups [default: 10 for fan-out, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub(crate) groups: Option<u32>,
    /// Messages that a producer has under way at most [default: 16384; 1000 with --awaited]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) in_flight: Option<u32>,
    /// Send single messages: --in-flight tasks of each producer, each awaiting the receipt of one before its next
    #[arg(long, conflicts_with = "rate")]
    pub(crate) awaited: bool,
    /// How consumers settle [default: batch for the drain of a backlog, else each]
    #[arg(long, value_name = "HOW")]
    pub(crate) ack: Option<Ack>,
    /// How many messages a consumer may hold that are not settled
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) credit: u32,
    /// How long to publish [default: 5s, unless --count says when to stop]
    #[arg(long, value_name = "D", value_parser = duration, conflicts_with = "count")]
    pub(crate) duration: Option<Duration>,
    /// How many messages to publish in all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Publish so many a second in all, instead of as many as go [default for end-to-end: 5000/s]
    #[arg(long, value_name = "N/s", value_parser = rate)]
    pub(crate) rate: Option<u64>,
    /// Largest datagram, in both directions [default: what the path carries, within the transport's own bound]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1_200..))]
    pub(crate) mtu: Option<u16>,
    /// In each tenth of the way to a backlog, let a fresh group read at the tail for so long
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) tail: Option<Duration>,
    /// Append how a backlog grew and went to this file, a JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) samples: Option<PathBuf>,
    /// How often that is looked at
    #[arg(long, value_name = "D", default_value = "1s", value_parser = duration)]
    pub(crate) sample_every: Duration,
    /// Do it so many times, each with a broker of its own, and give median and spread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
}

/// When a run of producers is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// So much time has passed.
    Time(Duration),
    /// So many messages have been published by all producers together.
    Count(u64),
}

impl Until {
    /// How many more messages may be sent, after so many in so much time.
    pub(super) fn left(self, messages: u64, passed: Duration) -> u64 {
        match self {
            Self::Count(count) => count.saturating_sub(messages),
            Self::Time(time) if passed < time => u64::MAX,
            Self::Time(_) => 0,
        }
    }
}

impl Options {
    /// How long an unlimited run takes.
    const DURATION: Duration = Duration::from_secs(5);

    /// The backlog of a work that needs one, in bytes of bodies at most …
    const BACKLOG_BYTES: u64 = 512 << 20;

    /// … and in messages at most.
    const BACKLOG_MESSAGES: u64 = 500_000;

    /// The rate at which end-to-end latency is measured.
    const END_TO_END_RATE: u64 = 5_000;

    pub(super) fn groups(&self) -> u32 {
        self.groups.unwrap_or(if self.work == Work::FanOut { 10 } else { 1 })
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.unwrap_or(if self.awaited { 1_000 } else { 16_384 })
    }

    pub(super) fn ack(&self) -> Ack {
        self.ack.unwrap_or(if self.work == Work::Backlog { Ack::Batch } else { Ack::Each })
    }

    pub(super) fn rate(&self) -> Option<u64> {
        self.rate.or((self.work == Work::EndToEnd).then_some(Self::END_TO_END_RATE))
    }

    pub(super) fn until(&self) -> Until {
        match (self.count, self.duration) {
            (Some(count), _) => Until::Count(count),
            (None, Some(duration)) => Until::Time(duration),
            (None, None) if matches!(self.work, Work::Consume | Work::Backlog) => {
                Until::Count((Self::BACKLOG_BYTES / self.size.max(1)).clamp(1, Self::BACKLOG_MESSAGES))
            }
            (None, None) => Until::Time(Self::DURATION),
        }
    }

    /// What a full batch comes to: the size at which the machine's limits are measured.
    pub(super) fn batch_bytes(&self) -> u64 {
        const SDK_BATCH_BYTES: u64 = 64 << 10;
        match self.batch {
            Some(records) => (u64::from(records) * self.size).clamp(1, SDK_BATCH_BYTES.max(self.size)),
            None => SDK_BATCH_BYTES.max(self.size),
        }
    }
}
