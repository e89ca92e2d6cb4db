use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::MessageId;

const RAW_MAX: u32 = 8 << 20;

fn record() -> impl Strategy<Value = Record> {
    let bytes = |max: usize| vec(any::<u8>(), 0..max).prop_map(Bytes::from);
    let text = "\\PC{0,20}";
    let id = prop_oneof![
        any::<(u64, u128)>().prop_map(|(at, random)| MessageId::generate(Timestamp(at), random)),
        "[^\u{0}]\\PC{0,40}".prop_map(|text| text.parse::<MessageId>().unwrap()),
    ];
    let headers = vec((text, bytes(40)), 0..4).prop_map(|headers| {
        headers.into_iter().map(|(name, value)| RecordHeader { name: name.into(), value }).collect()
    });
    let times = (any::<u64>(), option::of(any::<u64>()), option::of(any::<u64>()));
    (id, times, option::of(bytes(40)), option::of(text), headers, bytes(300)).prop_map(
        |(id, (timestamp, deliver_at, expires_at), key, tag, headers, body)| Record {
            id,
            timestamp: Timestamp(timestamp),
            key,
            tag: tag.map(Text::from),
            headers,
            body,
            deliver_at: deliver_at.map(Timestamp),
            expires_at: expires_at.map(Timestamp),
        },
    )
}

fn compression() -> impl Strategy<Value = Compression> {
    prop_oneof![Just(Compression::None), Just(Compression::Lz4), Just(Compression::Zstd)]
}

fn build(records: &[Record], compression: Compression) -> RecordBatch {
    let mut builder = BatchBuilder::new(compression);
    for record in records {
        builder.push(record).unwrap();
    }
    builder.finish(Some(Sequenced { producer: ProducerId(7), epoch: 1, sequence: 3 })).unwrap()
}

proptest! {
    #[test]
    fn records_round_trip_bit_for_bit(records in vec(record(), 1..20), compression in compression()) {
        let batch = build(&records, compression);
        let moved = batch.clone().stored(Offset(17), Timestamp(99));
        let read = RecordBatch::decode(moved.to_bytes()).unwrap();
        prop_assert_eq!(&read, &moved);
        prop_assert_eq!(read.offsets(), OffsetRange::new(Offset(17), Offset(17 + records.len() as u64)));
        prop_assert_eq!(read.producer(), Some(Sequenced { producer: ProducerId(7), epoch: 1, sequence: 3 }));
        let back: Vec<Record> = read.records(RAW_MAX).unwrap().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(back, records);
        prop_assert_eq!(read.validate(RAW_MAX), Ok(()));
    }

    #[test]
    fn looking_at_records_finds_fault_with_those_that_do_not_decode_and_with_no_others(
        records in vec(record(), 1..4), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in 0_usize..3,
    ) {
        let mut raw = build(&records, Compression::None).payload().to_vec();
        let at = at.index(raw.len());
        raw[at] = byte;
        raw.truncate(raw.len() - cut);
        let count = records.len() as u32;
        let mut decoded = Records::new(raw.clone().into(), count, Timestamp(0));
        let sizes: Result<Vec<usize>, _> = (&mut decoded).map(|record| record.map(|record| record.bytes())).collect();
        let largest = sizes.and_then(|sizes| decoded.finish().map(|()| sizes.into_iter().max().unwrap_or(0)));
        prop_assert_eq!(record::look_at_all(&raw, count, u32::MAX).is_ok(), largest.is_ok());
        if let Ok(largest) = largest {
            prop_assert!(largest == 0 || record::look_at_all(&raw, count, largest as u32 - 1).is_err());
            prop_assert_eq!(record::look_at_all(&raw, count, largest as u32), Ok(()));
        }
    }

    #[test]
    fn a_flipped_bit_is_found(records in vec(record(), 1..5), compression in compression(), at in any::<prop::sample::Index>()) {
        let bytes = build(&records, compression).to_bytes();
        // The broker's sixteen bytes in front are covered by the journal, not by the batch.
        let bit = 16 * 8 + at.index((bytes.len() - 16) * 8);
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(RecordBatch::decode(flipped.into()).is_err());
    }

    #[test]
    fn decoding_garbage_never_panics(garbage in vec(any::<u8>(), 0..400)) {
        let _ = RecordBatch::decode(garbage.clone().into());
        for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
            let _ = compression.decompress(&garbage.clone().into(), 1 << 20, RAW_MAX);
        }
        for record in Records::new(garbage.into(), 50, Timestamp(5)) {
            let _ = record;
        }
    }

    #[test]
    fn a_batch_with_a_good_checksum_over_garbage_never_panics(
        garbage in vec(any::<u8>(), 100..400), claim in any::<u32>(), compression in compression(),
    ) {
        let mut batch = build(&[plain(&[0; 100])], Compression::None);
        batch.payload = garbage.into();
        batch.header.payload_bytes = u32::try_from(batch.payload.len()).unwrap();
        batch.header.compression = compression;
        batch.header.raw_bytes = if compression == Compression::None { batch.header.payload_bytes } else { claim };
        batch.header.checksum = batch.header.checksum_with(&batch.payload);
        if let Ok(batch) = RecordBatch::decode(batch.to_bytes()) {
            let _ = batch.validate(RAW_MAX);
        }
    }
}

