//! The disk fills up. Publishing is refused by name, everything else goes on, nothing acknowledged is lost, and with room
//! publishing comes back by itself.

use std::time::Duration;

use stentor_client::{Client, ErrorCode, InDoubt, Message, Producer};

use crate::support::broker::{Broker, Setup, Start};
use crate::support::ledger::{Published, Received};
use crate::support::pattern::Pattern;
use crate::support::room::Room;
use crate::support::scale::scaled;
use crate::support::sdk::{self, arrival};
use crate::support::wait::{DEADLINE, within};

const TOPIC: &str = "orders";
const GROUP: &str = "red-packet";

/// Nothing is kept for replay, so that room comes back as soon as a group is done.
const CONFIG: &str = "[node]\nidle_timeout = \"2s\"\ndisk_reserve = \"32MiB\"\n[defaults]\nretain_for = \"0s\"\npartitions = 2\n\
    max_attempts = 1000000\n";

/// The file system's size, in MiB; some of the tests take most of it away at first.
const ROOM_MIB: u64 = 512;

fn pattern(seed: u64) -> Pattern {
    Pattern { seed, bytes: 60 << 10 }
}

fn inside(room: &Room) -> impl FnOnce(Setup) -> Setup {
    let (data_dir, data_dir_from_here, wrapper) = (room.inside("data"), room.outside("data"), room.wrapper());
    move |mut setup| {
        (setup.data_dir, setup.data_dir_from_here, setup.wrapper) = (data_dir, data_dir_from_here, wrapper);
        setup
    }
}

/// A producer that says soon that there is no room.
async fn impatient(client: &Client) -> Producer {
    let opening = client.producer(TOPIC).in_doubt(InDoubt::Wait).retry_for(Duration::from_millis(500)).open();
    within(DEADLINE, "a producer to open", opening).await.unwrap()
}

/// Publishes until the broker says that it is full, and returns what is stored and the number of the first that is not.
async fn publish_until_full(producer: &Producer, pattern: Pattern, from: u64) -> (Published, u64) {
    let mut published = Published::default();
    let publishing = async {
        for number in from.. {
            match producer.send(Message::new(pattern.body(number))).await {
                Ok(receipt) => {
                    published.stored.insert(number, sdk::place(&receipt));
                }
                Err(error) => {
                    assert_eq!(error.code(), ErrorCode::StorageFull, "{error}");
                    assert!(!error.may_be_stored());
                    return number;
                }
            }
        }
        unreachable!("the numbers do not end")
    };
    let refused = within(DEADLINE * 2, "the disk to fill up", publishing).await;
    (published, refused)
}

/// Waits until a message is stored again; the broker is not restarted meanwhile.
async fn publishing_comes_back(producer: &Producer, pattern: Pattern, published: &mut Published, number: u64) {
    let trying = async {
        loop {
            match producer.send(Message::new(pattern.body(number))).await {
                Ok(receipt) => return sdk::place(&receipt),
                Err(error) => assert_eq!(error.code(), ErrorCode::StorageFull, "{error}"),
            }
        }
    };
    let place = within(DEADLINE, "publishing to come back", trying).await;
    published.stored.insert(number, place);
}

/// Takes `messages` of the group and acknowledges them durably.
async fn consume(client: &Client, received: &mut Received, messages: usize) {
    let mut consumer = sdk::consumer(client, TOPIC, GROUP, 100).await;
    for _ in 0..messages {
        let delivery = sdk::next(&mut consumer).await;
        let number = received.arrived(&arrival(&delivery));
        within(DEADLINE, "an acknowledgement on a full disk", delivery.ack_durable()).await.unwrap();
        number.into_iter().for_each(|number| received.done(number));
    }
    consumer.close().await;
}

