//! `stentor subscribe`: receives messages of a group and prints them.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures_util::FutureExt;
use stentor_client::{Consumer, Delivery, Settlement};
use stentor_core::Clock;
use stentor_core::clock::SystemClock;

use super::args::{Start, duration};
use super::connect::Context;
use crate::output::{Failure, MessageLine, Output};
use crate::serve::interrupted;

/// Settlements that are waited for at a time.
const SETTLEMENTS_MAX: usize = 4_096;

/// The reason of a refusal, unless another is given.
const REASON: &str = "refused by `stentor subscribe --nack`";

/// Receive messages of a topic as a consumer of a group, which is created if there is none
#[derive(Debug, Args)]
pub(super) struct Subscribe {
    /// What to receive
    topic: String,
    /// As whom: consumers of a group share its messages
    #[arg(long, value_name = "G")]
    group: String,
    /// Where a new group starts: earliest, latest, a time, PARTITION:OFFSET [default: latest]
    #[arg(long, value_name = "WHERE")]
    from: Option<Start>,
    /// Only messages for which this holds, such as "tag = 'paid'"; belongs to the group
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// Messages of one key one at a time, in order; belongs to the group
    #[arg(long)]
    ordered: bool,
    /// Messages that may be held unsettled
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    credit: u32,
    /// Stop after so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// Stop when nothing has come for so long; exit status 3 if nothing came at all
    #[arg(long, value_name = "D", value_parser = duration)]
    timeout: Option<Duration>,
    /// Say that each message is done with (the default)
    #[arg(long, conflicts_with_all = ["nack", "no_ack"])]
    ack: bool,
    /// Refuse each message: it comes back later, or goes to the dead letters in the end
    #[arg(long, conflicts_with = "no_ack")]
    nack: bool,
    /// Say nothing: what was printed comes back when this command ends
    #[arg(long)]
    no_ack: bool,
    /// Why messages are refused
    #[arg(long, value_name = "TEXT", requires = "nack")]
    reason: Option<String>,
    /// What to print of a message; with --json it is everything
    #[arg(long, value_name = "WHAT", default_value = "body")]
    print: Print,
}

/// What is printed of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Print {
    /// The body, as it is, and a line's end
    Body,
    /// Time, place, id, properties and body, on one line
    All,
}

impl Subscribe {
    pub(super) async fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.connect().await?;
        let mut builder = client.consumer(&self.topic, &self.group).credit(self.credit);
        if let Some(from) = self.from {
            builder = builder.from(from.into());
        }
        if let Some(filter) = &self.filter {
            builder = builder.filter(filter);
        }
        if self.ordered {
            builder = builder.ordered();
        }
        let mut consumer = builder.open().await?;
        let mut settled = Settled(VecDeque::new());
        let done = self.receive(context.output, &mut consumer, &mut settled).await;
        // What was said about messages is accepted before the command ends, whatever ends it.
        let answered = settled.down_to(0).await;
        consumer.close().await;
        client.close().await;
        done.and(answered)
    }

    async fn receive(&self, output: Output, consumer: &mut Consumer, settled: &mut Settled) -> Result<(), Failure> {
        let clock = SystemClock::new();
        let mut end = pin!(interrupted());
        // Kept until the end, or their leases would seem abandoned one by one.
        let mut kept = Vec::new();
        let (mut received, mut failed) = (0, false);
        let ended = |failed: bool| if failed { Err(Failure::Reported) } else { Ok(()) };
        while self.max.is_none_or(|max| received < max) {
            let silence = async {
                match self.timeout {
                    Some(timeout) => clock.sleep_until(clock.monotonic().after(timeout)).await,
                    None => std::future::pending().await,
                }
            };
            let delivery = tokio::select! {
                biased;
                () = &mut end => return ended(failed),
                delivery = consumer.next() => delivery,
                () = silence => {
                    return if received > 0 || failed { ended(failed) } else { Err(self.nothing_received()) };
                }
            };
            let delivery = match delivery {
                Ok(Some(delivery)) => delivery,
                Ok(None) => return ended(failed),
                // The other partitions go on.
                Err(error) if !error.is_final() => {
                    Failure::from(error).report(output.json);
                    failed = true;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            received += 1;
            self.show(output, &delivery)?;
            // Only after it was printed: a pipe that broke gives the message back.
            if self.no_ack {
                kept.push(delivery);
                continue;
            }
            settled.0.push_back(if self.nack {
                delivery.nack().reason(self.reason.as_deref().unwrap_or(REASON)).send()
            } else {
                delivery.ack()
            });
            settled.down_to(SETTLEMENTS_MAX).await?;
        }
        ended(failed)
    }

    fn show(&self, output: Output, delivery: &Delivery) -> Result<(), Failure> {
        let line = MessageLine {
            topic: &self.topic,
            partition: delivery.partition(),
            offset: delivery.offset(),
            record: delivery.record(),
            published_at: delivery.published_at(),
            delivery: Some((delivery.attempt(), delivery.redelivered())),
        };
        match self.print {
            _ if output.json => output.json(&line),
            Print::Body => output.raw_line(delivery.body()),
            Print::All => output.line(&line.words()),
        }
    }

    fn nothing_received(&self) -> Failure {
        let waited = humantime::format_duration(self.timeout.unwrap_or_default());
        let message = format!("nothing came from {} for group {} within {waited}", self.topic, self.group);
        let hint = match self.from {
            None => "a new group starts at the latest message; --from earliest starts it at the oldest",
            Some(_) => "`stentor group show` says what the group is owed and who else holds it",
        };
        Failure::new("nothing_received", message).hint(hint)
    }
}

/// Settlements whose answers are still to come.
struct Settled(VecDeque<Settlement>);

impl Settled {
    /// Takes the answers that are there, and waits for more until at most `open_max` are open.
    async fn down_to(&mut self, open_max: usize) -> Result<(), Failure> {
        loop {
            let must = self.0.len() > open_max;
            let Some(settlement) = self.0.front_mut() else { return Ok(()) };
            if must {
                settlement.await?;
            } else {
                match settlement.now_or_never() {
                    Some(answer) => answer?,
                    None => return Ok(()),
                }
            }
            self.0.pop_front();
        }
    }
}
