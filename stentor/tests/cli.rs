//! The command line as scripts see it: the fields of its JSON, its exit statuses, its errors, and what it refuses.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

const STENTOR: &str = env!("CARGO_BIN_EXE_stentor");

/// A command in a folder of its own, so that no profile of the machine is found.
fn stentor(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(STENTOR);
    command.args(args).current_dir(folder).stdin(Stdio::null());
    command.env_remove("STENTOR_PROFILE").env("HOME", folder).env_remove("XDG_CONFIG_HOME");
    command
}

/// What a command printed and how it ended.
struct Ran {
    status: i32,
    out: String,
    err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output is text");
        let status = output.status.code().expect("no signal ended it");
        Self { status, out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Ran {
    fn ok(self) -> Self {
        assert_eq!(self.status, 0, "{}", self.err);
        self
    }

    /// The objects on standard output, and nothing else there.
    fn objects(&self) -> Vec<Value> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
            .collect()
    }

    /// The one error on standard error.
    fn error(&self) -> Value {
        let parsed: Value =
            serde_json::from_str(self.err.trim()).unwrap_or_else(|error| panic!("{}: {error}", self.err));
        parsed["error"].clone()
    }
}

/// The names of an object's fields, in the order in which they were written.
fn fields(line: &str) -> Vec<String> {
    let object: Value = serde_json::from_str(line).expect("an object");
    let mut names: Vec<String> = object.as_object().expect("an object").keys().cloned().collect();
    names.sort_by_key(|name| line.find(&format!("\"{name}\":")));
    names
}

/// A `stentor dev` with its data in a temporary folder.
struct Dev {
    folder: TempDir,
    process: Child,
    ready: Value,
}

impl Dev {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let args = ["dev", "--json", "--quic", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let mut command = stentor(folder.path(), &args);
        let mut process = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let out = process.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("it says something");
        assert_eq!(fields(&line), ["ready", "quic", "admin", "data_dir"]);
        Self { folder, process, ready: serde_json::from_str(&line).expect("an object") }
    }

    /// Runs a command that finds the broker by itself.
    fn run(&self, args: &[&str]) -> Ran {
        stentor(self.folder.path(), args).output().expect("it runs").into()
    }

    fn json(&self, args: &[&str]) -> Ran {
        self.run(&[&["--json"], args].concat())
    }

    /// The body of an answer of the admin listener.
    fn http(&self, path: &str) -> (String, String) {
        use std::io::Read;
        let address = self.ready["admin"].as_str().expect("an address");
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
    }

