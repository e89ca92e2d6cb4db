//! `/metrics`: the broker's metrics and those of the process, as Prometheus text.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use stentor_broker::Broker;

use super::Shared;
use crate::serve::process_stats;

/// The registry of everything that is measured; every name begins with `stentor_`.
pub(super) struct Metrics(Registry);

impl Metrics {
    /// The metrics of a running broker and of this process.
    pub(super) fn of(broker: &Broker) -> Self {
        let mut registry = Registry::with_prefix("stentor");
        broker.register_metrics(&mut registry);
        registry.register_collector(Box::new(ProcessMetrics));
        Self(registry)
    }
}

/// Read from `/proc` whenever somebody asks.
#[derive(Debug)]
struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stats = process_stats();
        let cpu = ConstCounter::new(stats.cpu_seconds);
        let help = "User and system time of the process";
        cpu.encode(encoder.encode_descriptor("process_cpu", help, Some(&Unit::Seconds), cpu.metric_type())?)?;
        let memory = ConstGauge::new(stats.rss_bytes);
        let help = "Resident memory of the process";
        memory.encode(encoder.encode_descriptor(
            "process_resident_memory",
            help,
            Some(&Unit::Bytes),
            memory.metric_type(),
        )?)
    }
}

pub(super) async fn show(State(shared): State<Arc<Shared>>) -> Response {
    let Some(Metrics(registry)) = shared.metrics.get() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "recovering\n").into_response();
    };
    let mut text = String::new();
    match encode(&mut text, registry) {
        Ok(()) => {
            let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, content)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
