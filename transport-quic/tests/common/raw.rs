//! A peer that does not play by the rules, and a wire that can be cut.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// quinn itself, without anything of ours, offering these protocols.
pub fn endpoint(ca: &Path, protocols: &[&[u8]]) -> Endpoint {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
    endpoint.set_default_client_config(config);
    endpoint
}

/// Passes datagrams between one client and the server, as many from the client as it may.
pub struct Wire {
    pub address: SocketAddr,
    /// How many more datagrams of the client pass; the server's pass while this is not 0.
    pub passes: watch::Sender<usize>,
    task: JoinHandle<()>,
}

impl Wire {
    pub async fn to(server: &str, passes: usize) -> Self {
        let server: SocketAddr = server.parse().unwrap();
        let towards_client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let towards_server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = towards_client.local_addr().unwrap();
        let passes = watch::Sender::new(passes);
        let left = passes.clone();
        let task = tokio::spawn(async move {
            let (mut there, mut back) = (vec![0; 65_536], vec![0; 65_536]);
            let mut client = None;
            loop {
                tokio::select! {
                    got = towards_client.recv_from(&mut there) => {
                        let Ok((bytes, from)) = got else { continue };
                        client = Some(from);
                        if *left.borrow() > 0 {
                            left.send_modify(|left| *left -= 1);
                            let _ = towards_server.send_to(&there[..bytes], server).await;
                        }
                    }
                    got = towards_server.recv_from(&mut back) => {
                        let (Ok((bytes, _)), Some(client)) = (got, client) else { continue };
                        if *left.borrow() > 0 {
                            let _ = towards_client.send_to(&back[..bytes], client).await;
                        }
                    }
                }
            }
        });
        Self { address, passes, task }
    }

    pub fn cut(&self) {
        self.passes.send_replace(0);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}
