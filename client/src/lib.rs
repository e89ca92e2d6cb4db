//! The client SDK of stentor
