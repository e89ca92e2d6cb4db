//! The rows of the index.
//!
//! Keys begin with a letter; numbers in keys are big-endian, so that they are ordered as numbers:
//!
//! | key | value |
//! |---|---|
//! | `L` incarnation, last offset | a batch of a log: its place, times and checksum |
//! | `T` incarnation, key | a row of a table: 0 and the value, or 1 and the value's place and checksum |
//! | `P` partition | a partition: [`PartitionRow`] |
//! | `S` generation | a segment: [`Owed`] |
//! | `D` incarnation | a deleted partition whose rows are still being swept away |
//! | `M` | the marker: [`Marker`] |
//! | `C` number of a batch | nothing: it proves that this batch of the index is there |
//!
//! An *incarnation* is one life of a partition: the sequence of the frame that created it, so never used twice. A
//! partition that is deleted and created again meets no row of its earlier life, and the sweeping can take its time.

use bytes::{BufMut, Bytes};
use stentor_core::storage::{Key, KeyRange, Place};
use stentor_core::{Epoch, Offset, PartitionId, Timestamp};

use super::payload::Origin;
use super::{ByteReader, Malformed};

/// Values at least this large stay in the journal; the row holds the place.
pub(crate) const LARGE_VALUE_BYTES: usize = 1 << 10;

/// The key of the marker.
pub(crate) const MARKER_KEY: &[u8] = b"M";

/// Where a batch of a log lies, and what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogRow {
    pub(crate) place: Place,
    pub(crate) checksum: u32,
    pub(crate) stored_at: Timestamp,
    /// The greatest time of storing up to here, so that the first batch of a time is found by bisection even where the
    /// clock stepped back.
    pub(crate) stored_max: Timestamp,
    /// For a batch that was written for another log.
    pub(crate) origin: Option<Origin>,
}

impl LogRow {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(61);
        bytes.put_u8(u8::from(self.origin.is_some()));
        put_place(&mut bytes, self.place);
        bytes.put_u32_le(self.checksum);
        bytes.put_u64_le(self.stored_at.0);
        bytes.put_u64_le(self.stored_max.0);
        if let Some(origin) = self.origin {
            bytes.put_u64_le(origin.partition.0);
            bytes.put_u64_le(origin.base.0);
        }
        bytes.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = ByteReader::new(Bytes::copy_from_slice(bytes));
        let kind = reader.u8()?;
        let mut row = Self {
            place: place(&mut reader)?,
            checksum: reader.u32()?,
            stored_at: Timestamp(reader.u64()?),
            stored_max: Timestamp(reader.u64()?),
            origin: None,
        };
        match kind {
            0 => {}
            1 => row.origin = Some(Origin { partition: PartitionId(reader.u64()?), base: Offset(reader.u64()?) }),
            _ => return Err(Malformed("the kind of a log row is unknown")),
        }
        whole(reader, row)
    }
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TableRow {
    Inline(Bytes),
    /// `place.count` is 0.
    Placed {
        place: Place,
        checksum: u32,
    },
}

impl TableRow {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = Vec::new();
        match self {
            Self::Inline(value) => {
                bytes.reserve_exact(1 + value.len());
                bytes.put_u8(0);
                bytes.extend_from_slice(value);
            }
            Self::Placed { place, checksum } => {
                bytes.put_u8(1);
                put_place(&mut bytes, *place);
                bytes.put_u32_le(*checksum);
            }
        }
        bytes.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = ByteReader::new(Bytes::copy_from_slice(bytes));
        let row = match reader.u8()? {
            0 => Self::Inline(reader.rest()),
            1 => Self::Placed { place: place(&mut reader)?, checksum: reader.u32()? },
            _ => return Err(Malformed("the kind of a table row is unknown")),
        };
        whole(reader, row)
    }

    /// How long the value is.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Inline(value) => value.len() as u64,
            Self::Placed { place, .. } => place.length.into(),
        }
    }
}

/// A partition as the index reflects it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionRow {
    pub(crate) incarnation: u64,
    pub(crate) epoch: Epoch,
    pub(crate) start: Offset,
    pub(crate) end: Offset,
    /// The log has no rows of batches that end at or below here.
    pub(crate) swept: Offset,
    /// The greatest time of storing in the log so far.
    pub(crate) stored_max: Timestamp,
    /// What its batches take in the journal.
    pub(crate) log_bytes: u64,
    /// What its table takes, keys and values.
    pub(crate) table_bytes: u64,
}

