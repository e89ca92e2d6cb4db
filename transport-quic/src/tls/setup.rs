//! From files to what quinn is given.
//!
//! Invariant: TLS 1.3 and nothing older, [`ALPN`] and nothing else, no 0-RTT.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls_pki_types::CertificateDer;
use stentor_core::transport::TransportError;

use super::{ClientTls, ServerTls, files};

/// What the connection speaks, agreed in the handshake.
pub(crate) const ALPN: &[u8] = b"stentor/1";

/// What a listener shows and asks for.
pub(crate) fn server(tls: &ServerTls) -> Result<Arc<QuicServerConfig>, TransportError> {
    let provider = Arc::new(ring::default_provider());
    let identity = identity(&tls.cert, &tls.key, &provider)?;
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(files::roots(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build().map_err(|error| {
                TransportError::Tls(format!("clients cannot be verified with {}: {error}", path.display()))
            })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(identity);
    config.alpn_protocols = vec![ALPN.to_vec()];
    QuicServerConfig::try_from(config).map(Arc::new).map_err(|error| TransportError::Tls(error.to_string()))
}

/// What a client shows and asks for.
pub(crate) fn client(tls: &ClientTls) -> Result<Arc<QuicClientConfig>, TransportError> {
    let provider = Arc::new(ring::default_provider());
    let identity = match &tls.identity {
        Some((cert, key)) => Some(identity(cert, key, &provider)?),
        None => None,
    };
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .with_root_certificates(files::roots(&tls.ca)?);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    QuicClientConfig::try_from(config).map(Arc::new).map_err(|error| TransportError::Tls(error.to_string()))
}

/// SHA-256 of a certificate, in hex.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let suite = ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let mut text = String::from("sha256:");
    if let Some(suite) = suite.tls13() {
        for byte in suite.common.hash_provider.hash(certificate).as_ref() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
    }
    text
}

fn identity(cert: &Path, key: &Path, provider: &CryptoProvider) -> Result<Arc<SingleCertAndKey>, TransportError> {
    let certified =
        CertifiedKey::from_der(files::certificates(cert)?, files::key(key)?, provider).map_err(|error| {
            let (cert, key) = (cert.display(), key.display());
            TransportError::Tls(format!("the certificate {cert} and the private key {key} do not do together: {error}"))
        })?;
    Ok(Arc::new(SingleCertAndKey::from(certified)))
}

fn unusable(error: rustls::Error) -> TransportError {
    TransportError::Tls(format!("TLS 1.3 cannot be set up: {error}"))
}
