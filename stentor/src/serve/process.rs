//! What this process uses, from `/proc`.

use procfs::WithCurrentSystemInfo;
use procfs::process::Process;
use stentor_broker::ProcessStats;

/// User and system time since the start, and resident memory; zeros where there is no `/proc`.
pub(crate) fn process_stats() -> ProcessStats {
    let Ok(stat) = Process::myself().and_then(|process| process.stat()) else { return ProcessStats::default() };
    #[expect(clippy::cast_precision_loss, reason = "clock ticks of a process fit a double for longer than it lives")]
    let cpu_seconds = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
    ProcessStats { cpu_seconds, rss_bytes: stat.rss_bytes().get() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory() {
        assert!(process_stats().rss_bytes > 1 << 20);
    }
}
