//! The command line, as a script uses it: JSON on standard output, errors on standard error, an exit status.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use super::process::{Process, stentor};
use super::wait::{DEADLINE, within};

/// `stentor --json --profile …`.
#[derive(Clone)]
pub(crate) struct Cli {
    directory: PathBuf,
    profile: PathBuf,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Its exit status; none when a signal ended it.
    pub(crate) status: Option<i32>,
    /// The objects that it printed.
    pub(crate) lines: Vec<Value>,
    /// What it said on standard error.
    pub(crate) errors: String,
}

impl Cli {
    /// Commands run in `directory` with `profile`.
    pub(crate) fn new(directory: &Path, profile: &Path) -> Self {
        Self { directory: directory.to_owned(), profile: profile.to_owned() }
    }

    /// Runs a command to its end.
    pub(crate) async fn run<const N: usize>(&self, arguments: [&str; N]) -> Outcome {
        let mut command = stentor(&[], &self.directory, ["--json", "--yes", "--profile"]);
        command.arg(&self.profile).args(arguments);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = within(DEADLINE, &format!("{arguments:?}"), command.output()).await.unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        Outcome {
            status: output.status.code(),
            lines: lines.lines().map(parse).collect(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Starts a command that runs until it is ended.
    pub(crate) fn spawn<const N: usize>(&self, arguments: [&str; N]) -> Process {
        let mut command = stentor(&[], &self.directory, ["--json", "--yes", "--profile"]);
        command.arg(&self.profile).args(arguments);
        Process::spawn(&mut command, &self.directory.join("log-of-commands"))
    }
}

impl Outcome {
    /// The objects that a command printed which must have succeeded.
    pub(crate) fn ok(self) -> Vec<Value> {
        assert_eq!(self.status, Some(0), "{self:?}");
        self.lines
    }

    /// The one error that a command must have failed with: `kind`, `message`, `hint`.
    pub(crate) fn error(&self) -> Value {
        assert!(self.status.is_some_and(|status| status != 0), "{self:?}");
        let errors: Vec<Value> = self.errors.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let errors: Vec<&Value> = errors.iter().filter_map(|error| error.get("error")).collect();
        let [error] = errors[..] else { panic!("not one error: {self:?}") };
        error.clone()
    }
}
