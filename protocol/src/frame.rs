//! Envelopes and batches, into frames and back.

use bytes::{Bytes, BytesMut};
use prost::Message;
use stentor_core::RecordBatch;
use stentor_core::batch::{BatchError, HEADER_BYTES};
use stentor_core::transport::{FRAME_HEAD_BYTES_MAX, Frame};
use thiserror::Error;

use crate::wire::{self, response, to_broker, to_client};

/// The largest answer that stands in a frame's head: the envelope around it takes some bytes too.
const ANSWER_HEAD_BYTES_MAX: usize = FRAME_HEAD_BYTES_MAX as usize - 16;

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

/// The frame of an answer. What it says stands in the head, or, where that is too large for one, at the front of the body.
#[must_use]
pub fn encode_response(response: wire::Response, body: Bytes) -> Frame {
    if response.encoded_len() <= ANSWER_HEAD_BYTES_MAX {
        return Frame { body, ..encode_to_client(to_client::Kind::Response(response)) };
    }
    let id = response.id;
    let mut whole = BytesMut::with_capacity(response.encoded_len() + body.len());
    // It grows as needed, so it never lacks room.
    let _ = response.encode(&mut whole);
    let bytes = u32::try_from(whole.len()).unwrap_or(u32::MAX);
    whole.extend_from_slice(&body);
    let in_body = Some(response::Kind::InBody(wire::InBody { bytes }));
    let frame = encode_to_client(to_client::Kind::Response(wire::Response { id, kind: in_body }));
    Frame { body: whole.freeze(), ..frame }
}

/// What an answer says, wherever it stands, and the body that belongs to it.
///
/// # Errors
/// When the front of the body is not the answer that the head says it is.
pub fn response(response: wire::Response, mut body: Bytes) -> Result<(wire::Response, Bytes), DecodeError> {
    let Some(response::Kind::InBody(wire::InBody { bytes })) = response.kind else { return Ok((response, body)) };
    if bytes as usize > body.len() {
        return Err(DecodeError::UnknownKind);
    }
    let whole = wire::Response::decode(body.split_to(bytes as usize))?;
    match whole.kind {
        // One in another would be no answer at all.
        None | Some(response::Kind::InBody(_)) => Err(DecodeError::UnknownKind),
        Some(_) => Ok((whole, body)),
    }
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
    fn an_answer_too_large_for_a_head_goes_into_the_body() {
        let answer = |bytes: usize| {
            let error = wire::Error { message: "g".repeat(bytes), ..wire::Error::default() };
            wire::Response { id: 7, kind: Some(response::Kind::Error(error)) }
        };
        let edge = 2 * ANSWER_HEAD_BYTES_MAX - answer(ANSWER_HEAD_BYTES_MAX).encoded_len();
        for (bytes, in_body) in [(1_000, false), (edge, false), (edge + 1, true), (2 << 20, true)] {
            let frame = encode_response(answer(bytes), Bytes::from_static(b"letters"));
            assert!(frame.head.len() <= FRAME_HEAD_BYTES_MAX as usize);
            assert_eq!(frame.body.len() > 7, in_body);
            let Ok(to_client::Kind::Response(head)) = decode_to_client(frame.head) else { panic!("not a response") };
            assert_eq!(head.id, 7);
            assert_eq!(response(head, frame.body), Ok((answer(bytes), Bytes::from_static(b"letters"))));
        }
    }

    #[test]
    fn an_answer_that_is_not_in_the_body_is_an_error() {
        let head = |bytes| wire::Response { id: 1, kind: Some(response::Kind::InBody(wire::InBody { bytes })) };
        assert!(response(head(10), Bytes::from_static(b"short")).is_err());
        assert!(response(head(0), Bytes::new()).is_err());
        let nested = Bytes::from(head(0).encode_to_vec());
        assert!(response(head(nested.len() as u32), nested).is_err());
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
