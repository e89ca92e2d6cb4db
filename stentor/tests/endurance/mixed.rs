//! Everything for long: publishing at a steady rate, ten groups, one that refuses all, one whose consumers come and go.
//! Nothing may grow: memory, files, threads, latency.
//!
//! `STENTOR_MIXED_SECONDS` makes it as long as is wanted; the `long` scale takes an hour.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use stentor_client::{Client, Message, StartAt};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::flood::{self, median};
use crate::meter::{Meter, Reading, disk_mib};
use crate::support::broker::Broker;
use crate::support::scale::{Scale, scaled};
use crate::support::sdk;
use crate::support::wait::{DEADLINE, Stopwatch, pause, until, within};

const TOPIC: &str = "mixed";
const WATCHED: &str = "watched";
const REFUSES: &str = "refuses";
const RESTARTS: &str = "restarts";
const HEALTHY: usize = 7;
const BODY_BYTES: usize = 512;

/// Messages a second, and how often they go.
const RATE: u64 = 2_000;
const TICK: Duration = Duration::from_millis(5);

/// How much the last third may lie above the first one, beside what always moves.
const GROWTH_MAX: f64 = 1.25;
const MEMORY_MIB_SLACK: f64 = 48.0;
const COUNT_SLACK: f64 = 16.0;
const LATENCY_MICROS_SLACK: f64 = 20_000.0;

const CONFIG: &str = "[defaults]\npartitions = 4\nretain_for = \"0s\"\n\
    [[group]]\ntopic = \"*\"\ngroup = \"refuses\"\nmax_attempts = 3\nretry_delay = \"50ms\"\nretry_delay_max = \"200ms\"\n";

/// How things stood over one part of the run.
#[derive(Clone, Copy, Debug)]
struct Part {
    reading: Reading,
    disk_mib: f64,
    p50_micros: f64,
    p99_micros: f64,
}

/// Latencies in microseconds, from the moment a message was due to its delivery.
type Latencies = Arc<Mutex<Vec<u64>>>;

/// Publishes at the rate until it is told that it is over; how many went.
async fn publish(client: Client, clock: Arc<Stopwatch>, over: watch::Receiver<bool>) -> u64 {
    let producer = flood::producer(&client, TOPIC, 1_024).await;
    let body = flood::body(BODY_BYTES);
    let (began, mut messages) = (clock.elapsed(), 0);
    while !*over.borrow() {
        let due = u64::try_from((clock.elapsed() - began).as_micros()).unwrap() * RATE / 1_000_000;
        let mut pending = None;
        for number in messages..due {
            let at = u64::try_from(began.as_micros()).unwrap() + number * 1_000_000 / RATE;
            let body = [&at.to_le_bytes(), &body[8..]].concat();
            pending = Some(producer.enqueue(Message::new(body)).await.unwrap());
        }
        messages = messages.max(due);
        if let Some(pending) = pending {
            within(DEADLINE, "a receipt", pending).await.unwrap();
        }
        pause(TICK).await;
    }
    producer.close().await.unwrap();
    messages
}

/// Takes whatever comes; notes latencies if they are wanted.
fn take(client: &Client, group: String, clock: Arc<Stopwatch>, latencies: Option<Latencies>) -> JoinHandle<()> {
    let client = client.clone();
    tokio::spawn(async move {
        let mut consumer = sdk::consumer(&client, TOPIC, &group, 2_000).await;
        while let Ok(Some(batch)) = consumer.next_batch().await {
            if let Some(latencies) = &latencies {
                let now = u64::try_from(clock.elapsed().as_micros()).unwrap();
                let due = |body: &[u8]| u64::from_le_bytes(*body.first_chunk().unwrap());
                latencies.lock().unwrap().extend(batch.iter().map(|delivery| now.saturating_sub(due(delivery.body()))));
            }
            if batch.ack().await.is_err() {
                return;
            }
        }
    })
}

fn refuse(client: &Client) -> JoinHandle<()> {
    let client = client.clone();
    tokio::spawn(async move {
        let mut consumer = sdk::consumer(&client, TOPIC, REFUSES, 500).await;
        while let Ok(Some(delivery)) = consumer.next().await {
            // That it is refused counts; nobody waits for each.
            drop(delivery.nack().reason("never").send());
        }
    })
}

/// Consumers that take for a while and are gone without a word, with a connection of their own each.
fn restart(broker: Arc<Broker>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut rng = fastrand::Rng::with_seed(0x3e57);
        loop {
            let client = sdk::connect(&broker).await;
            let mut consumer = sdk::consumer(&client, TOPIC, RESTARTS, 1_000).await;
            let enough = rng.u64(1..2 * RATE);
            let mut taken = 0;
            while taken < enough {
                let Ok(Some(batch)) = consumer.next_batch().await else { break };
                taken += batch.len() as u64;
                drop(batch.ack());
            }
        }
    })
}

fn percentile(latencies: &mut [u64], share: f64) -> f64 {
    latencies.sort_unstable();
    let at = (latencies.len() as f64 * share) as usize;
    latencies.get(at.min(latencies.len().saturating_sub(1))).map_or(0.0, |micros| *micros as f64)
}