fn plain(body: &[u8]) -> Record {
    Record {
        id: "an-id".parse().unwrap(),
        timestamp: Timestamp(1),
        key: None,
        tag: None,
        headers: Vec::new(),
        body: Bytes::copy_from_slice(body),
        deliver_at: None,
        expires_at: None,
    }
}

#[test]
fn an_empty_body_and_an_empty_key_are_something() {
    let record = Record { key: Some(Bytes::new()), ..plain(b"") };
    let batch = build(std::slice::from_ref(&record), Compression::Zstd);
    assert_eq!(batch.records(RAW_MAX).unwrap().next().unwrap().unwrap(), record);
}

#[test]
fn a_message_beyond_the_limit_is_refused_and_one_at_the_limit_is_not() {
    let batch = build(&[plain(&[1; 1_000])], Compression::None);
    assert_eq!(batch.validate(1_000), Ok(()));
    assert_eq!(batch.validate(999), Err(BatchError::MessageTooLarge { bytes: 1_000, bytes_max: 999 }));
}

#[test]
fn a_small_block_that_claims_to_grow_without_bound_takes_no_memory() {
    let zeros = vec![0; 4 << 20];
    for compression in [Compression::Lz4, Compression::Zstd] {
        let block = compression.compress(&zeros).unwrap();
        assert!(block.len() < 20_000);
        let result = compression.decompress(&block, 4 << 20, 1 << 20);
        assert_eq!(result, Err(BatchError::TooLarge { bytes: 4 << 20, bytes_max: 1 << 20 }));
        // A header that understates what comes out is caught as soon as one byte too many appears.
        assert!(matches!(compression.decompress(&block, 1 << 20, 1 << 20), Err(BatchError::Decompress(_))));
    }
    assert!(matches!(
        Compression::Lz4.decompress(&Bytes::from_static(b"tiny"), 1 << 20, 1 << 20),
        Err(BatchError::Decompress(_))
    ));
}

#[test]
fn a_zstd_frame_gets_no_window_far_beyond_what_comes_out() {
    // Magic, a descriptor without a size, the window, and a last block of one raw byte.
    let frame = |window_log: u8| {
        let window = (window_log - 10) << 3;
        Bytes::copy_from_slice(&[0x28, 0xb5, 0x2f, 0xfd, 0, window, 0x09, 0, 0, b'x'])
    };
    assert_eq!(Compression::Zstd.decompress(&frame(21), 1, 1 << 20), Ok(Bytes::from_static(b"x")));
    assert!(matches!(Compression::Zstd.decompress(&frame(27), 1, 1 << 20), Err(BatchError::Decompress(_))));
}

#[test]
fn another_version_is_refused_by_name() {
    let mut bytes = build(&[plain(b"x")], Compression::None).to_bytes().to_vec();
    bytes[16] = 2;
    assert_eq!(RecordBatch::decode(bytes.into()), Err(BatchError::Version(2)));
}

#[test]
fn a_batch_under_another_sequence_keeps_its_records() {
    let batch = build(&[plain(b"x")], Compression::Lz4);
    let moved = batch.clone().sequenced(Sequenced { producer: ProducerId(7), epoch: 1, sequence: 4 });
    let read = RecordBatch::decode(moved.to_bytes()).unwrap();
    assert_eq!(read.payload(), batch.payload());
    assert_eq!(read.producer().map(|producer| producer.sequence), Some(4));
}
