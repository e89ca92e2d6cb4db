//! The handshake: who speaks which version, within a deadline.

use futures_util::future::{Either, select};
use stentor_core::limits::{BATCH_BYTES_SLACK, MESSAGE_BYTES_MAX_CEILING};
use stentor_core::transport::{CloseCode, FrameReceiver, FrameStream};
use stentor_protocol::wire::{to_broker, to_client};
use stentor_protocol::{decode_to_broker, version, wire};

use super::connection::Session;
use super::outlet::Outlet;
use crate::error::refusal;

/// What a broker calls itself.
pub(crate) const BROKER: &str = concat!("stentor ", env!("CARGO_PKG_VERSION"));

/// Takes the control stream and agrees on a version; none when that came to nothing, and then the connection is closed.
pub(super) async fn shake_hands(session: &Session) -> Option<(Outlet, Box<dyn FrameReceiver>)> {
    let clock = &session.node.clock;
    let deadline = clock.monotonic().after(session.node.config.node.handshake_timeout);
    let greeting = Box::pin(greet(session));
    match select(greeting, clock.sleep_until(deadline)).await {
        Either::Left((agreed, _)) => agreed,
        Either::Right(_) => {
            session.node.metrics.refuse("handshake_timeout");
            session.connection.close(CloseCode::TIMEOUT, "the handshake took too long");
            None
        }
    }
}

async fn greet(session: &Session) -> Option<(Outlet, Box<dyn FrameReceiver>)> {
    let FrameStream { sender, mut receiver } = session.connection.accept().await.ok()?;
    let mut outlet = session.outlet(sender);
    let hello = match receiver.receive().await.ok()? {
        Some(frame) => decode_to_broker(frame.head),
        None => return None,
    };
    let agreed = match hello {
        Ok(to_broker::Kind::Hello(hello)) => version::negotiate(&hello).map(|version| (version, hello.client)),
        Ok(_) => Err(refusal(stentor_protocol::ErrorCode::Protocol, "a connection begins with Hello")),
        Err(error) => Err(refusal(stentor_protocol::ErrorCode::Protocol, error.to_string())),
    };
    match agreed {
        Ok((version, client)) => {
            tracing::debug!(peer = %session.connection.peer().address, client, "client connected");
            let welcome = wire::Welcome {
                version,
                node: session.node.config.node.id,
                broker: BROKER.to_owned(),
                frame_bytes_max: MESSAGE_BYTES_MAX_CEILING + BATCH_BYTES_SLACK,
                in_flight_bytes_max: session.node.connection_bytes_max(),
            };
            outlet.say(to_client::Kind::Welcome(welcome)).await.ok()?;
            Some((outlet, receiver))
        }
        Err(error) => {
            session.node.metrics.refuse("handshake");
            outlet.refuse(error).await;
            session.connection.close(CloseCode::PROTOCOL, "the handshake failed");
            None
        }
    }
}
