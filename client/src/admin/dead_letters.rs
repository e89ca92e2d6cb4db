//! Dead letters: messages that a group could not take.

use bytes::{Buf, Bytes};
use stentor_core::batch::RecordBatch;
use stentor_core::limits::{BATCH_BYTES_SLACK, MESSAGE_BYTES_MAX_CEILING};
use stentor_core::{Offset, PartitionIndex, Record, Timestamp};
use stentor_protocol::wire::{self, request, response};

use super::{Admin, Reason, names, unexpected};
use crate::error::{BrokerError, RequestError};

/// How many letters a page has, unless somebody says otherwise.
const PAGE: u32 = 100;

/// How many letters are moved by one request.
const REDRIVE_STEP: u32 = 1_000;

/// A message that a group could not take.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    /// Its partition.
    pub partition: PartitionIndex,
    /// Its place in the partition.
    pub offset: Offset,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was given up.
    pub dead_at: Timestamp,
    /// When the broker stored it.
    pub published_at: Timestamp,
    /// Why, attempt by attempt.
    pub reasons: Vec<Reason>,
    /// The message.
    pub record: Record,
}

/// Some dead letters, and where the next ones are.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadLettersPage {
    /// The letters.
    pub letters: Vec<DeadLetter>,
    /// What to ask with for those that follow; none when there are no more.
    pub next: Option<Bytes>,
}

/// What a redrive has done, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redriven {
    /// How many letters were given back to the group; when only counting: how many would be.
    pub messages: u64,
    /// What to ask with for the rest; none when that was all.
    pub next: Option<Bytes>,
    /// The partitions whose letters stay as they were; those that follow are done all the same.
    pub failed: Vec<PartitionFailure>,
}

/// A partition on which something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionFailure {
    /// Which one.
    pub partition: PartitionIndex,
    /// Why: damaged, or out of order.
    pub error: BrokerError,
}

/// What became of all dead letters that were to be given back, or purged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// How many letters it was done to; when only counting: would be.
    pub messages: u64,
    /// The partitions whose letters stay as they were.
    pub failed: Vec<PartitionFailure>,
}

fn failures(failed: Vec<wire::PartitionFailure>) -> impl Iterator<Item = PartitionFailure> {
    failed.into_iter().map(|failed| PartitionFailure {
        partition: PartitionIndex(failed.partition),
        error: failed.error.unwrap_or_default().into(),
    })
}

/// Walks through the dead letters of a group, a page at a time.
#[derive(Debug)]
pub struct DeadLetters {
    admin: Admin,
    topic: String,
    group: String,
    after: Option<Bytes>,
}

impl DeadLetters {
    /// The next letters; none when there are no more.
    ///
    /// # Errors
    /// See [`RequestError`]. It can be asked again.
    pub async fn next(&mut self) -> Result<Option<Vec<DeadLetter>>, RequestError> {
        while let Some(after) = self.after.clone() {
            let page = self.admin.dead_letters_page(&self.topic, &self.group, after, PAGE).await?;
            self.after = page.next;
            if !page.letters.is_empty() {
                return Ok(Some(page.letters));
            }
        }
        Ok(None)
    }
}

impl Admin {
    /// The dead letters of a group, to be walked through.
    #[must_use]
    pub fn dead_letters(&self, topic: &str, group: &str) -> DeadLetters {
        let (topic, group) = (topic.to_owned(), group.to_owned());
        DeadLetters { admin: self.clone(), topic, group, after: Some(Bytes::new()) }
    }

