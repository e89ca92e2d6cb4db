//! quinn's errors in the words of the contract.

use quinn::{ConnectionError, ReadError, TransportErrorCode, VarInt, WriteError};
use stentor_core::transport::{CloseCode, CloseReason, TransportError};

pub(crate) fn varint(code: CloseCode) -> VarInt {
    VarInt::from_u32(code.0)
}

/// A peer may send more than fits; it is then some code that we do not know.
pub(crate) fn code(code: VarInt) -> CloseCode {
    CloseCode(u32::try_from(code.into_inner()).unwrap_or(u32::MAX))
}

/// Why a connection ended.
pub(crate) fn connection(error: ConnectionError) -> TransportError {
    match error {
        ConnectionError::ApplicationClosed(close) => TransportError::ConnectionClosed(Some(CloseReason {
            code: code(close.error_code),
            text: String::from_utf8_lossy(&close.reason).into_owned(),
        })),
        ConnectionError::LocallyClosed => TransportError::ConnectionClosed(None),
        ConnectionError::TimedOut => {
            TransportError::ConnectionLost("nothing was heard from the peer for too long".into())
        }
        ConnectionError::Reset => TransportError::ConnectionLost(
            "the peer does not know the connection any more; it may have restarted".into(),
        ),
        ConnectionError::ConnectionClosed(close) => match alert(close.error_code) {
            Some(alert) => TransportError::Tls(refused_by_peer(alert)),
            None => TransportError::ConnectionLost(format!("the peer gave up: {close}")),
        },
        ConnectionError::TransportError(error) => match alert(error.code) {
            Some(alert) => TransportError::Tls(refused_by_us(alert, &error.reason)),
            None => TransportError::ConnectionLost(error.to_string()),
        },
        other @ (ConnectionError::VersionMismatch | ConnectionError::CidsExhausted) => {
            TransportError::ConnectionLost(other.to_string())
        }
    }
}

pub(crate) fn read(error: ReadError) -> TransportError {
    match error {
        ReadError::Reset(reset) => TransportError::Reset(code(reset)),
        ReadError::ConnectionLost(error) => connection(error),
        ReadError::ClosedStream => TransportError::Ended,
        // Neither is possible: reads are ordered, and 0-RTT is off.
        ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => TransportError::ConnectionLost(error.to_string()),
    }
}

pub(crate) fn write(error: WriteError) -> TransportError {
    match error {
        WriteError::Stopped(stop) => TransportError::Reset(code(stop)),
        WriteError::ConnectionLost(error) => connection(error),
        WriteError::ClosedStream => TransportError::Ended,
        // Impossible: 0-RTT is off.
        WriteError::ZeroRttRejected => TransportError::ConnectionLost(error.to_string()),
    }
}

/// TLS alerts travel as the QUIC codes from 0x100 to 0x1ff.
fn alert(code: TransportErrorCode) -> Option<u8> {
    u64::from(code).checked_sub(0x100).and_then(|alert| u8::try_from(alert).ok())
}

const ALERT_BAD_CERTIFICATE: u8 = 42;
const ALERT_CERTIFICATE_EXPIRED: u8 = 45;
const ALERT_UNKNOWN_CA: u8 = 48;
const ALERT_DECRYPT_ERROR: u8 = 51;
const ALERT_CERTIFICATE_REQUIRED: u8 = 116;
const ALERT_NO_APPLICATION_PROTOCOL: u8 = 120;

/// The peer refused the handshake with an alert.
fn refused_by_peer(alert: u8) -> String {
    match alert {
        ALERT_CERTIFICATE_REQUIRED => "the peer asks for a client certificate; set `cert` and `key`".into(),
        ALERT_UNKNOWN_CA | ALERT_BAD_CERTIFICATE | ALERT_DECRYPT_ERROR => format!(
            "the peer does not trust our certificate (alert {alert}); use one that is signed by the CA it was given"
        ),
        ALERT_CERTIFICATE_EXPIRED => "the peer found our certificate expired; renew it".into(),
        ALERT_NO_APPLICATION_PROTOCOL => {
            "the peer does not speak stentor/1; check the address and the versions of both sides".into()
        }
        other => format!("the peer refused the handshake (TLS alert {other})"),
    }
}

/// This side refused the handshake.
fn refused_by_us(alert: u8, reason: &str) -> String {
    match alert {
        ALERT_NO_APPLICATION_PROTOCOL => {
            "the peer does not speak stentor/1; check the address and the versions of both sides".into()
        }
        // The second is how a CA of the same name and another key shows.
        ALERT_UNKNOWN_CA | ALERT_DECRYPT_ERROR => format!(
            "the peer's certificate is not signed by a CA that we trust ({reason}); set `ca` to the one that signed it"
        ),
        _ => format!("the TLS handshake failed: {reason}"),
    }
}
