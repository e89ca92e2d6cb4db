//! A frame on the wire: `head length (u32 LE), body length (u32 LE), head, body`. No I/O here.
//!
//! Invariant: memory is taken for at most twice what has arrived of a frame, or [`FRAME_BYTES_FIRST`].

use std::ops::ControlFlow;

use bytes::{Buf, Bytes, BytesMut};
use stentor_core::transport::{FRAME_HEAD_BYTES_MAX, Frame, TransportError};

/// Bytes of the two lengths.
pub(crate) const LENGTHS_BYTES: usize = 8;

/// A body up to this size is copied next to its head: one piece costs less than two.
const BODY_COPIED_BYTES_MAX: usize = 1_024;

/// What is set aside at first for a frame that claims more.
pub(crate) const FRAME_BYTES_FIRST: usize = 64 << 10;

/// Refuses a frame that is larger than allowed.
pub(crate) fn check(head_bytes: u64, body_bytes: u64, body_bytes_max: u32) -> Result<(), TransportError> {
    for (bytes, bytes_max) in [(head_bytes, FRAME_HEAD_BYTES_MAX.into()), (body_bytes, body_bytes_max.into())] {
        if bytes > bytes_max {
            return Err(TransportError::FrameTooLarge { bytes, bytes_max });
        }
    }
    Ok(())
}

/// The frame as pieces to be sent; a large body goes as it is. The second may be empty.
pub(crate) fn encode(frame: Frame, body_bytes_max: u32) -> Result<[Bytes; 2], TransportError> {
    let Frame { head, body } = frame;
    check(head.len() as u64, body.len() as u64, body_bytes_max)?;
    let copied = if body.len() <= BODY_COPIED_BYTES_MAX { body.len() } else { 0 };
    let mut first = BytesMut::with_capacity(LENGTHS_BYTES + head.len() + copied);
    // Both fit in 32 bits: `check` has seen to it.
    first.extend_from_slice(&(head.len() as u32).to_le_bytes());
    first.extend_from_slice(&(body.len() as u32).to_le_bytes());
    first.extend_from_slice(&head);
    first.extend_from_slice(&body[..copied]);
    Ok([first.freeze(), if copied == body.len() { Bytes::new() } else { body }])
}

/// Puts frames together out of whatever pieces arrive.
///
/// Bytes are copied once into memory of the frame's own size, because a slice of a datagram would keep all of it alive:
/// a record of 100 bytes that waits for a day must not cost 6,500.
#[derive(Debug)]
pub(crate) struct Decoder {
    body_bytes_max: u32,
    lengths: [u8; LENGTHS_BYTES],
    lengths_read: usize,
    head_bytes: usize,
    frame_bytes: usize,
    frame: BytesMut,
}

impl Decoder {
    pub(crate) fn new(body_bytes_max: u32) -> Self {
        Self {
            body_bytes_max,
            lengths: [0; LENGTHS_BYTES],
            lengths_read: 0,
            head_bytes: 0,
            frame_bytes: 0,
            frame: BytesMut::new(),
        }
    }

    /// Takes from `piece` what the next frame needs; breaks with the frame once it is whole.
    pub(crate) fn take(&mut self, piece: &mut Bytes) -> Result<ControlFlow<Frame>, TransportError> {
        if self.lengths_read < LENGTHS_BYTES {
            let taken = piece.len().min(LENGTHS_BYTES - self.lengths_read);
            piece.copy_to_slice(&mut self.lengths[self.lengths_read..][..taken]);
            self.lengths_read += taken;
            if self.lengths_read < LENGTHS_BYTES {
                return Ok(ControlFlow::Continue(()));
            }
            let [h0, h1, h2, h3, b0, b1, b2, b3] = self.lengths;
            let (head, body) = (u32::from_le_bytes([h0, h1, h2, h3]), u32::from_le_bytes([b0, b1, b2, b3]));
            check(head.into(), body.into(), self.body_bytes_max)?;
            self.head_bytes = head as usize;
            self.frame_bytes = head as usize + body as usize;
            self.frame = BytesMut::with_capacity(self.frame_bytes.min(FRAME_BYTES_FIRST));
        }
        let taken = piece.len().min(self.frame_bytes - self.frame.len());
        let needed = self.frame.len() + taken;
        if needed > self.frame.capacity() {
            let capacity = self.frame_bytes.min(needed.max(self.frame.capacity() * 2));
            // A fresh one, for `reserve` may take more than it is asked for.
            let mut larger = BytesMut::with_capacity(capacity);
            larger.extend_from_slice(&self.frame);
            self.frame = larger;
        }
        self.frame.extend_from_slice(&piece[..taken]);
        piece.advance(taken);
        if self.frame.len() < self.frame_bytes {
            return Ok(ControlFlow::Continue(()));
        }
        self.lengths_read = 0;
        let mut body = std::mem::take(&mut self.frame).freeze();
        let head = body.split_to(self.head_bytes);
        Ok(ControlFlow::Break(Frame { head, body }))
    }

