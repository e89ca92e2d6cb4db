//! What a benchmark costs beside the broker's own account: this process's processor time, what reaches the device, what
//! lies in a folder.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A sector of the kernel's statistics, whatever the device has.
const SECTOR_BYTES: u64 = 512;

/// The place of the sectors written in a line of a block device's statistics (Documentation/block/stat.rst).
const SECTORS_WRITTEN_FIELD: usize = 6;

/// Processor time that this process has used, in seconds.
pub(super) fn own_cpu_seconds() -> f64 {
    // Statistics only: without them the report has none.
    let Ok(stat) = procfs::process::Process::myself().and_then(|process| process.stat()) else { return 0.0 };
    #[expect(clippy::cast_precision_loss, reason = "a process does not live for 2^53 ticks")]
    let seconds = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
    seconds
}

/// Bytes written so far to the block device that `folder` lies on, by everybody; none where there is no such device.
/// What a process is told to have written is no measure: writing over what a file holds already is counted otherwise.
pub(super) fn device_written_bytes(folder: &Path) -> Option<u64> {
    let device = fs::metadata(folder).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    sectors_written(&fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?)
        .map(|sectors| sectors * SECTOR_BYTES)
}

fn sectors_written(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(SECTORS_WRITTEN_FIELD)?.parse().ok()
}

/// Room on the disk that everything under `folder` takes. Files come and go meanwhile; those that are gone count nothing.
pub(super) fn disk_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
        Ok(metadata) => metadata.blocks() * SECTOR_BYTES,
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_written_are_the_seventh_number_of_a_device_s_line() {
        let line =
            "   27412    10011  1849058     9102    99119    52390 12345678   140116        0    70480   155431\n";
        assert_eq!(sectors_written(line), Some(12_345_678));
        assert_eq!(sectors_written("1 2 3"), None);
    }

    #[test]
    fn a_folder_takes_what_its_files_take_all_the_way_down() {
        let folder = tempfile::tempdir().unwrap();
        let empty = disk_bytes(folder.path());
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/file"), vec![7; 100_000]).unwrap();
        fs::File::open(folder.path().join("a/b/file")).unwrap().sync_all().unwrap();
        let taken = disk_bytes(folder.path()) - empty;
        assert!((98_304..=131_072).contains(&taken), "{taken}");
    }
}