    fn stop(mut self) -> std::process::ExitStatus {
        let id = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it lives");
        self.process.wait().expect("it ends")
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // Ended already, if the test went well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn what_was_published_is_delivered_with_exactly_the_fields_of_the_contract() {
    let dev = Dev::start();
    let published = dev.json(&["publish", "orders", "hello", "--key", "k", "--tag", "paid", "--header", "a=b=c"]).ok();
    assert_eq!(fields(&published.out), ["id", "topic", "partition", "offset"]);
    let sent = published.objects().remove(0);

    let received = dev.json(&["subscribe", "orders", "--group", "g", "--from", "earliest", "--max", "1"]).ok();
    let expected = [
        "id",
        "topic",
        "partition",
        "offset",
        "key",
        "tag",
        "headers",
        "body",
        "attempt",
        "redelivered",
        "published_at",
    ];
    assert_eq!(fields(&received.out), expected);
    let message = received.objects().remove(0);
    for key in ["id", "topic", "partition", "offset"] {
        assert_eq!(message[key], sent[key], "{key}");
    }
    assert_eq!((&message["key"], &message["tag"], &message["body"]), (&"k".into(), &"paid".into(), &"hello".into()));
    assert_eq!(message["headers"], serde_json::json!([{ "name": "a", "value": "b=c" }]));
    assert_eq!((&message["attempt"], &message["redelivered"]), (&1.into(), &false.into()));

    let topic = dev.json(&["topic", "show", "orders"]).ok();
    assert_eq!(fields(&topic.out)[..4], ["name", "storage", "durability", "partitions"]);
    let shown = topic.objects().remove(0);
    assert_eq!((&shown["storage"], &shown["durability"]), (&"lsm".into(), &"synced".into()));
    let group = dev.json(&["group", "show", "orders", "g"]).ok();
    let expected = [
        "topic",
        "group",
        "backlog",
        "in_flight",
        "retrying",
        "dead_letters",
        "oldest_unacked_seconds",
        "consumers",
        "paused",
    ];
    assert_eq!(fields(&group.out), expected);
    // The HTTP API says the same in the same words.
    let (status, body) = dev.http("/api/v1/topics/orders/groups/g");
    assert!(status.contains("200"), "{status}");
    assert_eq!(fields(&body), expected);
    assert!(dev.stop().success());
}

#[test]
fn bodies_that_are_no_text_and_lines_of_a_file_go_through_unchanged() {
    let dev = Dev::start();
    let file = dev.folder.path().join("body");
    std::fs::write(&file, [0xff, 0x00, 0x0a]).expect("it is written");
    dev.run(&["publish", "raw", "--file", file.to_str().expect("a path")]).ok();
    let received = dev.json(&["subscribe", "raw", "--group", "g", "--from", "earliest", "--max", "1"]).ok();
    let message = received.objects().remove(0);
    assert_eq!(message["body_base64"], "/wAK");
    assert!(message.get("body").is_none());

    std::fs::write(&file, "one\n\nthree").expect("it is written");
    let args = ["publish", "lines", "--lines", "--key", "k", "--file", file.to_str().expect("a path")];
    assert_eq!(dev.run(&args).ok().out.lines().count(), 3);
    let received = dev.run(&["subscribe", "lines", "--group", "g", "--from", "earliest", "--max", "3"]).ok();
    assert_eq!(received.out, "one\n\nthree\n");
    assert!(dev.stop().success());
}

#[test]
fn an_exit_status_tells_what_happened() {
    let dev = Dev::start();
    dev.run(&["topic", "create", "t"]).ok();
    let silent = dev.json(&["subscribe", "t", "--group", "g", "--timeout", "200ms"]);
    assert_eq!((silent.status, silent.error()["kind"].as_str()), (3, Some("nothing_received")));
    let missing = dev.json(&["topic", "show", "nowhere"]);
    assert_eq!((missing.status, missing.error()["kind"].as_str()), (1, Some("topic_not_found")));
    let exists = dev.json(&["topic", "create", "t"]);
    assert_eq!((exists.status, exists.error()["kind"].as_str()), (1, Some("topic_exists")));
    // Without a terminal nothing is destroyed unasked.
    for args in
        [&["topic", "delete", "t"][..], &["group", "seek", "t", "g", "latest"], &["dead-letters", "purge", "t", "g"]]
    {
        let refused = dev.json(args);
        assert_eq!((refused.status, refused.error()["kind"].as_str()), (2, Some("confirmation")), "{args:?}");
    }
    dev.run(&["topic", "show", "t"]).ok();
    dev.run(&["--yes", "topic", "delete", "t"]).ok();
    assert_eq!(dev.run(&["topic", "show", "t"]).status, 1);
    let setting = dev.json(&["topic", "create", "x", "--set", "retain_fro=1h"]);
    assert!(
        setting.error()["message"].as_str().is_some_and(|message| message.contains("retain_for")),
        "{}",
        setting.err
    );
    assert!(dev.stop().success());
}

#[test]
fn a_refused_message_becomes_a_dead_letter_with_its_reason_and_comes_back_when_asked_to() {
    let dev = Dev::start();
    dev.run(&["topic", "create", "t"]).ok();
    dev.run(&["group", "create", "t", "g", "--set", "max_attempts=1"]).ok();
    dev.run(&["publish", "t", "poison"]).ok();
    dev.run(&["subscribe", "t", "--group", "g", "--nack", "--reason", "cannot", "--max", "1"]).ok();
    let letters = dev.json(&["dead-letters", "list", "t", "g"]).ok().objects();
    assert_eq!((letters.len(), &letters[0]["body"]), (1, &"poison".into()));
    assert_eq!(
        (&letters[0]["reasons"][0]["reason"], &letters[0]["reasons"][0]["attempt"]),
        (&"cannot".into(), &1.into())
    );
    let place = format!("{}:{}", letters[0]["partition"], letters[0]["offset"]);
    let story = dev.json(&["message", "show", "t", &place]).ok().objects().remove(0);
    assert_eq!(story["groups"][0]["group"], "g");
    assert_eq!(story["stored"]["offset"], letters[0]["offset"]);
    assert_eq!(dev.json(&["dead-letters", "redrive", "t", "g", "--dry-run"]).ok().objects()[0]["redriven"], 1);
    assert_eq!(dev.json(&["dead-letters", "redrive", "t", "g"]).ok().objects()[0]["redriven"], 1);
    let back = dev.json(&["subscribe", "t", "--group", "g", "--max", "1", "--timeout", "10s"]).ok().objects();
    assert_eq!((&back[0]["body"], &back[0]["redelivered"]), (&"poison".into(), &true.into()));
    assert_eq!(dev.json(&["dead-letters", "list", "t", "g"]).ok().objects().len(), 0);
    assert!(dev.stop().success());
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let dev = Dev::start();
    dev.run(&["publish", "t", "x", "--count", "2000"]).ok();
    let args = ["subscribe", "t", "--group", "g", "--from", "earliest", "--timeout", "5s"];
    let mut command = stentor(dev.folder.path(), &args);
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    let mut out = BufReader::new(process.stdout.take().expect("it is piped"));
    out.read_line(&mut line).expect("a line");
    drop(out);
    let ran = Ran::from(process.wait_with_output().expect("it ends"));
    assert_eq!((line.as_str(), ran.status, ran.err.as_str()), ("x\n", 0, ""));
    assert!(dev.stop().success());
}

#[test]
fn the_admin_listener_tells_health_and_metrics() {
    let dev = Dev::start();
    dev.run(&["publish", "t", "x"]).ok();
    for path in ["/healthz", "/readyz", "/api/v1/node", "/api/v1/topics"] {
        let (status, _) = dev.http(path);
        assert!(status.contains("200"), "{path}: {status}");
    }
    let (status, _) = dev.http("/api/v1/topics/nowhere");
    assert!(status.contains("404"), "{status}");
    let (_, metrics) = dev.http("/metrics");
    for name in ["stentor_process_cpu_seconds_total", "stentor_process_resident_memory_bytes"] {
        assert!(metrics.lines().any(|line| line.starts_with(name)), "no {name} in\n{metrics}");
    }
    let names = metrics.lines().filter(|line| !line.starts_with('#'));
    assert!(names.clone().all(|line| line.starts_with("stentor_")), "{metrics}");
    assert!(dev.stop().success());
}

#[test]
fn without_a_broker_the_error_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ran = Ran::from(stentor(folder.path(), &["--json", "topic", "list"]).output().expect("it runs"));
    let error = ran.error();
    assert_eq!((ran.status, error["kind"].as_str()), (1, Some("config")));
    assert!(error["hint"].as_str().is_some_and(|hint| hint.contains("stentor dev")), "{error}");
}

#[test]
fn a_wrong_command_line_has_its_own_status_and_nearly_right_words_are_suggested() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |args: &[&str]| Ran::from(stentor(folder.path(), args).output().expect("it runs"));
    let ran = run(&["publihs", "t"]);
    assert_eq!(ran.status, 2);
    assert!(ran.err.contains("publish"), "{}", ran.err);
    let json = run(&["--json", "publish", "t"]);
    assert_eq!((json.status, json.error()["kind"].as_str()), (2, Some("usage")));
    assert_eq!(run(&["--json", "subscribe", "t", "--group", "g", "--from", "sometime"]).status, 2);
    assert_eq!(run(&["--help"]).status, 0);
    assert_eq!(run(&["--version"]).status, 0);
}

