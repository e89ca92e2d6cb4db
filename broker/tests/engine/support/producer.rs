//! A producer's stream.

use bytes::Bytes;
use stentor_core::batch::{BatchBuilder, Sequenced};
use stentor_core::transport::FrameStream;
use stentor_core::{Compression, MessageId, ProducerId, Record, RecordBatch, Timestamp};
use stentor_protocol::frame::encode_publish;
use stentor_protocol::wire::{self, to_client};

use super::peer::hear;
use super::within;

pub struct Producer {
    pub stream: FrameStream,
    pub route: wire::Route,
    id: u64,
    epoch: u32,
    sequences: std::collections::BTreeMap<u32, u64>,
    requests: u64,
}

/// A message with this body and nothing else.
pub fn record(body: impl Into<Bytes>) -> Record {
    Record {
        id: MessageId::generate(Timestamp(1_700_000_000_000_000), fastrand::Rng::with_seed(7).u128(..)),
        timestamp: Timestamp(1_700_000_000_000_000),
        key: None,
        tag: None,
        headers: Vec::new(),
        body: body.into(),
        deliver_at: None,
        expires_at: None,
    }
}

pub fn batch_of(records: &[Record], sequenced: Option<Sequenced>) -> RecordBatch {
    let mut builder = BatchBuilder::new(Compression::None);
    for record in records {
        builder.push(record).unwrap();
    }
    builder.finish(sequenced).unwrap()
}

pub fn sequenced(producer: u64, epoch: u32, sequence: u64) -> Option<Sequenced> {
    Some(Sequenced { producer: ProducerId(producer), epoch, sequence })
}

impl Producer {
    pub fn new(stream: FrameStream, id: u64, epoch: u32, route: wire::Route) -> Self {
        Self { stream, route, id, epoch, sequences: std::collections::BTreeMap::new(), requests: 0 }
    }

    /// Sends a batch without waiting for its answer.
    pub async fn send(&mut self, partition: u32, batch: &RecordBatch) -> u64 {
        self.requests += 1;
        let frame = encode_publish(self.requests, partition, batch);
        within("a batch is taken", self.stream.sender.send(frame)).await.unwrap();
        self.requests
    }

    /// The next answer, whatever it is for.
    pub async fn answer(&mut self) -> Result<wire::Published, wire::Error> {
        match hear(&mut self.stream).await {
            Some((to_client::Kind::Published(published), _)) => Ok(published),
            Some((to_client::Kind::PublishRefused(refused), _)) => Err(refused.error.unwrap()),
            Some((to_client::Kind::Ended(error), _)) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    pub async fn try_publish(&mut self, partition: u32, batch: &RecordBatch) -> Result<wire::Published, wire::Error> {
        let request = self.send(partition, batch).await;
        let answer = self.answer().await;
        if let Ok(published) = &answer {
            assert_eq!((published.request, published.partition), (request, partition));
        }
        answer
    }

    /// Publishes records as the next batch of the partition, and waits until they are stored.
    pub async fn publish_records(&mut self, partition: u32, records: &[Record]) -> wire::Published {
        let sequence = self.sequences.entry(partition).or_default();
        let batch = batch_of(records, sequenced(self.id, self.epoch, *sequence));
        *sequence += 1;
        self.try_publish(partition, &batch).await.unwrap()
    }

    /// Publishes messages with these bodies to partition 0, as one batch.
    pub async fn publish(&mut self, bodies: &[&str]) -> wire::Published {
        let records: Vec<_> = bodies.iter().map(|body| record((*body).to_owned())).collect();
        self.publish_records(0, &records).await
    }

    /// Publishes the numbers of a range to partition 0, in batches.
    pub async fn publish_numbers(&mut self, numbers: std::ops::Range<u64>, batch: usize) {
        let all: Vec<_> = numbers.map(|number| record(number.to_string())).collect();
        for records in all.chunks(batch) {
            self.publish_records(0, records).await;
        }
    }
}