impl PartitionRow {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(64);
        for field in [
            self.incarnation,
            self.epoch.0,
            self.start.0,
            self.end.0,
            self.swept.0,
            self.stored_max.0,
            self.log_bytes,
            self.table_bytes,
        ] {
            bytes.put_u64_le(field);
        }
        bytes.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = ByteReader::new(Bytes::copy_from_slice(bytes));
        let row = Self {
            incarnation: reader.u64()?,
            epoch: Epoch(reader.u64()?),
            start: Offset(reader.u64()?),
            end: Offset(reader.u64()?),
            swept: Offset(reader.u64()?),
            stored_max: Timestamp(reader.u64()?),
            log_bytes: reader.u64()?,
            table_bytes: reader.u64()?,
        };
        whole(reader, row)
    }
}

/// How far the index reflects the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) store: u64,
    /// The segment and the position in it where the next group begins.
    pub(crate) segment: u64,
    pub(crate) position: u64,
    /// The last sequence that is reflected.
    pub(crate) sequence: u64,
    /// The number of the batch that wrote this.
    pub(crate) batch: u64,
    /// The first batch whose chain row must be there.
    pub(crate) chain_first: u64,
}

impl Marker {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(48);
        for field in [self.store, self.segment, self.position, self.sequence, self.batch, self.chain_first] {
            bytes.put_u64_le(field);
        }
        bytes.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = ByteReader::new(Bytes::copy_from_slice(bytes));
        let marker = Self {
            store: reader.u64()?,
            segment: reader.u64()?,
            position: reader.u64()?,
            sequence: reader.u64()?,
            batch: reader.u64()?,
            chain_first: reader.u64()?,
        };
        whole(reader, marker)
    }
}

/// What of a segment some row still points to. A batch that two logs refer to counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owed {
    pub(crate) bytes: u64,
    /// How many rows that is; 0 in what was written before rows were counted.
    pub(crate) rows: u64,
}

impl Owed {
    /// One more row points to so many bytes.
    pub(crate) const fn add(&mut self, bytes: u32) {
        self.bytes += bytes as u64;
        self.rows += 1;
    }

    /// One row fewer does; false if it was not known of.
    pub(crate) const fn subtract(&mut self, bytes: u32) -> bool {
        let Some(left) = self.bytes.checked_sub(bytes as u64) else {
            return false;
        };
        self.bytes = left;
        self.rows = self.rows.saturating_sub(1);
        true
    }

    pub(crate) const fn is_none(&self) -> bool {
        self.bytes == 0
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(16);
        bytes.put_u64_le(self.bytes);
        bytes.put_u64_le(self.rows);
        bytes.into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = ByteReader::new(Bytes::copy_from_slice(bytes));
        let owed = Self { bytes: reader.u64()?, rows: if reader.is_empty() { 0 } else { reader.u64()? } };
        whole(reader, owed)
    }
}

fn put_place(bytes: &mut Vec<u8>, place: Place) {
    bytes.put_u64_le(place.segment);
    bytes.put_u64_le(place.position);
    bytes.put_u32_le(place.length);
    bytes.put_u32_le(place.count);
}

fn place(reader: &mut ByteReader) -> Result<Place, Malformed> {
    Ok(Place { segment: reader.u64()?, position: reader.u64()?, length: reader.u32()?, count: reader.u32()? })
}

fn whole<T>(reader: ByteReader, row: T) -> Result<T, Malformed> {
    if reader.is_empty() { Ok(row) } else { Err(Malformed("a row has bytes too many")) }
}

