//! The admin listener: HTTP with `/healthz`, `/readyz`, `/metrics` and a read-only JSON API.
//!
//! Invariant: it answers at once from the moment it listens, also while recovery runs; only what needs the broker waits
//! for it, by saying 503.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use stentor_broker::Broker;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::output::Failure;

mod api;
mod metrics;

use metrics::Metrics;

/// How far the node has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Opening storages, recovering.
    Recovering,
    /// Serving.
    Ready,
    /// Going down.
    Draining,
}

/// What the handlers share.
struct Shared {
    phase: watch::Receiver<Phase>,
    broker: OnceLock<Broker>,
    metrics: OnceLock<Metrics>,
}

/// The running listener.
pub(crate) struct Admin {
    address: String,
    phase: watch::Sender<Phase>,
    shared: Arc<Shared>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Admin {
    /// Takes the address and answers from now on.
    pub(crate) async fn start(listen: &str) -> Result<Self, Failure> {
        let cannot = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AddrInUse => Failure::new(
                "address_in_use",
                format!("cannot listen on {listen}: {error}"),
            )
            .hint("another process has this port; stop it, or choose another one as listen.admin (0 picks a free one)"),
            _ => Failure::io(format_args!("cannot listen on {listen}"), &error)
                .hint("listen.admin takes HOST:PORT with an address of this machine"),
        };
        let listener = TcpListener::bind(listen).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?.to_string();
        let (phase, phase_seen) = watch::channel(Phase::Recovering);
        let shared = Arc::new(Shared { phase: phase_seen, broker: OnceLock::new(), metrics: OnceLock::new() });
        let router = Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics::show))
            .nest("/api/v1", api::routes())
            .with_state(Arc::clone(&shared));
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let stopped = async move {
                // A dropped handle stops it too.
                let _ = stopped.await;
            };
            if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(stopped).await {
                tracing::error!(%error, "the admin listener has ended");
            }
        });
        Ok(Self { address, phase, shared, stop, task })
    }

    /// Where it listens, with the real port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The broker serves: from now on everything is answered.
    pub(crate) fn ready(&self, broker: &Broker) {
        // Set once, before the phase that lets anybody look.
        let _ = self.shared.metrics.set(Metrics::of(broker));
        let _ = self.shared.broker.set(broker.clone());
        self.phase.send_replace(Phase::Ready);
    }

    /// The node goes down: whoever balances load sends no more.
    pub(crate) fn draining(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Stops listening. Requests under way get a moment to end; a client that keeps its connection open holds up nobody.
    pub(crate) async fn stop(mut self) {
        const PATIENCE: std::time::Duration = std::time::Duration::from_millis(500);
        let _ = self.stop.send(());
        if tokio::time::timeout(PATIENCE, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

async fn ready(State(shared): State<Arc<Shared>>) -> (StatusCode, &'static str) {
    match *shared.phase.borrow() {
        // A store that writes no more still serves reads, but traffic had better go elsewhere.
        Phase::Ready if shared.broker.get().is_some_and(Broker::is_poisoned) => {
            (StatusCode::SERVICE_UNAVAILABLE, "poisoned\n")
        }
        Phase::Ready => (StatusCode::OK, "ready\n"),
        Phase::Recovering => (StatusCode::SERVICE_UNAVAILABLE, "recovering\n"),
        Phase::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
    }
}
