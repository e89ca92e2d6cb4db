//! What the properties share.

use std::sync::Arc;

use bytes::Bytes;
use stentor_core::transport::{CloseCode, Connection, Frame, FrameReceiver, FrameStream, TransportError};

use super::{Limits, Network, Subject};

/// Both ends of a connection, and the listener that it came through.
pub(super) struct Pair {
    pub(super) network: Network,
    pub(super) client: Arc<dyn Connection>,
    pub(super) server: Arc<dyn Connection>,
}

pub(super) async fn pair(subject: &impl Subject, limits: Limits) -> Pair {
    let mut network = subject.network(limits).await;
    let (client, server) = connect(&mut network).await;
    Pair { network, client, server }
}

pub(super) async fn connect(network: &mut Network) -> (Arc<dyn Connection>, Arc<dyn Connection>) {
    let address = network.listener.local_address();
    let (client, server) = tokio::join!(network.transport.connect(&address), network.listener.accept());
    (client.expect("a connection"), server.expect("an accepted connection"))
}

/// Both ends of a stream that the first side opens; its first frame has gone over.
pub(super) async fn stream(from: &dyn Connection, to: &dyn Connection) -> (FrameStream, FrameStream) {
    let mut near = from.open().await.expect("a stream");
    near.sender.send(text("hello")).await.expect("the first frame");
    let mut far = to.accept().await.expect("the stream");
    assert_eq!(receive(&mut *far.receiver).await, text("hello"));
    (near, far)
}

/// The next frame of a stream that has one.
pub(super) async fn receive(from: &mut dyn FrameReceiver) -> Frame {
    from.receive().await.expect("a frame").expect("a frame rather than the end")
}

/// Receives until the stream fails; gives the failure and the frames before it.
pub(super) async fn receive_until_failure(from: &mut dyn FrameReceiver) -> (Vec<Frame>, TransportError) {
    let mut frames = Vec::new();
    loop {
        match from.receive().await {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => panic!("the stream was finished, not ended early, after {} frames", frames.len()),
            Err(error) => return (frames, error),
        }
    }
}

pub(super) fn text(text: &str) -> Frame {
    Frame::new(Bytes::copy_from_slice(text.as_bytes()))
}

/// A frame whose bytes tell sizes and numbers apart.
pub(super) fn frame(number: usize, head_bytes: usize, body_bytes: usize) -> Frame {
    let bytes = |count: usize, salt: usize| -> Bytes {
        (0..count).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ number ^ salt ^ count) as u8).collect()
    };
    Frame { head: bytes(head_bytes, 1), body: bytes(body_bytes, 2) }
}

/// Sends words to and fro; what was stuck or lost before is so for good when this returns.
pub(super) async fn converse(near: &mut FrameStream, far: &mut FrameStream, times: usize) {
    for number in 0..times {
        let word = frame(number, 8, 1_000);
        near.sender.send(word.clone()).await.expect("a word");
        assert_eq!(receive(&mut *far.receiver).await, word);
        far.sender.send(word.clone()).await.expect("an answer");
        assert_eq!(receive(&mut *near.receiver).await, word);
    }
}

pub(super) fn assert_reset(error: &TransportError, expected: CloseCode) {
    assert!(
        matches!(error, TransportError::Reset(code) if *code == expected),
        "{error:?} is no reset with {expected:?}"
    );
}

pub(super) fn assert_closed_by_peer(error: &TransportError, code: CloseCode, text: &str) {
    let TransportError::ConnectionClosed(Some(reason)) = error else { panic!("{error:?} is no close by the peer") };
    assert_eq!((reason.code, reason.text.as_str()), (code, text));
}
