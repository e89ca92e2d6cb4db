//! The addresses, and what happens to the connections between them.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use async_trait::async_trait;
use stentor_core::limits::{BATCH_BYTES_SLACK, MESSAGE_BYTES_MAX_CEILING};
use stentor_core::transport::{Connection, Listener, PeerInfo, Transport, TransportError};

use crate::connection::{MemConnection, Side, Wire};
use crate::queue::{Queue, Refused};

/// How many connections may wait for a listener to accept them.
const CONNECTIONS_WAITING_MAX: usize = 1_024;

/// What a direction of a stream holds before its sender waits.
const STREAM_BYTES_MAX: usize = 1 << 20;

/// How many frames a direction of a stream holds, however small they are.
const STREAM_FRAMES_MAX: usize = 256;

/// How many streams a side lets its peer have open.
const STREAMS_PER_CONNECTION_MAX: usize = 256;

/// What one side of a connection allows.
#[derive(Clone, Copy, Debug)]
pub struct MemLimits {
    /// The largest body of a frame, in bytes, sent or received.
    pub frame_body_bytes_max: u32,
    /// Bytes that wait in a direction of a stream before its sender waits. A larger frame passes alone.
    pub stream_bytes_max: usize,
    /// Frames that wait in a direction of a stream before its sender waits.
    pub stream_frames_max: usize,
    /// Streams that the peer may have open.
    pub streams_per_connection_max: usize,
}

impl Default for MemLimits {
    fn default() -> Self {
        Self {
            frame_body_bytes_max: MESSAGE_BYTES_MAX_CEILING + BATCH_BYTES_SLACK,
            stream_bytes_max: STREAM_BYTES_MAX,
            stream_frames_max: STREAM_FRAMES_MAX,
            streams_per_connection_max: STREAMS_PER_CONNECTION_MAX,
        }
    }
}

/// A network inside the process. Clones are the same network.
#[derive(Clone, Default)]
pub struct MemNetwork {
    state: Arc<Mutex<State>>,
    limits: MemLimits,
}

#[derive(Default)]
struct State {
    places: BTreeMap<String, Place>,
    /// The number of the next listener that asks for port 0, and of the next client.
    next: u16,
}

/// An address. It outlives its listener as long as there are connections to it, so that those can be cut.
#[derive(Default)]
struct Place {
    listening: Option<Listening>,
    wires: Vec<Wire>,
    stalled: bool,
}

struct Listening {
    queue: Weak<Queue<Arc<Side>>>,
    limits: MemLimits,
}

impl MemNetwork {
    /// An empty network with the usual limits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty network whose sides have these limits.
    #[must_use]
    pub fn with_limits(limits: MemLimits) -> Self {
        Self { state: Arc::default(), limits }
    }

    /// The same network, seen by parties that have other limits.
    #[must_use]
    pub fn limited(&self, limits: MemLimits) -> Self {
        Self { state: Arc::clone(&self.state), limits }
    }

    /// What connects to the addresses of this network.
    #[must_use]
    pub fn transport(&self) -> MemTransport {
        MemTransport { network: self.clone(), subject: None }
    }

    /// What connects as a party whose certificate says `subject`.
    #[must_use]
    pub fn transport_as(&self, subject: &str) -> MemTransport {
        MemTransport { network: self.clone(), subject: Some(subject.to_owned()) }
    }

    /// Takes an address. One that ends in `:0` is given a number of its own.
    ///
    /// # Errors
    /// [`Listen`](TransportError::Listen) when someone listens there already.
    pub fn listen(&self, address: &str) -> Result<MemListener, TransportError> {
        let mut state = self.lock();
        let mut address = address.to_owned();
        if let Some(host) = address.strip_suffix(":0").map(str::to_owned) {
            address = format!("{host}:{}", state.number());
        }
        let place = state.places.entry(address.clone()).or_default();
        if place.listening.as_ref().is_some_and(|there| there.queue.strong_count() > 0) {
            let source = Arc::new(io::Error::from(io::ErrorKind::AddrInUse));
            return Err(TransportError::Listen { address, source });
        }
        let queue = Arc::new(Queue::new(CONNECTIONS_WAITING_MAX));
        place.listening = Some(Listening { queue: Arc::downgrade(&queue), limits: self.limits });
        Ok(MemListener { address, queue })
    }

