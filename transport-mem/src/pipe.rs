//! One direction of a stream: a bounded queue of frames between one sender and one receiver.
//!
//! Invariant: once `end` or `stopped` is set it stays, and a reset or stopped pipe holds no frames.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use stentor_core::transport::{CloseCode, Frame};
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Pipe {
    state: Mutex<State>,
    /// The sender has a reason to look again.
    pub(crate) drained: Notify,
    /// The receiver has a reason to look again.
    pub(crate) arrived: Notify,
    bytes_max: usize,
    frames_max: usize,
}

#[derive(Debug, Default)]
struct State {
    frames: VecDeque<Frame>,
    bytes: usize,
    end: Option<End>,
    stopped: Option<CloseCode>,
}

/// How the sender ended the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Finished,
    Reset(CloseCode),
}

/// What the receiver finds.
#[derive(Debug)]
pub(crate) enum Pulled {
    Frame(Frame),
    End(End),
    Empty,
}

impl Pipe {
    pub(crate) fn new(bytes_max: usize, frames_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            drained: Notify::new(),
            arrived: Notify::new(),
            bytes_max,
            frames_max: frames_max.max(1),
        }
    }

    /// Takes the frame out of `frame` if there is room. A frame larger than the pipe passes alone.
    pub(crate) fn push(&self, frame: &mut Option<Frame>) {
        let mut state = self.lock();
        let Some(bytes) = frame.as_ref().map(Frame::len) else { return };
        let fits = state.frames.len() < self.frames_max && state.bytes.saturating_add(bytes) <= self.bytes_max;
        if fits || state.frames.is_empty() {
            state.frames.extend(frame.take());
            state.bytes += bytes;
            drop(state);
            self.arrived.notify_one();
        }
    }

    pub(crate) fn pull(&self) -> Pulled {
        let mut state = self.lock();
        if let Some(frame) = state.frames.pop_front() {
            state.bytes -= frame.len();
            drop(state);
            self.drained.notify_one();
            return Pulled::Frame(frame);
        }
        state.end.map_or(Pulled::Empty, Pulled::End)
    }

    /// Sets the end, once.
    pub(crate) fn end(&self, end: End) {
        let mut state = self.lock();
        match (state.end, end) {
            (None, _) => state.end = Some(end),
            // As in QUIC, what was finished can still be torn up while it has not been read.
            (Some(End::Finished), End::Reset(_)) if !state.frames.is_empty() => state.end = Some(end),
            _ => return,
        }
        if matches!(end, End::Reset(_)) {
            state.clear();
        }
        drop(state);
        self.arrived.notify_one();
    }

    pub(crate) fn stop(&self, code: CloseCode) {
        let mut state = self.lock();
        // Nobody is left to tell once the sender has ended it.
        if state.stopped.is_none() && state.end.is_none() {
            state.stopped = Some(code);
        }
        state.clear();
        drop(state);
        self.drained.notify_one();
    }

    pub(crate) fn stopped(&self) -> Option<CloseCode> {
        self.lock().stopped
    }

    /// Loses what is under way.
    pub(crate) fn lose(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Held for a few instructions that cannot panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn clear(&mut self) {
        self.frames.clear();
        self.bytes = 0;
    }
}
