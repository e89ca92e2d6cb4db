//! How a stream ends, from either side.

use stentor_core::transport::{CloseCode, TransportError};

use super::harness::{
    assert_closed_by_peer, assert_reset, converse, frame, pair, receive, receive_until_failure, stream, text,
};
use super::{Limits, Subject};

const CODE: CloseCode = CloseCode(4_242);

/// All of it, and then the end, again and again.
pub async fn finish_delivers_what_was_sent(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    let sending = async {
        for number in 0..100 {
            near.sender.send(frame(number, 10, 30_000)).await.expect("sent");
        }
        near.sender.finish().expect("finished");
        // What was finished survives the sender.
        drop(near.sender);
    };
    let receiving = async {
        for number in 0..100 {
            assert!(receive(&mut *far.receiver).await == frame(number, 10, 30_000), "frame {number}");
        }
        assert_eq!(far.receiver.receive().await.expect("the end"), None);
        assert_eq!(far.receiver.receive().await.expect("still the end"), None);
    };
    tokio::join!(sending, receiving);
}

/// This side has had its say.
pub async fn nothing_is_sent_after_finish_or_reset(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    near.sender.finish().expect("finished");
    far.sender.reset(CODE);
    for sender in [&mut near.sender, &mut far.sender] {
        assert!(matches!(sender.send(text("more")).await, Err(TransportError::Ended)));
        assert!(matches!(sender.finish(), Err(TransportError::Ended)));
    }
    assert!(matches!(far.sender.finished().await, Err(TransportError::Ended)));
}

/// Half an answer must not look like a whole one.
pub async fn a_dropped_sender_resets_the_stream(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (near, mut far) = stream(&*pair.client, &*pair.server).await;
    drop(near.sender);
    let (_, error) = receive_until_failure(&mut *far.receiver).await;
    assert_reset(&error, CloseCode::NORMAL);
    // The connection lives, and the error stays.
    let (mut near, mut other) = stream(&*pair.client, &*pair.server).await;
    converse(&mut near, &mut other, 3).await;
    assert_reset(&far.receiver.receive().await.expect_err("still reset"), CloseCode::NORMAL);
}

/// Nobody is left to read.
pub async fn a_dropped_receiver_stops_the_peer(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (mut near, far) = stream(&*pair.client, &*pair.server).await;
    drop(far.receiver);
    let error = loop {
        if let Err(error) = near.sender.send(frame(0, 0, 60_000)).await {
            break error;
        }
    };
    assert_reset(&error, CloseCode::NORMAL);
}

/// The receiver is told why.
pub async fn reset_carries_its_code(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    near.sender.reset(CODE);
    let (_, error) = receive_until_failure(&mut *far.receiver).await;
    assert_reset(&error, CODE);
}

/// The sender is told why, even while it waits for room.
pub async fn stop_carries_its_code(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    let frames = 3 * subject.unread_bytes_max() / 60_000;
    let sending = tokio::spawn(async move {
        for number in 0..frames {
            if let Err(error) = near.sender.send(frame(number, 0, 60_000)).await {
                return Some(error);
            }
        }
        None
    });
    let (mut beside_near, mut beside_far) = stream(&*pair.client, &*pair.server).await;
    converse(&mut beside_near, &mut beside_far, 100).await;
    far.receiver.stop(CODE);
    let error = sending.await.expect("ended").expect("stopped before it had sent all");
    assert_reset(&error, CODE);
    assert!(matches!(far.receiver.receive().await, Err(TransportError::Ended)));
}

/// A question may be over before its answer begins.
pub async fn the_end_of_one_direction_leaves_the_other(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    near.sender.finish().expect("finished");
    assert_eq!(far.receiver.receive().await.expect("the end"), None);
    drop(near.sender);
    drop(far.receiver);
    for number in 0..50 {
        far.sender.send(frame(number, 1, 1_000)).await.expect("sent");
        assert_eq!(receive(&mut *near.receiver).await, frame(number, 1, 1_000));
    }
}

/// How a server says why it hangs up.
pub async fn a_last_frame_survives_the_close_once_finished_has_returned(subject: &impl Subject) {
    for number in 0..10 {
        let pair = pair(subject, Limits::default()).await;
        let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
        far.sender.send(frame(number, 10, 20_000)).await.expect("sent");
        far.sender.finished().await.expect("delivered");
        pair.server.close(CloseCode::UNAUTHORIZED, "no");
        let why = pair.client.closed().await;
        assert_closed_by_peer(&why, CloseCode::UNAUTHORIZED, "no");
        assert!(receive(&mut *near.receiver).await == frame(number, 10, 20_000));
        assert_eq!(near.receiver.receive().await.expect("the end"), None);
    }
}

/// It does not wait for what will not come.
pub async fn finished_reports_a_peer_that_stopped(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    far.receiver.stop(CODE);
    // Once the sender knows of it.
    while near.sender.send(frame(0, 0, 60_000)).await.is_ok() {}
    assert_reset(&near.sender.finished().await.expect_err("stopped"), CODE);
}
