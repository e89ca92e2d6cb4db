//! Connections inside one process, for tests and simulation
