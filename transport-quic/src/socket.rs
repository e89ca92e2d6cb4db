//! The UDP socket of an endpoint.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use quinn::udp::{UdpSockRef, UdpSocketState};

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
