//! A peer that does not read holds up that stream, within bounds, and nothing else; and what is dropped half-way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stentor_core::transport::{CloseCode, FrameStream, TransportError};
use tokio::task::JoinHandle;

use super::harness::{assert_reset, converse, frame, pair, receive, receive_until_failure, stream};
use super::{Limits, Subject};

const BODY_BYTES: usize = 64 << 10;

/// Exchanges that go on beside what must not happen.
const EXCHANGES: usize = 300;

/// Sends `frames` and counts what has been taken.
fn send_in_background(mut stream: FrameStream, frames: usize) -> (JoinHandle<FrameStream>, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    let task = tokio::spawn(async move {
        for number in 0..frames {
            stream.sender.send(frame(number, 0, BODY_BYTES)).await.expect("sent");
            counter.fetch_add(BODY_BYTES, Ordering::Relaxed);
        }
        stream
    });
    (task, taken)
}

/// It stops within the bound, and goes on when the peer reads.
pub async fn a_peer_that_never_reads_stops_its_sender(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (near, mut far) = stream(&*pair.client, &*pair.server).await;
    let (mut beside_near, mut beside_far) = stream(&*pair.client, &*pair.server).await;
    let frames = 3 * subject.unread_bytes_max() / BODY_BYTES;
    let (sending, taken) = send_in_background(near, frames);
    converse(&mut beside_near, &mut beside_far, EXCHANGES).await;
    let stuck_at = taken.load(Ordering::Relaxed);
    assert!(stuck_at <= subject.unread_bytes_max(), "{stuck_at} bytes were taken and nobody read");
    assert!(!sending.is_finished());
    for number in 0..frames {
        assert!(receive(&mut *far.receiver).await == frame(number, 0, BODY_BYTES), "frame {number}");
    }
    sending.await.expect("sent to the end");
}

/// As many as may be open, all but one of them stuck.
pub async fn unread_streams_do_not_hold_up_another(subject: &impl Subject) {
    let limits = Limits { streams_per_connection_max: 6, ..Limits::default() };
    let pair = pair(subject, limits).await;
    let frames = 3 * subject.unread_bytes_max() / BODY_BYTES;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    let mut stuck = Vec::new();
    for _ in 1..limits.streams_per_connection_max {
        let (stuck_near, stuck_far) = stream(&*pair.client, &*pair.server).await;
        stuck.push((send_in_background(stuck_near, frames), stuck_far));
    }
    converse(&mut near, &mut far, EXCHANGES).await;
    // A large frame needs the windows to move, not just to have been open.
    for number in 0..20 {
        let large = frame(number, 100, 1 << 20);
        let (sent, received) = tokio::join!(near.sender.send(large.clone()), receive(&mut *far.receiver));
        sent.expect("sent");
        assert!(received == large);
    }
    for ((sending, _), _) in stuck {
        assert!(!sending.is_finished());
        sending.abort();
    }
}

/// Dropped again and again while a large frame trickles in.
pub async fn a_receive_that_is_dropped_loses_nothing(subject: &impl Subject) {
    const FRAMES: usize = 6;
    let pair = pair(subject, Limits::default()).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    let sending = tokio::spawn(async move {
        for number in 0..FRAMES {
            near.sender.send(frame(number, 3_000, 1 << 20)).await.expect("sent");
        }
        near
    });
    let mut dropped = 0_usize;
    for number in 0..FRAMES {
        let received = loop {
            tokio::select! {
                biased;
                frame = far.receiver.receive() => break frame.expect("a frame").expect("not the end"),
                () = tokio::task::yield_now() => dropped += 1,
            }
        };
        assert!(received == frame(number, 3_000, 1 << 20), "frame {number} after {dropped} drops");
    }
    sending.await.expect("sent");
    assert!(dropped > 0, "no receive was ever dropped");
}

/// What follows half a frame would be taken for the rest of it.
pub async fn a_send_that_is_dropped_half_way_breaks_the_stream(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    let mut sent = 0;
    // Until one has to wait.
    loop {
        let mut pending = false;
        tokio::select! {
            biased;
            result = near.sender.send(frame(sent, 0, BODY_BYTES)) => result.expect("sent"),
            () = tokio::task::yield_now() => pending = true,
        }
        if pending {
            break;
        }
        sent += 1;
        assert!(sent * BODY_BYTES <= 2 * subject.unread_bytes_max(), "no send ever waited");
    }
    let again = near.sender.send(frame(sent, 0, 1)).await.expect_err("refused");
    assert!(matches!(again, TransportError::Broken), "{again:?}");
    assert!(matches!(near.sender.finish(), Err(TransportError::Broken)));
    assert!(matches!(near.sender.finished().await, Err(TransportError::Broken)));
    drop(near.sender);
    let (received, error) = receive_until_failure(&mut *far.receiver).await;
    assert!(received.len() <= sent);
    for (number, received) in received.iter().enumerate() {
        assert!(*received == frame(number, 0, BODY_BYTES), "frame {number}");
    }
    assert_reset(&error, CloseCode::NORMAL);
}
