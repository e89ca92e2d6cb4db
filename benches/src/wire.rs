//! Take in: frames over QUIC on the loopback, each a batch that is checked, stored, and answered once it is durable.
//!
//! It is what a broker does with what is published, without the broker: one stream, so many frames in flight. An iteration
//! is one frame, out and answered. Held against the same frames and answers with nothing done in between: what QUIC
//! carries when both ends share this machine's cores.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion};
use rcgen::{CertificateParams, KeyPair};
use stentor_core::RecordBatch;
use stentor_core::clock::SystemClock;
use stentor_core::storage::PendingCommit;
use stentor_core::transport::{
    CloseCode, Connection, Frame, FrameReceiver, FrameSender, FrameStream, Listener, Transport,
};
use stentor_transport_quic::{
    ClientConfig, ClientTls, QuicListener, QuicSettings, QuicTransport, ServerConfig, ServerTls,
};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::backend::{Backend, Stores};
use crate::lab::{Failure, Lab, group};
use crate::table::{Limit, Row, Table, bytes};
use crate::workload::{Appender, batch, messages_label};

const GROUP: &str = "take-in";

/// Batches by their number of messages and the bytes of a message.
const POINTS: [(u32, usize); 2] = [(64, 100), (64, 1 << 10)];

/// Frames that are out and not answered yet.
const IN_FLIGHT: u64 = 32;

/// What is being stored and not answered yet; more than is ever in flight, so that reading never waits for storing.
const STORING_MAX: usize = 64;

/// What the work looks like.
#[must_use]
pub fn table() -> Table {
    Table {
        group: GROUP,
        title: "Take in over QUIC",
        point: "frame",
        rows: POINTS.into_iter().map(row).collect(),
        columns: Backend::ALL.map(|backend| (backend, Limit::Quic)).to_vec(),
        limits: Vec::new(),
    }
}

fn row((messages, body_bytes): (u32, usize)) -> Row {
    Row { id: format!("{messages}x{body_bytes}"), label: messages_label(messages, body_bytes) }
}

/// Measures it.
pub fn bench(criterion: &mut Criterion, lab: &Lab) {
    let stores = Stores::new(lab);
    for point in POINTS {
        measure(criterion, lab, &stores, None, point);
        for backend in Backend::ALL {
            measure(criterion, lab, &stores, Some(backend), point);
        }
    }
}

fn measure(criterion: &mut Criterion, lab: &Lab, stores: &Stores<'_>, backend: Option<Backend>, point: (u32, usize)) {
    let batch = lab.must(batch(point.0, point.1));
    let frame = Frame { head: Bytes::from_static(b"publish"), body: batch.to_bytes() };
    let mut group = group(criterion, GROUP);
    group.throughput(bytes(frame.body.len() as u64));
    let mut line: Option<Line> = None;
    let id = BenchmarkId::new(backend.map_or(Limit::Quic.id(), Backend::id), row(point).id);
    group.bench_function(id, |bencher| {
        let line = line.get_or_insert_with(|| {
            let appender =
                backend.map(|backend| lab.run(Appender::open(stores.get(backend), backend, batch.clone(), 1)));
            lab.run(async { Line::open(lab, |stream| tokio::spawn(take_in(stream, appender))).await })
        });
        bencher.iter_custom(|frames| lab.time(|| lab.run(send(&mut line.stream, &frame, frames))));
    });
    if let Some(appender) = line.and_then(|line| lab.run(line.close()))
        && let Some(backend) = backend
    {
        lab.run(stores.get(backend).delete(appender.partition()));
    }
}

/// Sends so many frames, no more than [`IN_FLIGHT`] ahead of their answers, and waits for all answers.
async fn send(stream: &mut FrameStream, frame: &Frame, frames: u64) -> Result<(), Failure> {
    for sent in 0..frames {
        if sent >= IN_FLIGHT {
            answer(&mut *stream.receiver).await?;
        }
        stream.sender.send(frame.clone()).await?;
    }
    for _ in 0..frames.min(IN_FLIGHT) {
        answer(&mut *stream.receiver).await?;
    }
    Ok(())
}

/// Waits for one frame.
///
/// # Errors
/// When none comes any more.
pub(crate) async fn answer(receiver: &mut dyn FrameReceiver) -> Result<Frame, Failure> {
    receiver.receive().await?.ok_or(Failure::Unfit("the stream ended before the answer"))
}

