//! Who is let in, and certificates that change.
#![allow(clippy::unwrap_used, reason = "in tests")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stentor_core::clock::ManualClock;
use stentor_core::transport::{CloseCode, Connection, Listener, Transport, TransportError};
use stentor_core::{Clock, Monotonic, Timestamp};
use stentor_transport_quic::{ClientConfig, QuicListener, QuicTransport, ServerConfig};
use tokio::sync::watch;

mod common;

use common::{Authority, Certificates, bind};

/// What a client gets to see when it tries.
async fn try_to_connect(
    config: ClientConfig,
    listener: &mut QuicListener,
) -> Result<Arc<dyn Connection>, TransportError> {
    let transport = QuicTransport::new(config)?;
    let connection = transport.connect(&listener.local_address()).await?;
    // In TLS 1.3 a client is done before the server has seen its certificate.
    tokio::select! {
        accepted = listener.accept() => Ok(accepted.expect("the listener is open")),
        why = connection.closed() => Err(why),
    }
}

fn tls_message(result: Result<Arc<dyn Connection>, TransportError>) -> String {
    match result {
        Err(TransportError::Tls(message)) => message,
        Err(other) => panic!("{other:?} is not about TLS"),
        Ok(_) => panic!("let in"),
    }
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let mut listener = bind(theirs.server()).await.unwrap();
    let message = tls_message(try_to_connect(ours.client(), &mut listener).await);
    assert!(message.contains("`ca`"), "{message}");
}

#[tokio::test]
async fn a_server_has_to_be_the_one_that_is_named() {
    let certificates = Certificates::new();
    let mut listener = bind(certificates.server()).await.unwrap();
    let named = |name: &str| ClientConfig { server_name: Some(name.to_owned()), ..certificates.client() };
    assert!(try_to_connect(named("localhost"), &mut listener).await.is_ok());
    tls_message(try_to_connect(named("broker.example"), &mut listener).await);
    let message = tls_message(try_to_connect(named("not a name"), &mut listener).await);
    assert!(message.contains("server_name"), "{message}");
}

#[tokio::test]
async fn a_client_is_let_in_by_its_certificate_and_known_by_its_name() {
    let certificates = Certificates::new();
    let mut listener = bind(certificates.strict_server()).await.unwrap();
    let connection = try_to_connect(certificates.known_client(), &mut listener).await.unwrap();
    assert_eq!(connection.peer().certificate_subject.as_deref(), Some("order-service"));
    // Without a name, by its fingerprint.
    certificates.issue("client", &[]);
    let connection = try_to_connect(certificates.known_client(), &mut listener).await.unwrap();
    let subject = connection.peer().certificate_subject.unwrap();
    assert!(subject.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64), "{subject}");
}

#[tokio::test]
async fn a_client_without_a_certificate_or_with_a_strange_one_is_refused() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let mut listener = bind(ours.strict_server()).await.unwrap();
    let message = tls_message(try_to_connect(ours.client(), &mut listener).await);
    assert!(message.contains("`cert` and `key`"), "{message}");
    let mut strange = ours.client();
    strange.tls.identity = theirs.known_client().tls.identity;
    let message = tls_message(try_to_connect(strange, &mut listener).await);
    assert!(message.contains("does not trust our certificate"), "{message}");
    assert!(try_to_connect(ours.known_client(), &mut listener).await.is_ok());
}

#[tokio::test]
async fn a_server_that_asks_for_no_certificate_knows_no_name() {
    let certificates = Certificates::new();
    let mut listener = bind(certificates.server()).await.unwrap();
    let connection = try_to_connect(certificates.known_client(), &mut listener).await.unwrap();
    assert_eq!(connection.peer().certificate_subject, None);
}

/// A manual clock that tells how often someone has gone to sleep on it: after each look at the files.
#[derive(Clone, Debug)]
struct Looks {
    clock: ManualClock,
    sleeps: watch::Sender<usize>,
}

const RELOAD_EVERY: Duration = Duration::from_secs(10);

impl Looks {
    fn new() -> Self {
        Self { clock: ManualClock::new(Timestamp(0)), sleeps: watch::Sender::new(0) }
    }

    async fn bind(&self, config: ServerConfig) -> QuicListener {
        let config = ServerConfig { tls_reload_every: RELOAD_EVERY, ..config };
        QuicListener::bind(config, Arc::new(self.clone())).await.unwrap()
    }

    /// Has the files looked at once more.
    async fn look(&self) {
        let mut sleeps = self.sleeps.subscribe();
        // It sleeps; let it wake, look, and sleep again.
        let before = *sleeps.wait_for(|sleeps| *sleeps > 0).await.unwrap();
        self.clock.advance(RELOAD_EVERY);
        sleeps.wait_for(|sleeps| *sleeps > before).await.unwrap();
    }
}

#[async_trait]
impl Clock for Looks {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn monotonic(&self) -> Monotonic {
        self.clock.monotonic()
    }

    async fn sleep_until(&self, at: Monotonic) {
        self.sleeps.send_modify(|sleeps| *sleeps += 1);
        self.clock.sleep_until(at).await;
    }
}

