//! `stentor demo`: the story that the broker is for, end to end.

use clap::Args;

use super::connect::Context;
use crate::demo;
use crate::output::Failure;

/// Show what the broker is for: a user registers, and ten services must hear of it, of which one is broken and one slow
#[derive(Debug, Args)]
pub(super) struct Demo {}

impl Demo {
    pub(super) async fn run(self, context: &Context) -> Result<(), Failure> {
        demo::run(context).await
    }
}
