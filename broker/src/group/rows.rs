//! The values of the rows that make up the state. Integers are little-endian; each value begins with a version.
//!
//! | row | value |
//! |---|---|
//! | cursor | version, flags (1: paused), floor, begun, horizon, number of dead letters (u64 each) |
//! | chunk | version, a roaring bitmap (portable format) of offsets relative to the chunk's first |
//! | failure | version, flags (1: rejected, 2: redriven, 4: has a key), due and failed at (u64 each), hash of the key if any, reason |

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use roaring::RoaringBitmap;
use stentor_core::{GroupName, Timestamp};

/// The version of every value that is written, and the only one that is read.
pub(super) const VERSION: u8 = 1;

/// How many offsets a chunk covers: what one small bitmap holds.
pub(super) const CHUNK: u64 = 1 << 16;

const PAUSED: u8 = 1;

const REJECTED: u8 = 1;
const REDRIVEN: u8 = 2;
const HAS_KEY: u8 = 4;

/// A row of the group cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RowError {
    /// A later version wrote it.
    #[error("a row of group {group} ({row}) has version {version}, which this version of stentor does not know")]
    Version { group: GroupName, row: &'static str, version: u8 },
    /// It makes no sense.
    #[error("a row of group {group} ({row}) is damaged: {detail}")]
    Damaged { group: GroupName, row: &'static str, detail: &'static str },
    /// The group's first row is missing.
    #[error("group {0} has no cursor row")]
    NoCursor(GroupName),
}

/// Why a value cannot be read; becomes a [`RowError`] where group and row are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadValue {
    Version(u8),
    Damaged(&'static str),
}

impl BadValue {
    pub(super) fn of(self, group: &GroupName, row: &'static str) -> RowError {
        let group = group.clone();
        match self {
            Self::Version(version) => RowError::Version { group, row, version },
            Self::Damaged(detail) => RowError::Damaged { group, row, detail },
        }
    }
}

impl From<bytes::TryGetError> for BadValue {
    fn from(_: bytes::TryGetError) -> Self {
        Self::Damaged("it is too short")
    }
}

