//! Connections: taking them, and the task of one.

use std::sync::Arc;

use futures_util::future::{Either, select};
use stentor_core::transport::{CloseCode, Connection, FrameSender, FrameStream, Listener, TransportError};
use stentor_protocol::wire::to_broker;
use stentor_protocol::{ErrorCode, decode_to_broker, wire};
use tokio::task::JoinSet;

use super::control::Control;
use super::handshake::shake_hands;
use super::outlet::Outlet;
use super::{producer, subscription};
use crate::admin::route::Followed;
use crate::error::{refusal, shutting_down};
use crate::node::{ConnectionPlace, Node, Phase, Room};

/// What the tasks of a connection share.
pub(super) struct Session {
    pub(super) node: Arc<Node>,
    pub(super) connection: Arc<dyn Connection>,
    /// What may be in flight of what this connection publishes.
    pub(super) room: Room,
    /// The topics whose routes the client has asked for.
    pub(super) followed: Followed,
}

impl Session {
    pub(super) fn outlet(&self, sender: Box<dyn FrameSender>) -> Outlet {
        let patience = self.node.config.node.handshake_timeout;
        Outlet::new(sender, Arc::clone(&self.connection), Arc::clone(&self.node.clock), patience)
    }

    /// Returns once the node is on its way down.
    pub(super) async fn draining(&self) {
        let mut phase = self.node.phase.subscribe();
        // The node holds the sender for as long as there are sessions.
        let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
    }
}

/// Takes connections until the listener closes or the node goes down.
pub(crate) async fn accept(node: Arc<Node>, mut listener: Box<dyn Listener>) {
    let mut phase = node.phase.subscribe();
    loop {
        let connection = tokio::select! {
            biased;
            _ = phase.wait_for(|phase| *phase >= Phase::Draining) => None,
            connection = listener.accept() => connection,
        };
        let Some(connection) = connection else { break };
        match node.connect() {
            Some(place) => node.session_tasks.spawn(serve(Arc::clone(&node), connection, place)),
            None => {
                node.metrics.refuse("connections_max");
                connection.close(CloseCode::LIMIT, "the node takes no more connections");
            }
        }
    }
    listener.close();
}

/// The task of a connection.
async fn serve(node: Arc<Node>, connection: Arc<dyn Connection>, place: ConnectionPlace) {
    let room = Room::new(node.connection_bytes_max());
    let session = Arc::new(Session { node, connection, room, followed: Followed::default() });
    if let Some((outlet, receiver)) = shake_hands(&session).await {
        let mut streams = JoinSet::new();
        let closing = Control::new(&session, outlet, receiver).run(&mut streams).await;
        let (code, reason) = match closing {
            Ok(()) if session.node.phase() >= Phase::Draining => (CloseCode::SHUTDOWN, "the node is shutting down"),
            Ok(()) => (CloseCode::NORMAL, ""),
            Err(_) => (CloseCode::PROTOCOL, "the control stream has failed"),
        };
        session.connection.close(code, reason);
        // Their streams fail now, so they end; what their consumers held comes back.
        while let Some(ended) = streams.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "the task of a stream panicked");
            }
        }
    }
    drop(place);
}

/// The task of a stream: its first frame says what it is.
pub(super) async fn serve_stream(session: Arc<Session>, stream: FrameStream) {
    let FrameStream { sender, mut receiver } = stream;
    let mut outlet = session.outlet(sender);
    let clock = &session.node.clock;
    let deadline = clock.monotonic().after(session.node.config.node.handshake_timeout);
    let first = match select(receiver.receive(), clock.sleep_until(deadline)).await {
        Either::Left((Ok(Some(frame)), _)) => decode_to_broker(frame.head),
        Either::Left((Ok(None), _)) => return,
        Either::Left((Err(error), _)) => return outlet.refuse(broken(&error)).await,
        Either::Right(_) => {
            session.node.metrics.refuse("stream_timeout");
            return outlet.refuse(refusal(ErrorCode::Timeout, "the stream said nothing for too long")).await;
        }
    };
    if session.node.phase() >= Phase::Draining {
        return outlet.refuse(shutting_down()).await;
    }
    match first {
        Ok(to_broker::Kind::OpenProducer(open)) => producer::run(&session, &open, outlet, receiver).await,
        Ok(to_broker::Kind::Subscribe(subscribe)) => subscription::run(&session, subscribe, outlet, receiver).await,
        Ok(_) => outlet.refuse(refusal(ErrorCode::Protocol, "a stream begins with OpenProducer or Subscribe")).await,
        Err(error) => outlet.refuse(refusal(ErrorCode::Protocol, error.to_string())).await,
    }
}

/// What a peer is told that broke the framing.
pub(super) fn broken(error: &TransportError) -> wire::Error {
    let code = match error {
        TransportError::FrameTooLarge { .. } => ErrorCode::MessageTooLarge,
        _ => ErrorCode::Protocol,
    };
    refusal(code, error.to_string())
}
