//! `stentor publish`: sends messages, many at a time, and prints where each was stored as that becomes known.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use clap::Args;
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt, StreamExt};
use serde::Serialize;
use stentor_client::{Message, PendingSend, Producer, Receipt};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

use super::args::pair;
use super::connect::Context;
use crate::output::{Failure, Output, Progress};

/// Messages that are under way at a time; the SDK bounds their bytes, this their receipts.
const UNDER_WAY_MAX: usize = 16_384;

/// Send messages to a topic
#[derive(Debug, Args)]
pub(super) struct Publish {
    /// Where to
    topic: String,
    /// What to say
    #[arg(required_unless_present = "file", conflicts_with = "file", allow_hyphen_values = true)]
    body: Option<String>,
    /// Take the body from a file; `-` is standard input
    #[arg(long, value_name = "F")]
    file: Option<PathBuf>,
    /// Make a message of each line of the file
    #[arg(long, requires = "file")]
    lines: bool,
    /// Messages of one key go to one partition and stay in order
    #[arg(long, value_name = "K")]
    key: Option<String>,
    /// A short text that groups filter by
    #[arg(long, value_name = "T")]
    tag: Option<String>,
    /// A property; may be given several times
    #[arg(long = "header", value_name = "K=V", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// Send the body so many times
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "lines")]
    count: u64,
}

impl Publish {
    pub(super) async fn run(self, context: &Context) -> Result<(), Failure> {
        let mut bodies = self.bodies().await?;
        let client = context.connect().await?;
        let producer = client.producer(&self.topic).open().await?;
        let total = (!self.lines).then_some(self.count);
        let mut sent = Sent {
            output: context.output,
            pending: FuturesOrdered::new(),
            progress: Progress::new(context.output, total, "messages"),
            stored: 0,
        };
        let done = self.send_all(&producer, &mut bodies, &mut sent).await;
        // What was taken over is answered before anything else is said, whatever went wrong.
        let answered = sent.all().await;
        sent.progress.done();
        producer.close().await.ok();
        client.close().await;
        match done.and(answered) {
            Err(failure) if sent.stored > 0 => Err(failure.during(format_args!("after {} messages", sent.stored))),
            done => done,
        }
    }

    async fn send_all(&self, producer: &Producer, bodies: &mut Bodies, sent: &mut Sent) -> Result<(), Failure> {
        loop {
            // An answer is printed when it comes, also while the next line is waited for.
            let body = tokio::select! {
                biased;
                answer = sent.next(), if !sent.pending.is_empty() => {
                    answer?;
                    continue;
                }
                body = bodies.next(), if sent.pending.len() < UNDER_WAY_MAX => body?,
            };
            let Some(body) = body else { return Ok(()) };
            sent.pending.push_back(producer.enqueue(self.message(body)).await?);
            sent.ready()?;
        }
    }

    fn message(&self, body: Bytes) -> Message {
        let mut message = Message::new(body);
        if let Some(key) = &self.key {
            message = message.key(key.clone());
        }
        if let Some(tag) = &self.tag {
            message = message.tag(tag.as_str());
        }
        self.headers.iter().fold(message, |message, (name, value)| message.header(name.as_str(), value.clone()))
    }

    async fn bodies(&self) -> Result<Bodies, Failure> {
        let Some(file) = &self.file else {
            let body = Bytes::from(self.body.clone().unwrap_or_default());
            return Ok(Bodies::Same { body, left: self.count });
        };
        let cannot = |error: io::Error| Failure::io(format_args!("cannot read {}", file.display()), &error);
        let mut input: Box<dyn AsyncRead + Unpin + Send> = if file.as_os_str() == "-" {
            Box::new(tokio::io::stdin())
        } else {
            Box::new(tokio::fs::File::open(file).await.map_err(cannot)?)
        };
        if self.lines {
            return Ok(Bodies::Lines { input: BufReader::new(input), line: Vec::new() });
        }
        let mut body = Vec::new();
        input.read_to_end(&mut body).await.map_err(cannot)?;
        Ok(Bodies::Same { body: body.into(), left: self.count })
    }
}

/// Where the bodies come from.
enum Bodies {
    Same { body: Bytes, left: u64 },
    Lines { input: BufReader<Box<dyn AsyncRead + Unpin + Send>>, line: Vec<u8> },
}

impl Bodies {
    /// The next body, if any is left. Cancel safe: half a line stays here.
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        match self {
            Self::Same { left: 0, .. } => Ok(None),
            Self::Same { body, left } => {
                *left -= 1;
                Ok(Some(body.clone()))
            }
            Self::Lines { input, line } => {
                let read = input.read_until(b'\n', line).await;
                read.map_err(|error| Failure::io("cannot read the next line", &error))?;
                if line.is_empty() {
                    return Ok(None);
                }
                let mut body = std::mem::take(line);
                if body.last() == Some(&b'\n') {
                    body.pop();
                }
                Ok(Some(body.into()))
            }
        }
    }
}

/// `publish --json`: a line for each message.
#[derive(Serialize)]
struct Stored<'a> {
    id: String,
    topic: &'a str,
    partition: u32,
    offset: u64,
}

/// What is under way, in the order in which it was sent.
struct Sent {
    output: Output,
    pending: FuturesOrdered<PendingSend>,
    progress: Progress,
    stored: u64,
}

impl Sent {
    /// Waits for the next answer and prints it.
    async fn next(&mut self) -> Result<(), Failure> {
        match self.pending.next().await {
            Some(answer) => self.print(&answer?),
            None => Ok(()),
        }
    }

    /// Prints the answers that are there.
    fn ready(&mut self) -> Result<(), Failure> {
        while let Some(Some(answer)) = self.pending.next().now_or_never() {
            self.print(&answer?)?;
        }
        Ok(())
    }

    /// Waits for all answers and prints them; the first failure is the result.
    async fn all(&mut self) -> Result<(), Failure> {
        let mut first = Ok(());
        while let Some(answer) = self.pending.next().await {
            let printed = answer.map_err(Failure::from).and_then(|receipt| self.print(&receipt));
            first = first.and(printed);
        }
        first
    }

    fn print(&mut self, receipt: &Receipt) -> Result<(), Failure> {
        self.stored += 1;
        self.progress.add(1);
        let Receipt { id, topic, partition, offset, .. } = receipt;
        if self.output.quiet && !self.output.json {
            return Ok(());
        }
        let stored = Stored { id: id.to_string(), topic: topic.as_str(), partition: partition.0, offset: offset.0 };
        self.output.either(&stored, || format!("{id} {partition}:{}", offset.0))
    }
}
