//! The suites that every storage backend and every transport passes
