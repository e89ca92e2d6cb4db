//! What ends a process: SIGTERM and SIGINT, and for a broker that belongs to another process, the end of that. The first
//! asks for an orderly end, the second does not ask.

use std::io::{self, Read};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// The signals that end a node.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Closed once the parent is gone; none if there is no parent to follow.
    parent: Option<oneshot::Receiver<()>>,
}

impl Signals {
    /// Takes the signals over from the default action, from now on.
    pub(super) fn new(with_parent: bool) -> io::Result<Self> {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        Ok(Self { terminate, interrupt, parent: with_parent.then(parent_gone) })
    }

    /// The next one's name. Cancel safe.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            () = gone(&mut self.parent) => "the end of the parent",
        }
    }
}

/// Waits for the parent's end, once.
async fn gone(parent: &mut Option<oneshot::Receiver<()>>) {
    match parent {
        Some(end) => {
            let _ = end.await;
            *parent = None;
        }
        None => std::future::pending().await,
    }
}

/// Resolves when standard input closes, which the parent holds open for as long as it lives.
fn parent_gone() -> oneshot::Receiver<()> {
    let (alive, end) = oneshot::channel();
    // A thread of its own: a read of standard input cannot be cancelled, and ends with the process.
    std::thread::spawn(move || {
        let mut sink = [0; 256];
        while io::stdin().lock().read(&mut sink).is_ok_and(|count| count > 0) {}
        drop(alive);
    });
    end
}

/// Returns when the user presses Ctrl-C or the process is asked to end: for commands that run until then.
pub(crate) async fn interrupted() {
    match Signals::new(false) {
        Ok(mut signals) => {
            signals.next().await;
        }
        // Without handlers the default action ends the process, which is what was wanted.
        Err(_) => std::future::pending().await,
    }
}