    /// At most `limit` dead letters of a group, behind `after`, which is empty for the first ones.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn dead_letters_page(
        &self,
        topic: &str,
        group: &str,
        after: Bytes,
        limit: u32,
    ) -> Result<DeadLettersPage, RequestError> {
        let (topic, group) = names(topic, group)?;
        self.list(wire::ListDeadLetters { topic, group, after, limit, only: None }).await
    }

    /// The dead letter of one message; none if it is not among them.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn dead_letter(
        &self,
        topic: &str,
        group: &str,
        partition: PartitionIndex,
        offset: Offset,
    ) -> Result<Option<DeadLetter>, RequestError> {
        let (topic, group) = names(topic, group)?;
        let only = Some(wire::PartitionOffset { partition: partition.0, offset: offset.0 });
        let page = self.list(wire::ListDeadLetters { topic, group, after: Bytes::new(), limit: 1, only }).await?;
        Ok(page.letters.into_iter().find(|letter| (letter.partition, letter.offset) == (partition, offset)))
    }

    async fn list(&self, list: wire::ListDeadLetters) -> Result<DeadLettersPage, RequestError> {
        match self.ask(request::Kind::ListDeadLetters(list)).await? {
            (response::Kind::DeadLetters(letters), body) => page(letters, body),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Gives dead letters that match `filter` (empty: all) back to their group, at most `limit` of them, behind `after`,
    /// which is empty at first. With `dry_run` they are only counted.
    ///
    /// # Errors
    /// See [`RequestError`]; `filter_invalid` when the filter does not do.
    pub async fn redrive_page(
        &self,
        topic: &str,
        group: &str,
        filter: &str,
        limit: u32,
        dry_run: bool,
        after: Bytes,
    ) -> Result<Redriven, RequestError> {
        let (topic, group) = names(topic, group)?;
        let redrive = wire::Redrive { topic, group, filter: filter.to_owned(), limit, dry_run, after };
        match self.ask(request::Kind::Redrive(redrive)).await? {
            (response::Kind::Count(count), _) => {
                let failed = failures(count.failed).collect();
                Ok(Redriven { messages: count.messages, next: count.more.then_some(count.next), failed })
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Gives all dead letters that match `filter` (empty: all) back to their group, and says how many there were. With
    /// `dry_run` they are only counted. A partition where the group has stopped keeps its letters, and says why.
    ///
    /// # Errors
    /// See [`RequestError`]; some may have been given back before it.
    pub async fn redrive(&self, topic: &str, group: &str, filter: &str, dry_run: bool) -> Result<Moved, RequestError> {
        let mut moved = Moved::default();
        let mut after = Some(Bytes::new());
        while let Some(from) = after {
            let step = self.redrive_page(topic, group, filter, REDRIVE_STEP, dry_run, from).await?;
            moved.messages += step.messages;
            moved.failed.extend(step.failed);
            after = step.next;
        }
        Ok(moved)
    }

    /// Deletes the dead letters of a group, and says how many there were.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn purge_dead_letters(&self, topic: &str, group: &str) -> Result<Moved, RequestError> {
        let (topic, group) = names(topic, group)?;
        let mut moved = Moved::default();
        loop {
            let purge = wire::PurgeDeadLetters { topic: topic.clone(), group: group.clone() };
            match self.ask(request::Kind::PurgeDeadLetters(purge)).await? {
                (response::Kind::Count(count), _) => {
                    moved.messages += count.messages;
                    moved.failed.extend(failures(count.failed));
                    if !count.more {
                        return Ok(moved);
                    }
                }
                (other, _) => return Err(unexpected(&other)),
            }
        }
    }
}

/// Cuts the body into the letters' batches.
fn page(letters: wire::DeadLetters, mut body: Bytes) -> Result<DeadLettersPage, RequestError> {
    let mut page = Vec::with_capacity(letters.letters.len().min(body.remaining()));
    for letter in letters.letters {
        let bytes = letter.bytes as usize;
        if bytes > body.len() {
            return Err(RequestError::Protocol("the letters' messages are missing".to_owned()));
        }
        let (record, published_at) = only_record(body.split_to(bytes))?;
        page.push(DeadLetter {
            partition: PartitionIndex(letter.partition),
            offset: Offset(letter.offset),
            attempts: letter.attempts,
            dead_at: Timestamp(letter.dead_at_micros),
            published_at,
            reasons: letter.reasons,
            record,
        });
    }
    let next = (!letters.next.is_empty()).then_some(letters.next);
    Ok(DeadLettersPage { letters: page, next })
}

/// The record of a batch of one, and when it was stored.
pub(super) fn only_record(batch: Bytes) -> Result<(Record, Timestamp), RequestError> {
    let damaged = |error| RequestError::Protocol(format!("a message arrived damaged: {error}"));
    let batch = RecordBatch::decode(batch).map_err(damaged)?;
    let mut records = batch.records(MESSAGE_BYTES_MAX_CEILING + BATCH_BYTES_SLACK).map_err(damaged)?;
    let record = records.next().transpose().map_err(damaged)?;
    let record = record.ok_or_else(|| RequestError::Protocol("a message is missing".to_owned()))?;
    Ok((record, batch.stored_at()))
}
