//! Receives the messages of a group, and prints and acknowledges each, until Ctrl-C.
//!
//! Run a broker with `stentor dev`, then: `cargo run -p stentor-client --example subscribe -- TOPIC GROUP`

use std::time::Duration;

use stentor_client::{Client, Delivery, Error, StartAt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let topic = arguments.next().unwrap_or_else(|| "trade.order-paid".to_owned());
    let group = arguments.next().unwrap_or_else(|| "example".to_owned());

    let client = Client::connect("127.0.0.1:7411").profile("stentor-data/client.toml").open().await?;
    let mut consumer = client.consumer(topic, group).from(StartAt::Earliest).open().await?;
    loop {
        let delivery = tokio::select! {
            delivery = consumer.next() => delivery?,
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(delivery) = delivery else { break };
        match handle(&delivery) {
            Ok(()) => delivery.ack().await?,
            Err(error) => delivery.nack().reason(error).after(Duration::from_secs(5)).send().await?,
        }
    }
    // Gives back at once what was not asked for.
    consumer.close().await;
    client.close().await;
    Ok(())
}

fn handle(delivery: &Delivery) -> Result<(), std::str::Utf8Error> {
    let body = std::str::from_utf8(delivery.body())?;
    println!("{}:{} {} (attempt {})", delivery.partition(), delivery.offset(), body, delivery.attempt());
    Ok(())
}
