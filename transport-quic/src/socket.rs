//! The UDP socket of an endpoint.
//!
//! quinn hands over up to ten datagrams at a time for the kernel to take apart, whatever their size; the kernel takes at
//! most 64 KiB so. Larger ones were dropped in silence: a path whose datagrams may be of 8,952 bytes fell back to 1,200,
//! and above 16,384 the connection hung (measured). So what is too large for the kernel is handed over in parts.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn::udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};

/// The most that the kernel takes apart, with some room for what it puts in front.
const SEGMENTED_BYTES_MAX: usize = 65_000;

/// The most that the kernel puts together when it receives.
const RECEIVED_BYTES_MAX: usize = 65_535;

/// Tokio, with sockets that keep to what the kernel can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sockets {
    /// The largest datagram that is received.
    pub(crate) datagram_bytes_max: usize,
}

impl Runtime for Sockets {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let inner = TokioRuntime.wrap_udp_socket(socket)?;
        Ok(Arc::new(Socket { inner, datagram_bytes_max: self.datagram_bytes_max }))
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}

struct Socket {
    inner: Arc<dyn AsyncUdpSocket>,
    datagram_bytes_max: usize,
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(part_bytes) = part_bytes(transmit) else { return self.inner.try_send(transmit) };
        for contents in transmit.contents.chunks(part_bytes) {
            let segment_size = transmit.segment_size.filter(|size| contents.len() > *size);
            // Should the kernel be full after a part, quinn sends all of them again; the peer takes none of them twice.
            self.inner.try_send(&Transmit { contents, segment_size, ..*transmit })?;
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        // quinn sets aside so many of the largest datagrams for each of its 32 buffers. The kernel says 64, which is meant
        // for small ones: together they never come to more than it puts together.
        RECEIVED_BYTES_MAX.div_ceil(self.datagram_bytes_max).min(self.inner.max_receive_segments())
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// How much of it goes at a time, in whole datagrams, if not all of it can.
fn part_bytes(transmit: &Transmit<'_>) -> Option<usize> {
    let size = transmit.segment_size?;
    (transmit.contents.len() > SEGMENTED_BYTES_MAX).then(|| (SEGMENTED_BYTES_MAX / size).max(1) * size)
}

/// Binds `address` and asks for room in the kernel: with 4 MiB each way, bursts at an MTU of 1452 lost no packet where the
/// kernel's default lost thousands (measured).
pub(crate) fn bind(address: SocketAddr, buffer_bytes: usize) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
    // The kernel grants less in silence, and where it refuses outright its own default has to do.
    for result in [
        state.set_send_buffer_size(UdpSockRef::from(&socket), buffer_bytes),
        state.set_recv_buffer_size(UdpSockRef::from(&socket), buffer_bytes),
    ] {
        if let Err(error) = result {
            tracing::debug!(%error, buffer_bytes, "the kernel refused larger socket buffers");
        }
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_cannot_take_apart_goes_in_parts_of_whole_datagrams() {
        let bytes = vec![0; 10 * 65_000];
        let parts = |datagrams: usize, size: usize| {
            let transmit = Transmit {
                destination: SocketAddr::from(([127, 0, 0, 1], 1)),
                ecn: None,
                contents: &bytes[..datagrams * size - 1],
                segment_size: Some(size),
                src_ip: None,
            };
            part_bytes(&transmit)
        };
        assert_eq!(parts(10, 1_452), None);
        assert_eq!(parts(10, 6_500), None);
        assert_eq!(parts(10, 8_952), Some(7 * 8_952));
        assert_eq!(parts(10, 65_000), Some(65_000));
    }
}
