//! The stentor binary.
fn main() {}