/// The other end: takes in what comes, until the stream ends, and gives back the appender.
async fn take_in(stream: FrameStream, mut appender: Option<Appender>) -> Result<Option<Appender>, Failure> {
    let FrameStream { sender, mut receiver } = stream;
    let (storing, stored) = mpsc::channel(STORING_MAX);
    let answering = tokio::spawn(answer_all(sender, stored));
    while let Some(frame) = receiver.receive().await? {
        let pending = match &mut appender {
            Some(appender) => {
                let batch = RecordBatch::decode(frame.body)?;
                let stored_at = batch.first_timestamp();
                // Its place in the log is given by the store.
                let batch = batch.stored(appender.end(), stored_at);
                Some(appender.commit(vec![batch]).await?)
            }
            None => None,
        };
        if storing.send(pending).await.is_err() {
            break;
        }
    }
    drop(storing);
    answering.await??;
    Ok(appender)
}

async fn answer_all(
    mut sender: Box<dyn FrameSender>,
    mut stored: mpsc::Receiver<Option<PendingCommit>>,
) -> Result<(), Failure> {
    while let Some(pending) = stored.recv().await {
        if let Some(pending) = pending {
            pending.durable().await?;
        }
        sender.send(Frame::new(Bytes::from_static(b"published"))).await?;
    }
    Ok(sender.finish()?)
}

/// A connection to this very process, and one stream on it.
pub(crate) struct Line<T = Option<Appender>> {
    pub(crate) stream: FrameStream,
    near: Arc<dyn Connection>,
    /// Held so that it does not close when its end of the stream is done, before this end has read the last of it.
    _far: Arc<dyn Connection>,
    serving: JoinHandle<Result<T, Failure>>,
    _listener: QuicListener,
    _transport: QuicTransport,
    _certificate: TempDir,
}

impl<T> Line<T> {
    /// Connects, and lets `serve` have the other end of the stream.
    pub(crate) async fn open(
        lab: &Lab,
        serve: impl FnOnce(FrameStream) -> JoinHandle<Result<T, Failure>>,
    ) -> Result<Self, Failure> {
        let certificate = lab.folder()?;
        let (server, client) = ends(certificate.path())?;
        let mut listener = QuicListener::bind(server, Arc::new(SystemClock::new())).await?;
        let transport = QuicTransport::new(client)?;
        let address = listener.local_address();
        let (near, far) = tokio::join!(transport.connect(&address), listener.accept());
        let (near, far) = (near?, far.ok_or(Failure::Unfit("the listener closed"))?);
        let mut stream = near.open().await?;
        // The other end learns of the stream by the first frame.
        stream.sender.send(Frame::new(Bytes::from_static(b"hello"))).await?;
        let mut accepted = far.accept().await?;
        answer(&mut *accepted.receiver).await?;
        let serving = serve(accepted);
        Ok(Self {
            stream,
            near,
            _far: far,
            serving,
            _listener: listener,
            _transport: transport,
            _certificate: certificate,
        })
    }

    /// Ends the stream and gives back what served it.
    pub(crate) async fn close(mut self) -> Result<T, Failure> {
        self.stream.sender.finish()?;
        while self.stream.receiver.receive().await?.is_some() {}
        let served = self.serving.await??;
        self.near.close(CloseCode::NORMAL, "done");
        Ok(served)
    }
}

/// How both ends are set: the defaults, with a certificate made for this.
fn ends(folder: &Path) -> Result<(ServerConfig, ClientConfig), Failure> {
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    let own = KeyPair::generate()?;
    std::fs::write(&cert, CertificateParams::new(vec!["127.0.0.1".to_owned()])?.self_signed(&own)?.pem())?;
    std::fs::write(&key, own.serialize_pem())?;
    // A machine may be busy while it is measured; a handshake is not what is measured.
    let quic = QuicSettings { handshake_timeout: Duration::from_secs(20), ..QuicSettings::default() };
    let server = ServerConfig {
        listen: "127.0.0.1:0".to_owned(),
        tls: ServerTls { cert: cert.clone(), key, client_ca: None },
        tls_reload_every: Duration::from_secs(3_600),
        connections_max: 1,
        quic: quic.clone(),
        reset_key: None,
    };
    let client = ClientConfig { tls: ClientTls { ca: cert, identity: None }, server_name: None, quic };
    Ok((server, client))
}
