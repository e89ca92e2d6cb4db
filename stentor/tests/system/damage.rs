//! Bits flip in what had been synced: it is found, never served, and never skipped in silence; other partitions go on.
//!
//! The tests know nothing of the layout of the data folder. They look for the bodies of messages in its files, or take any
//! byte of any file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use stentor_client::{Consumer, Delivery, ErrorCode, ReceiveError};
use tempfile::TempDir;

use crate::support::broker::{Broker, Start};
use crate::support::ledger::{Published, Received};
use crate::support::pattern::Pattern;
use crate::support::process::{STENTOR, tail};
use crate::support::scale::{scaled, seed};
use crate::support::sdk::{self, arrival};
use crate::support::wait::{DEADLINE, until};

const TOPIC: &str = "orders";
const GROUP: &str = "auditor";
const PARTITIONS: u32 = 4;
const MESSAGES: u64 = 4_000;
const PATTERN: Pattern = Pattern { seed: 0xda_0001, bytes: 600 };

/// How long nothing comes before it is looked whether anything is still owed.
const QUIET: Duration = Duration::from_millis(500);

/// Bytes of a body that are looked for in the files; long enough to be there once.
const NEEDLE_BYTES: usize = 32;

/// A stopped broker's data.
struct Specimen {
    folder: TempDir,
    published: Published,
}

/// One bit of one file.
#[derive(Debug)]
struct Flip {
    file: PathBuf,
    byte: u64,
    bit: u8,
}

impl Flip {
    fn apply(&self, folder: &Path) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().read(true).write(true).open(folder.join(&self.file)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, self.byte).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << self.bit)], self.byte).unwrap();
    }
}

impl Specimen {
    /// Publishes, consumes and acknowledges a part, and stops in good order.
    async fn new() -> Self {
        let broker = Broker::start().await;
        broker.run(["topic", "create", TOPIC, "--partitions", &PARTITIONS.to_string()]).await;
        let client = sdk::connect(&broker).await;
        let mut published = Published::default();
        // Several times, so that there are many batches.
        for part in 0..20 {
            let numbers = part * MESSAGES / 20..(part + 1) * MESSAGES / 20;
            published.merge(sdk::publish_all(&client, TOPIC, PATTERN, numbers).await);
        }
        let mut consumer = sdk::consumer(&client, TOPIC, "other", 100).await;
        for _ in 0..500 {
            sdk::next(&mut consumer).await.ack().await.unwrap();
        }
        drop((consumer, client));
        assert!(broker.terminate().await.success());
        let folder = TempDir::with_prefix("stentor-damage-").unwrap();
        copy(broker.data_folder(), folder.path());
        Self { folder, published }
    }

    /// A copy with one bit flipped.
    fn damaged(&self, flip: &Flip) -> TempDir {
        let copied = TempDir::with_prefix("stentor-damage-").unwrap();
        copy(self.folder.path(), copied.path());
        flip.apply(copied.path());
        copied
    }

    /// The files that hold messages, or what leads to them.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                // What clients and TLS need is text for people, and not of the store.
                let text = path
                    .extension()
                    .is_some_and(|extension| ["toml", "pem", "key"].map(Into::into).contains(&extension.to_owned()));
                if path.is_dir() {
                    folders.push(path);
                } else if !text && path.metadata().unwrap().len() > 0 {
                    files.push(path.strip_prefix(self.folder.path()).unwrap().to_owned());
                }
            }
        }
        files.sort();
        files
    }

    /// Where in the files the body of a message lies.
    fn find(&self, number: u64) -> Vec<(PathBuf, u64)> {
        let body = PATTERN.body(number);
        let needle = &body[PATTERN.bytes / 2..][..NEEDLE_BYTES];
        let mut found = Vec::new();
        for file in self.files() {
            let bytes = std::fs::read(self.folder.path().join(&file)).unwrap();
            let mut from = 0;
            while let Some(at) = find(&bytes[from..], needle) {
                found.push((file.clone(), (from + at) as u64));
                from += at + 1;
            }
        }
        found
    }
}

