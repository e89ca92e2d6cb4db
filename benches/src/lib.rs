//! Benchmarks that compare the backends on the same work
