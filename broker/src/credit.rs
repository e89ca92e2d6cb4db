//! How much a consumer still takes: shared by the partitions that send to it and the session that it grants to.
//!
//! Invariants: messages are never overdrawn; bytes are overdrawn by the last delivery at most, and what was charged by
//! estimate is put right once the frame is known, so that both sides count the same; whoever found nothing to take is
//! woken by the next grant.

use std::sync::{Mutex, PoisonError};

use crate::group;

#[derive(Debug, Default)]
struct State {
    messages: u32,
    bytes: i64,
    /// Somebody found nothing to take, or no room to send, since the last grant.
    starved: bool,
}

/// The credit of one consumer.
#[derive(Debug, Default)]
pub(crate) struct Credit {
    // A few additions long, never held across an await.
    state: Mutex<State>,
}

impl Credit {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds what the consumer granted. Says whether somebody waits for it.
    #[must_use]
    pub(crate) fn grant(&self, messages: u32, bytes: u64) -> bool {
        self.with(|state| {
            state.messages = state.messages.saturating_add(messages);
            state.bytes = state.bytes.saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX));
            std::mem::take(&mut state.starved)
        })
    }

    /// Whether there is anything to take; when not, the next grant wakes whoever asked.
    pub(crate) fn available(&self) -> bool {
        self.with(|state| {
            let available = state.messages > 0 && state.bytes > 0;
            state.starved |= !available;
            available
        })
    }

    /// Takes up to `messages_max` messages, and says how many bytes there are; none when either is used up.
    pub(crate) fn take(&self, messages_max: u32) -> Option<group::Credit> {
        self.with(|state| {
            let bytes = u64::try_from(state.bytes).unwrap_or(0);
            let messages = state.messages.min(messages_max);
            if messages == 0 || bytes == 0 {
                state.starved = true;
                return None;
            }
            state.messages -= messages;
            Some(group::Credit { messages, bytes })
        })
    }

    /// Gives back messages that were taken and not used, and charges the bytes of those that were. Says whether somebody
    /// waits for what came back.
    #[must_use]
    pub(crate) fn settle(&self, messages_unused: u32, bytes_used: u64) -> bool {
        self.with(|state| {
            state.messages = state.messages.saturating_add(messages_unused);
            state.bytes = state.bytes.saturating_sub(i64::try_from(bytes_used).unwrap_or(i64::MAX));
            messages_unused > 0 && std::mem::take(&mut state.starved)
        })
    }

    /// Puts right what was charged by estimate. Says whether somebody waits.
    #[must_use]
    pub(crate) fn correct(&self, charged: u64, real: u64) -> bool {
        self.with(|state| {
            let back = i64::try_from(charged).unwrap_or(i64::MAX) - i64::try_from(real).unwrap_or(i64::MAX);
            state.bytes = state.bytes.saturating_add(back);
            back > 0 && std::mem::take(&mut state.starved)
        })
    }

    /// Notes that somebody found no room to send.
    pub(crate) fn starve(&self) {
        self.with(|state| state.starved = true);
    }

    /// Whether somebody waits for room; asked after room was made.
    #[must_use]
    pub(crate) fn relieve(&self) -> bool {
        self.with(|state| std::mem::take(&mut state.starved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_exact_and_the_last_delivery_may_overdraw_the_bytes() {
        let credit = Credit::default();
        assert!(credit.take(5).is_none());
        assert!(credit.grant(10, 100), "whoever found nothing waits");
        assert_eq!(credit.take(7), Some(group::Credit { messages: 7, bytes: 100 }));
        assert!(!credit.settle(2, 150), "nobody waits");
        assert!(credit.take(5).is_none(), "the bytes are overdrawn");
        assert!(credit.grant(0, 60));
        assert_eq!(credit.take(9), Some(group::Credit { messages: 5, bytes: 10 }));
    }

    #[test]
    fn an_estimate_is_put_right() {
        let credit = Credit::default();
        assert!(!credit.grant(10, 100));
        credit.take(1).unwrap();
        assert!(!credit.settle(0, 100));
        assert!(credit.take(1).is_none());
        assert!(credit.correct(100, 40));
        assert_eq!(credit.take(1), Some(group::Credit { messages: 1, bytes: 60 }));
    }

    #[test]
    fn what_is_given_back_wakes_whoever_came_too_late() {
        let credit = Credit::default();
        assert!(!credit.grant(3, 100));
        credit.take(3).unwrap();
        assert!(credit.take(1).is_none());
        assert!(credit.settle(1, 10));
    }
}
