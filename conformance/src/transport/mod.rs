//! The suite for transports: the contract of [`stentor_core::transport`], one property a test.
//!
//! A transport says how to make a listener and what reaches it by a [`Subject`], and calls
//! [`transport_suite!`](crate::transport_suite) in its `tests/conformance.rs`, which becomes one test per property, named
//! by the sentence that must hold.
//!
//! Invariant: nothing here waits for time to pass. Where a property says that something does *not* happen, the suite makes
//! something else happen on the same connection meanwhile, many times over.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use stentor_core::transport::{Listener, Transport};

mod harness;

pub mod connections;
pub mod ending;
pub mod flow;
pub mod frames;
pub mod limits;
pub mod streams;

/// A transport under test.
#[async_trait]
pub trait Subject: Send + Sync {
    /// A fresh listener, and what reaches it.
    async fn network(&self, limits: Limits) -> Network;

    /// The most that a sender can get rid of on one stream while the peer reads nothing, in bytes, if frames are of 64 KiB.
    fn unread_bytes_max(&self) -> usize;
}

/// What the two sides allow.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The largest body for the side that listens.
    pub server_body_bytes_max: u32,
    /// The largest body for the side that connects.
    pub client_body_bytes_max: u32,
    /// Streams that either side lets its peer have open.
    pub streams_per_connection_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { server_body_bytes_max: 1 << 20, client_body_bytes_max: 1 << 20, streams_per_connection_max: 16 }
    }
}

/// A listener, and what reaches it.
pub struct Network {
    /// Takes the connections.
    pub listener: Box<dyn Listener>,
    /// Makes them.
    pub transport: Arc<dyn Transport>,
}

/// How long a property may take before it counts as hung. The longest takes seconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs one property on a runtime of its own.
///
/// # Panics
/// When the property does not hold, or does not end.
pub fn run(property: &str, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = runtime.expect("a runtime").block_on(async { tokio::time::timeout(DEADLINE, test).await });
    assert!(ended.is_ok(), "`{property}` did not end within {DEADLINE:?}");
}

/// One `#[test]` for each property of a transport. The argument is an expression that makes a
/// [`Subject`](crate::transport::Subject); it is evaluated once for each property.
#[macro_export]
macro_rules! transport_suite {
    ($subject:expr) => {
        $crate::transport_suite! { @properties $subject;
            frames: [
                frames_of_every_size_arrive_whole_and_in_order,
                both_directions_carry_frames_at_once,
                a_frame_of_the_largest_head_and_body_arrives,
            ]
            streams: [
                either_side_opens_streams,
                a_silent_stream_does_not_hide_the_next,
                more_streams_than_allowed_wait_their_turn_and_all_are_served,
                an_accept_that_is_dropped_loses_no_stream,
                streams_accepted_by_many_tasks_are_each_accepted_once,
            ]
            flow: [
                a_peer_that_never_reads_stops_its_sender,
                unread_streams_do_not_hold_up_another,
                a_receive_that_is_dropped_loses_nothing,
                a_send_that_is_dropped_half_way_breaks_the_stream,
            ]
            limits: [
                a_frame_too_large_is_refused_by_its_sender_and_the_stream_goes_on,
                a_frame_too_large_for_the_receiver_ends_the_stream_alone,
            ]
            ending: [
                finish_delivers_what_was_sent,
                nothing_is_sent_after_finish_or_reset,
                a_dropped_sender_resets_the_stream,
                a_dropped_receiver_stops_the_peer,
                reset_carries_its_code,
                stop_carries_its_code,
                the_end_of_one_direction_leaves_the_other,
                a_last_frame_survives_the_close_once_finished_has_returned,
                finished_reports_a_peer_that_stopped,
            ]
            connections: [
                close_tells_the_peer_why,
                close_ends_whatever_waits_on_either_side,
                a_close_in_the_middle_of_a_transfer_reaches_the_peer,
                the_first_close_counts,
                dropping_all_of_a_connection_closes_it,
                a_stream_keeps_its_connection,
                many_connect_at_once,
                each_side_knows_the_other,
                a_dropped_accept_loses_no_connection,
                a_closed_listener_takes_nobody_and_keeps_what_it_took,
            ]
        }
    };
    (@properties $subject:expr; $($group:ident: [$($property:ident,)*])*) => {
        $($(
            #[test]
            fn $property() {
                let subject = $subject;
                $crate::transport::run(
                    stringify!($property),
                    $crate::transport::$group::$property(&subject),
                );
            }
        )*)*
    };
}