/// The first place of `needle` in `bytes`.
fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == needle[0]) {
        if bytes[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

fn copy(from: &Path, to: &Path) {
    // `cp` leaves out what was set aside and never written.
    let status = Command::new("cp").args(["--recursive", "--sparse=always"]).arg(from.join(".")).arg(to).status();
    assert!(status.unwrap().success());
}

/// What `stentor verify` says of a folder: its exit status, and everything that it printed.
fn verify(folder: &Path) -> (Option<i32>, String) {
    let output = Command::new(STENTOR).args(["--json", "verify"]).arg(folder).output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.code(), said)
}

/// What a broker made of a damaged folder.
struct Reading {
    /// The numbers that arrived, by partition with their offsets. All of them whole.
    arrived: BTreeMap<u32, BTreeSet<u64>>,
    /// Partitions that say that they are damaged.
    corrupt: BTreeSet<u32>,
    /// Partitions of which the consumer was told that its group has stopped there; each once.
    told: BTreeSet<u32>,
    /// What the broker had to say, and what it counts.
    log: String,
    corruptions: u64,
}

/// The next message, if one comes within `limit`. What the consumer is told of damage is noted.
async fn next(consumer: &mut Consumer, limit: Duration, told: &mut BTreeSet<u32>) -> Option<Delivery> {
    let receiving = async {
        loop {
            match consumer.next().await {
                Ok(delivery) => return delivery.expect("the consumer is open"),
                Err(ReceiveError::Stopped { partition, error, .. }) => {
                    assert_eq!(error.code, ErrorCode::Corrupt, "{error}");
                    assert!(told.insert(partition.0), "told twice of partition {partition}: {error}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(limit, receiving).await.ok()
}

/// Starts a broker on the folder and reads all that it serves; or else, what it refused to start with.
async fn read(folder: &Path, published: &Published) -> Result<Reading, String> {
    let start = Broker::try_start("", |mut setup| {
        setup.data_dir = folder.to_owned();
        setup.data_dir_from_here = folder.to_owned();
        setup
    })
    .await;
    let broker = match start {
        Start::Ready(broker) => broker,
        Start::Refused(status, log) => {
            assert_eq!(status.code(), Some(1), "{log}");
            return Err(log);
        }
    };
    let client = sdk::connect(&broker).await;
    let mut consumer = sdk::consumer(&client, TOPIC, GROUP, 1_000).await;
    let mut received = Received::new(PATTERN);
    let (arrived, log) = (BTreeMap::new(), String::new());
    let mut reading = Reading { arrived, corrupt: BTreeSet::new(), told: BTreeSet::new(), log, corruptions: 0 };
    loop {
        while let Some(delivery) = next(&mut consumer, QUIET, &mut reading.told).await {
            let arrival = arrival(&delivery);
            assert!(received.arrived(&arrival).is_some(), "an altered body was served from {:?}", arrival.place);
            reading.arrived.entry(arrival.place.0).or_default().insert(arrival.place.1);
            delivery.ack().await.unwrap();
        }
        // Nothing comes any more: every partition must be at its end or say why not.
        let look = || async { broker.show(["topic", "show", TOPIC]).await };
        let shown = until("the partitions' states", look, |_| true).await;
        reading.corrupt = corrupt_partitions(&shown);
        let done = published.stored.values().all(|(partition, offset)| {
            reading.corrupt.contains(partition)
                || reading.arrived.get(partition).is_some_and(|offsets| offsets.contains(offset))
        });
        if done {
            // Whoever looks meets the damage again.
            for _ in 0..3 {
                broker.show(["group", "show", TOPIC, GROUP]).await;
            }
            reading.corruptions = client.admin().node_status().await.unwrap().corruptions;
            reading.log = broker.log();
            return Ok(reading);
        }
        // Not yet, or never: the next round will show, and ends by itself.
        if next(&mut consumer, DEADLINE / 4, &mut reading.told).await.is_none() {
            let state = &shown["partitions"];
            panic!("messages are missing, and no partition says so: {state}\n{}", broker.log());
        }
    }
}

/// Whether `verify` says, as an object, in which partition and at which offset: that of the message, or of its batch.
fn names_a_place(said: &str, offset: u64) -> bool {
    let findings = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut places = findings.filter_map(|finding| Some((finding["partition"].as_u64()?, finding["offset"].as_u64()?)));
    places.any(|(_, found)| found <= offset)
}

fn corrupt_partitions(shown: &Value) -> BTreeSet<u32> {
    let partitions = shown["partitions"].as_array().unwrap().iter();
    let corrupt = partitions.filter(|partition| partition["state"].as_str().is_some_and(|state| state != "ok"));
    corrupt.map(|partition| partition["partition"].as_u64().unwrap() as u32).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undamaged_folder_verifies_and_is_read_to_the_end() {
    let specimen = Specimen::new().await;
    let (status, said) = verify(specimen.folder.path());
    assert_eq!(status, Some(0), "{said}");
    let reading = read(specimen.folder.path(), &specimen.published).await.unwrap();
    assert!(reading.corrupt.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_a_message_is_found_by_verify_and_by_reading_and_the_other_partitions_go_on() {
    let specimen = Specimen::new().await;
    let mut rng = fastrand::Rng::with_seed(seed(0xda_0002));
    for _ in 0..scaled(3, 8, 40) {
        let number = rng.u64(0..MESSAGES);
        let (partition, offset) = specimen.published.stored[&number];
        let places = specimen.find(number);
        let [(file, byte)] = &places[..] else { panic!("the body of {number} lies at {places:?}") };
        let flip = Flip { file: file.clone(), byte: byte + rng.u64(0..NEEDLE_BYTES as u64), bit: rng.u8(0..8) };
        let damaged = specimen.damaged(&flip);

        let (status, said) = verify(damaged.path());
        assert_eq!(status, Some(1), "verify missed {flip:?} in partition {partition}, offset {offset}:\n{said}");
        assert!(names_a_place(&said, offset), "does not say where, which is at or before offset {offset}: {said}");

        match read(damaged.path(), &specimen.published).await {
            // It was in what is replayed, where nothing can be told apart by partition.
            Err(refusal) => assert!(refusal.contains("damage"), "{flip:?}: {refusal}"),
            Ok(reading) => {
                assert_eq!(reading.corrupt, BTreeSet::from([partition]), "{flip:?} at offset {offset}");
                // Met again by each who looks, and told to the operator once.
                let errors: Vec<_> = reading.log.lines().filter(|line| line.contains("ERROR")).collect();
                let damage = errors.iter().filter(|line| line.contains("engine: damage")).count();
                assert!(reading.corruptions > 1, "{flip:?}: counted {}", reading.corruptions);
                assert!(damage == 1 && errors.len() <= 2, "{flip:?}: {errors:#?}");
                assert_eq!(reading.told, reading.corrupt, "{flip:?}: consumers were not told\n{}", reading.log);
                let beyond = reading.arrived.get(&partition).and_then(|offsets| offsets.range(offset..).next());
                assert_eq!(beyond, None, "{flip:?}: the damage at {offset} was skipped");
            }
        }
    }
}

/// Many bytes of a folder are nobody's: set aside, padding, superseded. A flip there may go unnoticed, if it does no harm.
/// Anywhere else it is found; nowhere is anything altered, or missing without a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_anywhere_does_no_harm_or_is_found() {
    let specimen = Specimen::new().await;
    let mut rng = fastrand::Rng::with_seed(seed(0xda_0003));
    let files = specimen.files();
    let (mut found, mut harmless) = (0, 0);
    for round in 0..scaled(8, 24, 300) {
        let file = &files[round % files.len()];
        let Some(flip) = somewhere_in(specimen.folder.path(), file, &mut rng) else { continue };
        let damaged = specimen.damaged(&flip);
        let (status, said) = verify(damaged.path());
        // fjall may panic over its own damaged files; that must end as a finding like any other, not the process.
        assert!(matches!(status, Some(0 | 1)), "{flip:?}: verify ended with {status:?}:\n{said}");
        assert!(!said.contains("panicked"), "{flip:?}: not in words for an operator:\n{said}");
        let read = read(damaged.path(), &specimen.published).await;
        let log = read.as_ref().map_or_else(String::as_str, |reading| &reading.log);
        assert!(!log.contains("panicked"), "{flip:?}: not in words for an operator:\n{log}");
        match (status, read) {
            (Some(0), Ok(reading)) => {
                assert!(reading.corrupt.is_empty(), "{flip:?}: verify did not find what reading did");
                harmless += 1;
            }
            (Some(0), Err(refusal)) => panic!("{flip:?}: verify found nothing, and the broker refuses:\n{refusal}"),
            _ => found += 1,
        }
    }
    eprintln!("{found} flips were found, {harmless} did no harm");
}

/// A bit of a part of the file that is in use, as far as one can tell: not all zeros.
fn somewhere_in(folder: &Path, file: &Path, rng: &mut fastrand::Rng) -> Option<Flip> {
    const BLOCK: usize = 512;
    let bytes = std::fs::read(folder.join(file)).unwrap();
    let used: Vec<usize> = bytes
        .chunks(BLOCK)
        .enumerate()
        .filter(|(_, block)| block.iter().any(|byte| *byte != 0))
        .map(|(n, _)| n)
        .collect();
    let block = rng.choice(used)?;
    let byte = rng.usize(block * BLOCK..bytes.len().min((block + 1) * BLOCK)) as u64;
    Some(Flip { file: file.to_owned(), byte, bit: rng.u8(0..8) })
}

/// Without its folder, its file or a readable store, `verify` says so and does not call it good.
#[test]
fn verify_does_not_call_good_what_it_cannot_read() {
    let folder = TempDir::with_prefix("stentor-damage-").unwrap();
    for path in [folder.path().join("nowhere"), folder.path().to_owned()] {
        let (status, said) = verify(&path);
        assert_eq!(status, Some(1), "{}: {said}", path.display());
    }
    let file = folder.path().join("a-file");
    std::fs::write(&file, "text").unwrap();
    assert_eq!(verify(&file).0, Some(1), "{}", tail(&file));
}