#[test]
fn every_shell_gets_its_completions() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = Ran::from(stentor(folder.path(), &["completions", shell]).output().expect("it runs")).ok();
        assert!(ran.out.contains("dead-letters"), "{shell}");
    }
}

#[test]
fn check_config_tells_good_files_from_bad_ones() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |args: &[&str]| Ran::from(stentor(folder.path(), args).output().expect("it runs"));
    let annotated = concat!(env!("CARGO_MANIFEST_DIR"), "/../stentor.toml");
    assert_eq!(run(&["--json", "check-config", annotated]).ok().objects()[0]["ok"], true);
    std::fs::write(folder.path().join("bad.toml"), "[node]\nack_flsh = \"1s\"\n").expect("it is written");
    let bad = run(&["--json", "check-config", "bad.toml"]);
    assert_eq!((bad.status, bad.error()["kind"].as_str()), (1, Some("config")));
    let message = bad.error()["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.starts_with("bad.toml:2: unknown key `ack_flsh`"), "{message}");
}

#[test]
fn a_benchmark_starts_its_own_broker_and_reports_the_fields_of_the_contract_beside_a_limit() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let args = ["--json", "bench", "publish", "--storage", "memory", "--count", "300", "--size", "100"];
    let ran = Ran::from(stentor(folder.path(), &args).output().expect("it runs")).ok();
    let report = ran.objects().remove(0);
    for key in ["seconds", "messages_per_second", "megabytes_per_second", "broker_cpu_seconds", "broker_rss_bytes"] {
        assert!(report[key].is_number(), "{key} in {report}");
    }
    assert_eq!((&report["messages"], &report["bytes"]), (&300.into(), &30_000.into()));
    let percentiles = ["p50", "p99", "p999", "max"].map(|key| report["latency_us"][key].as_u64());
    assert!(percentiles.is_sorted() && percentiles[0] > Some(0), "{report}");
    assert!(report["broker_rss_bytes"].as_u64() > Some(1 << 20), "{report}");
    assert!(report["limit"]["what"].is_string(), "{report}");
    for key in ["messages_per_second", "megabytes_per_second"] {
        assert!(report["limit"][key].as_f64() > Some(0.0), "{report}");
    }
}
