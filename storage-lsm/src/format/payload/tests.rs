use proptest::prelude::*;
use stentor_core::batch::{BatchBuilder, Compression};
use stentor_core::{MessageId, Record};

use super::*;

fn batch(body: usize) -> RecordBatch {
    let mut builder = BatchBuilder::new(Compression::None);
    builder
        .push(&Record {
            id: MessageId::generate(Timestamp(1), 7),
            timestamp: Timestamp(1),
            key: None,
            tag: None,
            headers: Vec::new(),
            body: Bytes::from(vec![3; body]),
            deliver_at: None,
            expires_at: None,
        })
        .unwrap();
    builder.finish(None).unwrap().stored(Offset(40), Timestamp(99))
}

fn whole(encoded: &Encoded) -> Bytes {
    let bytes: Bytes = encoded.chunks.concat().into();
    assert_eq!(bytes.len() as u64, encoded.length);
    assert_eq!(crc32c::crc32c(&bytes), encoded.checksum);
    bytes
}

fn without_batches(mut frame: Frame) -> Frame {
    for part in &mut frame.parts {
        if let Part::Batch(part) = part {
            part.batch = None;
        }
    }
    frame
}

fn everything() -> Encoded {
    let mut encoder = Encoder::new(FrameKind::Change, PartitionId(4), Epoch(2), Offset(40));
    encoder.open(Epoch(3), Some(Offset(17)));
    encoder.open(Epoch(3), None);
    encoder.delete(KeyRange::prefix(b"a"));
    encoder.delete(KeyRange::all());
    encoder.put(Key::copy_from(b"key"), Bytes::from_static(b"value"));
    encoder.put(Key::copy_from(b""), Bytes::from(vec![9; 10_000]));
    encoder.batch(batch(10));
    encoder.batch(batch(10_000));
    encoder.stored(StoredPart {
        segment: 1,
        position: 2,
        length: 3,
        count: 4,
        checksum: 5,
        origin: Origin { partition: PartitionId(6), base: Offset(7) },
        stored_at: Timestamp(8),
    });
    encoder.trim(Offset(41));
    encoder.end(Offset(42));
    encoder.moved(Moved { segment: 1, position: 2, incarnation: 3, row: MovedRow::Log { last: Offset(4) } });
    encoder.moved(Moved {
        segment: 1,
        position: 2,
        incarnation: 3,
        row: MovedRow::Table { key: Key::copy_from(b"k") },
    });
    encoder.moved_value(Bytes::from_static(b"moved"));
    encoder.finish()
}

#[test]
fn every_part_round_trips_and_lies_where_it_says() {
    let encoded = everything();
    let bytes = whole(&encoded);
    let decoded = Frame::decode(FrameKind::Change, PartitionId(4), bytes.clone()).unwrap();
    assert_eq!(decoded, without_batches(encoded.frame.clone()));
    for part in &encoded.frame.parts {
        match part {
            Part::Batch(part) => {
                let at = part.at as usize;
                let found = bytes.slice(at..at + part.length as usize);
                assert_eq!(RecordBatch::decode(found).unwrap(), part.batch.clone().unwrap());
                let header = bytes[at - PART_HEADER_BYTES..at].try_into().unwrap();
                assert_eq!(check_batch_part(header, PartitionId(4), part.length), Ok(()));
                assert!(check_batch_part(header, PartitionId(5), part.length).is_err());
                assert!(check_batch_part(header, PartitionId(4), part.length + 1).is_err());
            }
            Part::Put { value, at, .. } | Part::Value { value, at } => {
                assert_eq!(bytes.slice(*at as usize..*at as usize + value.len()), value);
            }
            _ => {}
        }
    }
}

#[test]
fn a_payload_cut_short_is_refused_or_a_shorter_payload_but_never_a_panic() {
    let bytes = whole(&everything());
    for end in 0..bytes.len() {
        if let Ok(frame) = Frame::decode(FrameKind::Change, PartitionId(4), bytes.slice(..end)) {
            assert!(frame.parts.len() < everything().frame.parts.len());
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Frame::decode(FrameKind::Change, PartitionId(0), bytes.into());
    }

    #[test]
    fn arbitrary_parts_never_panic(code in 0_u8..12, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut payload = vec![0; 16];
        payload.extend_from_slice(&u32::from(code).to_le_bytes());
        payload.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        payload.extend_from_slice(&[0; 8]);
        payload.extend_from_slice(&bytes);
        let _ = Frame::decode(FrameKind::Change, PartitionId(0), payload.into());
    }
}
