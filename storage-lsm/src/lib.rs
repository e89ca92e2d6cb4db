//! Partitions in a shared journal with an LSM index
