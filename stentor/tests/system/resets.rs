//! A broker that was killed and started again ends the connections of before, instead of leaving its clients to their idle
//! time.

use std::sync::Arc;
use std::time::Duration;

use stentor_client::{Client, Message};
use stentor_transport_quic::{ClientConfig, ClientTls, QuicSettings, QuicTransport};

use crate::support::broker::Broker;
use crate::support::sdk;
use crate::support::wait::{DEADLINE, within};

const TOPIC: &str = "orders";

/// So long that nobody here lives to see it, nor a keep-alive.
const IDLE_TIMEOUT: Duration = Duration::from_secs(24 * 3_600);

/// A client that gives up on a silent broker only after a day.
async fn patient_client(broker: &Broker) -> Client {
    let quic = QuicSettings { idle_timeout: IDLE_TIMEOUT, ..QuicSettings::default() };
    let ca = broker.data_folder().join("tls/ca.pem");
    let config = ClientConfig { tls: ClientTls { ca, identity: None }, server_name: None, quic };
    let transport = Arc::new(QuicTransport::new(config).unwrap());
    let opening = Client::connect(broker.quic()).transport(transport).request_timeout(DEADLINE * 10).open();
    within(DEADLINE, "a client to connect", opening).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_killed_broker_notice_it_by_its_successor_and_not_by_their_idle_time() {
    let broker = Broker::with_config("[node]\nidle_timeout = \"24h\"\n").await;
    let client = patient_client(&broker).await;
    let producer = sdk::producer(&client, TOPIC).await;
    let before = producer.send(Message::new("before")).await.unwrap();
    for _ in 0..2 {
        broker.kill9().await;
        broker.restart().await;
        // Both say something on the connection of before, and hear that it is none.
        let after = within(DEADLINE, "the producer to notice", producer.send(Message::new("after"))).await.unwrap();
        assert_ne!((before.partition, before.offset), (after.partition, after.offset));
        within(DEADLINE, "the client to notice", client.admin().show_topic(TOPIC)).await.unwrap();
    }
}
