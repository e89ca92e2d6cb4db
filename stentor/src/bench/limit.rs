//! What the machine can do at most, measured beside every benchmark: a plain file for the disk, a copy for memory, frames
//! on loopback for the wire.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use stentor_core::clock::SystemClock;
use stentor_core::transport::{Frame, Listener, Transport};
use stentor_core::{Clock, Monotonic};
use stentor_transport_quic::{
    ClientConfig, ClientTls, QuicListener, QuicSettings, QuicTransport, ServerConfig, ServerTls,
};

use super::stats::{Amount, Latencies, Percentiles};
use crate::output::Failure;
use crate::serve::certificates::DevCertificates;

/// How long each probe runs: long enough to be steady, short beside the benchmark.
const PROBE_FOR: Duration = Duration::from_secs(1);

/// What the file of the disk's probe holds before it is written again. Like a recycled segment: a file that grows costs
/// the file system twice.
const FILE_BYTES: u64 = 128 << 20;

/// What is written before each sync whose time is taken.
const PAGE_BYTES: usize = 4 << 10;

/// The frame at which QUIC is asked for its best.
const FRAME_BYTES: usize = 64 << 10;

/// A limit of this machine, as rates of messages of the benchmark's size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Limit {
    /// What was measured.
    pub(crate) what: &'static str,
    pub(crate) messages_per_second: f64,
    pub(crate) megabytes_per_second: f64,
}

impl Limit {
    fn of(what: &'static str, amount: Amount, message_bytes: u64) -> Self {
        let megabytes_per_second = amount.megabytes_per_second();
        #[expect(clippy::cast_precision_loss, reason = "sizes of messages are small")]
        let messages_per_second = megabytes_per_second * 1e6 / message_bytes.max(1) as f64;
        Self { what, messages_per_second, megabytes_per_second }
    }
}

/// What many waiting batches come to when they are written and synced at once. A store that does so may well be faster
/// than a file synced batch by batch; it cannot be faster than this.
pub(crate) const GROUP_BYTES: u64 = 1 << 20;

/// The disk: pieces of so many bytes into a file written before, each followed by fdatasync.
pub(crate) async fn disk(
    what: &'static str,
    folder: &Path,
    batch_bytes: u64,
    message_bytes: u64,
) -> Result<Limit, Failure> {
    let folder = folder.to_owned();
    let probe = move || -> io::Result<Amount> {
        let file = written_before(&folder)?;
        write_and_sync(&file, batch_bytes.clamp(1, FILE_BYTES))
    };
    let amount = blocking(probe).await?.map_err(|error| Failure::io("cannot measure the disk", &error))?;
    Ok(Limit::of(what, amount, message_bytes))
}

/// A file without a name, and with something in it already.
fn written_before(folder: &Path) -> io::Result<File> {
    let file = tempfile::tempfile_in(folder)?;
    let filler = vec![0xa5; 1 << 20];
    for at in (0..FILE_BYTES).step_by(filler.len()) {
        file.write_all_at(&filler, at)?;
    }
    file.sync_all()?;
    Ok(file)
}

fn write_and_sync(file: &File, batch_bytes: u64) -> io::Result<Amount> {
    let batch = vec![0x5a; usize::try_from(batch_bytes).unwrap_or(1 << 20)];
    let clock = SystemClock::new();
    let (mut amount, mut at) = (Amount::default(), 0);
    while amount.time < PROBE_FOR {
        if at + batch_bytes > FILE_BYTES {
            at = 0;
        }
        file.write_all_at(&batch, at)?;
        file.sync_data()?;
        at += batch_bytes;
        amount.bytes += batch_bytes;
        amount.time = clock.monotonic().since(Monotonic::default());
    }
    Ok(amount)
}

/// Memory: copies of batches of so many bytes, each into fresh room.
pub(crate) async fn memory(batch_bytes: u64, message_bytes: u64) -> Result<Limit, Failure> {
    let probe = move || {
        let batch = vec![0x5a_u8; usize::try_from(batch_bytes).unwrap_or(1 << 20)];
        let clock = SystemClock::new();
        let mut amount = Amount::default();
        while amount.time < PROBE_FOR / 4 {
            for _ in 0..64 {
                std::hint::black_box(std::hint::black_box(&batch).clone());
            }
            amount.bytes += 64 * batch_bytes;
            amount.time = clock.monotonic().since(Monotonic::default());
        }
        amount
    };
    Ok(Limit::of("copies in memory at the same batch size", blocking(probe).await?, message_bytes))
}

