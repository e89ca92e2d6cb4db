//! The one switch of a simulated machine.

use std::io;
use std::sync::atomic::{AtomicI64, Ordering};

/// Counts the operations of disk and index, and goes off at a chosen one: that one may still have half an effect, later
/// ones have none.
#[derive(Debug)]
pub struct Power {
    left: AtomicI64,
}

/// What an operation meets.
pub(super) enum Supply {
    /// It runs as usual.
    On,
    /// It is the one in whose middle the power goes.
    Failing,
}

impl Power {
    /// Power for `operations` operations.
    #[must_use]
    pub fn for_operations(operations: u32) -> Self {
        Self { left: AtomicI64::new(i64::from(operations)) }
    }

    /// Power that stays until [`cut`](Self::cut).
    #[must_use]
    pub fn steady() -> Self {
        Self { left: AtomicI64::new(i64::MAX) }
    }

    /// Turns it off between two operations.
    pub fn cut(&self) {
        self.left.store(-1, Ordering::SeqCst);
    }

    /// Whether it is off.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.left.load(Ordering::SeqCst) < 0
    }

    /// Takes the power for one operation.
    pub(super) fn take(&self) -> io::Result<Supply> {
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            1.. => Ok(Supply::On),
            0 => Ok(Supply::Failing),
            _ => Err(off()),
        }
    }
}

pub(super) fn off() -> io::Error {
    io::Error::other("the power is off")
}
