//! Partitions in memory, with a byte bound and a stated policy at it
