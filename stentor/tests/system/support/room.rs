//! A file system of a chosen size, that nobody else sees and that leaves nothing behind.
//!
//! It is a tmpfs mounted in a mount namespace of its own, which a sleeping process holds open. Brokers are started inside
//! with `nsenter`; the test reaches the files through `/proc`. When the holder ends, namespace and file system are gone.
//! Root needs no more than that; others get a user namespace too, where the machine lets them have one.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::scale::Scale;
use super::wait::{DEADLINE, within};

/// Where the file system is mounted, inside.
const MOUNT: &str = "/mnt";

/// The holder ends by itself after so many seconds, should the test be killed before it can end it.
const HOLDER_SECONDS: u32 = 900;

/// A small file system.
pub(crate) struct Room {
    holder: Child,
    own_user: bool,
}

impl Room {
    /// A file system with these mount options (`size=64m`, `ro`); none where the machine allows no mounting. Then the
    /// test cannot run: it says so, and in the slow suites, which are there to run it, that is a failure.
    pub(crate) async fn new(options: &str) -> Option<Self> {
        let mut refusals = Vec::new();
        for own_user in [false, true] {
            match Self::try_new(options, own_user).await {
                Ok(room) => return Some(room),
                Err(refusal) => refusals.push(refusal),
            }
        }
        let refusals = refusals.join("; ");
        assert!(Scale::of_this_run() == Scale::Quick, "no file system can be mounted here: {refusals}");
        eprintln!("NOT RUN: no file system can be mounted here: {refusals}");
        None
    }

    async fn try_new(options: &str, own_user: bool) -> Result<Self, String> {
        let script =
            format!("mount -t tmpfs -o {options} tmpfs {MOUNT} && echo mounted && exec sleep {HOLDER_SECONDS}");
        let mut command = Command::new("unshare");
        command.args(if own_user { &["--user", "--map-root-user", "--mount"][..] } else { &["--mount"][..] });
        command.args(["sh", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = command.kill_on_drop(true).spawn().map_err(|error| format!("unshare: {error}"))?;
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        if within(DEADLINE, "the mount", lines.next_line()).await.unwrap().is_some() {
            return Ok(Self { holder, own_user });
        }
        let said = holder.wait_with_output().await.unwrap();
        Err(String::from_utf8_lossy(&said.stderr).trim().to_owned())
    }

    fn pid(&self) -> String {
        self.holder.id().unwrap().to_string()
    }

    /// What a command is started through to run inside.
    pub(crate) fn wrapper(&self) -> Vec<String> {
        let mut wrapper = vec!["nsenter".to_owned(), "--target".to_owned(), self.pid()];
        if self.own_user {
            wrapper.extend(["--user", "--preserve-credentials"].map(str::to_owned));
        }
        wrapper.extend(["--mount", "--"].map(str::to_owned));
        wrapper
    }

    /// The path of `name` on the file system, for a process inside.
    pub(crate) fn inside(&self, name: &str) -> PathBuf {
        Path::new(MOUNT).join(name)
    }

    /// The path of `name` on the file system, for this process.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{MOUNT}", self.pid())).join(name)
    }

    /// Bytes that are free.
    pub(crate) fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.outside("")).unwrap();
        stat.f_bavail * stat.f_frsize
    }

    /// Takes room until only `leave` bytes are free; gives the file that takes it.
    pub(crate) fn fill(&self, name: &str, leave: u64) -> PathBuf {
        let path = self.outside(name);
        let mut file = std::fs::File::create(&path).unwrap();
        let block = vec![0x5a; 64 << 10];
        while let Some(more) = self.free_bytes().checked_sub(leave).filter(|more| *more >= 4_096) {
            let bytes = usize::try_from(more).unwrap().min(block.len());
            if file.write_all(&block[..bytes]).is_err() {
                break;
            }
        }
        path
    }
}
