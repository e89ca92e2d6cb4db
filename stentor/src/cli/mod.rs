//! The command line: one file a command, and here what they share.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgAction, Args, Parser, Subcommand};

use crate::output::{Failure, Output, kinds_help};

pub(crate) mod args;
mod bench;
mod check_config;
mod completions;
mod connect;
mod dead_letters;
mod demo;
mod dev;
mod group;
mod message;
mod publish;
mod serve;
mod subscribe;
mod topic;
mod verify;

pub(crate) use connect::Context;

/// A message broker made for accumulation: publishers hand over a message and go on; any number of subscriber groups
/// receive it, each at its own pace.
#[derive(Debug, Parser)]
#[command(name = "stentor", version, propagate_version = true, max_term_width = 110)]
#[command(after_help = "Exit status: 0 done, 1 failed, 2 wrong usage, 3 nothing received before the timeout.")]
#[command(after_long_help = kinds_help())]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Profile that says where the broker is and how it is trusted [default: ./stentor-data/client.toml, then
    /// stentor/client.toml in the user's configuration folder]
    #[arg(long, global = true, value_name = "FILE", env = "STENTOR_PROFILE")]
    profile: Option<PathBuf>,
    /// Broker to connect to, instead of the profile's
    #[arg(long, global = true, value_name = "HOST:PORT")]
    server: Option<String>,
    /// One JSON object a line on standard output, errors as JSON on standard error
    #[arg(long, global = true)]
    json: bool,
    /// No notes, no progress
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Log what the client does to standard error; twice for more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    /// Delete, purge and seek without asking
    #[arg(long, global = true)]
    yes: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Dev(dev::Dev),
    Publish(publish::Publish),
    Subscribe(subscribe::Subscribe),
    Topic(topic::Topic),
    Group(group::Group),
    DeadLetters(dead_letters::DeadLetters),
    Message(message::Message),
    Serve(serve::Serve),
    CheckConfig(check_config::CheckConfig),
    Verify(verify::Verify),
    Bench(bench::Bench),
    Completions(completions::Completions),
}

impl Cli {
    /// Reads the command line of the process. What is no command line is reported here, as JSON if that was asked for.
    pub(crate) fn read() -> Result<Self, ExitCode> {
        let args: Vec<OsString> = std::env::args_os().collect();
        Self::try_parse_from(&args).map_err(|error| {
            use clap::error::ErrorKind;
            let help = matches!(
                error.kind(),
                ErrorKind::DisplayHelp
                    | ErrorKind::DisplayVersion
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            );
            if !help && args.iter().any(|arg| arg == "--json") {
                let text = error.to_string();
                let message = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
                return Failure::new("usage", message).hint("stentor help COMMAND says what it takes").report(true);
            }
            // That nobody reads the help is no reason to fail.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        })
    }

    /// How this command line wants its output.
    pub(crate) fn output(&self) -> Output {
        Output { json: self.global.json, quiet: self.global.quiet, yes: self.global.yes }
    }

    /// Does what the command line asks for.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let output = self.output();
        if self.global.verbose > 0 && !matches!(self.command, Command::Dev(_) | Command::Serve(_)) {
            connect::log(self.global.verbose);
        }
        let context = connect::Context { output, profile: self.global.profile, server: self.global.server };
        match self.command {
            Command::Demo(command) => command.run(&context).await,
            Command::Dev(command) => command.run(&context).await,
            Command::Publish(command) => command.run(&context).await,
            Command::Subscribe(command) => command.run(&context).await,
            Command::Topic(command) => command.run(&context).await,
            Command::Group(command) => command.run(&context).await,
            Command::DeadLetters(command) => command.run(&context).await,
            Command::Message(command) => command.run(&context).await,
            Command::Serve(command) => command.run(&context).await,
            Command::Verify(command) => command.run(&context).await,
            Command::Bench(command) => command.run(&context).await,
            Command::CheckConfig(command) => command.run(&context),
            Command::Completions(command) => command.run(&context),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        Cli::command().debug_assert();
    }
}
