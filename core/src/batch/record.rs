//! One record of a batch: a message.
//!
//! Layout, integers as LEB128 varints unless said otherwise: length of what follows; flags (u8: 1 key, 2 tag,
//! 4 deliver at, 8 expires at); timestamp, zigzag, relative to the batch's first; id (length, bytes); key (length,
//! bytes) if any; tag likewise; the two times (u64, little-endian) if any; number of headers, each a name and a value
//! (length, bytes); body (length, bytes).

use std::ops::Deref;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{BatchError, Text};
use crate::limits::{MESSAGE_HEADERS_MAX, MESSAGE_KEY_BYTES_MAX, MESSAGE_TAG_BYTES_MAX};
use crate::{MessageId, Timestamp};

const HAS_KEY: u8 = 1;
const HAS_TAG: u8 = 2;
const HAS_DELIVER_AT: u8 = 4;
const HAS_EXPIRES_AT: u8 = 8;

const LEFT_OVER: &str = "the batch does not end with its last record";

/// A message. Its parts share the bytes they were read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What identifies it.
    pub id: MessageId,
    /// When the producer made it, by its own clock.
    pub timestamp: Timestamp,
    /// Chooses the partition, and what is kept in order. Any bytes; an empty key is a key.
    pub key: Option<Bytes>,
    /// A short text that groups filter by.
    pub tag: Option<Text>,
    /// Properties, in the order given; names may repeat.
    pub headers: Vec<RecordHeader>,
    /// What it is about. May be empty.
    pub body: Bytes,
    /// Not to be delivered before.
    pub deliver_at: Option<Timestamp>,
    /// Not to be delivered after.
    pub expires_at: Option<Timestamp>,
}

/// A named property of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Its name: any text, also an empty one.
    pub name: Text,
    /// Its value: any bytes.
    pub value: Bytes,
}

impl Record {
    /// What counts against the limit of a message: key, tag, headers and body.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|header| header.name.len() + header.value.len()).sum();
        self.key.as_ref().map_or(0, Bytes::len)
            + self.tag.as_ref().map_or(0, |tag| tag.len())
            + headers
            + self.body.len()
    }

    /// Checks the ceilings of the format, which hold whatever a topic says.
    ///
    /// # Errors
    /// [`BatchError::Limit`], naming the part that is beyond its ceiling.
    pub fn check(&self) -> Result<(), BatchError> {
        let key = self.key.as_ref().map_or(0, Bytes::len);
        check_lengths(key, self.tag.as_ref().map_or(0, |tag| tag.as_bytes().len()), self.headers.len())
    }

    /// Appends the record to `out`.
    pub(super) fn encode(&self, first_timestamp: Timestamp, out: &mut BytesMut) {
        let id = self.id.to_bytes();
        let delta = self.timestamp.0.wrapping_sub(first_timestamp.0).cast_signed();
        let flags = flag(self.key.is_some(), HAS_KEY)
            | flag(self.tag.is_some(), HAS_TAG)
            | flag(self.deliver_at.is_some(), HAS_DELIVER_AT)
            | flag(self.expires_at.is_some(), HAS_EXPIRES_AT);

        let block = |bytes: &[u8]| varint_bytes(bytes.len() as u64) + bytes.len();
        let length = 1
            + varint_bytes(zigzag(delta))
            + block(&id)
            + self.key.as_deref().map_or(0, block)
            + self.tag.as_ref().map_or(0, |tag| block(tag.as_bytes()))
            + 8 * (usize::from(self.deliver_at.is_some()) + usize::from(self.expires_at.is_some()))
            + varint_bytes(self.headers.len() as u64)
            + self.headers.iter().map(|h| block(h.name.as_bytes()) + block(&h.value)).sum::<usize>()
            + block(&self.body);

        out.reserve(varint_bytes(length as u64) + length);
        put_varint(out, length as u64);
        out.put_u8(flags);
        put_varint(out, zigzag(delta));
        put_block(out, &id);
        if let Some(key) = &self.key {
            put_block(out, key);
        }
        if let Some(tag) = &self.tag {
            put_block(out, tag.as_bytes());
        }
        for time in [self.deliver_at, self.expires_at].into_iter().flatten() {
            out.put_u64_le(time.0);
        }
        put_varint(out, self.headers.len() as u64);
        for header in &self.headers {
            put_block(out, header.name.as_bytes());
            put_block(out, &header.value);
        }
        put_block(out, &self.body);
    }

    /// Reads the record at the front of `from`.
    fn decode(from: &mut Bytes, first_timestamp: Timestamp) -> Result<Self, BatchError> {
        // Not reserved ahead: their count is only a claim.
        let mut headers = Vec::new();
        let parsed = parse(from, |name, value| headers.push(RecordHeader { name, value }))?;
        let Parsed { delta, id, key, tag, body, deliver_at, expires_at } = parsed;
        let id = MessageId::from_bytes(&id)?;
        let timestamp = Timestamp(first_timestamp.0.wrapping_add(delta.cast_unsigned()));
        let record = Self { id, timestamp, key, tag, headers, body, deliver_at, expires_at };
        record.check()?;
        Ok(record)
    }
}

