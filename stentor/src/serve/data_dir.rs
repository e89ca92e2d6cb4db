//! The data folder: what lies where in it, and whether it can be used at all.

use std::fs;
use std::io;
use std::path::Path;

use stentor_storage_lsm::disk::make_folder;

use crate::output::Failure;

/// Where the LSM backend keeps its files.
pub(crate) const LSM_FOLDER: &str = "lsm";

/// Where `dev` keeps its certificates.
pub(crate) const TLS_FOLDER: &str = "tls";

/// The profile that `dev` writes for clients.
pub(crate) const PROFILE_FILE: &str = "client.toml";

/// Makes the folder if there is none, so that a power cut leaves it there, and finds out whether it can be written: a message from the depths of a backend
/// would not say what to do.
pub(crate) fn prepare(folder: &Path) -> Result<(), Failure> {
    let shown = folder.display();
    let refused = |error: &io::Error| match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            Failure::new("data_dir", format!("the data folder {shown} cannot be written: {error}"))
                .hint("give this user the right to write there, or name another folder as node.data_dir")
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            Failure::new("data_dir", format!("the data folder {shown} is not a folder: {error}"))
                .hint("name another folder as node.data_dir")
        }
        _ => Failure::new("data_dir", format!("the data folder {shown} cannot be used: {error}")),
    };
    make_folder(folder).map_err(|error| refused(&error))?;
    let probe = folder.join(format!(".probe-{}", std::process::id()));
    match fs::write(&probe, b"") {
        Ok(()) => fs::remove_file(&probe).map_err(|error| refused(&error)),
        // No room to write is a state that the broker lives with: reading and acknowledging go on from the reserve.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
        Err(error) => Err(refused(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_and_left_as_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("a/b");
        prepare(&folder).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn a_file_in_its_place_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("data");
        fs::write(&file, b"").unwrap();
        let failure = prepare(&file).unwrap_err().to_string();
        assert!(failure.contains("is not a folder") && failure.contains("data"), "{failure}");
    }
}
