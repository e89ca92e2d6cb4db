//! How much a broker may send: the arithmetic of credit.
//!
//! A consumer grants the broker a window of messages and bytes. A message takes from it when it arrives and gives back
//! when it is settled, or when the lease of one that was dropped has run out. The bytes are those of the frames that carry
//! messages; a frame's come back when the last of its messages is settled.
//!
//! Invariant: `granted + held ≤ window`, in messages; in bytes the last frames may overdraw.

use stentor_protocol::wire::Grant;

/// A grant goes out when this share of the window has come back, so that not every message costs a frame.
const CHUNK: u64 = 4;

#[derive(Debug)]
pub(super) struct Credit {
    window_messages: u64,
    window_bytes: u64,
    /// What the broker may still send.
    granted_messages: u64,
    granted_bytes: i64,
    /// What has arrived and is not settled.
    held_messages: u64,
    held_bytes: u64,
}

impl Credit {
    pub(super) fn new(messages: u32, bytes: u64) -> Self {
        Self {
            window_messages: messages.into(),
            // So that the sums below stay in range.
            window_bytes: bytes.min(i64::MAX as u64),
            granted_messages: 0,
            granted_bytes: 0,
            held_messages: 0,
            held_bytes: 0,
        }
    }

    /// How many messages are held.
    pub(super) const fn held(&self) -> u64 {
        self.held_messages
    }

    /// Takes in a frame. False: the broker had no credit for its messages. The bytes are not held against it: partitions
    /// that send at the same moment may each overdraw them.
    pub(super) fn arrived(&mut self, messages: u64, bytes: u64) -> bool {
        if messages > self.granted_messages {
            return false;
        }
        self.granted_messages -= messages;
        self.granted_bytes = self.granted_bytes.saturating_sub_unsigned(bytes);
        self.held_messages += messages;
        self.held_bytes = self.held_bytes.saturating_add(bytes);
        true
    }

    /// So much is settled.
    pub(super) const fn settled(&mut self, messages: u64, bytes: u64) {
        self.held_messages = self.held_messages.saturating_sub(messages);
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
    }

    /// What is to be granted now, if it is worth a frame.
    pub(super) fn grant(&mut self) -> Option<Grant> {
        let messages = self.window_messages - self.granted_messages - self.held_messages;
        let taken = self.granted_bytes.saturating_add_unsigned(self.held_bytes);
        let bytes = self.window_bytes.cast_signed().saturating_sub(taken).max(0).cast_unsigned();
        // The broker sends only while both are above zero.
        let messages_worth = messages > 0 && (self.granted_messages == 0 || messages >= self.window_messages / CHUNK);
        let pays = self.granted_bytes.saturating_add_unsigned(bytes) > 0;
        let bytes_worth = bytes > 0 && pays && (self.granted_bytes <= 0 || bytes >= self.window_bytes / CHUNK);
        let worth = messages_worth || bytes_worth;
        if !worth {
            return None;
        }
        self.granted_messages += messages;
        self.granted_bytes = self.granted_bytes.saturating_add_unsigned(bytes);
        Some(Grant { messages: u32::try_from(messages).unwrap_or(u32::MAX), bytes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_window_is_granted_first_and_refilled_in_chunks() {
        let mut credit = Credit::new(100, 1_000);
        assert_eq!(credit.grant(), Some(Grant { messages: 100, bytes: 1_000 }));
        assert_eq!(credit.grant(), None);
        assert!(credit.arrived(30, 100));
        credit.settled(24, 0);
        assert_eq!(credit.grant(), None);
        credit.settled(1, 0);
        assert_eq!(credit.grant(), Some(Grant { messages: 25, bytes: 0 }));
    }

    #[test]
    fn a_window_of_one_is_refilled_message_by_message() {
        let mut credit = Credit::new(1, 10);
        assert!(credit.grant().is_some());
        for _ in 0..3 {
            assert!(credit.arrived(1, 500));
            assert_eq!(credit.grant(), None);
            credit.settled(1, 500);
            assert_eq!(credit.grant(), Some(Grant { messages: 1, bytes: 500 }));
        }
    }

    #[test]
    fn what_was_not_granted_is_noticed() {
        let mut credit = Credit::new(10, 100);
        assert!(!credit.arrived(1, 1));
        credit.grant();
        assert!(!credit.arrived(11, 1));
        assert!(credit.arrived(10, 300));
        // Overdrawn: what comes back pays for that first.
        credit.settled(0, 150);
        assert_eq!(credit.grant(), None);
        credit.settled(0, 100);
        assert_eq!(credit.grant(), Some(Grant { messages: 0, bytes: 250 }));
    }

    proptest! {
        #[test]
        fn credit_is_never_lost_and_never_exceeded(
            window in 1_u32..50,
            bytes_window in 1_u64..500,
            steps in proptest::collection::vec((1_u64..20, 0_u64..300, any::<bool>()), 1..200),
        ) {
            let mut credit = Credit::new(window, bytes_window);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (messages, bytes, settle) in steps {
                credit.grant();
                prop_assert!(credit.granted_messages + credit.held_messages <= u64::from(window));
                if settle {
                    if let Some((messages, bytes)) = held.pop() {
                        credit.settled(messages, bytes);
                    }
                } else if credit.granted_messages > 0 && credit.granted_bytes > 0 {
                    let messages = messages.min(credit.granted_messages);
                    prop_assert!(credit.arrived(messages, bytes));
                    held.push((messages, bytes));
                }
                prop_assert_eq!(credit.held(), held.iter().map(|(messages, _)| messages).sum::<u64>());
            }
            for (messages, bytes) in held {
                credit.settled(messages, bytes);
            }
            credit.grant();
            // Everything has come back, so something may be sent again, whatever happened before.
            prop_assert!(credit.granted_messages > 0 && credit.granted_bytes > 0);
            prop_assert_eq!(credit.held_bytes, 0);
        }
    }
}
