//! What of the journal stays in the page cache for having been written.
//!
//! The kernel would keep all of it until memory is short: each new page then costs taking one from whoever used it least
//! recently or, on a virtual machine, from the host. With what lies some way behind given back, writing goes on in the
//! same few pages: measured on a virtual machine, 1.5 GiB took 0.6 s of the kernel's time instead of 3.0, and 446 MB/s
//! were written instead of 285. The end of the log, which is what most readers want, stays.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::journal::segments::Segment;

/// Parts of segments, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    /// Weak, so that it never holds up a segment's release; what is released needs no advice any more.
    parts: VecDeque<(Weak<Segment>, u64, u64)>,
    bytes: u64,
}

impl Warm {
    /// Takes in what of `segment` has been written and synced, `from` and up to `to`, and gives back what lies more than
    /// `bytes_max` behind it.
    pub(crate) fn written(&mut self, segment: &Arc<Segment>, (from, to): (u64, u64), bytes_max: u64) {
        if from == to {
            return;
        }
        self.parts.push_back((Arc::downgrade(segment), from, to));
        self.bytes += to - from;
        while let Some((segment, from, to)) = self.parts.front()
            && self.bytes - (to - from) >= bytes_max
        {
            if let Some(segment) = segment.upgrade() {
                segment.file.not_needed(*from, to - from);
            }
            self.bytes -= to - from;
            self.parts.pop_front();
        }
    }
}
