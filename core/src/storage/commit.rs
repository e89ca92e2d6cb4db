//! The receipt of a commit.

use tokio::sync::oneshot;

use super::StorageError;
use crate::OffsetRange;
use crate::durability::Durable;

/// A commit whose offsets are fixed and whose durability is on its way.
#[derive(Debug)]
pub struct PendingCommit {
    offsets: OffsetRange,
    outcome: oneshot::Receiver<Result<(), StorageError>>,
}

impl PendingCommit {
    /// A pending commit, and the receipt by which the backend says how it ended.
    #[must_use]
    pub fn new(offsets: OffsetRange) -> (CommitReceipt, Self) {
        let (sender, outcome) = oneshot::channel();
        (CommitReceipt { sender }, Self { offsets, outcome })
    }

    /// The offsets that the appended messages got.
    #[must_use]
    pub const fn offsets(&self) -> OffsetRange {
        self.offsets
    }

    /// Waits until the change has reached the partition's durability; readers see it then. Dropping the call does not
    /// undo the commit.
    ///
    /// # Errors
    /// The reason why it never will; every later commit fails too.
    pub async fn durable(self) -> Result<Durable<OffsetRange>, StorageError> {
        match self.outcome.await {
            Ok(outcome) => outcome.map(|()| Durable::new(self.offsets)),
            // The backend went away without a word: what became of the change is not known.
            Err(_) => Err(StorageError::Closed),
        }
    }
}

/// The backend's end of a [`PendingCommit`].
#[derive(Debug)]
pub struct CommitReceipt {
    sender: oneshot::Sender<Result<(), StorageError>>,
}

impl CommitReceipt {
    /// Says how the commit ended. `Ok` only after the change has reached the partition's durability and readers see it.
    pub fn resolve(self, outcome: Result<(), StorageError>) {
        // Whoever committed may have gone; then nobody asks.
        let _ = self.sender.send(outcome);
    }
}
