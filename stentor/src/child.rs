//! A broker of one's own: the same binary as `dev`, in a process of its own and a temporary folder, so that what it uses
//! (processor, memory) is its own and nobody's data is touched. `bench` and `demo` start one.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use stentor_client::Client;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::output::Failure;
use crate::serve::PROFILE_FILE;

/// How long it may take to serve.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// How long it may take to stop when it is asked to.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);

/// A running broker. It ends with this process, whatever ends that: it follows the closing of its standard input.
pub(crate) struct ChildBroker {
    process: Child,
    /// Closed to stop it.
    lifeline: Option<ChildStdin>,
    folder: TempDir,
}

impl ChildBroker {
    /// Starts one and waits until it serves.
    pub(crate) async fn start() -> Result<Self, Failure> {
        let cannot = |error: &std::io::Error| Failure::io("cannot start a broker of its own", error);
        let folder = tempfile::Builder::new().prefix("stentor-").tempdir().map_err(|error| cannot(&error))?;
        let binary = std::env::current_exe().map_err(|error| cannot(&error))?;
        let mut process = Command::new(binary)
            .args(["dev", "--json", "--with-parent", "--quic", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data-dir"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A group of its own: Ctrl-C in the terminal goes to the parent, which still needs its broker to end well.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| cannot(&error))?;
        let lifeline = process.stdin.take();
        let silent = || Failure::new("io", "the broker that was started said nothing").hint("its own words are above");
        let mut lines = BufReader::new(process.stdout.take().ok_or_else(silent)?).lines();
        let line = tokio::time::timeout(READY_WITHIN, lines.next_line()).await;
        let line = line.ok().and_then(Result::ok).flatten().ok_or_else(silent)?;
        if !line.contains("\"ready\":true") {
            return Err(silent());
        }
        Ok(Self { process, lifeline, folder })
    }

    /// The folder that it keeps its data in.
    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// A client of it.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        Ok(Client::from_profile(self.folder.path().join(PROFILE_FILE)).open().await?)
    }

    /// Stops it in good order.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        drop(self.lifeline.take());
        let ended = tokio::time::timeout(STOPPED_WITHIN, self.process.wait()).await;
        match ended {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(Failure::new("io", format!("the broker that was started ended with {status}"))),
            Ok(Err(error)) => Err(Failure::io("cannot wait for the broker that was started", &error)),
            Err(_) => Err(Failure::new("io", "the broker that was started did not stop in time")),
        }
    }
}
