//! A child process that does not outlive its test, whatever becomes of the test.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::wait::within;

/// How much of what a process had to say is shown when its test fails.
const TAIL_BYTES: usize = 8 << 10;

/// A running `stentor`. Killed when dropped; while a test panics, the end of its standard error is shown.
pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    name: String,
}

impl Process {
    /// Starts `command` with its standard output read line by line and its standard error appended to `log`.
    pub(crate) fn spawn(command: &mut Command, log: &Path) -> Self {
        let errors = File::options().create(true).append(true).open(log).unwrap();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, log: log.to_owned(), name: format!("{:?}", command.as_std()) }
    }

    /// The next line of its standard output; none once it is closed.
    pub(crate) async fn line(&mut self, limit: Duration) -> Option<String> {
        let what = format!("a line from {}; its log:\n{}", self.name, tail(&self.log));
        within(limit, &what, self.lines.next_line()).await.unwrap()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn exit(&mut self, limit: Duration) -> ExitStatus {
        within(limit, &format!("{} to end", self.name), self.child.wait()).await.unwrap()
    }

    /// Ends it in the middle of whatever it is doing, and waits until it is gone.
    pub(crate) async fn kill9(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> Pid {
        let id = self.child.id().unwrap_or_else(|| panic!("{} has ended; its log:\n{}", self.name, tail(&self.log)));
        Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its files may be removed next, so it has to be gone, not just about to go. Reaping is left to the runtime.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            let _ = self.child.start_kill();
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        }
        if std::thread::panicking() {
            eprintln!("---- end of the log of {}\n{}\n----", self.name, tail(&self.log));
        }
    }
}

/// The end of a text file, or nothing.
pub(crate) fn tail(file: &Path) -> String {
    let bytes = std::fs::read(file).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]).into_owned()
}

/// The binary under test.
pub(crate) const STENTOR: &str = env!("CARGO_BIN_EXE_stentor");

/// `stentor` with `arguments`, started through `wrapper` if there is one, in a directory where it finds no profile.
pub(crate) fn stentor<A: AsRef<OsStr>>(
    wrapper: &[String],
    directory: &Path,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    let mut command = match wrapper {
        [] => Command::new(STENTOR),
        [program, rest @ ..] => {
            let mut command = Command::new(program);
            command.args(rest).arg(STENTOR);
            command
        }
    };
    // Whoever runs the tests may have brokers and profiles of their own.
    command.args(arguments).current_dir(directory).env("HOME", directory).env_remove("STENTOR_PROFILE");
    for variable in ["XDG_CONFIG_HOME", "RUST_LOG"] {
        command.env_remove(variable);
    }
    command
}
