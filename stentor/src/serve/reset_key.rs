//! The key of stateless resets, kept in the data folder: with it a broker that was killed and started again ends the
//! connections of its clients at their next packet; see [`ResetKey`].
//!
//! It is made once. Nothing durable hangs on it: one that cannot be read or kept is replaced, at the price that clients of
//! before find out by their idle time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use stentor_transport_quic::ResetKey;

use crate::output::Failure;

/// Where it lies in the data folder.
const FILE: &str = "reset.key";

/// Where it lies while it is being written.
const UNFINISHED: &str = "reset.key.new";

/// The key in the data folder; a new one, kept there, if there is none.
pub(super) fn prepare(folder: &Path) -> Result<ResetKey, Failure> {
    let path = folder.join(FILE);
    match fs::read(&path).map(<[u8; ResetKey::BYTES]>::try_from) {
        Ok(Ok(bytes)) => return Ok(ResetKey::from_bytes(bytes)),
        Ok(Err(bytes)) => tracing::warn!(path = %path.display(), bytes = bytes.len(), "no key: it is made anew"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = %path.display(), %error, "the key cannot be read: it is made anew"),
    }
    let key = ResetKey::generate().map_err(|error| Failure::new("internal", error.to_string()))?;
    if let Err(error) = keep(folder, &key) {
        // A full disk, say: the broker lives with that.
        tracing::warn!(path = %path.display(), %error, "the key cannot be kept: clients will be slow to notice a crash");
    }
    Ok(key)
}

/// Whole or not at all, and for the owner alone.
fn keep(folder: &Path, key: &ResetKey) -> io::Result<()> {
    let unfinished = folder.join(UNFINISHED);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    file.write_all(key.bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, folder.join(FILE))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_for_its_owner_alone() {
        let temp = tempfile::tempdir().unwrap();
        let first = prepare(temp.path()).unwrap();
        assert_eq!(prepare(temp.path()).unwrap().bytes(), first.bytes());
        let names: Vec<_> = fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [FILE]);
        assert_eq!(fs::metadata(temp.path().join(FILE)).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn one_that_was_cut_short_is_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let first = prepare(temp.path()).unwrap();
        fs::write(temp.path().join(FILE), &first.bytes()[..7]).unwrap();
        fs::write(temp.path().join(UNFINISHED), "of a process that died").unwrap();
        let second = prepare(temp.path()).unwrap();
        assert_ne!(second.bytes(), first.bytes());
        assert_eq!(prepare(temp.path()).unwrap().bytes(), second.bytes());
    }

    #[test]
    fn a_folder_that_takes_nothing_leaves_a_key_for_this_once() {
        let temp = tempfile::tempdir().unwrap();
        let missing = temp.path().join("missing");
        assert_ne!(prepare(&missing).unwrap().bytes(), prepare(&missing).unwrap().bytes());
    }
}
