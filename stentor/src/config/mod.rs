//! The configuration of a node: `stentor.toml`.
//!
//! Every key has a default, so an empty file is a good one. Topic, group and node settings are data of the broker
//! ([`stentor_broker::settings`]); this module knows their tables and the lines they stand on, not their meaning.
//!
//! Invariants: a file with an unknown or ill-typed key is refused with its line and the nearest key that there is; the
//! annotated `stentor.toml` at the project's root names every key with its default, which a test checks.
//!
//! Paths are relative to the working directory of the process, as on any command line, not to the file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use stentor_broker::config::BrokerConfig;

use crate::output::Failure;

mod document;
mod error;
mod read;
#[cfg(test)]
mod tests;

pub(crate) use error::ConfigError;

/// What a node is told to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Where the node keeps what must outlive it.
    pub(crate) data_dir: PathBuf,
    /// How long a node that was asked to stop may take to finish what is in flight.
    pub(crate) drain_timeout: Duration,
    /// Where it listens.
    pub(crate) listen: Listen,
    /// How it proves who it is; `serve` refuses to start without.
    pub(crate) tls: Option<Tls>,
    /// What it says about itself on standard error.
    pub(crate) log: Log,
    /// Everything that the engine heeds.
    pub(crate) broker: BrokerConfig,
}

/// Addresses, each `HOST:PORT`; port 0 picks a free one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    /// For clients.
    pub(crate) quic: String,
    /// HTTP: metrics, health, JSON API.
    pub(crate) admin: String,
}

/// PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    /// The node's certificate with its chain.
    pub(crate) cert: PathBuf,
    /// The key that goes with it.
    pub(crate) key: PathBuf,
    /// When there is one, clients must present a certificate that it signed.
    pub(crate) client_ca: Option<PathBuf>,
}

/// The log on standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    /// A level, or directives as `tracing` knows them: `info,stentor_broker=debug`.
    pub(crate) level: String,
    /// Text or JSON.
    pub(crate) format: LogFormat,
}

/// In which form the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// A line of words.
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("stentor-data"),
            drain_timeout: Duration::from_secs(30),
            listen: Listen { quic: "0.0.0.0:7411".to_owned(), admin: "127.0.0.1:7412".to_owned() },
            tls: None,
            log: Log { level: "info".to_owned(), format: LogFormat::Text },
            broker: BrokerConfig::default(),
        }
    }
}

impl Config {
    /// Reads the configuration in `file`.
    ///
    /// # Errors
    /// When it cannot be read, or the first thing that is wrong in it.
    pub(crate) fn load(file: &Path) -> Result<Self, Failure> {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|error| {
            Failure::new("config", format!("cannot read the configuration {name}: {error}"))
                .hint("name an existing file; stentor.toml in the project's root is an annotated one to start from")
        })?;
        Ok(Self::parse(&name, &text)?)
    }

    /// Reads a configuration from its text; `file` is what errors call it.
    ///
    /// # Errors
    /// The first thing that is wrong in it.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        read::read(file, text)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new("config", error.to_string()).hint(error.hint)
    }
}
