//! What is read beside the task, so that the task never waits for it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use stentor_core::batch::{BatchBuilder, BatchError};
use stentor_core::storage::{Key, KeyRange, PartitionReader, StorageError, StoredBatch};
use stentor_core::{Compression, GroupName, Offset, Record, RecordBatch, Timestamp};
use stentor_protocol::wire;

use super::command::{Redriven, Reply, Story};
use super::task::Task;
use crate::error::{bad_batch, refused_by_storage};
use crate::filter::Filter;
use crate::group::{self, DeadLetter, Death, REASONS_MAX, Redrive, Want};

/// What a group that lags reads ahead at once.
pub(super) const READ_AHEAD_BYTES: NonZeroU32 = NonZeroU32::new(1 << 20).unwrap();

/// Just the one batch.
pub(super) const ONE_BATCH: NonZeroU32 = NonZeroU32::MIN;

/// How many letters move in one change.
pub(super) const LETTERS_PER_CHANGE: usize = 256;

/// How many bytes of letters move in one change, if it holds more than one.
pub(crate) const LETTER_BYTES_PER_CHANGE: usize = 1 << 20;

/// The same while the storage is full: with the group's progress beside them they stay below what counts as new data.
pub(super) const LETTER_BYTES_WHEN_FULL: usize = 96 << 10;

/// How many letters one job looks at for a redrive: while it runs, nothing of the group is flushed.
const LETTERS_SEEN_MAX: usize = 1_024;

/// How many rows are deleted in one change.
const ROWS_DELETED_MAX: u64 = 1_024;

/// How many bytes of letters one job looks at.
const LETTER_BYTES_SEEN_MAX: usize = 8 << 20;

/// As many rows as the failures of one message may have, those of a redriven one included.
const FAILURE_ROWS_MAX: NonZeroU32 = NonZeroU32::new(4 * REASONS_MAX).unwrap();

/// How many dead letters are looked at in one page of a redrive.
const LETTERS_PER_PAGE: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// A job that is done.
pub(super) enum Done {
    Read { group: GroupName, generation: u64, want: Want, outcome: Result<Vec<StoredBatch>, StorageError> },
    Redriven { group: GroupName, generation: u64, offset: Offset, outcome: Result<Option<Bytes>, StorageError> },
    Graves { group: GroupName, generation: u64, outcome: Result<Vec<Grave>, StorageError> },
    Letters { group: GroupName, generation: u64, outcome: Result<Letters, wire::Error>, reply: Reply<Redriven> },
    Stories { offset: Offset, rows: BTreeMap<GroupName, Vec<(Key, Bytes)>>, reply: Reply<Vec<Story>> },
    Purge { group: GroupName, generation: u64, outcome: Result<Portion, StorageError>, purged: u64, reply: Reply<u64> },
    Removal { range: KeyRange, outcome: Result<Portion, StorageError>, reply: Reply<()> },
    Ages { outcome: Result<Ages, StorageError> },
    Oldest { group: GroupName, generation: u64, offset: Offset, stored_at: Option<Timestamp> },
}

/// What a death needs to become a dead letter.
pub(super) struct Grave {
    pub(super) death: Death,
    /// None when the message is gone from the log.
    pub(super) batch: Option<Bytes>,
    /// The rows of its failures.
    pub(super) failures: Vec<(Key, Bytes)>,
    /// The reasons of earlier lives, of a message that was redriven.
    pub(super) earlier: Vec<group::Reason>,
    /// Whether there is a letter of this offset already.
    pub(super) replaces: bool,
}

/// Dead letters to be given back.
pub(crate) struct Letters {
    /// Behind which letter was looked.
    pub(crate) after: Option<Offset>,
    pub(crate) letters: Vec<Redrive>,
    /// Behind which letter to go on; none when there are no more.
    pub(crate) next: Option<Offset>,
}

/// A portion of the rows of a range, from its start on.
pub(super) struct Portion {
    pub(super) rows: u64,
    /// Behind its last row.
    pub(super) end: Key,
    /// Whether the range holds more.
    pub(super) more: bool,
}

/// Where messages of certain ages begin.
pub(super) struct Ages {
    pub(super) retained_from: Offset,
    pub(super) owed_from: Option<Offset>,
}

