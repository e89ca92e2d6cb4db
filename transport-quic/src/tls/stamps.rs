//! Noticing that files have changed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use stentor_core::Clock;
use stentor_core::transport::TransportError;

/// What some files looked like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamps(Vec<Option<Stamp>>);

/// A file that is renamed into place keeps neither its inode nor, usually, its time; one that is rewritten changes its
/// time. Links are followed, since that is how secrets are swapped in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    inode: u64,
}

impl Stamps {
    /// Looks at the files. A missing one is a look of its own.
    pub(crate) fn of(paths: &[PathBuf]) -> Self {
        Self(paths.iter().map(Stamp::of).collect())
    }
}

impl Stamp {
    fn of(path: &PathBuf) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        #[cfg(unix)]
        let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
        #[cfg(not(unix))]
        let inode = 0;
        Some(Self { modified: metadata.modified().ok(), bytes: metadata.len(), inode })
    }
}

/// Calls `reload` whenever the files no longer look as they did in `seen`. One that fails is logged, once per change, and
/// what was in force stays. Ends only by being dropped.
pub(crate) async fn follow<R>(paths: Vec<PathBuf>, mut seen: Stamps, clock: Arc<dyn Clock>, every: Duration, reload: R)
where
    R: Fn() -> Result<(), TransportError> + Clone + Send + 'static,
{
    loop {
        clock.sleep_until(clock.monotonic().after(every)).await;
        let (paths, before, reload) = (paths.clone(), seen.clone(), reload.clone());
        // Off the runtime's threads: a file system may hang.
        let looked = tokio::task::spawn_blocking(move || {
            let now = Stamps::of(&paths);
            if now != before {
                // Looked at before reading: what changes meanwhile is found the next time.
                match reload() {
                    Ok(()) => tracing::info!("the certificates have changed and are in force"),
                    Err(error) => {
                        tracing::warn!(%error, "the certificates have changed and do not do; the old ones stay")
                    }
                }
            }
            now
        });
        match looked.await {
            Ok(now) => seen = now,
            Err(error) => tracing::error!(%error, "reloading the certificates failed; the old ones stay"),
        }
    }
}
