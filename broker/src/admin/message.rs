//! One message, and what became of it in each group.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use stentor_core::storage::StorageError;
use stentor_core::{MessageId, Offset, RecordBatch};
use stentor_protocol::wire::show_message::Which;
use stentor_protocol::{ErrorCode, wire};

use super::letters;
use crate::error::{advise, bad_batch, refusal, refused_by_storage};
use crate::group::Whereabouts;
use crate::node::Node;
use crate::partition::{Command, Partition, Story, single};
use crate::topic::Topic;

/// How much of each partition's log is searched for an id.
const SEARCH_BYTES_MAX: usize = 256 << 20;

const SEARCH_READ_BYTES: NonZeroU32 = NonZeroU32::new(1 << 20).unwrap();

/// How far the clocks of a producer and of this node may be apart for an id that tells its age to be found.
const SKEW_MAX: Duration = Duration::from_secs(120);

pub(super) async fn show(node: &Node, show: &wire::ShowMessage) -> Result<(wire::MessageStory, Bytes), wire::Error> {
    let topic = node.topic(&show.topic)?;
    let (partition, batch) = match &show.which {
        Some(Which::Offset(at)) => {
            let partition = &**topic.partition(at.partition)?;
            (partition, at_offset(partition, Offset(at.offset)).await?)
        }
        Some(Which::Id(id)) => {
            let id = id.parse().map_err(|error| refusal(ErrorCode::Invalid, format!("{error}")))?;
            search(&topic, &id).await?
        }
        None => return Err(refusal(ErrorCode::Invalid, "neither an id nor an offset was given")),
    };
    let offset = batch.base_offset();
    let mut groups = Vec::new();
    for story in partition.ask(|reply| Command::Story { offset, reply }).await? {
        groups.push(tell(&topic, partition, &batch, story).await?);
    }
    let story = wire::MessageStory {
        partition: partition.index.0,
        offset: offset.0,
        stored_at_micros: batch.stored_at().0,
        producer: batch.producer().map_or(0, |sequenced| sequenced.producer.0),
        groups,
    };
    Ok((story, batch.to_bytes()))
}

fn not_found(what: &str) -> wire::Error {
    advise(ErrorCode::MessageNotFound, what, "it may have been removed once every group was done with it")
}

/// The message at an offset, as a batch of its own.
async fn at_offset(partition: &Partition, offset: Offset) -> Result<RecordBatch, wire::Error> {
    let missing = || not_found(&format!("partition {} holds no message at offset {offset}", partition.index));
    let batches = match partition.reader()?.read(offset, NonZeroU32::MIN).await {
        Ok(batches) => batches,
        Err(StorageError::Trimmed { .. }) => return Err(missing()),
        Err(error) => return Err(refused_by_storage(&error)),
    };
    let batch = batches.first().ok_or_else(missing)?;
    let producer = batch.batch.producer();
    let found = single(&batch.batch, offset).map_err(|error| bad_batch(&error))?.ok_or_else(missing)?;
    // The message as it was sent by its producer.
    Ok(match producer {
        Some(sequenced) => found.sequenced(sequenced),
        None => found,
    })
}

/// Looks for an id in every partition, from the time that it tells of if it does.
async fn search<'a>(topic: &'a Topic, id: &MessageId) -> Result<(&'a Partition, RecordBatch), wire::Error> {
    for partition in topic.partitions() {
        let reader = partition.reader()?;
        let failed = |error: StorageError| refused_by_storage(&error);
        let mut from = match id.made_at() {
            Some(made_at) => reader.offset_at(made_at.before(SKEW_MAX)).await.map_err(failed)?,
            None => reader.bounds().start,
        };
        let mut searched = 0;
        while searched < SEARCH_BYTES_MAX {
            let batches = match reader.read(from, SEARCH_READ_BYTES).await {
                Ok(batches) => batches,
                Err(StorageError::Trimmed { start }) => {
                    from = start;
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            let Some(last) = batches.last() else { break };
            from = last.batch.offsets().end;
            for stored in &batches {
                searched += stored.batch.len();
                let records = stored.batch.records(u32::MAX).map_err(|error| bad_batch(&error))?;
                let holds = |record: &Result<stentor_core::Record, _>| record.as_ref().is_ok_and(|r| r.id == *id);
                let Some(index) = records.into_iter().position(|record| holds(&record)) else { continue };
                let offset = stored.batch.base_offset().advance(index as u64);
                return Ok((partition, at_offset(partition, offset).await?));
            }
        }
    }
    Err(not_found(&format!("no message with the id {id} was found")))
}

async fn tell(
    topic: &Topic,
    partition: &Partition,
    batch: &RecordBatch,
    story: Story,
) -> Result<wire::GroupStory, wire::Error> {
    let mut told = wire::GroupStory {
        group: story.group.to_string(),
        reasons: story.reasons.into_iter().map(letters::reason).collect(),
        until_micros: story.until.map_or(0, |until| until.0),
        consumer: story.consumer,
        ..wire::GroupStory::default()
    };
    let filtered = match &story.filter {
        None => false,
        Some(filter) => {
            let mut records = batch.records(u32::MAX).map_err(|error| bad_batch(&error))?;
            records.next().and_then(Result::ok).is_some_and(|record| !filter.matches(&record))
        }
    };
    let state = match story.whereabouts {
        Whereabouts::Untouched | Whereabouts::Done if filtered => "filtered",
        Whereabouts::Untouched | Whereabouts::Held => "waiting",
        Whereabouts::Leased { attempt, .. } => {
            told.attempts = attempt;
            "in-flight"
        }
        Whereabouts::Waiting { attempts, .. } => {
            told.attempts = attempts;
            if attempts == 0 { "waiting" } else { "retrying" }
        }
        Whereabouts::Dying { attempts } => {
            told.attempts = attempts;
            "retrying"
        }
        Whereabouts::Done => {
            let letter = match topic.group(story.group.as_str()) {
                Ok(group) => letters::one(partition, &group, batch.base_offset()).await?,
                Err(_) => None,
            };
            match letter {
                Some(letter) => {
                    told.attempts = letter.attempts;
                    told.reasons = letter.reasons.into_iter().map(letters::reason).collect();
                    "dead-lettered"
                }
                None => "acknowledged",
            }
        }
    };
    told.state = state.to_owned();
    Ok(told)
}
