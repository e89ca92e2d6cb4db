//! `stentor serve`: a production node.

use std::path::PathBuf;

use clap::Args;

use super::connect::Context;
use crate::config::Config;
use crate::output::Failure;
use crate::serve::{Plan, run};

/// Run a production node until SIGTERM drains it
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Its configuration
    #[arg(long, value_name = "FILE", env = "STENTOR_CONFIG")]
    config: PathBuf,
}

impl Serve {
    pub(super) async fn run(self, context: &Context) -> Result<(), Failure> {
        let config = Config::load(&self.config)?;
        let tls = config.tls.clone().ok_or_else(|| {
            let file = self.config.display();
            Failure::new("certificate", format!("{file} names no certificate, and a production node needs one"))
                .hint("add a [tls] table with cert and key; `stentor dev` makes certificates of its own")
        })?;
        let output = context.output;
        run(Plan { config, tls, with_parent: false }, |ready| output.either(ready, || ready.words())).await
    }
}
