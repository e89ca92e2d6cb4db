//! A broker of one's own: the real binary, on free ports, with a data folder that goes when the test does.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::cli::{Cli, Outcome};
use super::process::{Process, stentor, tail};
use super::wait::{DEADLINE, pause};

const ANY_PORT: &str = "127.0.0.1:0";

/// A broker that can be killed, stopped and started again on the same data and the same addresses.
///
/// Methods take `&self`, because clients work on while somebody else pulls the plug.
pub(crate) struct Broker {
    process: Mutex<Process>,
    setup: Setup,
    quic: String,
    admin: String,
    _scratch: TempDir,
}

/// What a broker is started with.
#[derive(Clone)]
pub(crate) struct Setup {
    /// `stentor.toml`.
    pub(crate) config: String,
    /// Its data folder.
    pub(crate) data_dir: PathBuf,
    /// The same folder, where this process finds it; another path only for a broker in a namespace of its own.
    pub(crate) data_dir_from_here: PathBuf,
    /// A command that the broker is started through, such as one that enters a namespace.
    pub(crate) wrapper: Vec<String>,
    scratch: PathBuf,
}

impl Setup {
    /// The command that starts it on these addresses.
    fn command(&self, quic: &str, admin: &str) -> tokio::process::Command {
        let config = self.scratch.join("stentor.toml");
        std::fs::write(&config, &self.config).unwrap();
        let mut command = stentor(&self.wrapper, &self.scratch, ["--json", "dev", "--quic", quic, "--admin", admin]);
        command.arg("--data-dir").arg(&self.data_dir).arg("--config").arg(&config);
        command
    }

    fn log(&self) -> PathBuf {
        self.scratch.join("log")
    }
}

/// What a broker said when it came up, or how it ended instead.
pub(crate) enum Start {
    /// It serves.
    Ready(Box<Broker>),
    /// It refused to start: how it ended, and all that it had to say.
    Refused(ExitStatus, String),
}

impl Broker {
    /// A broker with the built-in settings.
    pub(crate) async fn start() -> Self {
        Self::with_config("").await
    }

    /// A broker with this `stentor.toml`.
    pub(crate) async fn with_config(config: &str) -> Self {
        Self::with_setup(config, |setup| setup).await
    }

    /// A broker whose setup is changed before it starts.
    pub(crate) async fn with_setup(config: &str, change: impl FnOnce(Setup) -> Setup) -> Self {
        match Self::try_start(config, change).await {
            Start::Ready(broker) => *broker,
            Start::Refused(status, log) => panic!("the broker did not start ({status}):\n{log}"),
        }
    }

    /// As [`with_setup`](Self::with_setup), where not starting is an outcome.
    pub(crate) async fn try_start(config: &str, change: impl FnOnce(Setup) -> Setup) -> Start {
        let scratch = TempDir::with_prefix("stentor-system-").unwrap();
        let data_dir = scratch.path().join("data");
        let setup = change(Setup {
            config: config.to_owned(),
            data_dir_from_here: data_dir.clone(),
            data_dir,
            wrapper: Vec::new(),
            scratch: scratch.path().to_owned(),
        });
        match launch(&setup, ANY_PORT, ANY_PORT).await {
            Ok((process, ready)) => {
                let address = |key: &str| ready[key].as_str().unwrap_or_else(|| panic!("{ready}")).to_owned();
                let (quic, admin) = (address("quic"), address("admin"));
                Start::Ready(Box::new(Self { process: Mutex::new(process), setup, quic, admin, _scratch: scratch }))
            }
            Err(status) => Start::Refused(status, tail(&setup.log())),
        }
    }

    /// Ends it in the middle of whatever it is doing.
    pub(crate) async fn kill9(&self) {
        self.process.lock().await.kill9().await;
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn terminate(&self) -> ExitStatus {
        let mut process = self.process.lock().await;
        process.signal(Signal::TERM);
        process.exit(DEADLINE).await
    }

    /// Sends it a signal.
    pub(crate) async fn signal(&self, signal: Signal) {
        self.process.lock().await.signal(signal);
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) -> ExitStatus {
        self.process.lock().await.exit(DEADLINE).await
    }

    /// Starts it again where it was.
    pub(crate) async fn restart(&self) {
        if let Err((status, log)) = self.try_restart().await {
            panic!("the broker did not start again ({status}):\n{log}");
        }
    }

    /// As [`restart`](Self::restart), where not starting is an outcome: how it ended, and what it had to say.
    pub(crate) async fn try_restart(&self) -> Result<(), (ExitStatus, String)> {
        let mut process = self.process.lock().await;
        match launch(&self.setup, &self.quic, &self.admin).await {
            Ok((started, _)) => {
                *process = started;
                Ok(())
            }
            Err(status) => Err((status, self.log())),
        }
    }

    /// Starts it again, but ends it after `moment` whether it has come up or not.
    pub(crate) async fn stumble(&self, moment: Duration) {
        let mut process = self.process.lock().await;
        *process = Process::spawn(&mut self.setup.command(&self.quic, &self.admin), &self.setup.log());
        pause(moment).await;
        process.kill9().await;
    }

    /// Where clients connect.
    pub(crate) fn quic(&self) -> &str {
        &self.quic
    }

    /// The profile that it wrote for clients.
    pub(crate) fn profile(&self) -> PathBuf {
        self.setup.data_dir_from_here.join("client.toml")
    }

    /// Its data folder.
    pub(crate) fn data_folder(&self) -> &Path {
        &self.setup.data_dir_from_here
    }

    /// The command line against this broker.
    pub(crate) fn cli(&self) -> Cli {
        Cli::new(&self.setup.scratch, &self.profile())
    }

    /// A command against this broker that must succeed: the JSON objects that it printed.
    pub(crate) async fn run<const N: usize>(&self, arguments: [&str; N]) -> Vec<Value> {
        self.cli().run(arguments).await.ok()
    }

    /// A command against this broker, however it ends.
    pub(crate) async fn attempt<const N: usize>(&self, arguments: [&str; N]) -> Outcome {
        self.cli().run(arguments).await
    }

    /// A command against this broker that prints one object.
    pub(crate) async fn show<const N: usize>(&self, arguments: [&str; N]) -> Value {
        let mut lines = self.run(arguments).await;
        assert_eq!(lines.len(), 1, "{arguments:?}: {lines:?}");
        lines.remove(0)
    }

    /// What the broker has of memory, in bytes.
    pub(crate) async fn resident_bytes(&self) -> u64 {
        let pid = self.process.lock().await.pid().as_raw_nonzero().get();
        let process = procfs::process::Process::new(pid).unwrap();
        process.statm().unwrap().resident * procfs::page_size()
    }

    /// What it has logged so far, or the end of it.
    pub(crate) fn log(&self) -> String {
        tail(&self.setup.log())
    }
}

/// Starts a broker and waits until it serves, or has ended instead.
async fn launch(setup: &Setup, quic: &str, admin: &str) -> Result<(Process, Value), ExitStatus> {
    let mut process = Process::spawn(&mut setup.command(quic, admin), &setup.log());
    while let Some(line) = process.line(DEADLINE).await {
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        if said["ready"] == true {
            return Ok((process, said));
        }
    }
    Err(process.exit(DEADLINE).await)
}