/// Whether the last third lies no higher than the first, beside what always moves.
fn is_steady(parts: &[Part], figure: impl Fn(&Part) -> f64, slack: f64) -> Result<(), String> {
    let third = (parts.len() / 3).max(1);
    let of = |parts: &[Part]| median(&parts.iter().map(&figure).collect::<Vec<_>>());
    let (first, last) = (of(&parts[..third]), of(&parts[parts.len() - third..]));
    if last <= first * GROWTH_MAX + slack { Ok(()) } else { Err(format!("from {first:.1} to {last:.1}")) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_grows_while_everything_goes_on_for_long() {
    let asked = std::env::var("STENTOR_MIXED_SECONDS").ok().map(|text| text.parse().expect("whole seconds"));
    let seconds: u64 = asked.unwrap_or(scaled(3, 15, 3_600));
    let parts_wanted = scaled(3, 5, 60_u32);
    let broker = Arc::new(Broker::with_config(CONFIG).await);
    let client = sdk::connect(&broker).await;
    client.admin().create_topic(TOPIC, Default::default()).await.unwrap();
    let healthy: Vec<String> = (0..HEALTHY).map(|number| format!("healthy-{number}")).collect();
    let groups: Vec<&str> = healthy.iter().map(String::as_str).chain([WATCHED, REFUSES, RESTARTS]).collect();
    for group in &groups {
        client.admin().create_group(TOPIC, group, Some(StartAt::Earliest), Default::default()).await.unwrap();
    }
    let clock = Arc::new(Stopwatch::start());
    let latencies = Latencies::default();
    let mut tasks: Vec<_> =
        healthy.iter().map(|group| take(&client, group.clone(), Arc::clone(&clock), None)).collect();
    tasks.push(take(&client, WATCHED.to_owned(), Arc::clone(&clock), Some(Arc::clone(&latencies))));
    tasks.push(refuse(&client));
    tasks.push(restart(Arc::clone(&broker)));
    let (tell, over) = watch::channel(false);
    let publishing = tokio::spawn(publish(sdk::connect(&broker).await, Arc::clone(&clock), over));

    let meter = Meter::of(&broker);
    let mut parts = Vec::new();
    for number in 1..=parts_wanted {
        pause(Duration::from_secs(seconds) / parts_wanted).await;
        let mut found = std::mem::take(&mut *latencies.lock().unwrap());
        let part = Part {
            reading: meter.read(),
            disk_mib: disk_mib(broker.data_folder()),
            p50_micros: percentile(&mut found, 0.5),
            p99_micros: percentile(&mut found, 0.99),
        };
        let Reading { rss_mib, files, threads, cpu_seconds } = part.reading;
        eprintln!(
            "{number}/{parts_wanted}: {} delivered, p50 {:.0} µs, p99 {:.0} µs, memory {rss_mib:.0} MiB, {files} files, {threads} threads, disk {:.0} MiB, {cpu_seconds:.1} s of processor time",
            found.len(),
            part.p50_micros,
            part.p99_micros,
            part.disk_mib,
        );
        parts.push(part);
        // An operator looks now and then; letters are kept until somebody does.
        client.admin().purge_dead_letters(TOPIC, REFUSES).await.unwrap();
    }
    tell.send_replace(true);
    let published = within(DEADLINE, "the publisher to end", publishing).await.unwrap();
    assert!(published > 0);
    for group in &groups {
        let look = || broker.show(["group", "show", TOPIC, group]);
        until(&format!("{group} to be owed nothing"), look, |shown| shown["backlog"] == 0).await;
    }
    tasks.iter().for_each(JoinHandle::abort);

    if Scale::of_this_run() == Scale::Long {
        type Figure = fn(&Part) -> f64;
        let figures: [(&str, Figure, f64); 5] = [
            ("memory", |part| part.reading.rss_mib, MEMORY_MIB_SLACK),
            ("files", |part| part.reading.files as f64, COUNT_SLACK),
            ("threads", |part| part.reading.threads as f64, COUNT_SLACK),
            ("disk", |part| part.disk_mib, 512.0),
            ("latency", |part| part.p99_micros, LATENCY_MICROS_SLACK),
        ];
        for (what, figure, slack) in figures {
            if let Err(grown) = is_steady(&parts, figure, slack) {
                panic!("{what} grew {grown}");
            }
        }
    }
}

#[test]
fn what_grows_is_noticed_and_what_moves_is_not() {
    let part = |files: usize| Part {
        reading: Reading { rss_mib: 100.0, files, threads: 8, cpu_seconds: 0.0 },
        disk_mib: 1.0,
        p50_micros: 1.0,
        p99_micros: 1.0,
    };
    let files = |part: &Part| part.reading.files as f64;
    let growing: Vec<Part> = (0..60).map(|minute| part(20 + minute)).collect();
    assert!(is_steady(&growing, files, COUNT_SLACK).is_err());
    let moving: Vec<Part> = (0..60).map(|minute| part(20 + minute % 7)).collect();
    assert!(is_steady(&moving, files, COUNT_SLACK).is_ok());
}
