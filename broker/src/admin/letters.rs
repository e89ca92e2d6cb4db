//! Dead letters: listed page by page, given back, dropped.
//!
//! Where a page ends is named by a token, opaque to the client: the partition, and the offset behind which to go on.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use stentor_core::Offset;
use stentor_protocol::{ErrorCode, wire};

use crate::error::{invalid_filter, refusal, refused_by_storage};
use crate::filter::Filter;
use crate::group::{self, DeadLetter, Reason};
use crate::node::Node;
use crate::partition::{self, Command, Partition};
use crate::topic::{Group, Topic};

/// How many letters a page holds unless fewer were asked for.
const LETTERS_PER_PAGE: u32 = 256;

/// How many bytes of messages a page holds, if it holds more than one.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// How many bytes of reasons a page holds, beyond its last letter: a frame's head is bounded.
const PAGE_REASON_BYTES_MAX: usize = 256 << 10;

const ONE: NonZeroU32 = NonZeroU32::MIN;

/// Where to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Token {
    partition: u32,
    after: Option<Offset>,
}

impl Token {
    fn decode(bytes: &[u8]) -> Result<Self, wire::Error> {
        let invalid = || refusal(ErrorCode::Invalid, "the token for the next page is not one of this broker's");
        match bytes.len() {
            0 => Ok(Self::default()),
            4 => Ok(Self { partition: be_u32(bytes).ok_or_else(invalid)?, after: None }),
            12 => {
                let after = bytes[4..].try_into().map(u64::from_be_bytes).map_err(|_| invalid())?;
                Ok(Self { partition: be_u32(&bytes[..4]).ok_or_else(invalid)?, after: Some(Offset(after)) })
            }
            _ => Err(invalid()),
        }
    }

    fn encode(self) -> Bytes {
        let mut bytes = self.partition.to_be_bytes().to_vec();
        bytes.extend(self.after.iter().flat_map(|after| after.0.to_be_bytes()));
        bytes.into()
    }
}

fn be_u32(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}

fn find(node: &Node, topic: &str, group: &str) -> Result<(Arc<Topic>, Arc<Group>), wire::Error> {
    let topic = node.topic(topic)?;
    let group = topic.group(group)?;
    Ok((topic, group))
}

/// A page that is being filled.
#[derive(Default)]
struct Page {
    letters: Vec<wire::DeadLetter>,
    body: BytesMut,
    reason_bytes: usize,
}

impl Page {
    /// Whether a letter whose row takes `bytes` is for the next page. The first one always fits: it is as large as a
    /// message may be, and so is a frame's body.
    fn is_full(&self, limit: usize, bytes: usize) -> bool {
        let over = self.body.len() + bytes > PAGE_BYTES_MAX || self.reason_bytes >= PAGE_REASON_BYTES_MAX;
        self.letters.len() >= limit || (over && !self.letters.is_empty())
    }

    fn push(&mut self, partition: u32, offset: Offset, letter: DeadLetter) {
        self.reason_bytes += letter.reasons.iter().map(|reason| reason.text.len() + 32).sum::<usize>();
        self.body.extend_from_slice(&letter.batch);
        self.letters.push(wire::DeadLetter {
            partition,
            offset: offset.0,
            attempts: letter.attempts,
            dead_at_micros: letter.dead_at.0,
            reasons: letter.reasons.into_iter().map(reason).collect(),
            bytes: u32::try_from(letter.batch.len()).unwrap_or(u32::MAX),
        });
    }
}

pub(super) fn reason(reason: Reason) -> wire::Reason {
    wire::Reason { attempt: reason.attempt, at_micros: reason.at.0, reason: reason.text }
}

