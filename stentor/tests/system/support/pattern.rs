//! Bodies that tell who they are and whether they are whole.

use bytes::{Bytes, BytesMut};

/// The number in front of every body.
pub(crate) const NUMBER_BYTES: usize = 8;

/// Makes and recognises bodies. Every bit of a body follows from the seed, its number and its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    /// Tells the bodies of one test from those of any other.
    pub(crate) seed: u64,
    /// The length of each body, the number included.
    pub(crate) bytes: usize,
}

impl Pattern {
    /// The body of message `number`.
    pub(crate) fn body(self, number: u64) -> Bytes {
        let mut body = BytesMut::zeroed(self.bytes);
        let (head, rest) = body.split_at_mut(NUMBER_BYTES);
        head.copy_from_slice(&number.to_le_bytes());
        fastrand::Rng::with_seed(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).fill(rest);
        body.freeze()
    }

    /// The number of a body, once every byte of it has been found to be right.
    pub(crate) fn recognise(self, body: &[u8]) -> Result<u64, String> {
        let Some((head, _)) = body.split_first_chunk::<NUMBER_BYTES>() else {
            return Err(format!("a body of {} bytes: too short", body.len()));
        };
        let number = u64::from_le_bytes(*head);
        if self.body(number) == body {
            Ok(number)
        } else {
            Err(format!("the body that says it is {number} is altered"))
        }
    }
}

#[test]
fn an_altered_body_is_recognised_as_such() {
    let pattern = Pattern { seed: 7, bytes: 64 };
    let body = pattern.body(5);
    assert_eq!(pattern.recognise(&body), Ok(5));
    for at in 0..body.len() {
        let mut altered = body.to_vec();
        altered[at] ^= 1;
        assert!(pattern.recognise(&altered).is_err(), "byte {at}");
    }
    assert!(pattern.recognise(&body[..63]).is_err());
}
