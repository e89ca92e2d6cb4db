//! What QUIC carries between two ends on this machine: `cargo run --release -p stentor-transport-quic --example echo`.
//!
//! One way, frames with bodies of 64 KiB, on one stream; and frames of 100 bytes to and fro, one at a time. The settings
//! are the defaults unless said otherwise by arguments: `echo [MTU_MAX [STREAM_WINDOW_KIB [SECONDS]]]`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rcgen::{CertificateParams, KeyPair};
use stentor_core::clock::SystemClock;
use stentor_core::transport::{Connection, Frame, Listener, Transport};
use stentor_transport_quic::{
    ClientConfig, ClientTls, QuicListener, QuicSettings, QuicTransport, ServerConfig, ServerTls,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let mut quic = QuicSettings::default();
    if let Some(mtu_max) = args.next() {
        quic.mtu_max = mtu_max.parse()?;
    }
    if let Some(kib) = args.next() {
        quic.stream_receive_window = kib.parse::<u32>()? << 10;
    }
    let seconds = args.next().map_or(Ok(3), |seconds| seconds.parse())?;

    let dir = tempfile::tempdir()?;
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let own = KeyPair::generate()?;
    std::fs::write(&cert, CertificateParams::new(vec!["127.0.0.1".to_owned()])?.self_signed(&own)?.pem())?;
    std::fs::write(&key, own.serialize_pem())?;
    let config = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        tls: ServerTls { cert: cert.clone(), key, client_ca: None },
        tls_reload_every: Duration::from_secs(60),
        connections_max: 10,
        quic: quic.clone(),
        reset_key: None,
    };
    let mut listener = QuicListener::bind(config, Arc::new(SystemClock::new())).await?;
    let tls = ClientTls { ca: cert, identity: None };
    let transport = QuicTransport::new(ClientConfig { tls, server_name: None, quic })?;
    let address = listener.local_address();
    let (near, far) = tokio::join!(transport.connect(&address), listener.accept());
    let (near, far) = (near?, far.ok_or("the listener closed")?);
    tokio::spawn(serve(far));
    one_way(&*near, Duration::from_secs(seconds)).await?;
    to_and_fro(&*near, Duration::from_secs(seconds)).await?;
    Ok(())
}

/// Answers each frame without a body by itself, and swallows the others.
async fn serve(connection: Arc<dyn Connection>) -> Result<(), Failure> {
    loop {
        let mut stream = connection.accept().await?;
        tokio::spawn(async move {
            while let Some(frame) = stream.receiver.receive().await? {
                if frame.body.is_empty() {
                    stream.sender.send(frame).await?;
                }
            }
            stream.sender.finish()?;
            Ok::<(), Failure>(())
        });
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures time")]
async fn one_way(connection: &dyn Connection, lasting: Duration) -> Result<(), Failure> {
    let mut stream = connection.open().await?;
    let frame = Frame { head: Bytes::from_static(&[1; 16]), body: Bytes::from(vec![7; 64 << 10]) };
    let started = Instant::now();
    let mut bytes = 0_u64;
    while started.elapsed() < lasting {
        for _ in 0..100 {
            stream.sender.send(frame.clone()).await?;
            bytes += frame.len() as u64;
        }
    }
    // Until all of it has been read.
    stream.sender.finish()?;
    while stream.receiver.receive().await?.is_some() {}
    println!("64 KiB frames: {:.0} MB/s", bytes as f64 / started.elapsed().as_secs_f64() / 1e6);
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "it measures time")]
async fn to_and_fro(connection: &dyn Connection, lasting: Duration) -> Result<(), Failure> {
    let mut stream = connection.open().await?;
    let frame = Frame::new(Bytes::from_static(&[1; 100]));
    let started = Instant::now();
    let mut taken = Vec::new();
    while started.elapsed() < lasting {
        let asked = Instant::now();
        stream.sender.send(frame.clone()).await?;
        stream.receiver.receive().await?.ok_or("no answer")?;
        taken.push(asked.elapsed());
    }
    taken.sort_unstable();
    let at = |part: f64| taken[((taken.len() - 1) as f64 * part) as usize].as_micros();
    println!("100 B to and fro: p50 {} µs, p99 {} µs, {} exchanges", at(0.5), at(0.99), taken.len());
    Ok(())
}
