//! `stentor bench`: measures a broker beside the limits of its machine.

use clap::Args;

use super::connect::Context;
use crate::bench::{self, Options};
use crate::output::Failure;

/// Measure a broker, beside what the machine does at most; without --server or --profile it starts one of its own
#[derive(Debug, Args)]
pub(super) struct Bench {
    #[command(flatten)]
    options: Options,
}

impl Bench {
    pub(super) async fn run(self, context: &Context) -> Result<(), Failure> {
        bench::run(self.options, context).await
    }
}
