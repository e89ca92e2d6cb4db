//! The profile: a small file that says where the brokers are and how they are trusted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use thiserror::Error;

/// What a `client.toml` says. Paths are relative to the file.
///
/// ```toml
/// servers = ["10.0.0.1:7411", "10.0.0.2:7411"]
/// ca = "ca.pem"
/// cert = "client.pem"   # where the brokers ask for one
/// key = "client.key"
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Brokers to connect to, tried in turn: `HOST:PORT`.
    pub servers: Vec<String>,
    /// The certificate of the authority that the brokers' certificates are signed by, PEM.
    pub ca: PathBuf,
    /// The client's own certificate chain, PEM.
    pub cert: Option<PathBuf>,
    /// Its key, PEM.
    pub key: Option<PathBuf>,
}

/// Why a profile cannot be used.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("cannot read the profile {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: Arc<io::Error>,
    },
    /// It does not say what a profile says.
    #[error("the profile {} does not do: {reason}", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Where, and what is wrong.
        reason: String,
    },
}

impl Profile {
    /// Reads the profile at `path`.
    ///
    /// # Errors
    /// When there is none, or it is not one.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ProfileError::Read { path: path.to_owned(), source: Arc::new(source) })?;
        Self::parse(&text, path)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, ProfileError> {
        let wrong = |reason: String| ProfileError::Parse { path: path.to_owned(), reason };
        let mut profile: Self = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if profile.servers.is_empty() {
            return Err(wrong("`servers` is empty".to_owned()));
        }
        if profile.cert.is_some() != profile.key.is_some() {
            return Err(wrong("`cert` and `key` come together".to_owned()));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        for file in std::iter::once(&mut profile.ca).chain(&mut profile.cert).chain(&mut profile.key) {
            *file = folder.join(&*file);
        }
        Ok(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_file() {
        let text = "servers = ['a:1']\nca = 'ca.pem'\ncert = '/abs/c.pem'\nkey = 'k/c.key'";
        let profile = Profile::parse(text, Path::new("data/client.toml")).unwrap();
        assert_eq!(profile.servers, ["a:1"]);
        assert_eq!(profile.ca, Path::new("data/ca.pem"));
        assert_eq!(profile.cert.as_deref(), Some(Path::new("/abs/c.pem")));
        assert_eq!(profile.key.as_deref(), Some(Path::new("data/k/c.key")));
    }

    #[test]
    fn a_profile_that_does_not_do_says_why() {
        let reason = |text: &str| Profile::parse(text, Path::new("client.toml")).unwrap_err().to_string();
        assert!(reason("servers = []\nca = 'x'").contains("`servers` is empty"));
        assert!(reason("servers = ['a:1']\nca = 'x'\ncert = 'y'").contains("come together"));
        assert!(reason("servers = ['a:1']\nca = 'x'\nserver = 'y'").contains("unknown field `server`"));
        assert!(reason("servers = ['a:1']").contains("ca"));
    }
}
