//! Publishes a few messages and prints where each was stored.
//!
//! Run a broker with `stentor dev`, then: `cargo run -p stentor-client --example publish -- TOPIC MESSAGE…`

use stentor_client::{Client, Error, Message};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let topic = arguments.next().unwrap_or_else(|| "trade.order-paid".to_owned());
    let mut bodies: Vec<String> = arguments.collect();
    if bodies.is_empty() {
        bodies = vec!["hello".to_owned()];
    }

    let client = Client::connect("127.0.0.1:7411").profile("stentor-data/client.toml").open().await?;
    let producer = client.producer(topic).open().await?;
    for body in bodies {
        let receipt = producer.send(Message::new(body)).await?;
        println!("{} is at {}:{}", receipt.id, receipt.partition, receipt.offset);
    }
    producer.close().await?;
    client.close().await;
    Ok(())
}
