//! What this process uses, from `/proc`, and what it may use.

use procfs::WithCurrentSystemInfo;
use procfs::process::Process;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stentor_broker::ProcessStats;

/// User and system time since the start, and resident memory; zeros where there is no `/proc`.
pub(crate) fn process_stats() -> ProcessStats {
    let Ok(stat) = Process::myself().and_then(|process| process.stat()) else { return ProcessStats::default() };
    #[expect(clippy::cast_precision_loss, reason = "clock ticks of a process fit a double for longer than it lives")]
    let cpu_seconds = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
    ProcessStats { cpu_seconds, rss_bytes: stat.rss_bytes().get() }
}

/// Lets this process open as many files as it is allowed to. The store keeps each segment of its journal open: a backlog of
/// some dozens of GiB alone would come near the 1,024 that systems set for the sake of programs that use `select`.
pub(crate) fn allow_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, limit = ?limit.current, "no more files can be opened than the system's soft limit");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory() {
        assert!(process_stats().rss_bytes > 1 << 20);
    }

    #[test]
    fn as_many_files_may_be_open_as_the_hard_limit_says() {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(1_000), ..limit }).unwrap();
        allow_open_files();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
