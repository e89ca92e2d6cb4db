//! Positions in a topic, as a user names them.

use futures_util::future::join_all;
use stentor_core::{Offset, Timestamp};
use stentor_protocol::wire::start_at::At;
use stentor_protocol::{ErrorCode, wire};

use crate::error::{refusal, refused_by_storage};
use crate::partition::Partition;
use crate::topic::Topic;

/// The offset in each partition that `from` means for a new group; nothing means the latest one.
pub(crate) async fn positions(topic: &Topic, from: Option<&wire::StartAt>) -> Result<Vec<Offset>, wire::Error> {
    let at = from.and_then(|from| from.at.as_ref());
    check(topic, at)?;
    let finding = topic.partitions().iter().map(|partition| async move {
        match position(partition, at).await? {
            Some(offset) => Ok(offset),
            None => Ok(partition.reader()?.bounds().end),
        }
    });
    join_all(finding).await.into_iter().collect()
}

/// Refuses what names no place in the topic.
pub(super) fn check(topic: &Topic, at: Option<&At>) -> Result<(), wire::Error> {
    let Some(At::Offset(wire::PartitionOffset { partition, offset })) = at else { return Ok(()) };
    let log = topic.partition(*partition)?.reader()?.bounds();
    if (log.start.0..=log.end.0).contains(offset) {
        return Ok(());
    }
    let message = format!("partition {partition} holds the offsets {log}, {offset} is not among them");
    Err(refusal(ErrorCode::OffsetOutOfRange, message))
}

/// The offset that `at` means in one partition; none when it says nothing of that partition.
pub(super) async fn position(partition: &Partition, at: Option<&At>) -> Result<Option<Offset>, wire::Error> {
    let reader = partition.reader()?;
    let log = reader.bounds();
    Ok(match at {
        None | Some(At::Latest(_)) => Some(log.end),
        Some(At::Earliest(_)) => Some(log.start),
        Some(At::TimeMicros(time)) => {
            Some(reader.offset_at(Timestamp(*time)).await.map_err(|error| refused_by_storage(&error))?)
        }
        Some(At::Offset(at)) => (at.partition == partition.index.0).then_some(Offset(at.offset)),
    })
}
