//! What an acknowledged write survives, and the proof that it got there.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// What an acknowledged write survives. Each promise implies those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// Nothing: it is gone with the process.
    Memory,
    /// The end of the process (kill -9), but not the loss of power.
    Buffered,
    /// The loss of power: it was synced to disk.
    Synced,
    /// The loss of a minority of the replicas: it was synced on a majority.
    Quorum,
}

impl Durability {
    /// The word for it in configuration and output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Buffered => "buffered",
            Self::Synced => "synced",
            Self::Quorum => "quorum",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The word names no durability.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no durability: use memory, buffered, synced or quorum")]
pub struct ParseDurabilityError(String);

impl FromStr for Durability {
    type Err = ParseDurabilityError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        [Self::Memory, Self::Buffered, Self::Synced, Self::Quorum]
            .into_iter()
            .find(|durability| durability.as_str() == word)
            .ok_or_else(|| ParseDurabilityError(word.to_owned()))
    }
}

/// Something that has reached the durability of its partition.
///
/// Invariant: one comes only out of [`PendingCommit::durable`](crate::storage::PendingCommit::durable), after the
/// backend said so. What answers a publisher takes a `Durable`, so acknowledging early does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable<T>(T);

impl<T> Durable<T> {
    /// Private to the crate: the one maker is a resolved receipt.
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    /// A look at what is durable.
    pub const fn get(&self) -> &T {
        &self.0
    }

    /// What is durable, with the proof given up.
    pub fn into_inner(self) -> T {
        self.0
    }

    /// Another view of the same durable thing, e.g. the offset of one batch of a commit.
    pub fn map<U>(self, view: impl FnOnce(T) -> U) -> Durable<U> {
        Durable(view(self.0))
    }
}
