//! Which versions of the protocol are spoken, and how two peers find one.
//!
//! The shape of `Hello` and of a refusal never changes, so that peers of any two versions can at least tell each other
//! that they do not fit.

use crate::error::{ErrorCode, refusal};
use crate::wire;

/// The oldest version that is spoken.
pub const VERSION_MIN: u32 = 1;

/// The newest version that is spoken.
pub const VERSION_MAX: u32 = 1;

/// The greatest version that both sides speak.
///
/// # Errors
/// A refusal that says which side is the older one, ready to be sent.
pub fn negotiate(hello: &wire::Hello) -> Result<u32, wire::Error> {
    let version = hello.version_max.min(VERSION_MAX);
    if version >= hello.version_min.max(VERSION_MIN) {
        return Ok(version);
    }
    let (older, hint) = if hello.version_max < VERSION_MIN {
        ("client", "upgrade the client")
    } else {
        ("broker", "upgrade the broker, or use an older client")
    };
    let message = format!(
        "the {older} is too old: this broker speaks protocol versions {VERSION_MIN} to {VERSION_MAX}, the client {} to {}",
        hello.version_min, hello.version_max,
    );
    Err(wire::Error { hint: hint.to_owned(), ..refusal(ErrorCode::VersionMismatch, message) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(version_min: u32, version_max: u32) -> wire::Hello {
        wire::Hello { version_min, version_max, client: String::new() }
    }

    #[test]
    fn the_greatest_common_version_is_spoken() {
        assert_eq!(negotiate(&hello(1, 1)), Ok(1));
        assert_eq!(negotiate(&hello(0, 9)), Ok(1));
    }

    #[test]
    fn an_older_and_a_newer_peer_are_told_which_side_to_upgrade() {
        let newer = negotiate(&hello(2, 3)).unwrap_err();
        assert_eq!(newer.code(), ErrorCode::VersionMismatch);
        assert!(newer.message.contains("the broker is too old"), "{}", newer.message);
        let older = negotiate(&hello(0, 0)).unwrap_err();
        assert!(older.message.contains("the client is too old"), "{}", older.message);
    }
}