/// Takes the version off the front.
pub(super) fn versioned(mut value: &[u8]) -> Result<&[u8], BadValue> {
    match value.try_get_u8()? {
        VERSION => Ok(value),
        version => Err(BadValue::Version(version)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    pub(super) floor: u64,
    /// The lowest offset that the group ever began to deliver at.
    pub(super) begun: u64,
    /// Nothing at or above it has been delivered.
    pub(super) horizon: u64,
    pub(super) dead_letters: u64,
    pub(super) paused: bool,
}

impl Cursor {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(34);
        out.put_u8(VERSION);
        out.put_u8(if self.paused { PAUSED } else { 0 });
        for number in [self.floor, self.begun, self.horizon, self.dead_letters] {
            out.put_u64_le(number);
        }
        out.into()
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self, BadValue> {
        let mut value = versioned(value)?;
        let paused = match value.try_get_u8()? {
            0 => false,
            PAUSED => true,
            _ => return Err(BadValue::Damaged("an unknown flag is set")),
        };
        let floor = value.try_get_u64_le()?;
        let begun = value.try_get_u64_le()?;
        let horizon = value.try_get_u64_le()?;
        let dead_letters = value.try_get_u64_le()?;
        if !value.is_empty() {
            return Err(BadValue::Damaged("bytes are left over"));
        }
        Ok(Self { floor, begun, horizon, dead_letters, paused })
    }
}

/// The value of the row of the chunk that begins at `base`; none if there is nothing in it. All `ranges` lie inside.
pub(super) fn encode_chunk(base: u64, ranges: impl Iterator<Item = (u64, u64)>) -> Option<Bytes> {
    let mut bitmap = RoaringBitmap::new();
    for (start, end) in ranges {
        // Offsets inside a chunk fit 16 bits, the end of the last range 17.
        let at = |offset: u64| u32::try_from(offset - base).unwrap_or(u32::MAX);
        bitmap.insert_range(at(start)..at(end));
    }
    if bitmap.is_empty() {
        return None;
    }
    bitmap.optimize();
    let mut out = Vec::with_capacity(1 + bitmap.serialized_size());
    out.put_u8(VERSION);
    // Writing into memory does not fail.
    let _ = bitmap.serialize_into(&mut out);
    Some(out.into())
}

/// Reads the value of the row of the chunk that begins at `base`.
pub(super) fn decode_chunk(base: u64, value: &[u8]) -> Result<Vec<(u64, u64)>, BadValue> {
    let mut value = versioned(value)?;
    let bitmap = RoaringBitmap::deserialize_from(&mut value).map_err(|_| BadValue::Damaged("it is no bitmap"))?;
    if !value.is_empty() {
        return Err(BadValue::Damaged("bytes are left over"));
    }
    if bitmap.max().is_some_and(|max| u64::from(max) >= CHUNK) {
        return Err(BadValue::Damaged("it reaches beyond its chunk"));
    }
    let mut iter = bitmap.iter();
    let ranges = std::iter::from_fn(|| iter.next_range());
    Ok(ranges.map(|range| (base + u64::from(*range.start()), base + u64::from(*range.end()) + 1)).collect())
}

/// One failed attempt, or (attempt 0) the mark of a redriven message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) due: Timestamp,
    pub(super) at: Timestamp,
    pub(super) key: Option<u64>,
    pub(super) rejected: bool,
    pub(super) redriven: bool,
    pub(super) reason: Arc<str>,
}

impl Failure {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(26 + self.reason.len());
        out.put_u8(VERSION);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        out.put_u8(flag(self.rejected, REJECTED) | flag(self.redriven, REDRIVEN) | flag(self.key.is_some(), HAS_KEY));
        out.put_u64_le(self.due.0);
        out.put_u64_le(self.at.0);
        if let Some(key) = self.key {
            out.put_u64_le(key);
        }
        out.put_slice(self.reason.as_bytes());
        out.into()
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self, BadValue> {
        let mut value = versioned(value)?;
        let flags = value.try_get_u8()?;
        if flags & !(REJECTED | REDRIVEN | HAS_KEY) != 0 {
            return Err(BadValue::Damaged("an unknown flag is set"));
        }
        let due = Timestamp(value.try_get_u64_le()?);
        let at = Timestamp(value.try_get_u64_le()?);
        let key = (flags & HAS_KEY != 0).then(|| value.try_get_u64_le()).transpose()?;
        let reason = str::from_utf8(value).map_err(|_| BadValue::Damaged("a reason is not UTF-8"))?.into();
        Ok(Self { due, at, key, rejected: flags & REJECTED != 0, redriven: flags & REDRIVEN != 0, reason })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_set, vec};
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cursor_round_trips(numbers in any::<[u64; 4]>(), paused in any::<bool>()) {
            let [floor, begun, horizon, dead_letters] = numbers;
            let cursor = Cursor { floor, begun, horizon, dead_letters, paused };
            prop_assert_eq!(Cursor::decode(&cursor.encode()), Ok(cursor));
        }

        #[test]
        fn a_failure_round_trips(times in any::<(u64, u64)>(), key in option::of(any::<u64>()), flags in any::<(bool, bool)>(), reason in "\\PC{0,40}") {
            let failure = Failure {
                due: Timestamp(times.0), at: Timestamp(times.1), key,
                rejected: flags.0, redriven: flags.1, reason: reason.into(),
            };
            prop_assert_eq!(Failure::decode(&failure.encode()), Ok(failure));
        }

        #[test]
        fn a_chunk_round_trips(offsets in btree_set(0..CHUNK, 0..300), base in 0..1_000u64) {
            let base = base * CHUNK;
            let value = encode_chunk(base, offsets.iter().map(|at| (base + at, base + at + 1)));
            prop_assert_eq!(value.is_none(), offsets.is_empty());
            let back = value.map_or_else(Vec::new, |value| decode_chunk(base, &value).unwrap());
            let back: Vec<u64> = back.into_iter().flat_map(|(a, b)| a..b).collect();
            prop_assert_eq!(back, offsets.iter().map(|at| base + at).collect::<Vec<_>>());
        }

        #[test]
        fn garbage_is_refused_or_read_but_never_panics(garbage in vec(any::<u8>(), 0..100)) {
            let garbage = [&[VERSION], garbage.as_slice()].concat();
            let _ = Cursor::decode(&garbage);
            let _ = Failure::decode(&garbage);
            let _ = decode_chunk(0, &garbage);
        }
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let group = GroupName::new("g").unwrap();
        let error = Cursor::decode(&[9, 0]).unwrap_err().of(&group, "cursor");
        assert_eq!(error, RowError::Version { group, row: "cursor", version: 9 });
        assert_eq!(Failure::decode(&[2]), Err(BadValue::Version(2)));
        assert_eq!(decode_chunk(0, &[0]), Err(BadValue::Version(0)));
        assert!(error.to_string().contains("version 9"), "{error}");
    }

    #[test]
    fn a_full_chunk_takes_few_bytes() {
        let value = encode_chunk(CHUNK, std::iter::once((CHUNK, 2 * CHUNK))).unwrap();
        assert!(value.len() < 32, "{}", value.len());
        assert_eq!(decode_chunk(CHUNK, &value), Ok(vec![(CHUNK, 2 * CHUNK)]));
    }
}
