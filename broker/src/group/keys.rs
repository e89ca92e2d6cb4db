//! Where the rows of a group lie in the partition's table.
//!
//! | key | row |
//! |---|---|
//! | `g/<group>/a/<chunk>` | what is done above the floor, of the 65,536 offsets of a chunk |
//! | `g/<group>/c` | the cursor |
//! | `g/<group>/d/<offset>` | a dead letter |
//! | `g/<group>/r/<offset><attempt>` | a failed attempt at a message; attempt 0 marks a redriven one |
//! | `g/<group>/v/<offset>` | a redriven message |
//!
//! Chunks and offsets are u64, attempts u32, big-endian, so that rows lie in their order. A group's name holds no `/`, so
//! no group's rows lie among another's. Failures have a row each, written once and never changed: to fail a message again
//! takes no reading, and reasons need not stay in memory.

use stentor_core::storage::{Key, KeyRange};
use stentor_core::{GroupName, Offset};

/// What the key of a row that makes up the state says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateKey {
    Cursor,
    Chunk(u64),
    Failure { offset: u64, attempt: u32 },
}

fn prefix(group: &GroupName) -> Vec<u8> {
    let mut key = Vec::with_capacity(group.as_str().len() + 24);
    key.extend_from_slice(b"g/");
    key.extend_from_slice(group.as_str().as_bytes());
    key.push(b'/');
    key
}

fn family(group: &GroupName, kind: u8) -> Vec<u8> {
    let mut key = prefix(group);
    key.extend_from_slice(&[kind, b'/']);
    key
}

fn numbered(group: &GroupName, kind: u8, number: u64) -> Key {
    let mut key = family(group, kind);
    key.extend_from_slice(&number.to_be_bytes());
    key.into()
}

pub(super) fn cursor(group: &GroupName) -> Key {
    let mut key = prefix(group);
    key.push(b'c');
    key.into()
}

pub(super) fn chunk(group: &GroupName, chunk: u64) -> Key {
    numbered(group, b'a', chunk)
}

/// The rows of the chunks `start..end`.
pub(super) fn chunks(group: &GroupName, start: u64, end: u64) -> KeyRange {
    KeyRange::new(chunk(group, start), chunk(group, end))
}

pub(super) fn all_chunks(group: &GroupName) -> KeyRange {
    KeyRange::prefix(&family(group, b'a'))
}

pub(super) fn failure(group: &GroupName, offset: u64, attempt: u32) -> Key {
    let mut key = family(group, b'r');
    key.extend_from_slice(&offset.to_be_bytes());
    key.extend_from_slice(&attempt.to_be_bytes());
    key.into()
}

/// The failures of the messages `start..end`.
pub(super) fn failures(group: &GroupName, start: u64, end: u64) -> KeyRange {
    KeyRange::new(numbered(group, b'r', start), numbered(group, b'r', end))
}

/// Reads the key of a row of [`state_ranges`].
pub(super) fn parse(group: &GroupName, key: &Key) -> Option<StateKey> {
    let rest = key.as_ref().strip_prefix(prefix(group).as_slice())?;
    match rest {
        b"c" => Some(StateKey::Cursor),
        [b'a', b'/', number @ ..] => Some(StateKey::Chunk(u64::from_be_bytes(number.try_into().ok()?))),
        [b'r', b'/', numbers @ ..] => {
            let (offset, attempt) = numbers.split_first_chunk()?;
            let attempt = u32::from_be_bytes(attempt.try_into().ok()?);
            Some(StateKey::Failure { offset: u64::from_be_bytes(*offset), attempt })
        }
        _ => None,
    }
}

/// The ranges of rows that [`Loading`](super::Loading) wants: the state without the bodies of dead letters and redriven
/// messages.
pub(crate) fn state_ranges(group: &GroupName) -> [KeyRange; 3] {
    [KeyRange::single(&cursor(group)), all_chunks(group), KeyRange::prefix(&family(group, b'r'))]
}

/// All rows of the group, to delete it.
pub(crate) fn group_range(group: &GroupName) -> KeyRange {
    KeyRange::prefix(&prefix(group))
}

/// All dead letters of the group, in the order of their offsets.
pub(crate) fn dead_letters_range(group: &GroupName) -> KeyRange {
    KeyRange::prefix(&family(group, b'd'))
}

/// The row of a dead letter; the value is a [`DeadLetter`](super::DeadLetter).
pub(crate) fn dead_letter_key(group: &GroupName, offset: Offset) -> Key {
    numbered(group, b'd', offset.0)
}

/// The offset that a key of [`dead_letters_range`] is for.
pub(crate) fn dead_letter_offset(group: &GroupName, key: &Key) -> Option<Offset> {
    let number = key.as_ref().strip_prefix(family(group, b'd').as_slice())?;
    Some(Offset(u64::from_be_bytes(number.try_into().ok()?)))
}

/// The row of a redriven message; the value is a [`DeadLetter`](super::DeadLetter).
pub(crate) fn redriven_key(group: &GroupName, offset: Offset) -> Key {
    numbered(group, b'v', offset.0)
}

/// The rows that say why attempts at this message failed, for [`GroupState::reasons`](super::GroupState::reasons).
pub(crate) fn failures_range(group: &GroupName, offset: Offset) -> KeyRange {
    failures(group, offset.0, offset.0.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_say_what_they_are_for_and_lie_in_the_group() {
        let group = GroupName::new("red-packet").unwrap();
        let cases = [
            (cursor(&group), Some(StateKey::Cursor)),
            (chunk(&group, 7), Some(StateKey::Chunk(7))),
            (failure(&group, 1 << 40, 3), Some(StateKey::Failure { offset: 1 << 40, attempt: 3 })),
            (dead_letter_key(&group, Offset(5)), None),
        ];
        for (key, meaning) in cases {
            assert_eq!(parse(&group, &key), meaning);
            assert!(group_range(&group).contains(&key));
            assert_eq!(
                state_ranges(&group).iter().filter(|range| range.contains(&key)).count(),
                usize::from(meaning.is_some())
            );
            assert!(!group_range(&GroupName::new("red").unwrap()).contains(&key));
        }
        assert_eq!(dead_letter_offset(&group, &dead_letter_key(&group, Offset(5))), Some(Offset(5)));
        assert!(failures_range(&group, Offset(5)).contains(&failure(&group, 5, u32::MAX)));
        assert!(!failures_range(&group, Offset(5)).contains(&failure(&group, 6, 0)));
    }
}
