//! Frames arrive whole, once and in order.

use stentor_core::transport::FRAME_HEAD_BYTES_MAX;

use super::harness::{frame, pair, receive, stream};
use super::{Limits, Subject};

/// Around the edges of lengths, datagrams and pieces.
const SIZES: [usize; 14] = [0, 1, 2, 7, 8, 9, 255, 1_023, 1_024, 1_025, 1_200, 6_500, 65_536, 200_000];

/// Every head with every body, pipelined.
pub async fn frames_of_every_size_arrive_whole_and_in_order(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    let sizes = || SIZES.iter().flat_map(|head| SIZES.iter().map(|body| (*head, *body))).enumerate();
    let sending = async {
        for (number, (head, body)) in sizes() {
            near.sender.send(frame(number, head, body)).await.expect("sent");
        }
        near.sender.finish().expect("finished");
    };
    let receiving = async {
        for (number, (head, body)) in sizes() {
            let received = receive(&mut *far.receiver).await;
            assert!(
                received == frame(number, head, body),
                "frame {number} of {head} + {body} bytes is not what was sent"
            );
        }
        assert_eq!(far.receiver.receive().await.expect("the end"), None);
    };
    tokio::join!(sending, receiving);
}

/// Neither direction waits for the other.
pub async fn both_directions_carry_frames_at_once(subject: &impl Subject) {
    const FRAMES: usize = 200;
    const BODY_BYTES: usize = 50_000;
    let pair = pair(subject, Limits::default()).await;
    let (near, far) = stream(&*pair.client, &*pair.server).await;
    let (mut near_sender, mut near_receiver) = (near.sender, near.receiver);
    let (mut far_sender, mut far_receiver) = (far.sender, far.receiver);
    let there = tokio::spawn(async move {
        for number in 0..FRAMES {
            near_sender.send(frame(number, 10, BODY_BYTES)).await.expect("sent");
        }
        near_sender
    });
    let back = tokio::spawn(async move {
        for number in 0..FRAMES {
            far_sender.send(frame(number, 20, BODY_BYTES)).await.expect("sent");
        }
        far_sender
    });
    let there_received = tokio::spawn(async move {
        for number in 0..FRAMES {
            assert!(receive(&mut *far_receiver).await == frame(number, 10, BODY_BYTES), "frame {number} there");
        }
    });
    let back_received = tokio::spawn(async move {
        for number in 0..FRAMES {
            assert!(receive(&mut *near_receiver).await == frame(number, 20, BODY_BYTES), "frame {number} back");
        }
    });
    let ended = tokio::join!(there, back, there_received, back_received);
    assert!(ended.0.is_ok() && ended.1.is_ok() && ended.2.is_ok() && ended.3.is_ok());
}

/// The limits themselves are allowed.
pub async fn a_frame_of_the_largest_head_and_body_arrives(subject: &impl Subject) {
    let limits = Limits::default();
    let pair = pair(subject, limits).await;
    let (mut near, mut far) = stream(&*pair.client, &*pair.server).await;
    let largest = frame(0, FRAME_HEAD_BYTES_MAX as usize, limits.server_body_bytes_max as usize);
    let (sent, received) = tokio::join!(near.sender.send(largest.clone()), receive(&mut *far.receiver));
    sent.expect("sent");
    assert!(received == largest);
}
