//! `stentor completions`: scripts that complete this command line in a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;
use super::connect::Context;
use crate::output::Failure;

/// Print a script that completes command lines in a shell
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// Which shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "stentor", &mut script);
        context.output.raw_line(script.trim_ascii_end())
    }
}