/// The parts of a record as they lie.
struct Parsed<B: Piece> {
    delta: i64,
    id: B,
    key: Option<B>,
    tag: Option<B::Text>,
    body: B,
    deliver_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
}

/// Bytes that a record is read from: shared, when its parts are kept, or borrowed, when they are only looked at.
trait Piece: Buf + Deref<Target = [u8]> {
    type Text;

    /// Takes the first `count` bytes off; there are so many.
    fn cut(&mut self, count: usize) -> Self;

    /// As text, if it is UTF-8.
    fn text(self) -> Option<Self::Text>;
}

impl Piece for Bytes {
    type Text = Text;

    fn cut(&mut self, count: usize) -> Self {
        self.split_to(count)
    }

    fn text(self) -> Option<Text> {
        Text::from_utf8(self)
    }
}

impl<'a> Piece for &'a [u8] {
    type Text = &'a str;

    fn cut(&mut self, count: usize) -> Self {
        let (taken, rest) = self.split_at(count);
        *self = rest;
        taken
    }

    fn text(self) -> Option<&'a str> {
        str::from_utf8(self).ok()
    }
}

/// Reads the record at the front of `from`, and shows its headers one by one.
fn parse<B: Piece>(from: &mut B, mut header: impl FnMut(B::Text, B)) -> Result<Parsed<B>, BatchError> {
    let mut rest = take_block(from)?;
    let flags = take(&mut rest, 1)?[0];
    if flags & !(HAS_KEY | HAS_TAG | HAS_DELIVER_AT | HAS_EXPIRES_AT) != 0 {
        return Err(BatchError::Record("an unknown flag is set"));
    }
    let delta = unzigzag(take_varint(&mut rest)?);
    let id = take_block(&mut rest)?;
    let key = (flags & HAS_KEY != 0).then(|| take_block(&mut rest)).transpose()?;
    let tag = (flags & HAS_TAG != 0).then(|| take_text(&mut rest)).transpose()?;
    let mut time = |bit: u8| {
        let time = (flags & bit != 0).then(|| take(&mut rest, 8).map(|mut bytes| Timestamp(bytes.get_u64_le())));
        time.transpose()
    };
    let deliver_at = time(HAS_DELIVER_AT)?;
    let expires_at = time(HAS_EXPIRES_AT)?;
    let count = take_varint(&mut rest)?;
    if count > u64::from(MESSAGE_HEADERS_MAX) {
        return Err(BatchError::Record("there are too many headers"));
    }
    for _ in 0..count {
        header(take_text(&mut rest)?, take_block(&mut rest)?);
    }
    let body = take_block(&mut rest)?;
    if !rest.is_empty() {
        return Err(BatchError::Record("bytes are left over"));
    }
    Ok(Parsed { delta, id, key, tag, body, deliver_at, expires_at })
}

