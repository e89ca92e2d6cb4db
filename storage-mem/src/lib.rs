//! Partitions in memory, each with a byte bound and a stated policy at it.
//!
//! A log is a deque of batches whose bytes are shared with whoever reads them, a table is an ordered map, and both lie
//! behind one lock per partition. Nothing outlives the process: the one durability is
//! [`Memory`](stentor_core::Durability::Memory), so a receipt is resolved by the time `commit` returns.
//!
//! Invariants:
//! - what log and table of a partition take, rows' and batches' own overhead included, is at most its
//!   [`ByteBound`](stentor_core::storage::ByteBound), but for bookkeeping (acknowledgements, trimming), which goes on
//!   beyond it: refusing an acknowledgement could never make room;
//! - no call holds the locks of two partitions, or a guard of the map of partitions, while it waits for anything;
//! - the order of the map of partitions decides nothing.
//!
//! # Who copies
//!
//! A batch that came over the wire is a slice of a receive buffer, and a slice keeps the whole buffer in memory. The
//! bound would then promise what it does not keep, so this crate copies whatever is small (see
//! [`COPIED_BYTES_MAX`]) into an allocation of its own. What is larger is shared: it is most of the buffer that carried
//! it, since a frame carries one batch, and copying it would cost more than it saves.
//!
//! # Left to others
//!
//! Checksums: a batch was checked when it was decoded, and memory is trusted from there on. Which groups still owe what
//! `WhenFull::DropOldest` drops: the engine sees the start of the log move.

mod change;
mod held;
mod ledger;
mod log;
mod partition;
mod storage;
mod table;

pub use held::COPIED_BYTES_MAX;
pub use ledger::Dropped;
pub use storage::MemStorage;
