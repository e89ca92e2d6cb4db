//! A disk and an index that lose whatever was not synced.
//!
//! The real engine runs over them; [`Power`] goes off in the middle of some operation, and what a power cut may leave
//! behind is then chosen at random from a seed: any sectors of what was not synced, any of the names that were changed,
//! any length between the old and the new one, any state of the index behind its last flush. Whatever the contracts of
//! [`Disk`](crate::disk::Disk) and [`Index`](crate::index::Index) allow happens sooner or later; nothing else does.

mod disk;
mod index;
mod power;

pub use disk::{SimDisk, SyncHonesty};
pub use index::SimIndex;
pub use power::Power;
