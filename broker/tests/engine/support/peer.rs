//! A connection, and its control stream.

use std::sync::Arc;

use bytes::Bytes;
use stentor_core::transport::{Connection, Frame, FrameStream, Transport};
use stentor_protocol::wire::{self, request, response, to_broker, to_client};
use stentor_protocol::{decode_to_client, encode_to_broker};
use stentor_transport_mem::MemNetwork;

use super::{ADDRESS, Consumer, Producer, within};

pub struct Peer {
    pub connection: Arc<dyn Connection>,
    pub control: FrameStream,
    requests: u64,
}

/// Says something on a stream.
pub async fn say(stream: &mut FrameStream, kind: to_broker::Kind) {
    within("a frame is sent", stream.sender.send(encode_to_broker(kind))).await.unwrap();
}

/// What the broker says next on a stream.
pub async fn hear(stream: &mut FrameStream) -> Option<(to_client::Kind, Bytes)> {
    let frame = within("a frame comes", stream.receiver.receive()).await.ok().flatten()?;
    Some((decode_to_client(frame.head).unwrap(), frame.body))
}

impl Peer {
    pub async fn connect(network: &MemNetwork) -> Self {
        let connection = Self::dial(network).await;
        let mut control = connection.open().await.unwrap();
        let hello = wire::Hello { version_min: 1, version_max: 1, client: "test".into() };
        say(&mut control, to_broker::Kind::Hello(hello)).await;
        match hear(&mut control).await {
            Some((to_client::Kind::Welcome(welcome), _)) => assert_eq!(welcome.version, 1),
            other => panic!("{other:?}"),
        }
        Self { connection, control, requests: 0 }
    }

    /// A connection that has not introduced itself.
    pub async fn dial(network: &MemNetwork) -> Arc<dyn Connection> {
        within("a connection", network.transport().connect(ADDRESS)).await.unwrap()
    }

    pub async fn ask(&mut self, kind: request::Kind) -> response::Kind {
        self.requests += 1;
        let request = wire::Request { id: self.requests, kind: Some(kind) };
        say(&mut self.control, to_broker::Kind::Request(request)).await;
        match hear(&mut self.control).await {
            Some((to_client::Kind::Response(response), _)) => {
                assert_eq!(response.id, self.requests);
                response.kind.unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    pub async fn producer(&self, topic: &str, producer: u64, epoch: u32) -> Result<Producer, wire::Error> {
        let mut stream = self.connection.open().await.unwrap();
        let open = wire::OpenProducer { topic: topic.into(), producer, epoch };
        say(&mut stream, to_broker::Kind::OpenProducer(open)).await;
        match hear(&mut stream).await {
            Some((to_client::Kind::ProducerOpened(opened), _)) => {
                Ok(Producer::new(stream, producer, epoch, opened.route.unwrap()))
            }
            Some((to_client::Kind::Refused(error), _)) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    pub async fn subscribe(&self, subscribe: wire::Subscribe) -> Result<Consumer, wire::Error> {
        let mut stream = self.connection.open().await.unwrap();
        say(&mut stream, to_broker::Kind::Subscribe(subscribe)).await;
        match hear(&mut stream).await {
            Some((to_client::Kind::Subscribed(subscribed), _)) => Ok(Consumer::new(stream, subscribed)),
            Some((to_client::Kind::Refused(error), _)) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    /// Sends bytes that need be no frame's head.
    pub async fn raw(&self, head: Bytes) -> FrameStream {
        let mut stream = self.connection.open().await.unwrap();
        stream.sender.send(Frame::new(head)).await.unwrap();
        stream
    }
}