    /// Whether a frame has begun that is not whole.
    pub(crate) const fn is_midway(&self) -> bool {
        self.lengths_read > 0
    }

    /// How large the frame will be that is being put together; 0 while its lengths have not come.
    pub(crate) const fn claimed(&self) -> usize {
        if self.lengths_read == LENGTHS_BYTES { self.frame_bytes } else { 0 }
    }

    /// What is held for the frame that is being put together.
    #[cfg(test)]
    fn held(&self) -> usize {
        self.frame.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(head_bytes: usize, body_bytes: usize) -> Frame {
        let bytes = |count: usize| (0..count).map(|i| (i * 31 + count) as u8).collect::<Bytes>();
        Frame { head: bytes(head_bytes), body: bytes(body_bytes) }
    }

    fn decode(decoder: &mut Decoder, mut piece: Bytes) -> Vec<Frame> {
        let mut frames = Vec::new();
        while !piece.is_empty() {
            if let ControlFlow::Break(frame) = decoder.take(&mut piece).unwrap() {
                frames.push(frame);
            }
        }
        frames
    }

    #[test]
    fn frames_come_out_as_they_went_in_whatever_the_pieces() {
        let sizes = [0, 1, 7, 8, 9, 1_024, 1_025, 70_000];
        let sent: Vec<Frame> = sizes.iter().flat_map(|head| sizes.iter().map(|body| frame(*head, *body))).collect();
        let mut wire = BytesMut::new();
        for frame in &sent {
            for piece in encode(frame.clone(), 70_000).unwrap() {
                wire.extend_from_slice(&piece);
            }
        }
        let wire = wire.freeze();
        for piece_bytes in [1, 3, 8, 1_400, 65_537, wire.len()] {
            let mut decoder = Decoder::new(70_000);
            let mut received = Vec::new();
            for start in (0..wire.len()).step_by(piece_bytes) {
                received.extend(decode(&mut decoder, wire.slice(start..wire.len().min(start + piece_bytes))));
            }
            assert!(received == sent, "pieces of {piece_bytes}");
            assert!(!decoder.is_midway());
        }
    }

    #[test]
    fn a_claim_of_many_bytes_takes_memory_only_for_what_arrives() {
        let mut decoder = Decoder::new(64 << 20);
        let mut lengths = Bytes::from([0_u32.to_le_bytes(), (64_u32 << 20).to_le_bytes()].concat());
        assert!(decoder.take(&mut lengths).unwrap().is_continue());
        let mut arrived = 0;
        while arrived < 8 << 20 {
            assert!(decoder.held() <= FRAME_BYTES_FIRST.max(2 * arrived), "{} held for {arrived}", decoder.held());
            assert!(decoder.take(&mut Bytes::from_static(&[7; 1_400])).unwrap().is_continue());
            arrived += 1_400;
        }
    }

    #[test]
    fn lengths_beyond_the_limit_are_refused_with_nothing_taken() {
        for (head, body) in
            [(u32::MAX, 0), (0, u32::MAX), (u32::MAX, u32::MAX), (FRAME_HEAD_BYTES_MAX + 1, 0), (0, 101)]
        {
            let mut decoder = Decoder::new(100);
            let mut piece = Bytes::from([head.to_le_bytes(), body.to_le_bytes()].concat());
            assert!(matches!(decoder.take(&mut piece), Err(TransportError::FrameTooLarge { .. })), "{head} {body}");
            assert_eq!(decoder.held(), 0);
        }
        assert!(encode(frame(0, 101), 100).is_err());
        assert!(encode(frame(FRAME_HEAD_BYTES_MAX as usize + 1, 0), 100).is_err());
    }

    #[test]
    fn a_large_body_is_sent_without_being_copied() {
        let frame = frame(10, 4_096);
        let [_, body] = encode(frame.clone(), 4_096).unwrap();
        assert_eq!(body.as_ptr(), frame.body.as_ptr());
    }
}
