//! How far a log may be trimmed: a decision on numbers alone.

use stentor_core::{Offset, OffsetRange};

/// What the decision goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// The log as it stands.
    pub(crate) log: OffsetRange,
    /// What log and table take.
    pub(crate) bytes: u64,
    /// Everything below is done with by every group; the end of the log when there is no group.
    pub(crate) finished: Offset,
    /// Where the messages begin that are younger than `retain_for`.
    pub(crate) retained_from: Offset,
    /// How much may be kept of what is finished, if that is bounded.
    pub(crate) retain_bytes: Option<u64>,
    /// Where the messages begin that are younger than `expire_owed_after`, if owed ones expire.
    pub(crate) owed_from: Option<Offset>,
    /// Whether the storage is short of space: then what is finished goes first.
    pub(crate) short: bool,
}

/// The new start of the log; none when it stays where it is.
pub(crate) fn trim_to(facts: &Facts) -> Option<Offset> {
    let Facts { log, finished, .. } = *facts;
    let finished = finished.clamp(log.start, log.end);
    let by_age = facts.retained_from.min(finished);
    let by_bytes = facts.retain_bytes.map_or(log.start, |most| beyond_bytes(facts, finished, most));
    let by_need = if facts.short { finished } else { log.start };
    let by_expiry = facts.owed_from.unwrap_or(log.start).min(log.end);
    let to = by_age.max(by_bytes).max(by_need).max(by_expiry);
    (to > log.start).then_some(to)
}

/// How far to trim so that about `most` bytes of what is finished stay. Goes by the average size of a message: a log
/// whose messages differ gets there in a few rounds.
fn beyond_bytes(facts: &Facts, finished: Offset, most: u64) -> Offset {
    let (messages, done) = (facts.log.len(), finished.0 - facts.log.start.0);
    if messages == 0 {
        return facts.log.start;
    }
    let finished_bytes = u128::from(facts.bytes) * u128::from(done) / u128::from(messages);
    let excess = finished_bytes.saturating_sub(u128::from(most));
    if excess == 0 {
        return facts.log.start;
    }
    let drop = excess * u128::from(messages) / u128::from(facts.bytes.max(1));
    facts.log.start.advance(u64::try_from(drop).unwrap_or(done).min(done))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            log: OffsetRange::new(Offset(100), Offset(200)),
            bytes: 10_000,
            finished: Offset(150),
            retained_from: Offset(100),
            retain_bytes: None,
            owed_from: None,
            short: false,
        }
    }

    #[test]
    fn what_is_owed_stays_however_old() {
        let facts = Facts { retained_from: Offset(200), ..facts() };
        assert_eq!(trim_to(&facts), Some(Offset(150)));
    }

    #[test]
    fn what_is_finished_stays_for_as_long_as_it_is_retained() {
        assert_eq!(trim_to(&facts()), None);
        assert_eq!(trim_to(&Facts { retained_from: Offset(120), ..facts() }), Some(Offset(120)));
    }

    #[test]
    fn retained_bytes_count_only_what_is_finished() {
        // 5,000 bytes are finished, 100 a message.
        assert_eq!(trim_to(&Facts { retain_bytes: Some(5_000), ..facts() }), None);
        assert_eq!(trim_to(&Facts { retain_bytes: Some(2_000), ..facts() }), Some(Offset(130)));
        assert_eq!(trim_to(&Facts { retain_bytes: Some(0), ..facts() }), Some(Offset(150)));
    }

    #[test]
    fn a_storage_short_of_space_gives_up_what_is_finished_and_nothing_else() {
        assert_eq!(trim_to(&Facts { short: true, ..facts() }), Some(Offset(150)));
    }

    #[test]
    fn owed_messages_go_only_when_the_topic_lets_them_expire() {
        assert_eq!(trim_to(&Facts { owed_from: Some(Offset(180)), ..facts() }), Some(Offset(180)));
        assert_eq!(trim_to(&Facts { owed_from: Some(Offset(900)), ..facts() }), Some(Offset(200)));
    }
}
