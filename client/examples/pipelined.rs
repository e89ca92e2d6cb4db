//! Publishes many messages without waiting for each, and counts what became of them.
//!
//! Run a broker with `stentor dev`, then: `cargo run -p stentor-client --example pipelined -- TOPIC COUNT`

use std::collections::VecDeque;

use stentor_client::{Client, Compression, Error, Message};

/// Receipts that are waited for at a time. The producer bounds the bytes; this bounds the futures.
const PENDING_MAX: usize = 10_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let topic = arguments.next().unwrap_or_else(|| "trade.order-paid".to_owned());
    let count: u64 = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(100_000);

    let client = Client::connect("127.0.0.1:7411").profile("stentor-data/client.toml").open().await?;
    let producer = client.producer(topic).compression(Compression::Lz4).open().await?;
    let (mut stored, mut failed, mut unknown) = (0_u64, 0_u64, 0_u64);
    let mut pending = VecDeque::new();
    for number in 0..count {
        pending.push_back(producer.enqueue(Message::new(format!("message {number}"))).await?);
        while pending.len() > PENDING_MAX || (number + 1 == count && !pending.is_empty()) {
            let Some(oldest) = pending.pop_front() else { break };
            match oldest.await {
                Ok(_) => stored += 1,
                // It may have been stored: sending it again could store it twice.
                Err(error) if error.may_be_stored() => unknown += 1,
                Err(_) => failed += 1,
            }
        }
    }
    println!("{stored} stored, {failed} not stored, {unknown} of unknown outcome");
    producer.close().await?;
    client.close().await;
    Ok(())
}
