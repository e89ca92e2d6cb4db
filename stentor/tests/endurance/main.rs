//! What must hold while much is owed, for long, and with many partitions: rates, memory, files, threads, latency, the disk.
//!
//! Every test prints its figures. What is timed decides only at the `long` scale, on a machine that has nothing else to
//! do (`script/slow long`); what is asserted at the others holds on any machine. `cargo test --test endurance` runs them
//! with little data, one after the other where figures are wanted: `-- --nocapture --test-threads 1`.

#![expect(clippy::unwrap_used, reason = "all of it is test code, also what is no test function itself")]

mod flood;
mod forgotten;
mod meter;
mod mixed;
mod owed;
mod partitions;
#[path = "../system/support/mod.rs"]
#[expect(dead_code, reason = "the other suite uses the rest of it")]
mod support;