async fn drain(broker: &Broker, client: &Client, received: &mut Received) {
    let mut consumer = sdk::consumer(client, TOPIC, GROUP, 100).await;
    sdk::drain(broker, (TOPIC, GROUP), &mut consumer, |delivery| {
        received.arrived(&arrival(&delivery));
        async move { delivery.ack().await.unwrap() }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_publishing_alone_and_takes_it_up_again_once_there_is_room() {
    let Some(room) = Room::new(&format!("size={ROOM_MIB}m")).await else { return };
    let pattern = pattern(0xf011_0001);
    let filler = room.fill("filler", 200 << 20);
    let broker = Broker::with_setup(CONFIG, inside(&room)).await;
    let client = sdk::connect(&broker).await;
    broker.run(["group", "create", TOPIC, GROUP, "--from", "earliest"]).await;
    let producer = impatient(&client).await;
    let mut received = Received::new(pattern);

    let (mut published, refused) = publish_until_full(&producer, pattern, 0).await;
    assert!(refused > 100, "full after {refused} messages");
    // Reading and acknowledging go on, also after a crash on the full disk.
    consume(&client, &mut received, 40).await;
    broker.kill9().await;
    broker.restart().await;
    consume(&client, &mut received, 40).await;
    let (more, refused) = publish_until_full(&producer, pattern, refused + 1).await;
    published.merge(more);

    std::fs::remove_file(filler).unwrap();
    publishing_comes_back(&producer, pattern, &mut published, refused).await;
    drain(&broker, &client, &mut received).await;
    received.check(&published);
}

/// Nobody makes room but the group, by being done with what fills the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_of_messages_has_room_again_once_the_group_is_done_with_them() {
    let Some(room) = Room::new(&format!("size={ROOM_MIB}m")).await else { return };
    let pattern = pattern(0xf011_0002);
    let broker = Broker::with_setup(CONFIG, inside(&room)).await;
    let client = sdk::connect(&broker).await;
    broker.run(["group", "create", TOPIC, GROUP, "--from", "earliest"]).await;
    let producer = impatient(&client).await;
    let mut received = Received::new(pattern);
    let mut next = 0;
    let mut published = Published::default();
    for _ in 0..scaled(1, 2, 5) {
        let (more, refused) = publish_until_full(&producer, pattern, next).await;
        published.merge(more);
        drain(&broker, &client, &mut received).await;
        publishing_comes_back(&producer, pattern, &mut published, refused).await;
        next = refused + 1;
    }
    drain(&broker, &client, &mut received).await;
    received.check(&published);
}

/// Another process takes every last byte, the reserve included, while messages are published and acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_another_process_eats_the_reserve_too_the_broker_stops_cleanly_and_starts_cleanly() {
    let Some(room) = Room::new(&format!("size={ROOM_MIB}m")).await else { return };
    let pattern = pattern(0xf011_0003);
    let first = room.fill("filler", 250 << 20);
    let broker = Broker::with_setup(CONFIG, inside(&room)).await;
    let client = sdk::connect(&broker).await;
    broker.run(["group", "create", TOPIC, GROUP, "--from", "earliest"]).await;
    let mut received = Received::new(pattern);
    let mut published = sdk::publish_all(&client, TOPIC, pattern, 0..200).await;
    consume(&client, &mut received, 50).await;

    let second = room.fill("glutton", 0);
    let producer = impatient(&client).await;
    for number in 200..400 {
        match producer.send(Message::new(pattern.body(number))).await {
            Ok(receipt) => drop(published.stored.insert(number, sdk::place(&receipt))),
            Err(error) if error.may_be_stored() => drop(published.in_doubt.insert(number)),
            Err(_) => break,
        };
    }
    // It may take acknowledgements or refuse them; it may not take them and forget them.
    let mut consumer = sdk::consumer(&client, TOPIC, GROUP, 10).await;
    for _ in 0..10 {
        let Some(delivery) = sdk::next_within(&mut consumer, Duration::from_secs(2)).await else { break };
        let number = received.arrived(&arrival(&delivery));
        if let Ok(Ok(())) = tokio::time::timeout(Duration::from_secs(5), delivery.ack_durable()).await {
            number.into_iter().for_each(|number| received.done(number));
        }
    }
    drop(consumer);

    let status = broker.terminate().await;
    assert!(matches!(status.code(), Some(0 | 1)), "not a clean stop: {status}\n{}", broker.log());
    assert!(!broker.log().contains("panicked"), "{}", broker.log());
    // On a disk with no room at all it starts, or says why not.
    match broker.try_restart().await {
        Ok(()) => drop(broker.terminate().await),
        Err((status, log)) => assert!(status.code() == Some(1) && !log.contains("panicked"), "{status}\n{log}"),
    }
    std::fs::remove_file(second).unwrap();
    std::fs::remove_file(first).unwrap();
    broker.restart().await;
    drain(&broker, &client, &mut received).await;
    received.check(&published);
    broker.run(["publish", TOPIC, "there is room again"]).await;
}

/// What starts on a full disk says so instead of half starting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_broker_on_a_full_disk_says_so() {
    let Some(room) = Room::new("size=8m").await else { return };
    room.fill("filler", 0);
    match Broker::try_start("", inside(&room)).await {
        Start::Ready(_) => panic!("it says that it serves, without a byte of room"),
        Start::Refused(status, log) => {
            assert_eq!(status.code(), Some(1), "{log}");
            assert!(!log.contains("panicked"), "{log}");
        }
    }
}
