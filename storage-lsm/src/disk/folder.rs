//! Making the folder of a store, so that a power cut does not take it away again with all that was synced in it.
//!
//! A file that is synced is safe only as far as its name is, and a folder's name lies in its parent.
//!
//! Invariant: no level is made before the name of the one above it is synced. So of what is found there, only the lowest
//! level may lack its sync, left by a process that died in between.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Makes a folder and what is missing above it, each level's name synced in its parent.
///
/// # Errors
/// What the system says.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    make(folder, &mut System)
}

/// What it takes of the system.
trait Folders {
    fn is_there(&self, folder: &Path) -> bool;
    fn make(&mut self, folder: &Path) -> io::Result<()>;
    fn sync(&mut self, folder: &Path) -> io::Result<()>;
}

struct System;

impl Folders for System {
    fn is_there(&self, folder: &Path) -> bool {
        folder.is_dir()
    }

    fn make(&mut self, folder: &Path) -> io::Result<()> {
        match std::fs::create_dir(folder) {
            // Somebody else was quicker. What is there instead of a folder is an error.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
            made => made,
        }
    }

    fn sync(&mut self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

fn make(folder: &Path, system: &mut impl Folders) -> io::Result<()> {
    let levels: Vec<&Path> = folder.ancestors().filter(|level| !level.as_os_str().is_empty()).collect();
    let missing = levels.iter().take_while(|level| !system.is_there(level)).count();
    if let Some(lowest) = levels.get(missing)
        && let Some(parent) = parent(lowest)
    {
        match system.sync(&parent) {
            // It has been there for longer than this user has, who may not even look.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    for level in levels[..missing].iter().rev() {
        system.make(level)?;
        if let Some(parent) = parent(level) {
            system.sync(&parent)?;
        }
    }
    Ok(())
}

/// Where the name of a folder lies; none for the root.
fn parent(folder: &Path) -> Option<PathBuf> {
    let parent = folder.parent()?;
    // The only component of a relative path lies where the process runs.
    Some(if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes what is done, and stops as a power cut would after so many steps.
    #[derive(Default)]
    struct Noting {
        there: Vec<PathBuf>,
        done: Vec<String>,
        steps_left: Option<usize>,
    }

    impl Noting {
        fn step(&mut self, what: String) -> io::Result<()> {
            if let Some(left) = &mut self.steps_left {
                *left = left.checked_sub(1).ok_or_else(|| io::Error::other("the power is cut"))?;
            }
            self.done.push(what);
            Ok(())
        }
    }

    impl Folders for Noting {
        fn is_there(&self, folder: &Path) -> bool {
            self.there.iter().any(|there| there == folder)
        }

        fn make(&mut self, folder: &Path) -> io::Result<()> {
            self.step(format!("make {}", folder.display()))?;
            self.there.push(folder.to_owned());
            Ok(())
        }

        fn sync(&mut self, folder: &Path) -> io::Result<()> {
            self.step(format!("sync {}", folder.display()))
        }
    }

    fn at(there: &[&str]) -> Noting {
        Noting { there: there.iter().map(PathBuf::from).collect(), ..Noting::default() }
    }

    #[test]
    fn each_level_is_synced_in_its_parent_before_the_next_is_made() {
        let mut system = at(&["/", "/srv"]);
        make(Path::new("/srv/a/b"), &mut system).unwrap();
        assert_eq!(system.done, ["sync /", "make /srv/a", "sync /srv", "make /srv/a/b", "sync /srv/a"]);
        let mut system = at(&[]);
        make(Path::new("data/lsm"), &mut system).unwrap();
        assert_eq!(system.done, ["make data", "sync .", "make data/lsm", "sync data"]);
    }

    #[test]
    fn what_a_process_left_unsynced_is_synced_by_the_next() {
        for steps in 0..5 {
            let mut system = Noting { steps_left: Some(steps), ..at(&["/", "/srv"]) };
            assert!(make(Path::new("/srv/a/b"), &mut system).is_err());
            system.steps_left = None;
            make(Path::new("/srv/a/b"), &mut system).unwrap();
            for (made, parent) in [("make /srv/a", "sync /srv"), ("make /srv/a/b", "sync /srv/a")] {
                let made = system.done.iter().position(|done| done == made).unwrap();
                assert!(system.done[made..].iter().any(|done| done == parent), "{steps}: {:?}", system.done);
            }
        }
    }

    #[test]
    fn folders_are_really_made_and_a_file_in_the_way_is_an_error() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("a/b");
        make_folder(&folder).unwrap();
        make_folder(&folder).unwrap();
        assert!(folder.is_dir());
        std::fs::write(folder.join("file"), b"").unwrap();
        assert!(make_folder(&folder.join("file/c")).is_err());
        assert!(make_folder(&folder.join("file")).is_err());
    }
}
