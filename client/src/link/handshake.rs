//! The first words on a connection.

use stentor_core::transport::{Connection, FrameStream};
use stentor_protocol::version::{VERSION_MAX, VERSION_MIN};
use stentor_protocol::wire::{Hello, Welcome, to_broker, to_client};
use stentor_protocol::{decode_to_client, encode_to_broker};

use crate::error::ConnectError;

/// Opens the control stream and says hello.
pub(super) async fn greet(connection: &dyn Connection, address: &str) -> Result<(FrameStream, Welcome), ConnectError> {
    let protocol = |what: String| ConnectError::Protocol { address: address.to_owned(), what };
    let mut control = connection.open().await?;
    let client = concat!("stentor-client/", env!("CARGO_PKG_VERSION")).to_owned();
    let hello = Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, client };
    control.sender.send(encode_to_broker(to_broker::Kind::Hello(hello))).await?;
    let Some(frame) = control.receiver.receive().await? else {
        return Err(protocol("it ended the control stream without an answer".to_owned()));
    };
    match decode_to_client(frame.head) {
        Ok(to_client::Kind::Welcome(welcome)) if (VERSION_MIN..=VERSION_MAX).contains(&welcome.version) => {
            Ok((control, welcome))
        }
        Ok(to_client::Kind::Welcome(welcome)) => {
            Err(protocol(format!("it chose protocol version {}, which was not offered", welcome.version)))
        }
        Ok(to_client::Kind::Refused(error)) => {
            Err(ConnectError::Refused { address: address.to_owned(), error: error.into() })
        }
        Ok(_) => Err(protocol("it answered the hello with something else".to_owned())),
        Err(error) => Err(protocol(error.to_string())),
    }
}
