//! How a backlog grew and went, at even distances: into a file of JSON lines, if one was named, as it happens.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use stentor_client::Client;
use stentor_core::clock::SystemClock;
use stentor_core::{Clock, Monotonic};

use crate::bench::options::Options;
use crate::bench::stats::per_second;
use crate::bench::target::{Target, disk_bytes};
use crate::output::Failure;

/// What is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    Publish,
    Drain,
    GivingBack,
}

/// How things stand at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Sample {
    pub(super) phase: Phase,
    /// Since the beginning of the first phase.
    pub(super) seconds: f64,
    /// Published, or drained, so far.
    pub(super) messages: u64,
    /// Since the sample before.
    pub(super) messages_per_second: f64,
    pub(super) broker_cpu_seconds: f64,
    pub(super) broker_rss_bytes: u64,
    /// What the broker's folder takes on the disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) disk_bytes: Option<u64>,
    /// What the broker says of it: in all, and still needed.
    pub(super) storage_bytes: u64,
    pub(super) storage_bytes_live: u64,
}

/// Takes them.
pub(super) struct Samples {
    client: Client,
    folder: Option<PathBuf>,
    clock: SystemClock,
    every: Duration,
    file: Option<File>,
    began: Monotonic,
    phase: Phase,
    last: (Monotonic, u64),
    pub(super) taken: Vec<Sample>,
}

impl Samples {
    pub(super) async fn begin(target: &Target, options: &Options, clock: &SystemClock) -> Result<Self, Failure> {
        let file = options.samples.as_ref().map(|path| File::options().create(true).append(true).open(path));
        let file = file.transpose().map_err(|error| Failure::io("cannot write the samples", &error))?;
        let began = clock.monotonic();
        Ok(Self {
            client: target.client().await?,
            folder: target.own_folder(),
            clock: clock.clone(),
            every: options.sample_every,
            file,
            began,
            phase: Phase::Publish,
            last: (began, 0),
            taken: Vec::new(),
        })
    }

    /// Begins with another phase, whose messages are counted from none.
    pub(super) fn enter(&mut self, phase: Phase) {
        // What has been drained does not begin anew.
        let messages = if phase == Phase::GivingBack { self.last.1 } else { 0 };
        self.phase = phase;
        self.last = (self.clock.monotonic(), messages);
    }

    fn due_at(&self) -> Monotonic {
        self.last.0.after(self.every)
    }

    /// Waits until the next one is due. Cancel safe.
    pub(super) async fn due(&self) {
        self.clock.sleep_until(self.due_at()).await;
    }

    pub(super) fn is_due(&self) -> bool {
        self.clock.monotonic() >= self.due_at()
    }

    /// Takes one, after so many messages of this phase.
    pub(super) async fn take(&mut self, messages: u64) -> Result<(), Failure> {
        let now = self.clock.monotonic();
        let (last_at, last) = self.last;
        let node = self.client.admin().node_status().await?;
        let sample = Sample {
            phase: self.phase,
            seconds: now.since(self.began).as_secs_f64(),
            messages,
            messages_per_second: per_second(messages.saturating_sub(last), now.since(last_at)),
            broker_cpu_seconds: node.cpu_seconds,
            broker_rss_bytes: node.rss_bytes,
            disk_bytes: disk_bytes(self.folder.clone()).await,
            storage_bytes: node.storage_bytes,
            storage_bytes_live: node.storage_bytes_live,
        };
        self.last = (now, messages);
        self.taken.push(sample);
        if let Some(file) = &mut self.file {
            let mut line = serde_json::to_vec(&sample).map_err(|error| Failure::new("internal", error.to_string()))?;
            line.push(b'\n');
            file.write_all(&line).map_err(|error| Failure::io("cannot write the samples", &error))?;
        }
        Ok(())
    }

    /// The median rate of a phase's samples.
    pub(super) fn median_rate(&self, phase: Phase) -> Option<f64> {
        median(self.taken.iter().filter(|sample| sample.phase == phase).map(|sample| sample.messages_per_second))
    }

    pub(super) async fn close(self) {
        self.client.close().await;
    }
}

/// The median of these; none of none.
pub(super) fn median(rates: impl Iterator<Item = f64>) -> Option<f64> {
    Some(crate::bench::runs::Spread::of(rates)?.median)
}
