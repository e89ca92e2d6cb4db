//! A frame that is too large is refused before memory is taken for it.

use bytes::Bytes;
use stentor_core::transport::{CloseCode, FRAME_HEAD_BYTES_MAX, Frame, TransportError};

use super::harness::{assert_reset, converse, frame, pair, receive, stream};
use super::{Limits, Subject};

fn assert_too_large(error: &TransportError, expected_bytes: u64, expected_max: u64) {
    assert!(
        matches!(error, TransportError::FrameTooLarge { bytes, bytes_max } if (*bytes, *bytes_max) == (expected_bytes, expected_max)),
        "{error:?} does not say that {expected_bytes} is more than {expected_max}"
    );
}

/// One byte too many, in the head or in the body.
pub async fn a_frame_too_large_is_refused_by_its_sender_and_the_stream_goes_on(subject: &impl Subject) {
    let limits = Limits::default();
    let pair = pair(subject, limits).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    let head_max = u64::from(FRAME_HEAD_BYTES_MAX);
    let head = Bytes::from(vec![0; FRAME_HEAD_BYTES_MAX as usize + 1]);
    let error = near.sender.send(Frame::new(head)).await.expect_err("refused");
    assert_too_large(&error, head_max + 1, head_max);
    let body_max = u64::from(limits.client_body_bytes_max);
    let error = near.sender.send(frame(0, 0, limits.client_body_bytes_max as usize + 1)).await.expect_err("refused");
    assert_too_large(&error, body_max + 1, body_max);
    converse(&mut near, &mut far, 3).await;
}

/// The sides need not allow the same.
pub async fn a_frame_too_large_for_the_receiver_ends_the_stream_alone(subject: &impl Subject) {
    let limits = Limits { server_body_bytes_max: 10_000, ..Limits::default() };
    let pair = pair(subject, limits).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    let (mut other_near, mut other_far) = stream(&*pair.client, &*pair.server).await;
    near.sender.send(frame(0, 5, 10_000)).await.expect("sent");
    near.sender.send(frame(1, 5, 10_001)).await.expect("sent: the sender's own limit allows it");
    assert_eq!(receive(&mut *far.receiver).await, frame(0, 5, 10_000));
    for _ in 0..2 {
        let error = far.receiver.receive().await.expect_err("refused");
        assert_too_large(&error, 10_001, 10_000);
    }
    // The sender learns of it, in time.
    let error = loop {
        if let Err(error) = near.sender.send(frame(2, 0, 100)).await {
            break error;
        }
        converse(&mut other_near, &mut other_far, 1).await;
    };
    assert_reset(&error, CloseCode::LIMIT);
    // The other direction of the stream, and the other streams, go on.
    far.sender.send(frame(3, 3, 3)).await.expect("sent");
    assert_eq!(receive(&mut *near.receiver).await, frame(3, 3, 3));
    converse(&mut other_near, &mut other_far, 3).await;
}
