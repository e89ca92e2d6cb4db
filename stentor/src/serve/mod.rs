//! A node as a process: wiring, listeners, signals, and the words said on the way up and down.
//!
//! This is the one place that names the concrete backends and the transport; everything else is handed them behind the
//! contracts of `stentor-core`.
//!
//! Order of things, each depending on the one before: the log; the data folder; the admin listener, so that `/healthz`
//! answers while recovery runs; the QUIC port, so that a taken one is noticed before recovery; the backends; the broker;
//! then `ready`. Going down is the reverse.

pub(crate) mod admin;
pub(crate) mod certificates;
pub(crate) mod data_dir;
mod logging;
mod node;
mod process;
mod ready;
mod reset_key;
mod signals;
mod storages;

pub(crate) use data_dir::{LSM_FOLDER, PROFILE_FILE};
pub(crate) use node::{Plan, run};
pub(crate) use process::process_stats;
pub(crate) use ready::Ready;
pub(crate) use signals::interrupted;
