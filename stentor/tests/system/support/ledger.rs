//! What must be delivered, and what has been: the model that every delivery is held against.
//!
//! The rules: a body is as it was published; a message lies at one place, the one that its receipt names; of all the
//! times that it comes, at most one does not say `redelivered` (the first, but consumers of one group are not in step);
//! what was acknowledged durably does not come again; and in the end everything that a receipt was given for has come.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;

use super::pattern::Pattern;

/// How many broken rules are told in full.
const FAULTS_TOLD_MAX: usize = 20;

/// Partition and offset.
pub(crate) type Place = (u32, u64);

/// What a publisher knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    /// Those with a receipt, by their numbers.
    pub(crate) stored: BTreeMap<u64, Place>,
    /// Those of which nobody knows.
    pub(crate) in_doubt: BTreeSet<u64>,
    /// Those that were refused for certain.
    pub(crate) refused: BTreeSet<u64>,
}

impl Published {
    /// Adds what another publisher knows.
    pub(crate) fn merge(&mut self, other: Self) {
        self.stored.extend(other.stored);
        self.in_doubt.extend(other.in_doubt);
        self.refused.extend(other.refused);
    }
}

/// A message as it arrived at a consumer.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) body: Bytes,
    pub(crate) place: Place,
    pub(crate) attempt: u32,
    pub(crate) redelivered: bool,
}

/// What a group has been given.
#[derive(Debug)]
pub(crate) struct Received {
    pattern: Pattern,
    seen: BTreeMap<u64, Seen>,
    faults: Vec<String>,
    faults_total: u64,
}

#[derive(Clone, Debug)]
struct Seen {
    place: Place,
    times: u32,
    unmarked: u32,
    done: bool,
}

impl Received {
    /// Nothing yet.
    pub(crate) fn new(pattern: Pattern) -> Self {
        Self { pattern, seen: BTreeMap::new(), faults: Vec::new(), faults_total: 0 }
    }

    /// Notes an arrival; gives the message's number, unless the body is no body of this test.
    pub(crate) fn arrived(&mut self, arrival: &Arrival) -> Option<u64> {
        let number = match self.pattern.recognise(&arrival.body) {
            Ok(number) => number,
            Err(fault) => {
                self.fault(format!("at {:?}: {fault}", arrival.place));
                return None;
            }
        };
        let seen = self.seen.entry(number).or_insert(Seen { place: arrival.place, times: 0, unmarked: 0, done: false });
        seen.times += 1;
        seen.unmarked += u32::from(!arrival.redelivered);
        let seen = seen.clone();
        if seen.place != arrival.place {
            self.fault(format!("{number} lies at {:?} and at {:?}", seen.place, arrival.place));
        } else if seen.unmarked > 1 && !arrival.redelivered {
            self.fault(format!("{number} came {} times, {} of them without `redelivered`", seen.times, seen.unmarked));
        } else if arrival.attempt > 1 && !arrival.redelivered {
            self.fault(format!("{number} came as attempt {} without `redelivered`", arrival.attempt));
        }
        if seen.done {
            self.fault(format!("{number} was done with for good, and came again"));
        }
        Some(number)
    }

    /// The broker has promised durably that the message does not come again.
    pub(crate) fn done(&mut self, number: u64) {
        if let Some(seen) = self.seen.get_mut(&number) {
            seen.done = true;
        }
    }

    /// How many different messages have arrived.
    pub(crate) fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether everything that `published` has a receipt for has arrived.
    pub(crate) fn has_all(&self, published: &Published) -> bool {
        self.seen.len() >= published.stored.len()
            && published.stored.keys().all(|number| self.seen.contains_key(number))
    }

    /// How many messages came more than once.
    pub(crate) fn repeated(&self) -> usize {
        self.seen.values().filter(|seen| seen.times > 1).count()
    }

    /// Panics unless every rule was kept.
    pub(crate) fn check(mut self, published: &Published) {
        let missing: Vec<u64> =
            published.stored.keys().filter(|number| !self.seen.contains_key(number)).copied().collect();
        if !missing.is_empty() {
            self.fault(format!("{} acknowledged messages never came: {}", missing.len(), runs(&missing)));
        }
        let elsewhere: Vec<String> = published
            .stored
            .iter()
            .filter_map(|(number, place)| {
                let seen = self.seen.get(number)?;
                (seen.place != *place).then(|| format!("{number}: receipt {place:?}, delivered from {:?}", seen.place))
            })
            .collect();
        for fault in elsewhere {
            self.fault(fault);
        }
        let strangers = self
            .seen
            .keys()
            .filter(|number| !published.stored.contains_key(number) && !published.in_doubt.contains(number));
        let strangers: Vec<u64> = strangers.copied().collect();
        if !strangers.is_empty() {
            self.fault(format!("came though refused, or never sent: {}", runs(&strangers)));
        }
        assert!(
            self.faults.is_empty(),
            "{} rules broken (of {} messages with a receipt, {} in doubt, {} seen):\n{}",
            self.faults_total,
            published.stored.len(),
            published.in_doubt.len(),
            self.seen.len(),
            self.faults.join("\n"),
        );
    }

    fn fault(&mut self, fault: String) {
        self.faults_total += 1;
        if self.faults.len() < FAULTS_TOLD_MAX {
            self.faults.push(fault);
        }
    }
}

/// Sorted numbers as ranges, for people.
pub(crate) fn runs(numbers: &[u64]) -> String {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end == *number => run.end += 1,
            _ => runs.push(*number..number + 1),
        }
    }
    let shown: Vec<String> = runs.iter().take(FAULTS_TOLD_MAX).map(|run| format!("{run:?}")).collect();
    format!("{}{}", shown.join(" "), if runs.len() > shown.len() { " …" } else { "" })
}

mod tests {
    use super::*;

    const PATTERN: Pattern = Pattern { seed: 3, bytes: 32 };

    fn arrival(number: u64, redelivered: bool) -> Arrival {
        Arrival { body: PATTERN.body(number), place: (0, number), attempt: 1, redelivered }
    }

    fn published(numbers: Range<u64>) -> Published {
        Published { stored: numbers.map(|number| (number, (0, number))).collect(), ..Published::default() }
    }

    /// Whether the model objects to what `happens`, with three messages published.
    fn objects(happens: impl FnOnce(&mut Received)) -> bool {
        let mut received = Received::new(PATTERN);
        happens(&mut received);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| received.check(&published(0..3)))).is_err()
    }

    #[test]
    fn the_model_is_content_with_what_is_right_and_with_nothing_else() {
        let all = |received: &mut Received| {
            for number in 0..3 {
                received.arrived(&arrival(number, false));
            }
        };
        assert!(!objects(all));
        assert!(!objects(|r| {
            all(r);
            r.arrived(&arrival(1, true));
        }));
        assert!(objects(|r| assert!(r.arrived(&arrival(0, false)).is_some())), "two are missing");
        assert!(objects(|r| {
            all(r);
            r.arrived(&arrival(1, false));
        }));
        assert!(objects(|r| {
            all(r);
            r.done(1);
            r.arrived(&arrival(1, true));
        }));
        assert!(objects(|r| {
            all(r);
            r.arrived(&Arrival { place: (1, 1), ..arrival(1, true) });
        }));
        assert!(objects(|r| {
            all(r);
            r.arrived(&Arrival { body: Bytes::from_static(b"not one of ours"), ..arrival(1, true) });
        }));
        assert!(objects(|r| {
            all(r);
            r.arrived(&arrival(9, false));
        }));
    }
}
