//! The tasks of a broker, so that every one of them is joined.

use std::sync::{Mutex, PoisonError};

use tokio::task::JoinSet;

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
        while set.try_join_next().is_some() {}
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
                Some(Err(error)) if error.is_panic() => tracing::error!(%error, "a task panicked"),
                Some(_) => {}
            }
        }
    }

    /// Ends every task where it stands.
    pub(crate) fn abort(&self) {
        self.set.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }
}
