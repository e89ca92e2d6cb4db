//! Which machine it was: what has to stand next to a figure, and nothing that names the machine itself.

use std::fs;
use std::path::Path;

use crate::lab::Lab;

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// What the processor calls itself.
    pub cpu: String,
    /// How many threads it runs at a time.
    pub cores: usize,
    /// Its memory, in whole GiB.
    pub memory_gib: u64,
    /// The version of its kernel.
    pub kernel: String,
    /// The kind of file system that was measured.
    pub file_system: String,
}

impl Host {
    /// This machine, with the file system that `folder` lies on.
    #[must_use]
    pub fn this(folder: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: Lab::cores(),
            memory_gib: memory_gib(&read("/proc/meminfo")),
            kernel: kernel(&read("/proc/sys/kernel/osrelease")),
            file_system: file_system(&read("/proc/self/mounts"), &folder).unwrap_or_else(|| "unknown".to_owned()),
        }
    }
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let values = text.lines().filter_map(|line| line.split_once(':'));
    values.into_iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

fn memory_gib(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal").and_then(|value| value.split(' ').next().and_then(|kib| kib.parse().ok()));
    // What the kernel keeps for itself is not in it: rounded up to what was built in.
    kib.unwrap_or(0_u64).div_ceil(1 << 20)
}

/// The version alone: what follows it names a build, or who made it.
fn kernel(release: &str) -> String {
    release.trim().split('-').next().unwrap_or_default().to_owned()
}

/// The type of the file system that `folder` lies on: of the mount whose path is the longest part of it, the last one
/// mounted there.
fn file_system(mounts: &str, folder: &Path) -> Option<String> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((Path::new(fields.next()?), fields.next()?))
    });
    let over = mounts.filter(|(at, _)| folder.starts_with(at));
    over.max_by_key(|(at, _)| at.components().count()).map(|(_, kind)| kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_is_that_of_the_innermost_mount() {
        let mounts = "disk / ext4 rw 0 0\ntmp /tmp tmpfs rw 0 0\nother /tmp/deep xfs rw 0 0\n";
        let of = |folder: &str| file_system(mounts, Path::new(folder));
        assert_eq!(of("/home/benches").as_deref(), Some("ext4"));
        assert_eq!(of("/tmp/benches").as_deref(), Some("tmpfs"));
        assert_eq!(of("/tmp/deep/benches").as_deref(), Some("xfs"));
        assert_eq!(of("/tmpfile").as_deref(), Some("ext4"));
    }

    #[test]
    fn the_version_of_the_kernel_names_no_build() {
        assert_eq!(kernel("6.12.5-100-cloud-amd64\n"), "6.12.5");
    }

    #[test]
    fn memory_is_told_in_whole_gibibytes() {
        assert_eq!(memory_gib("MemTotal:       24603028 kB\nMemFree: 1 kB\n"), 24);
    }
}