    /// Cuts every connection to `address`: both sides see [`ConnectionLost`](TransportError::ConnectionLost), and what
    /// was under way is gone. New ones can be made at once.
    pub fn cut(&self, address: &str) {
        let lost = TransportError::ConnectionLost("it was cut".to_owned());
        self.on_links(address, |link| link.cut(lost.clone()));
    }

    /// Lets every connection to `address` fall silent: each side may send until the line is full, and hears nothing.
    /// Nobody can connect meanwhile. It ends with [`resume`](Self::resume) or [`cut`](Self::cut), which leaves the
    /// address itself silent.
    pub fn stall(&self, address: &str) {
        self.lock().places.entry(address.to_owned()).or_default().stalled = true;
        self.on_links(address, crate::link::Link::stall);
    }

    /// Ends the silence. What was sent meanwhile arrives.
    pub fn resume(&self, address: &str) {
        self.lock().places.entry(address.to_owned()).or_default().stalled = false;
        self.on_links(address, crate::link::Link::resume);
    }

    fn on_links(&self, address: &str, act: impl Fn(&crate::link::Link)) {
        let state = self.lock();
        let links: Vec<_> =
            state.places.get(address).into_iter().flat_map(|place| &place.wires).flat_map(Wire::links).collect();
        // Outside the lock: whoever wakes may want it.
        drop(state);
        links.iter().for_each(|link| act(link));
    }

    fn connect(&self, address: &str, subject: Option<String>) -> Result<Arc<Side>, TransportError> {
        let refused = |reason: &str| TransportError::Connect { address: address.to_owned(), reason: reason.to_owned() };
        let mut state = self.lock();
        let number = state.number();
        let Some(place) = state.places.get_mut(address) else { return Err(refused("nobody listens there")) };
        if place.stalled {
            return Err(refused("it does not answer"));
        }
        let listening = place.listening.as_ref().and_then(|there| Some((there.queue.upgrade()?, there.limits)));
        let Some((queue, limits)) = listening else { return Err(refused("nobody listens there")) };
        let client = PeerInfo { address: format!("client:{number}"), certificate_subject: subject };
        let server = PeerInfo { address: address.to_owned(), certificate_subject: None };
        let (connecting, accepting) = Side::pair((self.limits, client), (limits, server));
        place.wires.retain(|wire| !wire.is_gone());
        place.wires.push(connecting.wire());
        queue.push(accepting).map_err(|why| match why {
            Refused::Full => refused("too many connections wait there"),
            Refused::Closed => refused("nobody listens there"),
        })?;
        Ok(connecting)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Held for a few instructions that cannot panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Never 0, which would ask for another.
    fn number(&mut self) -> u16 {
        self.next = self.next.checked_add(1).unwrap_or(1);
        self.next
    }
}

/// Connects to the addresses of a [`MemNetwork`].
#[derive(Clone)]
pub struct MemTransport {
    network: MemNetwork,
    subject: Option<String>,
}

#[async_trait]
impl Transport for MemTransport {
    async fn connect(&self, address: &str) -> Result<Arc<dyn Connection>, TransportError> {
        let side = self.network.connect(address, self.subject.clone())?;
        Ok(Arc::new(MemConnection(side)))
    }
}

/// Takes the connections to one address of a [`MemNetwork`]. Dropping it gives the address back.
pub struct MemListener {
    address: String,
    queue: Arc<Queue<Arc<Side>>>,
}

#[async_trait]
impl Listener for MemListener {
    fn local_address(&self) -> String {
        self.address.clone()
    }

    async fn accept(&mut self) -> Option<Arc<dyn Connection>> {
        let side = self.queue.pop().await?;
        Some(Arc::new(MemConnection(side)))
    }

    fn close(&self) {
        // Outside the queue's lock, for these close as they go.
        drop(self.queue.close());
    }
}

impl Drop for MemListener {
    fn drop(&mut self) {
        self.close();
    }
}