pub(super) async fn list(node: &Node, list: &wire::ListDeadLetters) -> Result<(wire::DeadLetters, Bytes), wire::Error> {
    let (topic, group) = find(node, &list.topic, &list.group)?;
    let mut page = Page::default();
    if let Some(only) = list.only {
        let partition = topic.partition(only.partition)?;
        let found = one(partition, &group, Offset(only.offset)).await?;
        let missing = || refusal(ErrorCode::MessageNotFound, "there is no such dead letter");
        page.push(only.partition, Offset(only.offset), found.ok_or_else(missing)?);
        return Ok((wire::DeadLetters { letters: page.letters, next: Bytes::new() }, page.body.freeze()));
    }
    let limit = if list.limit == 0 { LETTERS_PER_PAGE } else { list.limit.min(LETTERS_PER_PAGE) } as usize;
    let mut token = Token::decode(&list.after)?;
    while let Some(partition) = topic.partitions().get(token.partition as usize) {
        if let Some(after) = fill(&mut page, partition, &group, token.after, limit).await? {
            let next = Token { after, ..token }.encode();
            return Ok((wire::DeadLetters { letters: page.letters, next }, page.body.freeze()));
        }
        token = Token { partition: token.partition + 1, after: None };
    }
    Ok((wire::DeadLetters { letters: page.letters, next: Bytes::new() }, page.body.freeze()))
}

/// Fills the page from one partition. Gives where to go on if the page is full before the partition has ended.
async fn fill(
    page: &mut Page,
    partition: &Partition,
    group: &Group,
    mut after: Option<Offset>,
    limit: usize,
) -> Result<Option<Option<Offset>>, wire::Error> {
    let reader = partition.reader()?;
    let mut range = group::dead_letters_range(&group.name);
    if let Some(after) = after {
        range.start = group::dead_letter_key(&group.name, after).successor();
    }
    loop {
        // One by one: a letter may be as large as a message.
        let rows = reader.scan(range.clone(), ONE).await.map_err(|error| refused_by_storage(&error))?;
        let Some((key, value)) = rows.into_iter().next() else { return Ok(None) };
        if page.is_full(limit, value.len()) {
            return Ok(Some(after));
        }
        range.start = key.successor();
        let Some(offset) = group::dead_letter_offset(&group.name, &key) else { continue };
        page.push(partition.index.0, offset, decode(group, &value)?);
        after = Some(offset);
    }
}

/// One dead letter.
pub(super) async fn one(
    partition: &Partition,
    group: &Group,
    offset: Offset,
) -> Result<Option<DeadLetter>, wire::Error> {
    let row = partition.reader()?.get(&group::dead_letter_key(&group.name, offset)).await;
    let row = row.map_err(|error| refused_by_storage(&error))?;
    row.map(|row| decode(group, &row)).transpose()
}

fn decode(group: &Group, value: &Bytes) -> Result<DeadLetter, wire::Error> {
    DeadLetter::decode(&group.name, value).map_err(|error| refusal(ErrorCode::Corrupt, error.to_string()))
}

pub(super) async fn redrive(node: &Node, redrive: &wire::Redrive) -> Result<wire::Count, wire::Error> {
    let (topic, group) = find(node, &redrive.topic, &redrive.group)?;
    let filter = (!redrive.filter.is_empty()).then(|| Filter::parse(&redrive.filter).map(Arc::new)).transpose();
    let filter = filter.map_err(|error| invalid_filter(&error))?;
    let limit = u64::from(if redrive.limit == 0 { LETTERS_PER_PAGE } else { redrive.limit });
    let mut token = Token::decode(&redrive.after)?;
    let (mut messages, mut failed) = (0, Vec::new());
    while let Some(partition) = topic.partitions().get(token.partition as usize) {
        if messages >= limit {
            return Ok(wire::Count { messages, more: true, next: token.encode(), failed });
        }
        let left = u32::try_from(limit - messages).unwrap_or(u32::MAX);
        let done = redrive_one(partition, &group, filter.as_ref(), left, token.after, redrive.dry_run).await;
        let (moved, next) = match done {
            Ok(done) => done,
            Err(error) => {
                failed.push(failure_of(partition, error)?);
                (0, None)
            }
        };
        messages += moved;
        match next {
            None => token = Token { partition: token.partition + 1, after: None },
            // The group takes no more for now: what it was given before has to be consumed first.
            Some(after) if moved == 0 && Some(after) == token.after.or(Some(Offset::ZERO)) => {
                if messages > 0 {
                    return Ok(wire::Count { messages, more: true, next: token.encode(), failed });
                }
                let message = "too many redriven messages are waiting: let the group consume them first";
                return Err(refusal(ErrorCode::LimitReached, message));
            }
            Some(after) => token.after = Some(after),
        }
    }
    Ok(wire::Count { messages, more: false, next: Bytes::new(), failed })
}

