//! What a broker takes of its machine, seen from outside.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use procfs::process::{Process, all_processes};

use crate::support::broker::Broker;

/// What it takes at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) rss_mib: f64,
    pub(crate) files: usize,
    pub(crate) threads: i64,
    pub(crate) cpu_seconds: f64,
}

/// Reads it, of one run of a broker.
pub(crate) struct Meter(Process);

impl Meter {
    /// Finds the process that serves the broker's data folder.
    pub(crate) fn of(broker: &Broker) -> Self {
        let folder = broker.data_folder().to_str().unwrap().to_owned();
        let serves = |process: &Process| {
            let line = process.cmdline().unwrap_or_default();
            line.contains(&folder) && line.iter().any(|word| word == "dev")
        };
        Self(all_processes().unwrap().flatten().find(serves).expect("the broker runs"))
    }

    pub(crate) fn read(&self) -> Reading {
        let stat = self.0.stat().unwrap();
        Reading {
            rss_mib: (stat.rss * procfs::page_size()) as f64 / f64::from(1 << 20),
            files: self.0.fd_count().unwrap(),
            threads: stat.num_threads,
            cpu_seconds: (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64,
        }
    }
}

/// Room on the disk that everything in a folder takes, in MiB.
pub(crate) fn disk_mib(folder: &Path) -> f64 {
    fn blocks(folder: &Path) -> u64 {
        let Ok(entries) = fs::read_dir(folder) else { return 0 };
        let sizes = entries.flatten().map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => blocks(&entry.path()),
            Ok(metadata) => metadata.blocks(),
            // Files come and go meanwhile.
            Err(_) => 0,
        });
        sizes.sum()
    }
    blocks(folder) as f64 * 512.0 / f64::from(1 << 20)
}