fn numbered(letter: u8, number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    key.push(letter);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The number in a key that is a letter and a number.
pub(crate) fn number_of(key: &[u8]) -> Result<u64, Malformed> {
    let number: [u8; 8] =
        key.get(1..).and_then(|number| number.try_into().ok()).ok_or(Malformed("a key of the index makes no sense"))?;
    Ok(u64::from_be_bytes(number))
}

pub(crate) fn log_key(incarnation: u64, last: Offset) -> Vec<u8> {
    let mut key = numbered(b'L', incarnation);
    key.extend_from_slice(&last.0.to_be_bytes());
    key
}

/// The last offset of the batch that a log key is of.
pub(crate) fn last_of(key: &[u8]) -> Result<Offset, Malformed> {
    let last: [u8; 8] =
        key.get(9..).and_then(|last| last.try_into().ok()).ok_or(Malformed("a key of a log makes no sense"))?;
    Ok(Offset(u64::from_be_bytes(last)))
}

/// The first key behind the log of an incarnation.
pub(crate) fn log_end(incarnation: u64) -> Vec<u8> {
    numbered(b'L', incarnation.saturating_add(1))
}

pub(crate) fn table_key(incarnation: u64, key: &Key) -> Vec<u8> {
    let mut row = numbered(b'T', incarnation);
    row.extend_from_slice(&key.0);
    row
}

/// The key of the table that a row's key is of.
pub(crate) fn key_of(row: &[u8]) -> Result<Key, Malformed> {
    row.get(9..).map(Key::copy_from).ok_or(Malformed("a key of a table makes no sense"))
}

/// The rows of an incarnation's table that lie in `range`.
pub(crate) fn table_range(incarnation: u64, range: &KeyRange) -> (Vec<u8>, Vec<u8>) {
    let end = match &range.end {
        Some(end) => table_key(incarnation, end),
        None => numbered(b'T', incarnation.saturating_add(1)),
    };
    (table_key(incarnation, &range.start), end)
}

pub(crate) fn partition_key(partition: PartitionId) -> Vec<u8> {
    numbered(b'P', partition.0)
}

pub(crate) fn segment_key(generation: u64) -> Vec<u8> {
    numbered(b'S', generation)
}

pub(crate) fn deleted_key(incarnation: u64) -> Vec<u8> {
    numbered(b'D', incarnation)
}

pub(crate) fn chain_key(batch: u64) -> Vec<u8> {
    numbered(b'C', batch)
}

/// All keys that begin with this letter.
pub(crate) const fn letter_range(letter: u8) -> ([u8; 1], [u8; 1]) {
    ([letter], [letter + 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { segment: 1, position: 2, length: 3, count: 4 };

    #[test]
    fn rows_round_trip() {
        let mut log =
            LogRow { place: PLACE, checksum: 5, stored_at: Timestamp(6), stored_max: Timestamp(7), origin: None };
        assert_eq!(LogRow::decode(&log.encode()), Ok(log));
        log.origin = Some(Origin { partition: PartitionId(8), base: Offset(9) });
        assert_eq!(LogRow::decode(&log.encode()), Ok(log));
        for row in [TableRow::Inline(Bytes::from_static(b"x")), TableRow::Placed { place: PLACE, checksum: 6 }] {
            assert_eq!(TableRow::decode(&row.encode()), Ok(row));
        }
        let partition = PartitionRow { incarnation: 1, end: Offset(3), table_bytes: 9, ..PartitionRow::default() };
        assert_eq!(PartitionRow::decode(&partition.encode()), Ok(partition));
        let marker = Marker { store: 1, segment: 2, position: 3, sequence: 4, batch: 5, chain_first: 6 };
        assert_eq!(Marker::decode(&marker.encode()), Ok(marker));
        assert!(Marker::decode(&partition.encode()).is_err());
        let owed = Owed { bytes: 7, rows: 2 };
        assert_eq!(Owed::decode(&owed.encode()), Ok(owed));
        assert_eq!(Owed::decode(&owed.encode()[..8]), Ok(Owed { bytes: 7, rows: 0 }));
        assert!(Owed::decode(&owed.encode()[..9]).is_err());
    }

    #[test]
    fn keys_are_ordered_as_their_numbers_and_kept_apart() {
        assert!(log_key(1, Offset(255)) < log_key(1, Offset(256)));
        assert!(log_key(1, Offset(u64::MAX)) < log_end(1));
        assert!(log_end(1) <= log_key(2, Offset(0)));
        assert_eq!(last_of(&log_key(1, Offset(7))), Ok(Offset(7)));
        let (start, end) = table_range(3, &KeyRange::all());
        let inside = table_key(3, &Key::copy_from(&[255; 20]));
        assert!(start <= inside && inside < end && end <= table_key(4, &Key::copy_from(b"")));
        assert_eq!(key_of(&inside), Ok(Key::copy_from(&[255; 20])));
        assert_eq!(number_of(&partition_key(PartitionId(9))), Ok(9));
    }
}
