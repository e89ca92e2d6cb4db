//! `stentor dead-letters`: messages that a group could not take, and giving them back.

use std::time::Duration;

use bytes::Bytes;
use clap::{Args, Subcommand};
use serde_json::json;
use stentor_client::Client;
use stentor_client::admin::{DeadLetter, Moved, PartitionFailure};
use stentor_core::Clock;
use stentor_core::clock::SystemClock;

use super::args::{Place, rate};
use super::connect::Context;
use super::group::Name;
use crate::output::{Failure, MessageLine, Output, Progress, count_text};
use crate::view::DeadLetterView;

/// Letters given back by one request, where no rate says otherwise.
const STEP: u32 = 1_000;

/// List, show, give back and purge the messages that a group could not take
#[derive(Debug, Args)]
pub(super) struct DeadLetters {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the dead letters of a group, with the reasons
    List(Name),
    /// Show one dead letter
    Show {
        #[command(flatten)]
        name: Name,
        /// Where it is stored
        #[arg(value_name = "PARTITION:OFFSET")]
        place: Place,
    },
    /// Give dead letters back to their group, and to that group alone
    Redrive {
        #[command(flatten)]
        name: Name,
        /// Only those for which this holds
        #[arg(long, value_name = "EXPR", default_value = "")]
        filter: String,
        /// So many a second at most
        #[arg(long, value_name = "N/s", value_parser = rate)]
        rate: Option<u64>,
        /// Only count them
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete the dead letters of a group
    Purge(Name),
}

impl DeadLetters {
    pub(super) async fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.connect().await?;
        let done = self.act(&client, context.output).await;
        client.close().await;
        done
    }

    async fn act(self, client: &Client, output: Output) -> Result<(), Failure> {
        match self.action {
            Action::List(name) => list(client, output, &name).await,
            Action::Show { name, place } => {
                let Name { topic, group } = &name;
                let letter = client.admin().dead_letter(topic, group, place.partition, place.offset).await?;
                let letter = letter.ok_or_else(|| {
                    let at = format!("{}:{}", place.partition, place.offset.0);
                    Failure::new("message_not_found", format!("{at} is not among the dead letters of {topic} {group}"))
                        .hint("`stentor message show` says what became of it")
                })?;
                show(output, topic, &letter)
            }
            Action::Redrive { name, filter, rate, dry_run } => {
                redrive(client, output, &name, &filter, rate, dry_run).await
            }
            Action::Purge(Name { topic, group }) => {
                output.confirm(&format!("delete the dead letters of {topic} {group}"))?;
                let Moved { messages, failed } = client.admin().purge_dead_letters(&topic, &group).await?;
                let object = json!({ "topic": topic, "group": group, "purged": messages });
                output
                    .either(&object, || format!("deleted {} dead letters of {topic} {group}", count_text(messages)))?;
                told(output, failed)
            }
        }
    }
}

/// Says of which partitions it was not done; that fails the command, but not what was done elsewhere.
fn told(output: Output, failed: Vec<PartitionFailure>) -> Result<(), Failure> {
    if failed.is_empty() {
        return Ok(());
    }
    for PartitionFailure { partition, error } in failed {
        let message = format!("partition {partition} keeps its dead letters: {}", error.message);
        Failure::new(error.code.kind(), message).hint(error.hint).report(output.json);
    }
    Err(Failure::Reported)
}

async fn list(client: &Client, output: Output, Name { topic, group }: &Name) -> Result<(), Failure> {
    let mut letters = client.admin().dead_letters(topic, group);
    let mut any = false;
    while let Some(page) = letters.next().await? {
        any = true;
        page.iter().try_for_each(|letter| show(output, topic, letter))?;
    }
    if !any {
        output.note(&format!("{topic} {group} has no dead letters"));
    }
    Ok(())
}

fn show(output: Output, topic: &str, letter: &DeadLetter) -> Result<(), Failure> {
    let message = MessageLine {
        topic,
        partition: letter.partition,
        offset: letter.offset,
        record: &letter.record,
        published_at: letter.published_at,
        // It has been delivered as often as it was tried, so the last delivery was a repeated one if it was not the first.
        delivery: Some((letter.attempts, letter.attempts > 1)),
    };
    let view = DeadLetterView { message, reasons: &letter.reasons, dead_at: letter.dead_at };
    output.either(&view, || view.words())
}

async fn redrive(
    client: &Client,
    output: Output,
    Name { topic, group }: &Name,
    filter: &str,
    rate: Option<u64>,
    dry_run: bool,
) -> Result<(), Failure> {
    let clock = SystemClock::new();
    // With a rate, a second's worth at a time, or less.
    let step = rate.map_or(STEP, |rate| u32::try_from(rate).unwrap_or(STEP).min(STEP));
    let mut progress = Progress::new(output, None, "dead letters");
    let (mut messages, mut failed, mut after) = (0, Vec::new(), Some(Bytes::new()));
    let began = clock.monotonic();
    while let Some(from) = after {
        let moved = client.admin().redrive_page(topic, group, filter, step, dry_run, from).await?;
        messages += moved.messages;
        failed.extend(moved.failed);
        progress.add(moved.messages);
        after = moved.next;
        if let (Some(rate), false, true) = (rate, dry_run, after.is_some()) {
            // Not before so many could have gone at that rate.
            let due = Duration::from_nanos(messages.saturating_mul(1_000_000_000) / rate);
            clock.sleep_until(began.after(due)).await;
        }
    }
    progress.done();
    let object = json!({ "topic": topic, "group": group, "redriven": messages, "dry_run": dry_run });
    output.either(&object, || {
        let what = if dry_run { "would give back" } else { "gave back" };
        format!("{what} {} messages to {topic} {group}", count_text(messages))
    })?;
    told(output, failed)
}
