//! Certificates and ends for the tests.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test binary uses a part of it, in tests")]

pub mod raw;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use stentor_core::clock::SystemClock;
use stentor_core::transport::TransportError;
use stentor_transport_quic::{ClientConfig, ClientTls, QuicListener, QuicSettings, ServerConfig, ServerTls};
use tempfile::TempDir;

/// A CA that is made for one test.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub fn new() -> Self {
        // Of names that differ, as those of authorities do.
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, format!("authority {}", MADE.fetch_add(1, Ordering::Relaxed)));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Writes the CA's certificate.
    pub fn write(&self, to: &Path) {
        std::fs::write(to, &self.pem).unwrap();
    }

    /// Writes a certificate for these names, and its key.
    pub fn issue(&self, names: &[&str], cert: &Path, key: &Path) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let own = KeyPair::generate().unwrap();
        let signed = CertificateParams::new(names).unwrap().signed_by(&own, &self.issuer).unwrap();
        // The key first: a reload that comes between the two finds a pair that does not match, and tries again.
        std::fs::write(key, own.serialize_pem()).unwrap();
        std::fs::write(cert, signed.pem()).unwrap();
    }
}

/// A folder with a CA, a server's certificate and a client's.
pub struct Certificates {
    pub dir: TempDir,
    pub authority: Authority,
}

impl Certificates {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let certificates = Self { dir, authority };
        certificates.authority.write(&certificates.path("ca.pem"));
        certificates.issue("server", &["localhost", "127.0.0.1"]);
        certificates.issue("client", &["order-service"]);
        certificates
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn issue(&self, what: &str, names: &[&str]) {
        self.authority.issue(names, &self.path(&format!("{what}.pem")), &self.path(&format!("{what}.key")));
    }

    pub fn server(&self) -> ServerConfig {
        ServerConfig {
            listen: "127.0.0.1:0".to_owned(),
            tls: ServerTls { cert: self.path("server.pem"), key: self.path("server.key"), client_ca: None },
            tls_reload_every: Duration::from_secs(10),
            connections_max: 100,
            quic: settings(),
            reset_key: None,
        }
    }

    /// A server that asks for certificates.
    pub fn strict_server(&self) -> ServerConfig {
        let mut config = self.server();
        config.tls.client_ca = Some(self.path("ca.pem"));
        config
    }

    pub fn client(&self) -> ClientConfig {
        ClientConfig { tls: ClientTls { ca: self.path("ca.pem"), identity: None }, server_name: None, quic: settings() }
    }

    /// A client that shows its certificate.
    pub fn known_client(&self) -> ClientConfig {
        let mut config = self.client();
        config.tls.identity = Some((self.path("client.pem"), self.path("client.key")));
        config
    }
}

/// Small windows, so that it takes little to fill them.
pub fn settings() -> QuicSettings {
    QuicSettings {
        stream_receive_window: 256 << 10,
        send_window: 512 << 10,
        // The machine may be busy; no test waits for it.
        handshake_timeout: Duration::from_secs(20),
        ..QuicSettings::default()
    }
}

pub async fn bind(config: ServerConfig) -> Result<QuicListener, TransportError> {
    QuicListener::bind(config, Arc::new(SystemClock::new())).await
}
