//! Cubic, but a farewell always passes.
//!
//! quinn-proto 0.11.19 holds CONNECTION_CLOSE back while the congestion window is full, and once a connection is closed
//! nothing empties the window any more: the peer hears nothing until its idle time (quinn #2785; fixed by #2787, which no
//! release has yet). So the window is opened wide when a connection closes. A close has nothing else to send.
//!
//! Remove this once quinn-proto has the fix; the conformance suite's
//! `a_close_in_the_middle_of_a_transfer_reaches_the_peer` tells.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};

/// Makes the controllers. Cubic is quinn's default; BBR and NewReno were slower (measured).
#[derive(Debug, Default)]
pub(crate) struct Factory(Arc<CubicConfig>);

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let cubic = Arc::clone(&self.0).build(now, current_mtu);
        Box::new(Parting { cubic, closing: Arc::default() })
    }
}

/// Lets the close of `connection`, which has to follow at once, pass its congestion window.
pub(crate) fn part(connection: &quinn::Connection) {
    // What quinn gives is a copy, which shares the flag with the original.
    if let Ok(parting) = connection.congestion_state().into_any().downcast::<Parting>() {
        parting.closing.store(true, Ordering::Release);
    }
}

struct Parting {
    cubic: Box<dyn Controller>,
    closing: Arc<AtomicBool>,
}

impl Controller for Parting {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &quinn_proto::RttEstimator) {
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_packet_num_acked: Option<u64>) {
        self.cubic.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.cubic.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        // So wide that quinn does not pace either.
        if self.closing.load(Ordering::Acquire) { u64::MAX } else { self.cubic.window() }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { cubic: self.cubic.clone_box(), closing: Arc::clone(&self.closing) })
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
