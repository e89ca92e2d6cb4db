//! The line that says that a node serves.

use std::path::PathBuf;

use serde::Serialize;

/// What is said once the node serves: a line for people, or an object for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Ready {
    /// Always true.
    pub(crate) ready: bool,
    /// Where clients connect.
    pub(crate) quic: String,
    /// Where HTTP is spoken.
    pub(crate) admin: String,
    /// Where the node keeps its data.
    pub(crate) data_dir: PathBuf,
}

impl Ready {
    /// For people, on one line.
    pub(crate) fn words(&self) -> String {
        format!("ready  quic {}  admin http://{}  data {}", self.quic, self.admin, self.data_dir.display())
    }
}
