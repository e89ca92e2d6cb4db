//! What an operator gets wrong is answered by one clear line that says what to do, and an exit status.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::broker::{Broker, Start};
use crate::support::process::{Process, stentor};
use crate::support::room::Room;
use crate::support::wait::{DEADLINE, within};

/// A folder with a good certificate and key, and a configuration that would do.
struct Site {
    folder: TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { folder: TempDir::with_prefix("stentor-operator-").unwrap() };
        site.certificate("server");
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `NAME.pem` and `NAME.key`.
    fn certificate(&self, name: &str) {
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// A configuration that does.
    fn good_config(&self) -> String {
        let [data, cert, key] = ["data", "server.pem", "server.key"].map(|name| self.path(name).display().to_string());
        format!(
            "[node]\ndata_dir = \"{data}\"\n[listen]\nquic = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
             [tls]\ncert = \"{cert}\"\nkey = \"{key}\"\n"
        )
    }

    /// Runs a command that must fail at once: its error, told once in words and once in JSON.
    async fn failing(&self, wrapper: &[String], arguments: &[&str]) -> Refusal {
        let words = self.run(wrapper, arguments).await;
        let json = self.run(wrapper, &[&["--json"], arguments].concat()).await;
        assert_eq!(words.status, json.status);
        let told: Vec<&str> = words.errors.lines().filter(|line| line.starts_with("stentor:")).collect();
        assert_eq!(told.len(), 1, "not one line that says what is wrong:\n{}", words.errors);
        let parse = |line: &str| Some(serde_json::from_str::<Value>(line).ok()?.get("error")?.clone());
        let mut errors: Vec<Value> = json.errors.lines().filter_map(parse).collect();
        assert_eq!(errors.len(), 1, "not one error:\n{}", json.errors);
        assert!(!words.errors.contains("panicked"), "{}", words.errors);
        let error = errors.remove(0);
        let part = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        Refusal { status: json.status, kind: part("kind"), message: part("message"), hint: part("hint") }
    }

    async fn run(&self, wrapper: &[String], arguments: &[&str]) -> Ended {
        let mut command = stentor(wrapper, self.folder.path(), arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let output = within(DEADLINE, &format!("{arguments:?} to fail"), command.output()).await.unwrap();
        Ended { status: output.status.code(), errors: String::from_utf8(output.stderr).unwrap() }
    }

    /// `serve` with this configuration must fail.
    async fn serve(&self, config: &str) -> Refusal {
        let file = self.path("stentor.toml");
        std::fs::write(&file, config).unwrap();
        self.failing(&[], &["serve", "--config", file.to_str().unwrap()]).await
    }
}

struct Ended {
    status: Option<i32>,
    errors: String,
}

#[derive(Debug)]
struct Refusal {
    status: Option<i32>,
    kind: String,
    message: String,
    hint: String,
}

impl Refusal {
    /// Is of this kind, names all of `named`, and says what to do: in a hint, or by what it takes instead.
    fn says(&self, kind: &str, named: &[&str]) {
        assert_eq!((self.status, self.kind.as_str()), (Some(1), kind), "{self:?}");
        let said = format!("{} ({})", self.message, self.hint);
        for name in named {
            assert!(said.contains(name), "does not name {name}: {self:?}");
        }
        let advises = !self.hint.is_empty() || ["takes", "expected"].iter().any(|word| self.message.contains(word));
        assert!(advises, "does not say what to do: {self:?}");
        assert!(!self.message.contains('\n'), "{self:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_configuration_serves() {
    let site = Site::new();
    let file = site.path("stentor.toml");
    std::fs::write(&file, site.good_config()).unwrap();
    let mut command = stentor(&[], site.folder.path(), ["--json", "serve", "--config"]);
    let mut process = Process::spawn(command.arg(&file), &site.path("log"));
    let ready: Value = serde_json::from_str(&process.line(DEADLINE).await.expect("it serves")).unwrap();
    assert_eq!(ready["ready"], true, "{ready}");
    process.signal(rustix::process::Signal::TERM);
    assert!(process.exit(DEADLINE).await.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_are_missing_or_wrong_are_named() {
    let site = Site::new();
    site.certificate("other");
    let good = site.good_config();

    let without = good.split("[tls]").next().unwrap();
    site.serve(without).await.says("certificate", &["tls"]);
    site.serve(&good.replace("server.pem", "missing.pem")).await.says("certificate", &["missing.pem"]);
    site.serve(&good.replace("server.key", "missing.key")).await.says("certificate", &["missing.key"]);
    std::fs::write(site.path("words.pem"), "these are no certificates").unwrap();
    site.serve(&good.replace("server.pem", "words.pem")).await.says("certificate", &["words.pem"]);
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    std::fs::write(site.path("broken.pem"), broken).unwrap();
    site.serve(&good.replace("server.pem", "broken.pem")).await.says("certificate", &["broken.pem"]);
    site.serve(&good.replace("server.key", "other.key")).await.says("certificate", &["other.key"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_trust_the_broker_or_finds_none_says_so() {
    let site = Site::new();
    let broker = Broker::start().await;
    let profile = |servers: &str, ca: &Path| {
        let file = site.path("client.toml");
        let ca = ca.display();
        std::fs::write(&file, format!("servers = [\"{servers}\"]\nca = \"{ca}\"\n")).unwrap();
        file.display().to_string()
    };
    let strange = profile(broker.quic(), &site.path("server.pem"));
    site.failing(&[], &["--profile", &strange, "topic", "list"]).await.says("certificate", &[]);
    let missing = profile(broker.quic(), &site.path("missing.pem"));
    site.failing(&[], &["--profile", &missing, "topic", "list"]).await.says("certificate", &["missing.pem"]);
    let profile = broker.profile().display().to_string();
    // A port that was free a moment ago.
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let refusal = site.failing(&[], &["--profile", &profile, "--server", &free, "topic", "list"]).await;
    refusal.says("connect", &[&free]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_or_ill_typed_key_is_named_with_its_line_and_the_nearest_one() {
    let site = Site::new();
    let good = site.good_config();
    for (wrong, line, hint) in [
        (format!("{good}[nods]\nid = 1\n"), 9, "node"),
        (good.replace("data_dir", "data_dri"), 2, "data_dir"),
        (format!("{good}[defaults]\nretain_fro = \"1h\"\n"), 10, "retain_for"),
        (format!("{good}[[topic]]\nname = \"a\"\npartitons = 3\n"), 11, "partitions"),
    ] {
        let refusal = site.serve(&wrong).await;
        refusal.says("config", &["stentor.toml", &format!(":{line}")]);
        let said = format!("{} {}", refusal.message, refusal.hint);
        assert!(said.contains(hint), "does not suggest {hint}: {refusal:?}");
        let file = site.path("stentor.toml").display().to_string();
        site.failing(&[], &["check-config", &file]).await.says("config", &["stentor.toml"]);
    }
    for wrong in ["[defaults]\npartitions = \"many\"\n", "[defaults]\nlease = 3\n", "[node]\nid = [1]\n", "[defaults"] {
        site.serve(wrong).await.says("config", &["stentor.toml"]);
    }
    site.failing(&[], &["serve", "--config", "nowhere.toml"]).await.says("config", &["nowhere.toml"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_port_is_named() {
    let site = Site::new();
    let good = site.good_config();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let taken = udp.local_addr().unwrap().to_string();
    site.serve(&good.replace("quic = \"127.0.0.1:0\"", &format!("quic = \"{taken}\"")))
        .await
        .says("address_in_use", &[&taken]);
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = tcp.local_addr().unwrap().to_string();
    site.serve(&good.replace("admin = \"127.0.0.1:0\"", &format!("admin = \"{taken}\"")))
        .await
        .says("address_in_use", &[&taken]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_folder_that_another_process_holds_is_named_and_left_alone() {
    let site = Site::new();
    let broker = Broker::start().await;
    broker.run(["publish", "orders", "first"]).await;
    let data = broker.data_folder().display().to_string();
    let config = site.good_config().replace(&site.path("data").display().to_string(), &data);
    site.serve(&config).await.says("data_dir", &[&data]);
    let verify = site.failing(&[], &["verify", &data]).await;
    verify.says("data_dir", &[&data]);
    // The one that was there first is none the worse.
    broker.run(["publish", "orders", "second"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_folder_that_cannot_be_written_is_named() {
    let site = Site::new();
    std::fs::write(site.path("a-file"), "not a folder").unwrap();
    let at = |path: &Path| site.good_config().replace(&site.path("data").display().to_string(), path.to_str().unwrap());
    site.serve(&at(&site.path("a-file"))).await.says("data_dir", &["a-file"]);
    site.serve(&at(&site.path("a-file/below"))).await.says("data_dir", &["a-file"]);

    // Root writes where permissions say no, but not where the file system does.
    let Some(room) = Room::new("ro").await else { return };
    let file = site.path("read-only.toml");
    let data = room.inside("data");
    std::fs::write(&file, at(&data)).unwrap();
    let refusal = site.failing(&room.wrapper(), &["serve", "--config", file.to_str().unwrap()]).await;
    refusal.says("data_dir", &[data.to_str().unwrap()]);
}

/// `dev` is held to the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_refuses_a_wrong_configuration_too() {
    match Broker::try_start("[defaults]\nstorage = \"tape\"\n", |setup| setup).await {
        Start::Ready(_) => panic!("a broker on tape"),
        Start::Refused(status, log) => {
            assert_eq!(status.code(), Some(1), "{log}");
            assert!(log.contains("tape") && log.contains("stentor.toml"), "{log}");
        }
    }
}
