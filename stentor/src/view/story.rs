//! A message with what became of it: dead letters, and `message show`.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};
use stentor_core::Timestamp;
use stentor_protocol::wire;

use crate::output::{MessageLine, Table, time_text};

/// Why deliveries failed.
fn reasons(reasons: &[wire::Reason]) -> Value {
    let reason = |reason: &wire::Reason| {
        json!({
            "attempt": reason.attempt,
            "at": time_text(Timestamp(reason.at_micros)),
            "reason": reason.reason,
        })
    };
    reasons.iter().map(reason).collect()
}

fn reason_rows(reasons: &[wire::Reason]) -> String {
    let mut table = Table::new(&[">attempt", "at", "reason"]);
    for reason in reasons {
        table.row([reason.attempt.to_string(), time_text(Timestamp(reason.at_micros)), reason.reason.clone()]);
    }
    table.text()
}

/// `dead-letters list`: a message as `subscribe` prints it, and why it is here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadLetterView<'a> {
    /// The message; its attempt is the last one.
    pub(crate) message: MessageLine<'a>,
    /// One for each delivery that failed.
    pub(crate) reasons: &'a [wire::Reason],
    /// When it was given up.
    pub(crate) dead_at: Timestamp,
}

impl DeadLetterView<'_> {
    /// For people: the message and, indented, the reasons.
    pub(crate) fn words(&self) -> String {
        let reasons: Vec<_> = reason_rows(self.reasons).lines().map(|line| format!("  {line}")).collect();
        format!("{}\n  dead since {}\n{}", self.message.words(), time_text(self.dead_at), reasons.join("\n"))
    }
}

impl Serialize for DeadLetterView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.message.entries(&mut map)?;
        map.serialize_entry("reasons", &reasons(self.reasons))?;
        map.serialize_entry("dead_at", &time_text(self.dead_at))?;
        map.end()
    }
}

/// `message show`: the message, where it is stored, and per group what became of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoryView<'a> {
    pub(crate) message: MessageLine<'a>,
    pub(crate) groups: &'a [wire::GroupStory],
}

impl StoryView<'_> {
    /// For people.
    pub(crate) fn words(&self) -> String {
        let mut table = Table::new(&["group", "state", ">attempts", "until", "consumer"]);
        for group in self.groups {
            table.row([
                group.group.clone(),
                group.state.clone(),
                group.attempts.to_string(),
                until(group).unwrap_or_else(|| "-".to_owned()),
                group.consumer.clone(),
            ]);
        }
        let mut text = self.message.words();
        if self.groups.is_empty() {
            text += "\n\nno groups";
        } else {
            text += &format!("\n\n{}", table.text());
        }
        for group in self.groups.iter().filter(|group| !group.reasons.is_empty()) {
            text += &format!("\n\nwhy {} did not take it\n{}", group.group, reason_rows(&group.reasons));
        }
        text
    }
}

fn until(group: &wire::GroupStory) -> Option<String> {
    (group.until_micros != 0).then(|| time_text(Timestamp(group.until_micros)))
}

impl Serialize for StoryView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let groups: Value = self
            .groups
            .iter()
            .map(|group| {
                json!({
                    "group": group.group,
                    "state": group.state,
                    "attempts": group.attempts,
                    "reasons": reasons(&group.reasons),
                    "until": until(group),
                    "consumer": (!group.consumer.is_empty()).then_some(&group.consumer),
                })
            })
            .collect();
        let stored = json!({
            "partition": self.message.partition.0,
            "offset": self.message.offset.0,
            "published_at": time_text(self.message.published_at),
        });
        let mut map = serializer.serialize_map(None)?;
        self.message.entries(&mut map)?;
        map.serialize_entry("stored", &stored)?;
        map.serialize_entry("groups", &groups)?;
        map.end()
    }
}
