//! What a partition's task is asked for.

use std::sync::Arc;
use std::time::Duration;

use stentor_core::{Durable, GroupName, Monotonic, Offset, OffsetRange, RecordBatch, Timestamp};
use stentor_protocol::wire;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::dedup::Receipt;
use crate::consumer::Consumer;
use crate::error::refusal;
use crate::filter::Filter;
use crate::group::{ConsumerId, Reason, Refusal, Rules, Whereabouts};
use crate::metrics::GroupMetrics;
use crate::settings::TopicSettings;

/// A batch to be stored, checked already.
pub(crate) struct Publish {
    pub(crate) batch: RecordBatch,
    pub(crate) answer: Answer,
}

/// Where the answer to a publish goes. Its place in the stream's queue is taken beforehand, so answering never waits; one
/// that is dropped says that the outcome is not known.
pub(crate) struct Answer {
    request: u64,
    partition: u32,
    place: Option<mpsc::OwnedPermit<Answered>>,
    /// When the frame came in.
    pub(crate) since: Monotonic,
    /// The share of the in-flight bytes, of the connection and of the node; it is given back with the answer.
    _room: [OwnedSemaphorePermit; 2],
}

/// An answer to a publish.
#[derive(Debug)]
pub(crate) enum Answered {
    Published(wire::Published),
    Refused(wire::PublishRefused),
}

impl Answer {
    pub(crate) fn new(
        request: u64,
        partition: u32,
        place: mpsc::OwnedPermit<Answered>,
        since: Monotonic,
        room: [OwnedSemaphorePermit; 2],
    ) -> Self {
        Self { request, partition, place: Some(place), since, _room: room }
    }

    /// It is stored.
    pub(crate) fn published(mut self, receipt: Durable<Receipt>, duplicate: bool) {
        let Receipt { base, count } = receipt.into_inner();
        let published =
            wire::Published { request: self.request, partition: self.partition, base_offset: base.0, count, duplicate };
        self.send(Answered::Published(published));
    }

    /// It is not, or that is not known.
    pub(crate) fn refused(mut self, error: wire::Error) {
        self.refuse(error);
    }

    fn refuse(&mut self, error: wire::Error) {
        self.send(Answered::Refused(wire::PublishRefused { request: self.request, error: Some(error) }));
    }

    fn send(&mut self, answered: Answered) {
        if let Some(place) = self.place.take() {
            place.send(answered);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.place.is_some() {
            let error = refusal(stentor_protocol::ErrorCode::OutcomeUnknown, "the partition went away");
            self.refuse(error);
        }
    }
}

/// The answer to a request; the error is ready for the wire.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, wire::Error>>;

/// How a group is to be served.
#[derive(Clone, Debug)]
pub(crate) struct GroupOrder {
    pub(crate) name: GroupName,
    pub(crate) rules: Rules,
    /// None lets everything through.
    pub(crate) filter: Option<Arc<Filter>>,
    pub(crate) paused: bool,
    pub(crate) metrics: GroupMetrics,
}

/// Everything but publishes.
pub(crate) enum Command {
    /// A new group, from `at`; done once that is durable. Rows that a group of this name left behind go.
    AddGroup {
        order: GroupOrder,
        at: Offset,
        reply: Reply<()>,
    },
    /// Other rules for a group, or pause and resume.
    UpdateGroup {
        order: GroupOrder,
        reply: Reply<()>,
    },
    /// The group goes, with its rows; done once that is durable.
    RemoveGroup {
        group: GroupName,
        reply: Reply<()>,
    },
    SeekGroup {
        group: GroupName,
        to: Offset,
        reply: Reply<()>,
    },
    Attach {
        group: GroupName,
        consumer: Arc<Consumer>,
        reply: Reply<()>,
    },
    Settle {
        group: GroupName,
        settlement: Settlement,
    },
    Redrive {
        group: GroupName,
        filter: Option<Arc<Filter>>,
        limit: u32,
        after: Option<Offset>,
        reply: Reply<Redriven>,
    },
    Purge {
        group: GroupName,
        reply: Reply<u64>,
    },
    Describe {
        reply: Reply<PartitionStats>,
    },
    Story {
        offset: Offset,
        reply: Reply<Vec<Story>>,
    },
    /// Other settings for the topic.
    Settings {
        settings: Arc<TopicSettings>,
    },
    /// Takes nothing more, makes everything durable and ends.
    Shutdown,
}

/// What a consumer says became of messages that it holds.
pub(crate) struct Settlement {
    pub(crate) consumer: ConsumerId,
    pub(crate) acks: Vec<OffsetRange>,
    pub(crate) nacks: Vec<Nack>,
    /// Each with the new time from now on; none for the group's lease.
    pub(crate) extends: Vec<(OffsetRange, Option<Duration>)>,
    /// Answered once it is durable, instead of at once.
    pub(crate) durable: bool,
    pub(crate) reply: oneshot::Sender<Vec<Unsettled>>,
}

pub(crate) struct Nack {
    pub(crate) offset: Offset,
    pub(crate) refusal: Refusal,
    pub(crate) reason: String,
}

/// Messages for which a settlement did nothing, and why.
#[derive(Clone, Debug)]
pub(crate) struct Unsettled {
    pub(crate) span: OffsetRange,
    pub(crate) error: wire::Error,
}

/// What a redrive did in one partition.
pub(crate) struct Redriven {
    /// The letters that were given back.
    pub(crate) messages: u64,
    /// Where to go on: after this letter. None when the partition has no further ones.
    pub(crate) next: Option<Offset>,
}

/// A partition at a glance.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartitionStats {
    pub(crate) log: OffsetRange,
    pub(crate) bytes: u64,
    /// `ok`, or why not.
    pub(crate) state: String,
    pub(crate) groups: Vec<(GroupName, GroupStats)>,
}

/// A group on a partition at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupStats {
    pub(crate) floor: Offset,
    pub(crate) next: Offset,
    pub(crate) backlog: u64,
    pub(crate) in_flight: u64,
    pub(crate) retrying: u64,
    pub(crate) dead_letters: u64,
    pub(crate) consumers: u32,
    pub(crate) oldest_owed: Option<Offset>,
    /// When that was stored, as last looked up.
    pub(crate) oldest_stored_at: Option<Timestamp>,
}

/// What a group knows of one message.
pub(crate) struct Story {
    pub(crate) group: GroupName,
    pub(crate) filter: Option<Arc<Filter>>,
    pub(crate) whereabouts: Whereabouts,
    pub(crate) reasons: Vec<Reason>,
    /// Who holds it, for people.
    pub(crate) consumer: String,
    /// Until when it is held or waits, on the wall.
    pub(crate) until: Option<Timestamp>,
}
