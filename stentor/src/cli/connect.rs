//! What commands that talk to a broker share: the profile that is found, the client, errors turned into failures.

use std::io;
use std::path::PathBuf;

use stentor_client::Client;
use stentor_client::error::{ConnectError, Error};
use stentor_core::transport::TransportError;
use tracing_subscriber::EnvFilter;

use crate::output::{Failure, Output};
use crate::serve::PROFILE_FILE;

/// Where and how a command runs.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    /// Where its words go.
    pub(crate) output: Output,
    /// The profile that the user named, by option or environment.
    pub(crate) profile: Option<PathBuf>,
    /// The broker that the user named.
    pub(crate) server: Option<String>,
}

impl Context {
    /// Whether the user said which broker is meant.
    pub(crate) fn names_a_broker(&self) -> bool {
        self.server.is_some() || self.profile.is_some()
    }

    /// Connects to the broker.
    ///
    /// # Errors
    /// When there is no profile, or nobody answers.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        let profile = self.find_profile()?;
        let builder = match &self.server {
            Some(server) => Client::connect(server.clone()).profile(profile),
            None => Client::from_profile(profile),
        };
        builder.open().await.map_err(|error| not_connected(&error))
    }

    /// The profile that counts: the one named, else the first there is of the usual places.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn find_profile(&self) -> Result<PathBuf, Failure> {
        if let Some(named) = &self.profile {
            return Ok(named.clone());
        }
        let places = usual_places();
        places.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
            let looked: Vec<_> = places.iter().map(|path| path.display().to_string()).collect();
            Failure::new("config", format!("no profile says where the broker is (looked at {})", looked.join(", ")))
                .hint("start a broker with `stentor dev` in this folder, or name a profile with --profile")
        })
    }
}

fn usual_places() -> Vec<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    let dev = PathBuf::from("stentor-data").join(PROFILE_FILE);
    std::iter::once(dev).chain(user.map(|folder| folder.join("stentor").join(PROFILE_FILE))).collect()
}

fn not_connected(error: &ConnectError) -> Failure {
    let kind = match error {
        ConnectError::Profile(_) | ConnectError::NoServer | ConnectError::NoTransport(_) => "config",
        ConnectError::Transport(TransportError::Tls(_)) => "certificate",
        ConnectError::Transport(_) | ConnectError::TimedOut { .. } => "connect",
        other => other.kind(),
    };
    Failure::new(kind, format!("cannot connect: {error}")).hint(error.hint().unwrap_or_default())
}

/// Anything that the SDK reports, as a failure of its kind.
impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        let error = error.into();
        if let Error::Connect(error) = &error {
            return not_connected(error);
        }
        Self::new(error.kind(), error.to_string()).hint(error.hint().unwrap_or_default())
    }
}

/// A log of what the client does, to standard error.
pub(super) fn log(verbose: u8) {
    let filter = EnvFilter::new(if verbose > 1 { "debug" } else { "info" });
    // A second log in one process is not wanted.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).try_init();
}
