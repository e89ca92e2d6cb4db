//! A connection and its two sides.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use stentor_core::transport::{CloseCode, CloseReason, Connection, FrameStream, PeerInfo, TransportError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::link::Link;
use crate::network::MemLimits;
use crate::pipe::Pipe;
use crate::queue::Queue;
use crate::stream::{MemReceiver, MemSender};

/// One side of a connection. It belongs to the handle and the streams of that side: when the last of them goes, so does
/// the connection.
pub(crate) struct Side {
    pub(crate) link: Arc<Link>,
    peer_link: Arc<Link>,
    /// Streams that the peer opened.
    incoming: Arc<Queue<Incoming>>,
    /// Where the streams go that this side opens.
    outgoing: Arc<Queue<Incoming>>,
    /// How many more streams the peer allows.
    allowed: Arc<Semaphore>,
    pub(crate) limits: MemLimits,
    peer_limits: MemLimits,
    peer: PeerInfo,
}

/// A stream on its way to the side that accepts it.
pub(crate) struct Incoming {
    receive: Arc<Pipe>,
    send: Arc<Pipe>,
    permit: Arc<OwnedSemaphorePermit>,
}

/// Tells the peer of a stream with the first thing that happens on it.
pub(crate) struct Announcement {
    to: Arc<Queue<Incoming>>,
    incoming: Incoming,
}

impl Announcement {
    pub(crate) fn announce(self) {
        // Full is impossible, for each entry holds one of the permits; closed means that nobody is left to hear.
        let _ = self.to.push(self.incoming);
    }
}

impl Side {
    /// Both sides of a new connection: the one that connects and the one that accepts.
    pub(crate) fn pair(
        (connecting, connecting_info): (MemLimits, PeerInfo),
        (accepting, accepting_info): (MemLimits, PeerInfo),
    ) -> (Arc<Self>, Arc<Self>) {
        let links = [Arc::new(Link::new()), Arc::new(Link::new())];
        let queues = [connecting, accepting].map(|limits| Arc::new(Queue::new(limits.streams_per_connection_max)));
        let side = |own: usize, limits: MemLimits, peer_limits: MemLimits, peer: PeerInfo| {
            Arc::new(Self {
                link: Arc::clone(&links[own]),
                peer_link: Arc::clone(&links[1 - own]),
                incoming: Arc::clone(&queues[own]),
                outgoing: Arc::clone(&queues[1 - own]),
                allowed: Arc::new(Semaphore::new(peer_limits.streams_per_connection_max)),
                limits,
                peer_limits,
                peer,
            })
        };
        (side(0, connecting, accepting, accepting_info), side(1, accepting, connecting, connecting_info))
    }

    pub(crate) fn close(&self, code: CloseCode, reason: &str) {
        if self.link.close(TransportError::ConnectionClosed(None)) {
            let reason = CloseReason { code, text: reason.to_owned() };
            self.peer_link.closed_by_peer(TransportError::ConnectionClosed(Some(reason)));
        }
    }

    /// The links of both sides, for what happens to the network.
    pub(crate) fn wire(&self) -> Wire {
        Wire([Arc::downgrade(&self.link), Arc::downgrade(&self.peer_link)])
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.close(CloseCode::NORMAL, "");
        self.incoming.close();
    }
}

/// A connection as the network sees it.
pub(crate) struct Wire([Weak<Link>; 2]);

impl Wire {
    /// The links whose sides are still there; none once the connection is gone.
    pub(crate) fn links(&self) -> impl Iterator<Item = Arc<Link>> {
        self.0.iter().filter_map(Weak::upgrade)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.links().next().is_none()
    }
}

/// The handle on one side.
pub(crate) struct MemConnection(pub(crate) Arc<Side>);

#[async_trait]
impl Connection for MemConnection {
    async fn open(&self) -> Result<FrameStream, TransportError> {
        let side = &self.0;
        let permit = tokio::select! {
            biased;
            over = side.link.over() => return Err(over),
            permit = Arc::clone(&side.allowed).acquire_owned() => {
                // The semaphore is never closed.
                Arc::new(permit.map_err(|_| TransportError::ConnectionClosed(None))?)
            }
        };
        // What is under way towards a side is bounded by what that side takes in.
        let there = Arc::new(Pipe::new(side.peer_limits.stream_bytes_max, side.peer_limits.stream_frames_max));
        let back = Arc::new(Pipe::new(side.limits.stream_bytes_max, side.limits.stream_frames_max));
        let incoming = Incoming { receive: Arc::clone(&there), send: Arc::clone(&back), permit };
        let announcement = Announcement { to: Arc::clone(&side.outgoing), incoming };
        Ok(FrameStream {
            sender: Box::new(MemSender::new(there, Arc::clone(side), Some(announcement), None)),
            receiver: Box::new(MemReceiver::new(back, Arc::clone(side), None)),
        })
    }

    async fn accept(&self) -> Result<FrameStream, TransportError> {
        let side = &self.0;
        let mut views = side.link.subscribe();
        let incoming = loop {
            let view = views.borrow_and_update().clone();
            if view.stalled && view.over.is_none() {
                // The sender of `views` is in `side`, so this cannot fail; should it, the queue below says the rest.
                let _ = views.changed().await;
                continue;
            }
            if let Some(over) = view.over {
                return Err(over);
            }
            tokio::select! {
                biased;
                _ = views.changed() => {}
                incoming = side.incoming.pop() => match incoming {
                    Some(incoming) => break incoming,
                    None => return Err(side.link.over().await),
                },
            }
        };
        let Incoming { receive, send, permit } = incoming;
        Ok(FrameStream {
            sender: Box::new(MemSender::new(send, Arc::clone(side), None, Some(Arc::clone(&permit)))),
            receiver: Box::new(MemReceiver::new(receive, Arc::clone(side), Some(permit))),
        })
    }

    fn close(&self, code: CloseCode, reason: &str) {
        self.0.close(code, reason);
    }

    async fn closed(&self) -> TransportError {
        self.0.link.over().await
    }

    fn peer(&self) -> PeerInfo {
        self.0.peer.clone()
    }
}