#[tokio::test]
async fn changed_certificates_come_into_force_without_a_restart() {
    let (old, new) = (Certificates::new(), Certificates::new());
    let looks = Looks::new();
    let mut listener = looks.bind(old.server()).await;
    let before = try_to_connect(old.client(), &mut listener).await.unwrap();
    new.authority.issue(&["127.0.0.1"], &old.path("server.pem"), &old.path("server.key"));
    looks.look().await;
    assert!(try_to_connect(new.client(), &mut listener).await.is_ok());
    tls_message(try_to_connect(old.client(), &mut listener).await);
    // Who is in stays in (the other end is gone by now, which is why it says so).
    assert!(
        matches!(before.closed().await, TransportError::ConnectionClosed(Some(reason)) if reason.code == CloseCode::NORMAL)
    );
}

#[tokio::test]
async fn a_changed_client_authority_comes_into_force_without_a_restart() {
    let (old, new) = (Certificates::new(), Certificates::new());
    let looks = Looks::new();
    let mut listener = looks.bind(old.strict_server()).await;
    assert!(try_to_connect(old.known_client(), &mut listener).await.is_ok());
    new.authority.write(&old.path("ca-of-clients.pem"));
    std::fs::rename(old.path("ca-of-clients.pem"), old.path("ca.pem")).unwrap();
    looks.look().await;
    old.authority.write(&old.path("ca.pem"));
    // The files of the client are read before the server looks again.
    tls_message(try_to_connect(old.known_client(), &mut listener).await);
    let mut stranger = old.client();
    stranger.tls.identity = new.known_client().tls.identity;
    assert!(try_to_connect(stranger, &mut listener).await.is_ok());
}

#[tokio::test]
async fn bad_certificates_leave_the_old_ones_in_force() {
    let certificates = Certificates::new();
    let looks = Looks::new();
    let mut listener = looks.bind(certificates.server()).await;
    let cert = std::fs::read(certificates.path("server.pem")).unwrap();
    std::fs::write(certificates.path("server.pem"), "no certificate").unwrap();
    looks.look().await;
    assert!(try_to_connect(certificates.client(), &mut listener).await.is_ok());
    std::fs::remove_file(certificates.path("server.pem")).unwrap();
    looks.look().await;
    assert!(try_to_connect(certificates.client(), &mut listener).await.is_ok());
    // A new pair of which one half is there.
    Authority::new().issue(&["127.0.0.1"], &certificates.path("unused.pem"), &certificates.path("server.key"));
    std::fs::write(certificates.path("server.pem"), cert).unwrap();
    looks.look().await;
    assert!(try_to_connect(certificates.client(), &mut listener).await.is_ok());
    // And once it is whole it counts.
    let other = Certificates::new();
    other.authority.issue(&["127.0.0.1"], &certificates.path("server.pem"), &certificates.path("server.key"));
    looks.look().await;
    assert!(try_to_connect(other.client(), &mut listener).await.is_ok());
}

#[tokio::test]
async fn a_client_takes_up_changed_certificates_with_its_next_connection() {
    let (old, new) = (Certificates::new(), Certificates::new());
    let mut listener = bind(new.server()).await.unwrap();
    let address = listener.local_address();
    let transport = QuicTransport::new(old.client()).unwrap();
    assert!(matches!(transport.connect(&address).await, Err(TransportError::Tls(_))));
    new.authority.write(&old.path("new.pem"));
    std::fs::rename(old.path("new.pem"), old.path("ca.pem")).unwrap();
    assert!(transport.connect(&address).await.is_ok());
    std::fs::write(old.path("ca.pem"), "no certificate").unwrap();
    assert!(transport.connect(&address).await.is_ok());
    assert!(listener.accept().await.is_some());
}

#[tokio::test]
async fn what_is_wrong_is_said_in_one_line_with_what_to_do() {
    let certificates = Certificates::new();
    let garbage = certificates.path("garbage.pem");
    std::fs::write(&garbage, "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n").unwrap();
    let empty = certificates.path("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let missing = certificates.path("missing.pem");
    let with = |cert: Option<&PathBuf>, key: Option<&PathBuf>, client_ca: Option<&PathBuf>| {
        let mut config = certificates.server();
        config.tls.cert = cert.cloned().unwrap_or(config.tls.cert);
        config.tls.key = key.cloned().unwrap_or(config.tls.key);
        config.tls.client_ca = client_ca.cloned();
        config
    };
    let mut settings = certificates.server();
    settings.quic.mtu_max = 500;
    let taken = bind(certificates.server()).await.unwrap();
    let on_taken_port = ServerConfig { listen: taken.local_address(), ..certificates.server() };
    for (config, expected) in [
        (with(Some(&missing), None, None), &["certificate", "missing.pem", "check the path"][..]),
        (with(Some(&empty), None, None), &["no certificate in", "empty.pem", "PEM"]),
        (with(Some(&garbage), None, None), &["certificate", "garbage.pem", "PEM"]),
        (with(None, Some(&missing), None), &["private key", "missing.pem", "check the path"]),
        (with(None, Some(&certificates.path("server.pem")), None), &["no private key in", "server.pem", "PEM"]),
        (with(None, Some(&certificates.path("client.key")), None), &["server.pem", "client.key", "do not do together"]),
        (with(None, None, Some(&missing)), &["certificate", "missing.pem", "check the path"]),
        (settings, &["mtu_max", "1200"]),
        (on_taken_port, &["cannot listen on", "another process", "choose another port"]),
    ] {
        let error = bind(config).await.err().unwrap();
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line:?} is more than a line");
        for part in expected {
            assert!(line.contains(part), "{line:?} does not say {part:?}");
        }
    }
    let mut client = certificates.client();
    client.tls.ca = missing;
    let line = QuicTransport::new(client).err().unwrap().to_string();
    assert!(line.contains("missing.pem") && line.contains("check the path"), "{line}");
}