/// How long a sync takes: fdatasync after a page written into a file written before, the sync alone.
pub(crate) async fn sync(folder: &Path) -> Result<Percentiles, Failure> {
    let folder = folder.to_owned();
    let probe = move || -> io::Result<Vec<Duration>> {
        let file = written_before(&folder)?;
        let page = [0x5a; PAGE_BYTES];
        let clock = SystemClock::new();
        let mut took = Vec::new();
        for at in (0..FILE_BYTES).step_by(PAGE_BYTES) {
            file.write_all_at(&page, at)?;
            let began = clock.monotonic();
            file.sync_data()?;
            let ended = clock.monotonic();
            took.push(ended.since(began));
            if ended.0 >= PROBE_FOR / 2 {
                break;
            }
        }
        Ok(took)
    };
    let took = blocking(probe).await?.map_err(|error| Failure::io("cannot measure the disk", &error))?;
    let mut latencies = Latencies::new()?;
    took.into_iter().for_each(|latency| latencies.record(latency));
    Ok(latencies.percentiles())
}

/// The wire: frames of 64 KiB on one stream over loopback, one way, both ends in this process, in datagrams of at most
/// so many bytes.
pub(crate) async fn wire(message_bytes: u64, mtu: Option<u16>) -> Result<Limit, Failure> {
    let quic = quic_settings(mtu);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let cannot = |error: &dyn std::fmt::Display| Failure::new("io", format!("cannot measure the wire: {error}"));
    let folder = tempfile::tempdir().map_err(|error| cannot(&error))?;
    let certificates = DevCertificates::prepare(folder.path(), &*clock)?;
    let server = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        tls: ServerTls { cert: certificates.cert.clone(), key: certificates.key.clone(), client_ca: None },
        tls_reload_every: Duration::from_secs(3_600),
        connections_max: 1,
        quic: quic.clone(),
        reset_key: None,
    };
    let mut listener = QuicListener::bind(server, Arc::clone(&clock)).await.map_err(|error| cannot(&error))?;
    let address = listener.local_address();
    let receiving = tokio::spawn(async move {
        let connection = listener.accept().await?;
        let mut stream = connection.accept().await.ok()?;
        let mut bytes = 0;
        while let Ok(Some(frame)) = stream.receiver.receive().await {
            bytes += frame.body.len() as u64;
        }
        Some(bytes)
    });

    let client =
        ClientConfig { tls: ClientTls { ca: certificates.ca.clone(), identity: None }, server_name: None, quic };
    let transport = QuicTransport::new(client).map_err(|error| cannot(&error))?;
    let connection = transport.connect(&address).await.map_err(|error| cannot(&error))?;
    let mut stream = connection.open().await.map_err(|error| cannot(&error))?;
    let body = Bytes::from(vec![0x5a; FRAME_BYTES]);
    let began = clock.monotonic();
    while clock.monotonic().since(began) < PROBE_FOR {
        let frame = Frame { head: Bytes::new(), body: body.clone() };
        stream.sender.send(frame).await.map_err(|error| cannot(&error))?;
    }
    stream.sender.finish().map_err(|error| cannot(&error))?;
    let bytes = receiving.await.ok().flatten().ok_or_else(|| cannot(&"the receiver failed"))?;
    let amount = Amount { messages: 0, bytes, time: clock.monotonic().since(began) };
    Ok(Limit::of("frames of 64 KiB over QUIC on loopback, one way", amount, message_bytes))
}

/// The transport's settings with datagrams of at most so many bytes.
pub(crate) fn quic_settings(mtu: Option<u16>) -> QuicSettings {
    let usual = QuicSettings::default();
    QuicSettings { mtu_max: mtu.unwrap_or(usual.mtu_max), ..usual }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Failure::new("internal", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_limit_can_be_measured() {
        let folder = tempfile::tempdir().unwrap();
        let limits = [
            disk("a plain file", folder.path(), 16 << 10, 1_024).await.unwrap(),
            memory(16 << 10, 1_024).await.unwrap(),
            wire(1_024, None).await.unwrap(),
            wire(1_024, Some(1_452)).await.unwrap(),
        ];
        assert!(sync(folder.path()).await.unwrap().p50 > 0);
        for limit in limits {
            assert!(limit.megabytes_per_second > 0.0, "{limit:?}");
            let ratio = limit.messages_per_second * 1_024.0 / (limit.megabytes_per_second * 1e6);
            assert!((ratio - 1.0).abs() < 1e-6, "{limit:?}");
        }
    }
}
