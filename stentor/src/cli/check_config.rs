//! `stentor check-config`: whether a file is good, without starting anything.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::connect::Context;
use crate::config::Config;
use crate::output::Failure;

/// Say whether a configuration file is good, without starting anything
#[derive(Debug, Args)]
pub(super) struct CheckConfig {
    /// The file to check
    file: PathBuf,
}

impl CheckConfig {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let config = Config::load(&self.file)?;
        let file = self.file.display().to_string();
        let (topics, groups) = (config.broker.topics.len(), config.broker.groups.len());
        let object = json!({ "file": file, "ok": true, "topics": topics, "groups": groups });
        context.output.either(&object, || format!("{file} is good: {topics} topic and {groups} group entries"))
    }
}
