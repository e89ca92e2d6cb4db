//! The journal's segments: reading them, and which there are.

pub(crate) mod scan;
pub(crate) mod segments;
pub(crate) mod sparse;
