//! What can be set about QUIC, and how it differs from quinn's defaults.
//!
//! Figures called measured are quinn's own, over loopback with both ends on the same two cores and AES-128-GCM, taken
//! before this crate was written; take their ratios. `examples/echo.rs` measures this crate.

use std::sync::Arc;
use std::time::Duration;

use quinn::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use stentor_core::limits::{BATCH_BYTES_SLACK, MESSAGE_BYTES_MAX_DEFAULT};
use stentor_core::transport::TransportError;

use crate::congestion;
use crate::socket::Sockets;

/// Keep-alives per idle time: two may be lost before the connection is.
const KEEP_ALIVES_PER_IDLE_TIMEOUT: u32 = 3;

/// The smallest datagram that QUIC allows a path to be limited to.
const MTU_MIN: u16 = 1_200;

/// What either end may set. The default suits a data centre.
#[derive(Clone, Debug)]
pub struct QuicSettings {
    /// The largest body of a frame, in bytes, sent or received.
    pub frame_body_bytes_max: u32,
    /// Bytes that the frames of a connection may take together while they are being received; further large ones wait, and
    /// one that is larger than this has it for itself.
    pub frames_incoming_bytes_max: u32,
    /// How long a connection lives without a sign of the peer; the smaller of both ends' counts. Keep-alives are sent
    /// three times as often.
    pub idle_timeout: Duration,
    /// How long connecting may take, from resolving the name to the last of the handshake.
    pub handshake_timeout: Duration,
    /// Streams that the peer may have open at a time.
    pub streams_per_connection_max: u32,
    /// Bytes of a stream that may wait here unread before the peer has to stop.
    pub stream_receive_window: u32,
    /// Bytes of a connection that may wait here to be sent or acknowledged before sends wait.
    pub send_window: u32,
    /// The largest datagram that is tried. The path decides what is used: discovery starts at 1200 and goes up to this.
    pub mtu_max: u16,
    /// What is asked of the kernel for each direction of a socket. It grants what `net.core.{r,w}mem_max` allow.
    pub socket_buffer_bytes: usize,
}

impl Default for QuicSettings {
    fn default() -> Self {
        Self {
            frame_body_bytes_max: MESSAGE_BYTES_MAX_DEFAULT + BATCH_BYTES_SLACK,
            frames_incoming_bytes_max: 16 << 20,
            idle_timeout: Duration::from_secs(10),
            handshake_timeout: Duration::from_secs(5),
            // Few long-lived streams with many frames in flight: measured, 1 stream carried 3.2 M small frames/s and 64
            // streams 0.76 M/s. The quinn default of 100 would only make the connection's window larger.
            streams_per_connection_max: 64,
            // quinn: 1.25 MB. Larger windows gained nothing (measured); rounded down, since it is multiplied by the streams.
            stream_receive_window: 1 << 20,
            // quinn: 10 MB. Enough for the windows of eight streams, and what a peer that does not acknowledge can
            // make this side hold.
            send_window: 8 << 20,
            mtu_max: 65_000,
            socket_buffer_bytes: 4 << 20,
        }
    }
}

impl QuicSettings {
    /// Checks what cannot work, so that it is refused at the start and not at the first connection.
    pub(crate) fn check(&self) -> Result<(), TransportError> {
        let complaint = if self.mtu_max < MTU_MIN {
            format!("mtu_max is {}, but QUIC needs datagrams of {MTU_MIN} bytes", self.mtu_max)
        } else if self.streams_per_connection_max == 0 || self.stream_receive_window == 0 || self.send_window == 0 {
            "streams_per_connection_max, stream_receive_window and send_window must be at least 1".to_owned()
        } else if self.idle_timeout.is_zero() || self.handshake_timeout.is_zero() {
            "idle_timeout and handshake_timeout must be longer than 0".to_owned()
        } else if IdleTimeout::try_from(self.idle_timeout).is_err() {
            "idle_timeout is longer than QUIC can say".to_owned()
        } else {
            return Ok(());
        };
        Err(TransportError::Settings(complaint))
    }

    /// Where sockets come from.
    pub(crate) fn sockets(&self) -> Sockets {
        Sockets { datagram_bytes_max: self.mtu_max.into() }
    }

    pub(crate) fn endpoint(&self) -> EndpointConfig {
        let mut config = EndpointConfig::default();
        // quinn: 1472, which would keep discovery from ever going beyond it. `check` has seen that it is at least 1200.
        if config.max_udp_payload_size(self.mtu_max).is_err() {
            tracing::warn!(mtu_max = self.mtu_max, "QUIC does not take this mtu_max; going on with the usual one");
        }
        config
    }

    pub(crate) fn transport(&self) -> Arc<TransportConfig> {
        let streams = self.streams_per_connection_max;
        let window = u64::from(streams) * u64::from(self.stream_receive_window);
        let mut mtu = MtuDiscoveryConfig::default();
        // quinn: 1452, right for the Internet. Discovery goes as high as the path carries: a network's 1,452 or 8,952, and
        // nearly all of loopback's. Measured there with 64 KiB frames in one run: 700–790 MB/s at 6,500, 1,050–1,140 at
        // 65,000. Sizes beyond the kernel's 64 KiB for ten datagrams are what `Socket` is for.
        mtu.upper_bound(self.mtu_max);
        let mut config = TransportConfig::default();
        config
            // quinn: the same, but a close may get stuck.
            .congestion_controller_factory(Arc::new(congestion::Factory::default()))
            .mtu_discovery_config(Some(mtu))
            .max_concurrent_bidi_streams(streams.into())
            // The protocol has none, so a peer that opens one breaks it.
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .stream_receive_window(self.stream_receive_window.into())
            // quinn: no bound. The windows of all streams together: less, and unread streams would hold up the others.
            .receive_window(VarInt::from_u64(window).unwrap_or(VarInt::MAX))
            .send_window(self.send_window.into())
            // quinn: 30 s, and no keep-alive. What a silent consumer holds must come back sooner, and a quiet one stay.
            .max_idle_timeout(IdleTimeout::try_from(self.idle_timeout).ok())
            .keep_alive_interval(Some(self.idle_timeout / KEEP_ALIVES_PER_IDLE_TIMEOUT))
            // quinn: 1.25 MB set aside for datagrams, which the protocol does not have.
            .datagram_receive_buffer_size(None);
        Arc::new(config)
    }
}
