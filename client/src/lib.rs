//! The client SDK of stentor, a message broker for services that must stay apart and still agree.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use stentor_client::{Client, Message};
//! # use stentor_client::{Delivery, Error};
//! # async fn handle(_: &Delivery) -> Result<(), String> { Ok(()) }
//!
//! # async fn example() -> Result<(), Error> {
//! let client = Client::connect("127.0.0.1:7411").profile("stentor-data/client.toml").open().await?;
//!
//! let producer = client.producer("trade.order-paid").open().await?;
//! // As durable as the topic when this returns.
//! let receipt = producer.send(Message::new("…").key("order-17").tag("paid")).await?;
//! // Waits only for room; the receipt comes later.
//! let pending = producer.enqueue(Message::new("…")).await?;
//! println!("{} is at {}:{}, {pending:?} is on its way", receipt.id, receipt.partition, receipt.offset);
//! let receipt = pending.await?;
//!
//! let mut orders = client.consumer("trade.order-paid", "red-packet").filter("tag = 'paid'").open().await?;
//! while let Some(delivery) = orders.next().await? {
//!     match handle(&delivery).await {
//!         // Accepted by the broker; durable within its `ack_flush`.
//!         Ok(()) => delivery.ack().await?,
//!         Err(e) => delivery.nack().reason(e).after(Duration::from_secs(5)).send().await?,
//!     }
//! }
//!
//! orders.close().await;
//! producer.close().await?;
//! client.close().await;
//! # let _ = receipt;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Client`] is the connection. It is made again by itself when it is lost, and producers and consumers go on.
//! - [`Producer`] batches, pipelines, compresses, and gives every message a [`Receipt`] or a [`SendError`] that says
//!   whether the message may have been stored; see [`producer`].
//! - [`Consumer`] receives the messages of a group; each [`Delivery`] is acknowledged, refused or extended on its own; see
//!   [`consumer`].
//! - [`Admin`](admin::Admin) does the rest: topics, groups, dead letters, messages, nodes.
//!
//! Every error is a typed enum with a word for programs (`kind`), one line for people (`Display`) and often a hint; see
//! [`error`]. Every task ends when what it belongs to is closed or dropped. Futures that say so are cancel safe.
//!
//! # Without QUIC
//!
//! The feature `quic`, on by default, connects over QUIC. Without it, or beside it, the SDK works over any
//! [`Transport`](stentor_core::transport::Transport) that it is handed; time and randomness can be handed to it likewise.

pub mod admin;
mod backoff;
mod client;
pub mod consumer;
pub mod error;
mod line;
mod link;
mod message;
mod outcome;
pub mod producer;
mod profile;
mod routes;

pub use client::{Client, ConnectBuilder};
pub use consumer::{Consumer, ConsumerBuilder, Delivery, DeliveryBatch, Refusal, Settlement, StartAt};
pub use error::{BrokerError, ConnectError, Error, OpenError, ReceiveError, RequestError, SendError, SettleError};
pub use message::Message;
pub use producer::{InDoubt, PendingSend, Producer, ProducerBuilder, Receipt};
pub use profile::{Profile, ProfileError};

pub use stentor_core::batch::RecordHeader;
pub use stentor_core::{
    Compression, GroupName, MessageId, Offset, PartitionIndex, ProducerId, Record, Timestamp, TopicName,
};
pub use stentor_protocol::ErrorCode;
pub use stentor_protocol::wire::Welcome;
