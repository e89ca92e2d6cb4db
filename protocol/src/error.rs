//! Error codes: the one place where they get their words, and where it is said what a sender may conclude.

use crate::wire;
pub use crate::wire::ErrorCode;

/// What an error says about the request that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was not done, and would not be if tried again as it is.
    Refused,
    /// It was not done; it may be done later, or elsewhere.
    NotDone,
    /// It may or may not have been done.
    Unknown,
}

/// Every code, with its word in JSON and logs, and what it says of the request.
const CODES: &[(ErrorCode, &str, Verdict)] = &[
    (ErrorCode::Internal, "internal", Verdict::Unknown),
    (ErrorCode::VersionMismatch, "version_mismatch", Verdict::Refused),
    (ErrorCode::Unauthorized, "unauthorized", Verdict::Refused),
    (ErrorCode::Protocol, "protocol", Verdict::Refused),
    (ErrorCode::Invalid, "invalid", Verdict::Refused),
    (ErrorCode::TopicNotFound, "topic_not_found", Verdict::Refused),
    (ErrorCode::TopicExists, "topic_exists", Verdict::Refused),
    (ErrorCode::GroupNotFound, "group_not_found", Verdict::Refused),
    (ErrorCode::GroupExists, "group_exists", Verdict::Refused),
    (ErrorCode::GroupMismatch, "group_mismatch", Verdict::Refused),
    (ErrorCode::PartitionNotFound, "partition_not_found", Verdict::Refused),
    (ErrorCode::MessageNotFound, "message_not_found", Verdict::Refused),
    (ErrorCode::MessageTooLarge, "message_too_large", Verdict::Refused),
    (ErrorCode::BatchMalformed, "batch_malformed", Verdict::Refused),
    (ErrorCode::StorageFull, "storage_full", Verdict::NotDone),
    (ErrorCode::StorageFailed, "storage_failed", Verdict::Unknown),
    (ErrorCode::Deposed, "deposed", Verdict::NotDone),
    (ErrorCode::Corrupt, "corrupt", Verdict::Refused),
    (ErrorCode::SequenceGap, "sequence_gap", Verdict::NotDone),
    (ErrorCode::ProducerUnknown, "producer_unknown", Verdict::NotDone),
    (ErrorCode::ProducerFenced, "producer_fenced", Verdict::Refused),
    (ErrorCode::DurabilityUnsupported, "durability_unsupported", Verdict::Refused),
    (ErrorCode::LeaseLost, "lease_lost", Verdict::Refused),
    (ErrorCode::LimitReached, "limit_reached", Verdict::NotDone),
    (ErrorCode::ShuttingDown, "shutting_down", Verdict::NotDone),
    (ErrorCode::Timeout, "timeout", Verdict::Unknown),
    (ErrorCode::OffsetOutOfRange, "offset_out_of_range", Verdict::Refused),
    (ErrorCode::FilterInvalid, "filter_invalid", Verdict::Refused),
    (ErrorCode::Unavailable, "unavailable", Verdict::NotDone),
    (ErrorCode::OutcomeUnknown, "outcome_unknown", Verdict::Unknown),
];

impl ErrorCode {
    /// The word for the code in JSON (`error.kind`), logs and metrics.
    #[must_use]
    pub fn kind(self) -> &'static str {
        row(self).1
    }

    /// What the code says about the request that it answers.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        row(self).2
    }
}

fn row(code: ErrorCode) -> &'static (ErrorCode, &'static str, Verdict) {
    // A test checks that every code has its row.
    CODES.iter().find(|(listed, ..)| *listed == code).unwrap_or(&CODES[0])
}

/// Every code's word: what can stand in `error.kind`, for documentation and completion.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    CODES.iter().map(|(_, kind, _)| *kind)
}

/// An error of this code without a hint.
#[must_use]
pub fn refusal(code: ErrorCode, message: impl Into<String>) -> wire::Error {
    wire::Error { code: code.into(), message: message.into(), hint: String::new() }
}

impl std::fmt::Display for wire::Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code().kind(), self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_row_and_its_own_word() {
        let known = (0..1_000).filter_map(|number| ErrorCode::try_from(number).ok());
        for code in known {
            assert_eq!(CODES.iter().filter(|(listed, ..)| *listed == code).count(), 1, "{code:?}");
        }
        let mut words: Vec<_> = kinds().collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), CODES.len());
    }
}
