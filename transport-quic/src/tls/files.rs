//! Reading PEM files, with errors that say what to do.

use std::path::Path;

use rustls::RootCertStore;
use rustls_pki_types::pem::{Error, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use stentor_core::transport::TransportError;

/// The chain in `path`: at least one certificate.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TransportError> {
    let refused = |error| refused("certificate", path, error);
    let chain =
        CertificateDer::pem_file_iter(path).map_err(refused)?.collect::<Result<Vec<_>, _>>().map_err(refused)?;
    if chain.is_empty() { Err(refused(Error::NoItemsFound)) } else { Ok(chain) }
}

/// The first private key in `path`.
pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TransportError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| refused("private key", path, error))
}

/// The CAs in `path`.
pub(crate) fn roots(path: &Path) -> Result<RootCertStore, TransportError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| {
            TransportError::Tls(format!("{} holds what is no CA certificate: {error}", path.display()))
        })?;
    }
    Ok(roots)
}

fn refused(what: &str, path: &Path, error: Error) -> TransportError {
    let path = path.display();
    TransportError::Tls(match error {
        Error::Io(error) => format!("cannot read the {what} {path}: {error}; check the path and who may read it"),
        Error::NoItemsFound => format!("there is no {what} in {path}; it has to be a PEM file"),
        other => format!("the {what} {path} is damaged: {other:?}; it has to be a PEM file"),
    })
}