impl Task {
    /// Reads what a group wants.
    pub(super) fn spawn_read(&mut self, group: &GroupName, generation: u64, want: Want) {
        let Ok(reader) = self.reader() else { return };
        let group = group.clone();
        self.jobs.spawn(async move {
            match want {
                Want::Redriven(offset) => {
                    let outcome = reader.get(&group::redriven_key(&group, offset)).await;
                    Done::Redriven { group, generation, offset, outcome }
                }
                Want::Log(offset) => {
                    let outcome = reader.read(offset, READ_AHEAD_BYTES).await;
                    Done::Read { group, generation, want, outcome }
                }
                Want::Due(offset) => {
                    let outcome = reader.read(offset, ONE_BATCH).await;
                    Done::Read { group, generation, want, outcome }
                }
                Want::Nothing => Done::Read { group, generation, want, outcome: Ok(Vec::new()) },
            }
        });
    }

    /// Fetches the messages of deaths, and why they died.
    pub(super) fn spawn_graves(&mut self, group: &GroupName, generation: u64, deaths: Vec<Death>, bytes_max: usize) {
        let Ok(reader) = self.reader() else { return };
        let group = group.clone();
        self.jobs.spawn(async move {
            let outcome = dig(&*reader, &group, deaths, bytes_max).await;
            Done::Graves { group, generation, outcome }
        });
    }

    /// Fetches dead letters that a redrive asks for.
    pub(super) fn spawn_letters(
        &mut self,
        group: &GroupName,
        generation: u64,
        filter: Option<Arc<Filter>>,
        (limit, bytes_max, after): (usize, usize, Option<Offset>),
        reply: Reply<Redriven>,
    ) {
        let Ok(reader) = self.reader() else { return };
        let group = group.clone();
        self.jobs.spawn(async move {
            let outcome = letters(&*reader, &group, filter.as_deref(), (limit, bytes_max), after).await;
            Done::Letters { group, generation, outcome, reply }
        });
    }

    /// Looks how many dead letters go in the next portion of a purge.
    pub(super) fn spawn_purge(&mut self, group: &GroupName, generation: u64, purged: u64, reply: Reply<u64>) {
        let Ok(reader) = self.reader() else { return };
        let group = group.clone();
        self.jobs.spawn(async move {
            let outcome = portion(&*reader, group::dead_letters_range(&group)).await;
            Done::Purge { group, generation, outcome, purged, reply }
        });
    }

    /// Looks which rows go in the next portion of a group's removal.
    pub(super) fn spawn_removal(&mut self, range: KeyRange, reply: Reply<()>) {
        let Ok(reader) = self.reader() else { return };
        self.jobs.spawn(async move {
            let outcome = portion(&*reader, range.clone()).await;
            Done::Removal { range, outcome, reply }
        });
    }

