//! The tasks of a broker, so that every one of them is joined.

use std::sync::{Mutex, PoisonError};

use tokio::task::{JoinError, JoinSet};

/// A set of tasks that can be added to from anywhere.
#[derive(Default)]
pub(crate) struct Tasks {
    // Held for the moment of an insertion only, never across an await.
    set: Mutex<JoinSet<()>>,
}

impl Tasks {
    /// Starts a task.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        // What has ended leaves, so that the set holds what runs and not what ever ran.
        while let Some(ended) = set.try_join_next() {
            note(ended);
        }
        set.spawn(task);
    }

    /// Waits for every task, also those started meanwhile. Cancel safe.
    pub(crate) async fn join(&self) {
        loop {
            let next = std::future::poll_fn(|context| {
                let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
                set.poll_join_next(context)
            });
            match next.await {
                None => return,
                Some(ended) => note(ended),
            }
        }
    }

    /// Ends every task where it stands.
    pub(crate) fn abort(&self) {
        self.set.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }
}

/// A task has ended; that it panicked must not go unseen.
fn note(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a task panicked");
    }
}
