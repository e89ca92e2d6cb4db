//! Batches, keys and rows for tests: the same input gives the same bytes.

use bytes::Bytes;
use fastrand::Rng;
use stentor_core::batch::BatchBuilder;
use stentor_core::storage::{Append, Key};
use stentor_core::{Compression, MessageId, Offset, Record, RecordBatch, Timestamp};

/// When the batches of [`batch_of`] were stored: a moment in 2023.
pub const STORED_AT: Timestamp = Timestamp(1_700_000_000_000_000);

/// More than any batch of a test takes uncompressed.
const RAW_BYTES_MAX: u32 = 256 << 20;

/// A record with this body and nothing else. Its id follows from the body.
#[must_use]
pub fn record(body: impl Into<Bytes>) -> Record {
    let body = body.into();
    let seed = body.iter().take(64).fold(body.len() as u64, |seed, byte| seed.wrapping_mul(31) ^ u64::from(*byte));
    Record {
        id: MessageId::generate(STORED_AT, Rng::with_seed(seed).u128(..)),
        timestamp: STORED_AT,
        key: None,
        tag: None,
        headers: Vec::new(),
        body,
        deliver_at: None,
        expires_at: None,
    }
}

/// A batch of these records, without a producer, stored at [`STORED_AT`].
///
/// # Panics
/// When there are no records, or one is beyond the limits of the format.
#[must_use]
pub fn batch_with(records: &[Record], compression: Compression) -> RecordBatch {
    let mut builder = BatchBuilder::new(compression);
    for record in records {
        builder.push(record).expect("a record within the limits");
    }
    builder.finish(None).expect("at least one record").stored(Offset::ZERO, STORED_AT)
}

/// A batch of records with these bodies, uncompressed, stored at [`STORED_AT`].
///
/// # Panics
/// When there are none.
#[must_use]
pub fn batch_of(bodies: &[&str]) -> RecordBatch {
    batch_at(STORED_AT, bodies)
}

/// As [`batch_of`], stored at another time.
///
/// # Panics
/// When there are no bodies.
#[must_use]
pub fn batch_at(at: Timestamp, bodies: &[&str]) -> RecordBatch {
    let records: Vec<Record> = bodies.iter().map(|body| record(Bytes::copy_from_slice(body.as_bytes()))).collect();
    batch_with(&records, Compression::None).stored(Offset::ZERO, at)
}

/// A batch of one record with a body of this many bytes that no compression makes smaller.
///
/// # Panics
/// When a batch cannot be so large.
#[must_use]
pub fn batch_of_bytes(rng: &mut Rng, bytes: usize) -> RecordBatch {
    batch_with(&[record(random_bytes(rng, bytes))], Compression::None)
}

/// As [`batch_of`], to be appended.
///
/// # Panics
/// When there are no bodies.
#[must_use]
pub fn append_of(bodies: &[&str]) -> Append {
    Append::Batch(batch_of(bodies))
}

/// This many bytes from the generator.
#[must_use]
pub fn random_bytes(rng: &mut Rng, count: usize) -> Bytes {
    let mut bytes = vec![0; count];
    rng.fill(&mut bytes);
    bytes.into()
}

/// A key with the bytes of this text.
#[must_use]
pub fn key(text: &str) -> Key {
    Key::copy_from(text.as_bytes())
}

/// A row with the bytes of these texts.
#[must_use]
pub fn row(key_text: &str, value: &str) -> (Key, Bytes) {
    (key(key_text), Bytes::copy_from_slice(value.as_bytes()))
}

/// The bodies of a batch, as text.
///
/// # Panics
/// When the batch does not hold what its header says, or a body is not UTF-8.
#[must_use]
pub fn bodies_of(batch: &RecordBatch) -> Vec<String> {
    let records = batch.records(RAW_BYTES_MAX).expect("a block that can be uncompressed");
    records
        .map(|record| {
            let body = record.expect("a record that can be decoded").body;
            String::from_utf8(body.to_vec()).expect("a body of UTF-8")
        })
        .collect()
}