/// Redrives letters of one partition. Says how many, and behind which to go on.
async fn redrive_one(
    partition: &Partition,
    group: &Group,
    filter: Option<&Arc<Filter>>,
    limit: u32,
    after: Option<Offset>,
    dry_run: bool,
) -> Result<(u64, Option<Offset>), wire::Error> {
    if dry_run {
        let (reader, bounds) = (partition.reader()?, (limit as usize, partition::LETTER_BYTES_PER_CHANGE));
        let found = partition::letters(&**reader, &group.name, filter.map(|filter| &**filter), bounds, after).await?;
        return Ok((found.letters.len() as u64, found.next));
    }
    let (group, filter) = (group.name.clone(), filter.cloned());
    let redriven = partition.ask(|reply| Command::Redrive { group, filter, limit, after, reply }).await?;
    Ok((redriven.messages, redriven.next))
}

/// What keeps one partition from doing what was asked keeps the others from nothing: it is told beside what they did. Any
/// other error ends the request.
fn failure_of(partition: &Partition, error: wire::Error) -> Result<wire::PartitionFailure, wire::Error> {
    match error.code() {
        ErrorCode::Corrupt | ErrorCode::Unavailable | ErrorCode::Deposed => {
            Ok(wire::PartitionFailure { partition: partition.index.0, error: Some(error) })
        }
        _ => Err(error),
    }
}

pub(super) async fn purge(node: &Node, purge: &wire::PurgeDeadLetters) -> Result<wire::Count, wire::Error> {
    let (topic, group) = find(node, &purge.topic, &purge.group)?;
    let (mut messages, mut failed) = (0, Vec::new());
    for partition in topic.partitions() {
        let name = group.name.clone();
        match partition.ask(|reply| Command::Purge { group: name, reply }).await {
            Ok(purged) => messages += purged,
            Err(error) => failed.push(failure_of(partition, error)?),
        }
    }
    Ok(wire::Count { messages, more: false, next: Bytes::new(), failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_takes_one_large_letter_but_none_beside_others() {
        let large = || DeadLetter {
            attempts: 1,
            dead_at: stentor_core::Timestamp(0),
            reasons: Vec::new(),
            batch: Bytes::from(vec![0; PAGE_BYTES_MAX + 1]),
        };
        let mut page = Page::default();
        assert!(!page.is_full(10, PAGE_BYTES_MAX + 1), "else it would never be listed");
        page.push(0, Offset(0), DeadLetter { batch: Bytes::from_static(b"small"), ..large() });
        assert!(!page.is_full(10, 100));
        assert!(page.is_full(10, PAGE_BYTES_MAX));
        assert!(page.is_full(1, 100));
    }

    #[test]
    fn a_token_reads_back_and_a_foreign_one_is_refused() {
        for token in [
            Token::default(),
            Token { partition: 7, after: None },
            Token { partition: 7, after: Some(Offset(u64::MAX)) },
        ] {
            assert_eq!(Token::decode(&token.encode()), Ok(token));
        }
        assert_eq!(Token::decode(b""), Ok(Token::default()));
        assert_eq!(Token::decode(b"abc").unwrap_err().code(), ErrorCode::Invalid);
    }
}