    /// Reads what the rows say of one message's failures, for every group.
    pub(super) fn spawn_stories(&mut self, offset: Offset, reply: Reply<Vec<Story>>) {
        let reader = match self.reader() {
            Ok(reader) => reader,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let groups: Vec<GroupName> = self.groups.keys().cloned().collect();
        self.jobs.spawn(async move {
            let mut rows = BTreeMap::new();
            for group in groups {
                let range = group::failures_range(&group, offset);
                let found = reader.scan(range, FAILURE_ROWS_MAX).await.unwrap_or_default();
                rows.insert(group, found);
            }
            Done::Stories { offset, rows, reply }
        });
    }

    /// Looks up where messages of the ages that the topic's settings name begin.
    pub(super) fn spawn_ages(&mut self) {
        let Ok(reader) = self.reader() else { return };
        let now = self.node.clock.now();
        let retained_since = now.before(self.settings.retain_for);
        let owed_since = self.settings.expire_owed_after.map(|age| now.before(age));
        self.jobs.spawn(async move {
            let outcome = async {
                let retained_from = reader.offset_at(retained_since).await?;
                let owed_from = match owed_since {
                    Some(since) => Some(reader.offset_at(since).await?),
                    None => None,
                };
                Ok(Ages { retained_from, owed_from })
            };
            Done::Ages { outcome: outcome.await }
        });
    }

    /// Looks up when the oldest owed message of a group was stored.
    pub(super) fn spawn_oldest(&mut self, group: &GroupName, generation: u64, offset: Offset) {
        let Ok(reader) = self.reader() else { return };
        let group = group.clone();
        self.jobs.spawn(async move {
            let batches = reader.read(offset, ONE_BATCH).await.unwrap_or_default();
            let stored_at = batches.first().map(|stored| stored.batch.stored_at());
            Done::Oldest { group, generation, offset, stored_at }
        });
    }
}

async fn dig(
    reader: &dyn PartitionReader,
    group: &GroupName,
    deaths: Vec<Death>,
    bytes_max: usize,
) -> Result<Vec<Grave>, StorageError> {
    let mut graves = Vec::new();
    let mut bytes = 0;
    // Deaths come in bunches: those of one batch read it once.
    let mut last: Option<RecordBatch> = None;
    for death in deaths {
        let mut earlier = Vec::new();
        let batch = if death.redriven {
            let row = reader.get(&group::redriven_key(group, death.offset)).await?;
            let letter = row.map(|row| DeadLetter::decode(group, &row)).transpose().map_err(damaged_row)?;
            letter.map(|letter| {
                earlier = letter.reasons;
                letter.batch
            })
        } else {
            if last.as_ref().is_none_or(|batch| !batch.offsets().contains(death.offset)) {
                last = match reader.read(death.offset, ONE_BATCH).await {
                    Ok(batches) => batches.into_iter().next().map(|stored| stored.batch),
                    Err(StorageError::Trimmed { .. }) => None,
                    Err(error) => return Err(error),
                };
            }
            let single = last.as_ref().and_then(|batch| single(batch, death.offset).transpose()).transpose();
            single.map_err(|error| StorageError::Invalid(error.to_string()))?.map(|batch| batch.to_bytes())
        };
        let failures = reader.scan(group::failures_range(group, death.offset), FAILURE_ROWS_MAX).await?;
        bytes += batch.as_ref().map_or(0, Bytes::len);
        bytes += failures.iter().map(|(_, value)| value.len()).sum::<usize>();
        bytes += earlier.iter().map(|reason| reason.text.len()).sum::<usize>();
        if bytes > bytes_max && !graves.is_empty() {
            break;
        }
        let replaces = reader.get(&group::dead_letter_key(group, death.offset)).await?.is_some();
        graves.push(Grave { death, batch, failures, earlier, replaces });
    }
    Ok(graves)
}

/// The first rows of a range, so many that they can be deleted in one change without holding up the storage.
async fn portion(reader: &dyn PartitionReader, mut range: KeyRange) -> Result<Portion, StorageError> {
    let (mut rows, mut bytes) = (0, 0);
    loop {
        let page = reader.scan(range.clone(), LETTERS_PER_PAGE).await?;
        let full = page.len() as u64 >= u64::from(LETTERS_PER_PAGE.get());
        rows += page.len() as u64;
        bytes += page.iter().map(|(_, value)| value.len()).sum::<usize>();
        if let Some((key, _)) = page.last() {
            range.start = key.successor();
        }
        if !full || rows >= ROWS_DELETED_MAX || bytes >= LETTER_BYTES_SEEN_MAX {
            return Ok(Portion { rows, end: range.start, more: full });
        }
    }
}

fn damaged_row(error: group::RowError) -> StorageError {
    StorageError::Damaged(error.to_string())
}

/// Dead letters that pass the filter, behind `after`, as many as one change takes and at most `limit`. With a filter that
/// lets few pass there may be none and still more to come.
pub(crate) async fn letters(
    reader: &dyn PartitionReader,
    group: &GroupName,
    filter: Option<&Filter>,
    (limit, bytes_max): (usize, usize),
    after: Option<Offset>,
) -> Result<Letters, wire::Error> {
    let mut range = group::dead_letters_range(group);
    if let Some(after) = after {
        range.start = group::dead_letter_key(group, after).successor();
    }
    let (mut letters, mut bytes, mut seen) = (Vec::new(), 0, after);
    let (mut looked_at, mut bytes_looked_at) = (0, 0);
    loop {
        let page = reader.scan(range.clone(), LETTERS_PER_PAGE).await.map_err(|error| refused_by_storage(&error))?;
        let full = page.len() as u64 >= u64::from(LETTERS_PER_PAGE.get());
        for (key, value) in page {
            let full = letters.len() >= limit || (!letters.is_empty() && bytes + value.len() > bytes_max);
            // Of one alone it could not be told whether it was got past.
            let enough = looked_at >= LETTERS_SEEN_MAX || (looked_at > 1 && bytes_looked_at >= LETTER_BYTES_SEEN_MAX);
            if full || enough {
                return Ok(Letters { after, letters, next: Some(seen.unwrap_or_default()) });
            }
            looked_at += 1;
            bytes_looked_at += value.len();
            range.start = key.successor();
            let Some(offset) = group::dead_letter_offset(group, &key) else { continue };
            seen = Some(offset);
            let record = first_record(group, &value)?;
            if filter.is_none_or(|filter| filter.matches(&record)) {
                bytes += value.len();
                let key = record.key.as_deref().map(super::tail::key_hash);
                letters.push(Redrive { offset, key, value });
            }
        }
        if !full {
            return Ok(Letters { after, letters, next: None });
        }
    }
}

/// The message of a dead letter.
fn first_record(group: &GroupName, value: &Bytes) -> Result<Record, wire::Error> {
    let damaged = |detail: String| crate::error::refusal(stentor_protocol::ErrorCode::Corrupt, detail);
    let letter = DeadLetter::decode(group, value).map_err(|error| damaged(error.to_string()))?;
    let batch = RecordBatch::decode(letter.batch).map_err(|error| damaged(error.to_string()))?;
    let mut records = batch.records(u32::MAX).map_err(|error| bad_batch(&error))?;
    let record = records.next().ok_or_else(|| damaged("a dead letter holds no message".to_owned()))?;
    record.map_err(|error| damaged(error.to_string()))
}

/// The message at `offset` as a batch of its own, at its place in the log; none when the batch does not hold it.
pub(crate) fn single(batch: &RecordBatch, offset: Offset) -> Result<Option<RecordBatch>, BatchError> {
    if !batch.offsets().contains(offset) {
        return Ok(None);
    }
    pick(batch, std::iter::once(offset))
}

/// The messages at `offsets` (ascending, all inside) as a batch of their own, which begins at the first of them.
pub(crate) fn pick(
    batch: &RecordBatch,
    offsets: impl Iterator<Item = Offset>,
) -> Result<Option<RecordBatch>, BatchError> {
    let base = batch.base_offset();
    let mut records = batch.records(u32::MAX)?;
    let mut builder = BatchBuilder::new(Compression::None);
    let (mut at, mut first) = (base.0, None);
    for offset in offsets {
        let skip = usize::try_from(offset.0.saturating_sub(at)).unwrap_or(usize::MAX);
        let Some(record) = records.nth(skip) else { break };
        builder.push(&record?)?;
        first = first.or(Some(offset));
        at = offset.0 + 1;
    }
    Ok(first.and_then(|first| builder.finish(None).map(|picked| picked.stored(first, batch.stored_at()))))
}

#[cfg(test)]
mod tests {
    use stentor_core::MessageId;

    use super::*;

    #[test]
    fn picked_messages_are_those_asked_for_in_their_order() {
        let mut builder = BatchBuilder::new(Compression::Lz4);
        for body in ["a", "b", "c", "d", "e"] {
            let record = Record {
                id: MessageId::generate(Timestamp(1), u128::from(body.as_bytes()[0])),
                timestamp: Timestamp(7),
                key: None,
                tag: None,
                headers: Vec::new(),
                body: Bytes::from(body.repeat(100)),
                deliver_at: None,
                expires_at: None,
            };
            builder.push(&record).unwrap();
        }
        let batch = builder.finish(None).unwrap().stored(Offset(10), Timestamp(3));
        let picked = pick(&batch, [11, 12, 14].into_iter().map(Offset)).unwrap().unwrap();
        let bodies: Vec<_> = picked.records(u32::MAX).unwrap().map(|record| record.unwrap().body[0]).collect();
        assert_eq!(bodies, *b"bce");
        assert_eq!((picked.base_offset(), picked.stored_at()), (Offset(11), Timestamp(3)));
        assert_eq!(single(&batch, Offset(15)), Ok(None));
    }
}
