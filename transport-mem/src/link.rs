//! What one side of a connection knows of the connection as a whole: whether it is over, and whether it hears the peer.

use stentor_core::transport::TransportError;
use tokio::sync::watch;

/// One side's view, shared by its handle and its streams.
#[derive(Debug)]
pub(crate) struct Link(watch::Sender<View>);

#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// Why it is over, seen from this side.
    pub(crate) over: Option<TransportError>,
    /// Nothing from the peer arrives.
    pub(crate) stalled: bool,
    /// The connection was cut rather than closed: nothing that was under way arrives any more.
    pub(crate) cut: bool,
    /// The peer has closed, and this side has yet to hear of it.
    unheard: Option<TransportError>,
}

impl Link {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(View::default()))
    }

    pub(crate) fn view(&self) -> View {
        self.0.borrow().clone()
    }

    /// Returns when the view is no longer what `seen` was, or the stream has news of its own.
    pub(crate) fn subscribe(&self) -> watch::Receiver<View> {
        self.0.subscribe()
    }

    /// This side ends it. False when it was over already.
    pub(crate) fn close(&self, why: TransportError) -> bool {
        self.0.send_if_modified(|view| {
            let first = view.over.is_none();
            if first {
                view.over = Some(why);
            }
            first
        })
    }

    /// The peer has ended it; heard at once, or after the silence.
    pub(crate) fn closed_by_peer(&self, why: TransportError) {
        self.0.send_modify(|view| {
            if view.stalled {
                view.unheard.get_or_insert(why);
            } else {
                view.over.get_or_insert(why);
            }
        });
    }

    pub(crate) fn cut(&self, why: TransportError) {
        self.0.send_modify(|view| {
            view.over.get_or_insert(why);
            view.cut = true;
            view.stalled = false;
        });
    }

    pub(crate) fn stall(&self) {
        self.0.send_modify(|view| view.stalled = true);
    }

    pub(crate) fn resume(&self) {
        self.0.send_modify(|view| {
            view.stalled = false;
            if view.over.is_none() {
                view.over = view.unheard.take();
            }
        });
    }

    /// Returns once the connection is over, with the reason. Cancel safe.
    pub(crate) async fn over(&self) -> TransportError {
        let mut views = self.0.subscribe();
        let over = views.wait_for(|view| view.over.is_some()).await.ok().and_then(|view| view.over.clone());
        over.unwrap_or(TransportError::ConnectionClosed(None))
    }
}
