//! The SDK as an application uses it, with the few habits that the tests share.

use std::future::Future;
use std::ops::Range;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use stentor_client::{Client, Consumer, Delivery, InDoubt, Message, Producer, Receipt, SendError, StartAt};
use tokio::sync::watch;

use super::broker::Broker;
use super::ledger::{Arrival, Place, Published};
use super::pattern::Pattern;
use super::wait::{DEADLINE, until, within};

/// Messages that a publisher has on their way at a time.
const IN_FLIGHT: usize = 512;

/// How long nothing comes before a consumer looks whether anything is still owed.
const QUIET: Duration = Duration::from_millis(300);

/// A client of this broker.
pub(crate) async fn connect(broker: &Broker) -> Client {
    let opening = Client::connect(broker.quic()).profile(broker.profile()).open();
    within(DEADLINE, "a client to connect", opening).await.unwrap()
}

/// A client of this broker, which may be down for the moment.
pub(crate) async fn connect_when_up(broker: &Broker) -> Client {
    let open = || async { Client::connect(broker.quic()).profile(broker.profile()).open().await };
    until("the broker to be up", open, Result::is_ok).await.unwrap()
}

/// A producer that never stores a message twice: one in doubt waits for its partition.
pub(crate) async fn producer(client: &Client, topic: &str) -> Producer {
    let opening = client.producer(topic).in_doubt(InDoubt::Wait).send_timeout(DEADLINE * 2).open();
    within(DEADLINE, "a producer to open", opening).await.unwrap()
}

/// A consumer of a group that begins with the earliest message, with this much credit.
pub(crate) async fn consumer(client: &Client, topic: &str, group: &str, credit: u32) -> Consumer {
    let opening = client.consumer(topic, group).from(StartAt::Earliest).credit(credit).open();
    within(DEADLINE, "a consumer to open", opening).await.unwrap()
}

/// Publishes the messages with these numbers, many at a time, and tells how many have their receipt as it goes.
pub(crate) async fn publish(
    producer: &Producer,
    pattern: Pattern,
    numbers: Range<u64>,
    progress: &watch::Sender<u64>,
) -> Published {
    let mut published = Published::default();
    let mut on_their_way = FuturesOrdered::new();
    let mut note = |(number, outcome): (u64, Result<_, SendError>)| {
        match outcome {
            Ok(receipt) => {
                published.stored.insert(number, place(&receipt));
                progress.send_modify(|acknowledged| *acknowledged += 1);
            }
            Err(error) if error.may_be_stored() => drop(published.in_doubt.insert(number)),
            Err(_) => drop(published.refused.insert(number)),
        };
    };
    for number in numbers {
        if on_their_way.len() == IN_FLIGHT {
            on_their_way.next().await.map(&mut note);
        }
        match producer.enqueue(Message::new(pattern.body(number))).await {
            Ok(pending) => on_their_way.push_back(async move { (number, pending.await) }),
            Err(error) => note((number, Err(error))),
        }
    }
    while let Some(outcome) = on_their_way.next().await {
        note(outcome);
    }
    published
}

/// Publishes messages that must all be stored.
pub(crate) async fn publish_all(client: &Client, topic: &str, pattern: Pattern, numbers: Range<u64>) -> Published {
    let producer = producer(client, topic).await;
    let progress = watch::Sender::new(0);
    let publishing = publish(&producer, pattern, numbers.clone(), &progress);
    let published = within(DEADLINE * 4, "everything to be published", publishing).await;
    assert_eq!(published.stored.len() as u64, numbers.end - numbers.start, "not everything was stored");
    published
}

/// Where a receipt says that the message lies.
pub(crate) fn place(receipt: &Receipt) -> Place {
    (receipt.partition.0, receipt.offset.0)
}

/// The next message, which must come.
pub(crate) async fn next(consumer: &mut Consumer) -> Delivery {
    within(DEADLINE, "a message", consumer.next()).await.unwrap().expect("the consumer is open")
}

/// The next message, if one comes within `limit`.
pub(crate) async fn next_within(consumer: &mut Consumer, limit: Duration) -> Option<Delivery> {
    match tokio::time::timeout(limit, consumer.next()).await {
        Ok(delivery) => Some(delivery.unwrap().expect("the consumer is open")),
        Err(_) => None,
    }
}

/// Gives every message to `each` until the group owes nothing any more.
pub(crate) async fn drain<F: Future<Output = ()>>(
    broker: &Broker,
    (topic, group): (&str, &str),
    consumer: &mut Consumer,
    mut each: impl FnMut(Delivery) -> F,
) {
    let draining = async {
        loop {
            match next_within(consumer, QUIET).await {
                Some(delivery) => each(delivery).await,
                None if broker.show(["group", "show", topic, group]).await["backlog"] == 0 => return,
                None => {}
            }
        }
    };
    within(DEADLINE * 2, &format!("{group} to be owed nothing of {topic}"), draining).await;
}

/// What the model needs to know of a delivery.
pub(crate) fn arrival(delivery: &Delivery) -> Arrival {
    Arrival {
        body: delivery.body().clone(),
        place: (delivery.partition().0, delivery.offset().0),
        attempt: delivery.attempt(),
        redelivered: delivery.redelivered(),
    }
}
