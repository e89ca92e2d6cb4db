//! `stentor dev`: a broker on loopback that needs nothing prepared.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use stentor_core::clock::SystemClock;

use super::connect::Context;
use crate::config::Config;
use crate::output::{Failure, Output};
use crate::serve::certificates::DevCertificates;
use crate::serve::{PROFILE_FILE, Plan, Ready, data_dir, run};

/// Run a broker on loopback with generated certificates, for development
#[derive(Debug, Args)]
pub(super) struct Dev {
    /// Where to keep everything [default: stentor-data, or what FILE says]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where clients connect [default: 127.0.0.1:7411]; port 0 picks a free one
    #[arg(long, value_name = "ADDR")]
    quic: Option<String>,
    /// Where HTTP is spoken [default: 127.0.0.1:7412]; port 0 picks a free one
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Configuration to take topics, groups and defaults from
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Stop when standard input closes: for a broker that belongs to the process that started it
    #[arg(long, hide = true)]
    with_parent: bool,
}

impl Dev {
    pub(super) async fn run(self, context: &Context) -> Result<(), Failure> {
        let mut config = self.config.as_deref().map_or_else(|| Ok(Config::default()), Config::load)?;
        if self.config.is_none() {
            // The words below say what matters; the log is for what goes wrong.
            "warn".clone_into(&mut config.log.level);
        }
        // On loopback whatever the file says: these certificates prove nothing to anybody else.
        config.listen.quic = self.quic.unwrap_or_else(|| "127.0.0.1:7411".to_owned());
        config.listen.admin = self.admin.unwrap_or_else(|| "127.0.0.1:7412".to_owned());
        for address in [&config.listen.quic, &config.listen.admin] {
            check_loopback(address)?;
        }
        config.broker.auto_create = true;
        if let Some(data_dir) = self.data_dir {
            config.data_dir = data_dir;
        }
        data_dir::prepare(&config.data_dir)?;
        let certificates = DevCertificates::prepare(&config.data_dir, &SystemClock::new())?;
        let tls = certificates.tls();
        let output = context.output;
        run(Plan { config, tls, with_parent: self.with_parent }, |ready| {
            let profile = write_profile(ready)?;
            announce(output, ready, &profile)
        })
        .await
    }
}

fn check_loopback(address: &str) -> Result<(), Failure> {
    let host = address.rsplit_once(':').map(|(host, _)| host).unwrap_or_default();
    let loopback = host == "localhost" || address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback());
    if loopback {
        return Ok(());
    }
    Err(Failure::new("usage", format!("`dev` listens on loopback only, and `{address}` is something else"))
        .hint("use 127.0.0.1:PORT, or `stentor serve` with certificates of your own"))
}

/// The profile with which clients on this machine find the broker.
fn write_profile(ready: &Ready) -> Result<PathBuf, Failure> {
    let path = ready.data_dir.join(PROFILE_FILE);
    // Paths in a profile are relative to it.
    let text = format!("servers = [\"{}\"]\nca = \"tls/ca.pem\"\n", ready.quic);
    std::fs::write(&path, text)
        .map_err(|error| Failure::io(format_args!("cannot write {}", path.display()), &error))?;
    Ok(path)
}

fn announce(output: Output, ready: &Ready, profile: &std::path::Path) -> Result<(), Failure> {
    output.either(ready, || ready.words())?;
    // The usual place needs no option.
    let option = if profile == std::path::Path::new("stentor-data").join(PROFILE_FILE) {
        String::new()
    } else {
        format!(" --profile {}", profile.display())
    };
    output.note(&format!("  publish    stentor publish hello \"hello, world\"{option}"));
    output.note(&format!("  subscribe  stentor subscribe hello --group me --from earliest{option}"));
    output.note("  stop       Ctrl-C");
    Ok(())
}
