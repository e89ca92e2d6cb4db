//! A subscription's stream.

use std::collections::VecDeque;

use bytes::Bytes;
use stentor_core::Record;
use stentor_core::transport::FrameStream;
use stentor_protocol::frame;
use stentor_protocol::wire::{self, to_broker, to_client};

use super::peer::{hear, say};

pub struct Consumer {
    pub stream: FrameStream,
    pub subscribed: wire::Subscribed,
    got: VecDeque<Got>,
    requests: u64,
    /// Bytes of the bodies that came.
    pub body_bytes: u64,
    /// Deliveries that held only what was leased.
    pub picked: u64,
    /// Where the group has stopped, as it was told.
    pub stops: Vec<wire::PartitionStopped>,
}

/// A message that was delivered.
#[derive(Clone, Debug, PartialEq)]
pub struct Got {
    pub partition: u32,
    pub offset: u64,
    pub attempt: u32,
    pub redelivered: bool,
    pub record: Record,
}

impl Got {
    pub fn body(&self) -> &str {
        str::from_utf8(&self.record.body).unwrap()
    }

    pub fn number(&self) -> u64 {
        self.body().parse().unwrap()
    }
}

impl Consumer {
    pub fn new(stream: FrameStream, subscribed: wire::Subscribed) -> Self {
        Self { stream, subscribed, got: VecDeque::new(), requests: 0, body_bytes: 0, picked: 0, stops: Vec::new() }
    }

    pub async fn grant(&mut self, messages: u32) {
        self.grant_bytes(messages, 1 << 40).await;
    }

    pub async fn grant_bytes(&mut self, messages: u32, bytes: u64) {
        say(&mut self.stream, to_broker::Kind::Grant(wire::Grant { messages, bytes })).await;
    }

    /// Takes in a frame.
    async fn take(&mut self) -> Option<to_client::Kind> {
        let (mut kind, mut body) = hear(&mut self.stream).await?;
        while let to_client::Kind::PartitionStopped(stopped) = kind {
            self.stops.push(stopped);
            (kind, body) = hear(&mut self.stream).await?;
        }
        if let to_client::Kind::Delivery(delivery) = kind {
            self.unpack(delivery, body);
            return self.got.front().map(|_| to_client::Kind::Delivery(wire::Delivery::default()));
        }
        Some(kind)
    }

    fn unpack(&mut self, delivery: wire::Delivery, body: Bytes) {
        self.body_bytes += body.len() as u64;
        self.picked += u64::from(delivery.picked);
        let batch = frame::batch(&delivery.batch_header, body).unwrap();
        let records: Vec<Record> = batch.records(u32::MAX).unwrap().map(Result::unwrap).collect();
        let mut taken = 0;
        for leased in delivery.leased {
            for offset in leased.start..leased.start + u64::from(leased.count) {
                let index = if delivery.picked { taken } else { (offset - batch.base_offset().0) as usize };
                taken += 1;
                self.got.push_back(Got {
                    partition: delivery.partition,
                    offset,
                    attempt: leased.attempt,
                    redelivered: leased.redelivered,
                    record: records[index].clone(),
                });
            }
        }
        assert!(!delivery.picked || taken == records.len(), "a picked batch holds just what is leased");
    }

    /// The next message.
    pub async fn next(&mut self) -> Got {
        loop {
            if let Some(got) = self.got.pop_front() {
                return got;
            }
            match self.take().await {
                Some(to_client::Kind::Delivery(_)) => {}
                other => panic!("instead of a delivery: {other:?}"),
            }
        }
    }

    pub async fn take_many(&mut self, count: usize) -> Vec<Got> {
        let mut all = Vec::with_capacity(count);
        while all.len() < count {
            all.push(self.next().await);
        }
        all
    }

    /// Settles and waits for the answer; deliveries that come meanwhile are kept.
    pub async fn settle(&mut self, mut settle: wire::Settle) -> Vec<wire::Unsettled> {
        self.requests += 1;
        settle.request = self.requests;
        say(&mut self.stream, to_broker::Kind::Settle(settle)).await;
        loop {
            match self.take().await {
                Some(to_client::Kind::Settled(settled)) => {
                    assert_eq!(settled.request, self.requests);
                    return settled.failed;
                }
                Some(to_client::Kind::Delivery(_)) => {}
                other => panic!("instead of an answer: {other:?}"),
            }
        }
    }

    pub async fn ack(&mut self, got: &[Got]) {
        let failed = self.settle(wire::Settle { acks: acks(got), ..Default::default() }).await;
        assert!(failed.is_empty(), "{failed:?}");
    }

    pub async fn ack_durable(&mut self, got: &[Got]) {
        let failed = self.settle(wire::Settle { durable: true, acks: acks(got), ..Default::default() }).await;
        assert!(failed.is_empty(), "{failed:?}");
    }

    pub async fn nack(&mut self, got: &Got, reason: &str, delay_millis: Option<u64>) {
        self.refuse(got, reason, delay_millis, wire::NackKind::Retry).await;
    }

    pub async fn refuse(&mut self, got: &Got, reason: &str, delay_millis: Option<u64>, kind: wire::NackKind) {
        let nack = wire::Nack {
            partition: got.partition,
            offset: got.offset,
            delay_millis,
            reason: reason.into(),
            nack_kind: kind.into(),
        };
        let failed = self.settle(wire::Settle { nacks: vec![nack], ..Default::default() }).await;
        assert!(failed.is_empty(), "{failed:?}");
    }

    /// Gives back what it holds, and leaves.
    pub async fn unsubscribe(mut self) {
        say(&mut self.stream, to_broker::Kind::Unsubscribe(wire::Unsubscribe {})).await;
        while self.take().await.is_some() {}
    }

    /// Takes in what comes until the group has stopped in so many places.
    pub async fn until_stopped(&mut self, places: usize) {
        while self.stops.len() < places {
            match hear(&mut self.stream).await {
                Some((to_client::Kind::PartitionStopped(stopped), _)) => self.stops.push(stopped),
                Some((to_client::Kind::Delivery(delivery), body)) => self.unpack(delivery, body),
                other => panic!("instead of news: {other:?}"),
            }
        }
    }

    /// How the stream was ended by the broker.
    pub async fn ended(&mut self) -> wire::Error {
        loop {
            match self.take().await {
                Some(to_client::Kind::Ended(error)) => return error,
                Some(to_client::Kind::Delivery(_)) => {}
                other => panic!("instead of an end: {other:?}"),
            }
        }
    }
}

pub fn acks(got: &[Got]) -> Vec<wire::Ack> {
    let ack = |got: &Got| wire::Ack {
        partition: got.partition,
        spans: vec![wire::OffsetSpan { start: got.offset, count: 1 }],
    };
    got.iter().map(ack).collect()
}
