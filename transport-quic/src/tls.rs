//! TLS: what the certificate files say, and how they are followed as they change.

mod files;
mod setup;
mod stamps;

use std::path::PathBuf;

pub(crate) use setup::{ALPN, client, fingerprint, server};
pub(crate) use stamps::{Stamps, follow};

/// The certificate files of a listener, all PEM.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// The certificate chain, the server's own first.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// When set, clients must present a certificate that one of these CAs signed.
    pub client_ca: Option<PathBuf>,
}

impl ServerTls {
    /// Every file that is read.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()].into_iter().flatten().cloned().collect()
    }
}

/// The certificate files of a client, all PEM.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// The CAs that may have signed a server's certificate.
    pub ca: PathBuf,
    /// The client's own certificate chain and private key, where servers ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl ClientTls {
    /// Every file that is read.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let identity = self.identity.iter().flat_map(|(cert, key)| [cert, key]);
        std::iter::once(&self.ca).chain(identity).cloned().collect()
    }
}
