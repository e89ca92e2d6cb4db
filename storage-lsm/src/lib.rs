//! Partitions in a shared journal with an LSM index: an LSM store with its values apart, as WiscKey does.
//!
//! The bytes of every change are written once, into the node's **journal**: append-only segment files shared by all
//! partitions of the node. One *committer* (a thread of its own) takes every waiting change and writes them as one
//! group; the *syncer* syncs once for all of them and answers, while the committer, under load, writes the next group. An *indexer* (another thread) follows with the **index**, an LSM tree that
//! holds what must be ordered and looked up: a row for each record batch, the rows of the tables, the live bytes of each
//! segment. Until the indexer has come by, readers are served from memory. Recovery reads the position that the index
//! reflects and replays the journal from there.
//!
//! It stands on two seams, [`disk::Disk`] and [`index::Index`], so that a simulation runs the real journal over a disk
//! and an index that lose whatever was not synced.
//!
//! # The journal's format
//!
//! All integers are little-endian. A segment is a file named by its *generation*, a number that is never used twice; it
//! is mixed into every checksum, so that what a recycled file still holds is never taken for valid.
//!
//! ```text
//! segment = header block (4 KiB) | group | group | … | whatever the file held before
//! header  = magic, version, generation, first sequence, generation and end of the segment before it, store id, crc32c
//! group   = header | frame*                      padded with zeros to 4 KiB when written; the next group starts at the
//!                                                unpadded end and so overwrites the padding
//! group header = magic, count of frames, generation, first sequence, bytes of frames, synced through, crc32c
//! frame   = header | payload
//! frame header = crc32c of generation and header, crc32c of payload, length, kind, partition, sequence
//! payload = parts: batches, references to batches, rows, deleted ranges, a trim, an epoch (see `format::payload`)
//! ```
//!
//! Invariants:
//! - Sequences are consecutive over all segments. A change is one frame; a frame lies in one group, a group in one segment.
//! - `synced_through` of a group is the position in its segment up to which all had been synced when it was written.
//!   An idle committer soon writes and syncs an empty group, so that this is known of nearly everything.
//! - A segment gets its name when its header is written and synced, and the folder is synced before the first group goes
//!   into it. The header names the exact end of the segment before, which had been synced by then: it is that segment's
//!   *seal*. So nothing in a segment is acknowledged before all earlier ones are safe.
//! - Opening never appends to a segment of an earlier run: it cuts, seals and begins a new one. So no remains of a
//!   torn group can ever follow a valid one of the same generation.
//! - Only what is synced is indexed, and the row that says how far the index reflects the journal (the *marker*) lies in
//!   the same atomic batch as the rows themselves.
//! - A segment is freed only when nothing in it is owed, when the index has *flushed* a state that says so, and when no
//!   reader holds it. The journal therefore always reaches back to what the index is sure to keep.
//! - A segment that is kept alive by little is rewritten: what is owed in it is appended anew (see the module `rewriter`).
//!   So the journal takes at most 7/4 of what is owed and a few segments, not counting 65 bytes a batch or large value.
//!
//! # What can fail, and what happens then
//!
//! | what | then |
//! |---|---|
//! | power cut: the last groups are missing, partial or torn | the journal is cut at the first bad group, nothing acknowledged lay behind it |
//! | a bad group that a seal, a later group's `synced_through` or the marker says was synced | the store refuses to open as `Damaged` and names the place |
//! | a damaged batch or value behind the marker | `Corrupt` with partition and offset when it is read; the other partitions go on; `verify` finds it |
//! | the index lost the end of its own log | the marker is older, the journal is replayed from there |
//! | the index lost something in the middle of its own log | the chain rows (one for each batch since the last flush) have a hole: refuses to open |
//! | the index lost everything, or an old copy was put there | the marker is older than the oldest segment: refuses to open |
//! | damage in a segment that is to be rewritten | it is not copied; the segment stays, and readers are told as before |
//! | a sync or a write fails | poisoned: every commit fails, reads go on |
//! | the disk is nearly full | changes that need room are refused as `StorageFull`, bookkeeping goes on from the reserve, publishing resumes by itself |
//! | another process ate the reserve as well | poisoned with a message that says so, before the index meets the end of the disk |

mod applier;
mod backlog;
mod bell;
mod committer;
mod config;
mod damage;
pub mod disk;
mod engine;
mod format;
pub mod index;
mod indexer;
mod journal;
mod keeper;
mod open;
mod overlay;
mod partition;
mod queue;
mod reader;
mod recent;
mod rewriter;
mod room;
mod snapshot;
mod storage;
mod syncer;
mod verify;
mod warm;
mod writer;

pub use config::LsmConfig;
pub use storage::LsmStorage;
pub use verify::{Damage, Report, verify, verify_on};
#[cfg(feature = "sim")]
pub mod sim;
