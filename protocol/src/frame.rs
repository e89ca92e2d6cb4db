//! Envelopes and batches, into frames and back.

use bytes::Bytes;
use prost::Message;
use stentor_core::RecordBatch;
use stentor_core::batch::{BatchError, HEADER_BYTES};
use stentor_core::transport::Frame;
use thiserror::Error;

use crate::wire::{self, to_broker, to_client};

/// Why a frame makes no sense.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum DecodeError {
    /// The head is no envelope.
    #[error("the frame's head does not decode: {0}")]
    Head(#[from] prost::DecodeError),
    /// The envelope is empty, or of a kind that this version does not know.
    #[error("the frame is of an unknown kind")]
    UnknownKind,
    /// The batch is damaged.
    #[error("the frame's batch is damaged: {0}")]
    Batch(#[from] BatchError),
}

/// The frame of what a client says. For [`Publish`](wire::Publish), `batch` gives the header and the body.
#[must_use]
pub fn encode_to_broker(kind: to_broker::Kind) -> Frame {
    Frame::new(wire::ToBroker { kind: Some(kind) }.encode_to_vec().into())
}

/// The frame that publishes a batch. The records are shared, not copied.
#[must_use]
pub fn encode_publish(request: u64, partition: u32, batch: &RecordBatch) -> Frame {
    let batch_header = Bytes::copy_from_slice(&batch.header_bytes());
    let publish = to_broker::Kind::Publish(wire::Publish { request, partition, batch_header });
    Frame { body: batch.payload().clone(), ..encode_to_broker(publish) }
}

/// The frame of what a broker says.
#[must_use]
pub fn encode_to_client(kind: to_client::Kind) -> Frame {
    Frame::new(wire::ToClient { kind: Some(kind) }.encode_to_vec().into())
}

/// The frame that delivers (part of) a batch. The records are shared, not copied.
#[must_use]
pub fn encode_delivery(partition: u32, batch: &RecordBatch, leased: Vec<wire::Leased>, picked: bool) -> Frame {
    let batch_header = Bytes::copy_from_slice(&batch.header_bytes());
    let delivery = to_client::Kind::Delivery(wire::Delivery { partition, batch_header, leased, picked });
    Frame { body: batch.payload().clone(), ..encode_to_client(delivery) }
}

/// What a client said. A batch that it publishes is taken out by [`batch`].
///
/// # Errors
/// When the head is no envelope that this version knows.
pub fn decode_to_broker(head: Bytes) -> Result<to_broker::Kind, DecodeError> {
    wire::ToBroker::decode(head)?.kind.ok_or(DecodeError::UnknownKind)
}

/// What a broker said. A batch that it delivers is taken out by [`batch`].
///
/// # Errors
/// When the head is no envelope that this version knows.
pub fn decode_to_client(head: Bytes) -> Result<to_client::Kind, DecodeError> {
    wire::ToClient::decode(head)?.kind.ok_or(DecodeError::UnknownKind)
}

/// The batch of a frame: its header out of the envelope, its records out of the body; the checksum is verified.
///
/// # Errors
/// When they are no batch, or not one whose checksum holds.
pub fn batch(batch_header: &[u8], body: Bytes) -> Result<RecordBatch, BatchError> {
    let header: &[u8; HEADER_BYTES] = batch_header.try_into().map_err(|_| BatchError::Truncated)?;
    RecordBatch::from_parts(header, body)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stentor_core::batch::BatchBuilder;
    use stentor_core::{Compression, MessageId, Offset, Record, Timestamp};

    use super::*;

    fn one_record() -> RecordBatch {
        let mut builder = BatchBuilder::new(Compression::None);
        let record = Record {
            id: MessageId::generate(Timestamp(1), 2),
            timestamp: Timestamp(3),
            key: None,
            tag: None,
            headers: Vec::new(),
            body: Bytes::from_static(b"body"),
            deliver_at: None,
            expires_at: None,
        };
        builder.push(&record).unwrap();
        builder.finish(None).unwrap()
    }

    #[test]
    fn a_published_and_a_delivered_batch_arrive_as_they_were() {
        let sent = one_record();
        let frame = encode_publish(7, 3, &sent);
        let Ok(to_broker::Kind::Publish(publish)) = decode_to_broker(frame.head) else { panic!("not a publish") };
        assert_eq!((publish.request, publish.partition), (7, 3));
        assert_eq!(batch(&publish.batch_header, frame.body), Ok(sent.clone()));

        let stored = sent.stored(Offset(9), Timestamp(10));
        let leased = vec![wire::Leased { start: 9, count: 1, attempt: 1, redelivered: false }];
        let frame = encode_delivery(2, &stored, leased.clone(), false);
        let Ok(to_client::Kind::Delivery(delivery)) = decode_to_client(frame.head) else { panic!("not a delivery") };
        assert_eq!(delivery.leased, leased);
        assert_eq!(batch(&delivery.batch_header, frame.body), Ok(stored));
    }

    #[test]
    fn an_envelope_of_an_unknown_kind_is_an_error() {
        assert_eq!(decode_to_broker(Bytes::new()), Err(DecodeError::UnknownKind));
        // Field 99, length-delimited, empty: what a later version might send.
        assert_eq!(decode_to_client(Bytes::from_static(&[0x9a, 0x06, 0x00])), Err(DecodeError::UnknownKind));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(garbage in proptest::collection::vec(any::<u8>(), 0..300)) {
            let garbage = Bytes::from(garbage);
            let _ = decode_to_broker(garbage.clone());
            let _ = decode_to_client(garbage.clone());
            let _ = batch(&garbage, garbage.clone());
        }
    }
}
