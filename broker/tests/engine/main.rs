//! The engine as its peers see it: over storage and transport in memory, with a clock that the tests move.

#![allow(unreachable_pub, missing_docs, reason = "a test binary: nothing of it is seen from outside")]
#![allow(clippy::unwrap_used, reason = "a test that fails may panic; its helpers too")]

mod admin;
mod delivery;
mod dying;
mod faults;
mod groups;
mod hostile;
mod publishing;
mod restarts;
mod retention;
mod support;
