//! The suites that every storage backend and every transport passes by calling them.

pub mod fixtures;
pub mod storage;
pub mod transport;