/// Looks at the record at the front of `from` as [`Record::decode`] does, keeping nothing of it. Returns what counts
/// against the limit of a message.
fn look(from: &mut &[u8]) -> Result<usize, BatchError> {
    let mut bytes = 0;
    let parsed = parse(from, |name, value| bytes += name.len() + value.len())?;
    // A marked UUID needs no more than its length; any other id is rare, and made into one to see whether it does.
    if parsed.id.len() != 17 || parsed.id[0] != 0 {
        MessageId::from_bytes(parsed.id)?;
    }
    let (key, tag) = (parsed.key.map_or(0, <[u8]>::len), parsed.tag.map_or(0, str::len));
    check_lengths(key, tag, 0)?;
    Ok(bytes + key + tag + parsed.body.len())
}

/// Looks at all `count` records of a batch; none may be beyond `message_bytes_max`, and nothing may lie behind them.
pub(super) fn look_at_all(mut raw: &[u8], count: u32, message_bytes_max: u32) -> Result<(), BatchError> {
    for _ in 0..count {
        let bytes = look(&mut raw)?;
        if bytes > message_bytes_max as usize {
            return Err(BatchError::MessageTooLarge { bytes, bytes_max: message_bytes_max });
        }
    }
    if raw.is_empty() { Ok(()) } else { Err(BatchError::Record(LEFT_OVER)) }
}

/// Checks the ceilings of the format.
fn check_lengths(key: usize, tag: usize, headers: usize) -> Result<(), BatchError> {
    let limits = [
        ("a key", key, MESSAGE_KEY_BYTES_MAX),
        ("a tag", tag, MESSAGE_TAG_BYTES_MAX),
        ("a number of headers", headers, MESSAGE_HEADERS_MAX),
    ];
    for (what, found, limit) in limits {
        if found > limit as usize {
            return Err(BatchError::Limit { what, found, limit: limit as usize });
        }
    }
    Ok(())
}

/// The records of a batch, in order. After an error nothing more comes.
#[derive(Clone, Debug)]
pub struct Records {
    rest: Bytes,
    left: u32,
    first_timestamp: Timestamp,
}

impl Records {
    pub(super) const fn new(raw: Bytes, count: u32, first_timestamp: Timestamp) -> Self {
        Self { rest: raw, left: count, first_timestamp }
    }

    /// To be asked once the iterator has ended: whether the batch held exactly its records.
    ///
    /// # Errors
    /// When bytes are left over behind the last record, or records are still to come.
    pub fn finish(self) -> Result<(), BatchError> {
        if self.left == 0 && self.rest.is_empty() { Ok(()) } else { Err(BatchError::Record(LEFT_OVER)) }
    }
}

impl Iterator for Records {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let record = Record::decode(&mut self.rest, self.first_timestamp);
        if record.is_err() {
            self.left = 0;
        }
        Some(record)
    }
}

const fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

const fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)).cast_unsigned()
}

const fn unzigzag(n: u64) -> i64 {
    (n >> 1).cast_signed() ^ -(n & 1).cast_signed()
}

const fn varint_bytes(n: u64) -> usize {
    // Seven bits a byte, and one byte even for zero.
    (70 - (n | 1).leading_zeros() as usize) / 7
}

fn put_varint(out: &mut BytesMut, mut n: u64) {
    while n >= 0x80 {
        out.put_u8((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.put_u8(n as u8);
}

fn put_block(out: &mut BytesMut, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

fn take<B: Piece>(from: &mut B, count: usize) -> Result<B, BatchError> {
    if count > from.len() {
        return Err(BatchError::Truncated);
    }
    Ok(from.cut(count))
}

fn take_varint<B: Piece>(from: &mut B) -> Result<u64, BatchError> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let byte = from.first().copied().ok_or(BatchError::Truncated)?;
        from.advance(1);
        if shift == 63 && byte > 1 {
            break;
        }
        n |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            // One spelling for each number, so that equal batches have equal bytes.
            return if byte == 0 && shift > 0 { Err(BatchError::Record("a number is padded")) } else { Ok(n) };
        }
    }
    Err(BatchError::Record("a number is too large"))
}

fn take_block<B: Piece>(from: &mut B) -> Result<B, BatchError> {
    let length = take_varint(from)?;
    take(from, usize::try_from(length).map_err(|_| BatchError::Truncated)?)
}

fn take_text<B: Piece>(from: &mut B) -> Result<B::Text, BatchError> {
    take_block(from)?.text().ok_or(BatchError::Record("a text is not UTF-8"))
}
