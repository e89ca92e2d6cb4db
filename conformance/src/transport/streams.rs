//! Streams are opened, accepted and told apart.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;

use super::harness::{converse, frame, pair, receive, stream, text};
use super::{Limits, Subject};

/// The side that listens opens streams too.
pub async fn either_side_opens_streams(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let (mut near, mut far) = stream(&*pair.server, &*pair.client).await;
    let (mut other_near, mut other_far) = stream(&*pair.client, &*pair.server).await;
    converse(&mut near, &mut far, 10).await;
    converse(&mut other_near, &mut other_far, 10).await;
}

/// A stream on which nothing has been said may be seen or not, but the one opened after it is.
pub async fn a_silent_stream_does_not_hide_the_next(subject: &impl Subject) {
    let pair = pair(subject, Limits::default()).await;
    let _silent = pair.client.open().await.expect("a stream");
    let mut speaking = pair.client.open().await.expect("a stream");
    speaking.sender.send(text("here")).await.expect("sent");
    let mut first = pair.server.accept().await.expect("a stream");
    let heard = tokio::select! {
        frame = receive(&mut *first.receiver) => frame,
        second = pair.server.accept() => receive(&mut *second.expect("the second stream").receiver).await,
    };
    assert_eq!(heard, text("here"));
}

/// Opening waits for room, and room comes back as streams end.
pub async fn more_streams_than_allowed_wait_their_turn_and_all_are_served(subject: &impl Subject) {
    let limits = Limits { streams_per_connection_max: 4, ..Limits::default() };
    let pair = pair(subject, limits).await;
    let count = 10 * limits.streams_per_connection_max as usize;
    let server = Arc::clone(&pair.server);
    let serving = tokio::spawn(async move {
        for _ in 0..count {
            let mut stream = server.accept().await.expect("a stream");
            let question = receive(&mut *stream.receiver).await;
            stream.sender.send(question).await.expect("answered");
            stream.sender.finish().expect("finished");
            assert_eq!(stream.receiver.receive().await.expect("the end"), None);
        }
    });
    let asking = (0..count).map(|number| {
        let client = Arc::clone(&pair.client);
        async move {
            let mut stream = client.open().await.expect("a stream");
            stream.sender.send(frame(number, 9, number)).await.expect("asked");
            stream.sender.finish().expect("finished");
            assert_eq!(receive(&mut *stream.receiver).await, frame(number, 9, number));
            assert_eq!(stream.receiver.receive().await.expect("the end"), None);
        }
    });
    join_all(asking).await;
    serving.await.expect("all served");
}

/// An accept that loses a race takes nothing with it.
pub async fn an_accept_that_is_dropped_loses_no_stream(subject: &impl Subject) {
    const STREAMS: usize = 8;
    let pair = pair(subject, Limits::default()).await;
    let client = Arc::clone(&pair.client);
    let opening = tokio::spawn(async move {
        let mut streams = Vec::new();
        for number in 0..STREAMS {
            let mut stream = client.open().await.expect("a stream");
            stream.sender.send(frame(number, 4, 4)).await.expect("sent");
            streams.push(stream);
        }
        streams
    });
    for number in 0..STREAMS {
        let mut stream = loop {
            tokio::select! {
                biased;
                stream = pair.server.accept() => break stream.expect("a stream"),
                () = tokio::task::yield_now() => {}
            }
        };
        assert_eq!(receive(&mut *stream.receiver).await, frame(number, 4, 4));
    }
    opening.await.expect("all opened");
}

/// Accepting is for many, and no wake-up is lost among them.
pub async fn streams_accepted_by_many_tasks_are_each_accepted_once(subject: &impl Subject) {
    const STREAMS: usize = 16;
    let pair = pair(subject, Limits::default()).await;
    let accepting: Vec<_> = (0..STREAMS)
        .map(|_| {
            let server = Arc::clone(&pair.server);
            tokio::spawn(async move {
                let mut stream = server.accept().await.expect("a stream");
                let frame = receive(&mut *stream.receiver).await;
                (usize::from(frame.head[0]), stream)
            })
        })
        .collect();
    let mut opened = Vec::new();
    for number in 0..STREAMS {
        let mut stream = pair.client.open().await.expect("a stream");
        stream.sender.send(text(&char::from(number as u8).to_string())).await.expect("sent");
        opened.push(stream);
    }
    let mut seen = BTreeSet::new();
    for accepted in join_all(accepting).await {
        assert!(seen.insert(accepted.expect("accepted").0));
    }
    assert_eq!(seen, (0..STREAMS).collect());
}
