//! Publishing as much as goes, and taking it: for rates, without a model of every message.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use stentor_client::{Client, Consumer, Message, PendingSend, Producer};

use crate::support::wait::{DEADLINE, Stopwatch, within};

/// Messages under way at a time.
const IN_FLIGHT: usize = 8_192;

/// Bodies that do not compress.
pub(crate) fn body(bytes: usize) -> Bytes {
    let mut body = vec![0; bytes];
    fastrand::Rng::with_seed(0xf100d).fill(&mut body);
    body.into()
}

/// When it is enough.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Messages(u64),
    Passed(Duration),
}

/// What was published, all of it acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flood {
    pub(crate) messages: u64,
    pub(crate) per_second: f64,
}

/// Publishes the same body again and again.
pub(crate) async fn publish(producer: &Producer, body: &Bytes, until: Until) -> Flood {
    let watch = Stopwatch::start();
    let mut waiting: VecDeque<PendingSend> = VecDeque::new();
    let mut messages = 0;
    let over = |messages: u64| match until {
        Until::Messages(count) => messages >= count,
        // The clock need not be read for each.
        Until::Passed(time) => messages.is_multiple_of(64) && watch.elapsed() >= time,
    };
    while !over(messages) {
        if waiting.len() >= IN_FLIGHT {
            within(DEADLINE, "a receipt", waiting.pop_front().unwrap()).await.unwrap();
        }
        while let Some(receipt) = waiting.front_mut().and_then(FutureExt::now_or_never) {
            receipt.unwrap();
            waiting.pop_front();
        }
        waiting.push_back(producer.enqueue(Message::new(body.clone())).await.unwrap());
        messages += 1;
    }
    for pending in waiting {
        within(DEADLINE, "a receipt", pending).await.unwrap();
    }
    Flood { messages, per_second: messages as f64 / watch.elapsed().as_secs_f64() }
}

/// A producer for floods, whose batches have at most so many messages.
pub(crate) async fn producer(client: &Client, topic: &str, batch: u32) -> Producer {
    let opening = client.producer(topic).batch_records(batch).send_timeout(DEADLINE * 2).open();
    within(DEADLINE, "a producer to open", opening).await.unwrap()
}

/// Takes and acknowledges at least so many messages.
pub(crate) async fn take(consumer: &mut Consumer, messages: u64) -> u64 {
    let mut taken = 0;
    while taken < messages {
        let batch = within(DEADLINE, "a batch", consumer.next_batch()).await.unwrap().expect("the consumer is open");
        taken += batch.len() as u64;
        within(DEADLINE, "an answer", batch.ack()).await.unwrap();
    }
    taken
}

/// The middle one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
