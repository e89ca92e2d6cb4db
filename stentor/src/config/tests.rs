//! What is wrong with a file is told with its line; what is right in the annotated file is everything.

use stentor_broker::settings::{GroupSettings, NodeSettings, TopicSettings};

use super::*;

const ANNOTATED: &str = include_str!("../../../stentor.toml");

fn error(text: &str) -> (String, String) {
    let error = Config::parse("f.toml", text).expect_err(text);
    (error.to_string(), error.hint)
}

#[test]
fn an_empty_file_is_a_good_one() {
    assert_eq!(Config::parse("f.toml", ""), Ok(Config::default()));
}

#[test]
fn every_mistake_is_named_with_its_line_and_what_would_be_right() {
    let table = [
        ("[node]\nid = 1\ndata_dri = \"x\"", "f.toml:3: unknown key `data_dri` in [node]", "did you mean `data_dir`?"),
        ("[node]\nack_flsh = \"1s\"", "f.toml:2: unknown key `ack_flsh` in [node]", "did you mean `ack_flush`?"),
        ("[nodes]\nid = 1", "f.toml:1: unknown table [nodes]", "did you mean `node`?"),
        ("partitions = 3", "f.toml:1: unknown key `partitions` outside any table", "known here: node,"),
        ("[node]\ndata_dir = 7", "f.toml:2: `data_dir` is a whole number: expected a string in quotes", ""),
        ("[node]\nauto_create = \"yes\"", "f.toml:2: `auto_create` is a string: expected true or false", ""),
        ("[node]\ndrain_timeout = \"soon\"", "f.toml:2: `drain_timeout` is a string: expected a duration", ""),
        (
            "[listen]\nquic = \"localhost\"",
            "f.toml:2: `quic = \"localhost\"` is no address: it takes HOST:PORT",
            "port 0",
        ),
        ("[listen]\nquic = \"h:99999\"", "f.toml:2: `quic = \"h:99999\"` is no address", ""),
        ("[listen]\npeer = \"h:1\"", "f.toml:2: unknown key `peer` in [listen]", "known here: quic, admin"),
        ("\n[tls]\ncert = \"a.pem\"", "f.toml:2: [tls] has no `key`", "add `key ="),
        ("[log]\nlevel = \"inof\"", "f.toml:2: `level = \"inof\"` is no level", "error, warn"),
        ("[log]\nlevel = \"info,broker=loud\"", "f.toml:2: `level = \"info,broker=loud\"` is no level", "debug"),
        ("[log]\nformat = \"xml\"", "f.toml:2: `format = \"xml\"` is no format", "text or json"),
        ("[defaults]\nstorage = \"disk\"", "f.toml:2: `storage = disk` does not do", ""),
        ("[defaults]\nretain_fro = \"1h\"", "f.toml:2: unknown key `retain_fro` in [defaults]", "`retain_for`?"),
        ("[defaults]\npartitions = 1.5", "f.toml:2: `partitions` is a number with a fraction", ""),
        ("[[topic]]\nstorage = \"lsm\"", "f.toml:1: [[topic]] has no `name`", "add `name ="),
        ("[[topic]]\nname = \"a/b\"", "f.toml:2: `a/b` holds '/'", ""),
        ("[topic]\nname = \"a\"", "f.toml:1: `topic` is a table: expected tables, each written [[topic]]", ""),
        ("[[topic]]\nname = \"a\"\nlease = \"1s\"", "f.toml:3: unknown key `lease` in [[topic]]", ""),
        ("[[topic]]\nname = \"a\"\npartitions = 0", "f.toml:3: `partitions = 0` does not do: it takes a whole", ""),
        (
            "[[topic]]\nname = \"a\"\n[[topic]]\nname = \"b\"\nstorage = \"memory\"\ndurability = \"synced\"",
            "f.toml:6: `durability = synced` does not do: it takes memory",
            "",
        ),
        ("[[group]]\ntopic = \"a\"", "f.toml:1: [[group]] has no `group`", ""),
        ("[[group]]\ntopic = \"a\"\ngroup = \"g\"\nleas = \"1s\"", "f.toml:4: unknown key `leas`", "`lease`?"),
        ("[node]\nid = 1\nid = 2", "f.toml:3: duplicate key", "toml.io"),
        ("[node\nid = 1", "f.toml:1: ", "toml.io"),
    ];
    for (text, expected, hint) in table {
        let (found, found_hint) = error(text);
        assert!(found.starts_with(expected), "{text:?}\n  says    {found}\n  not     {expected}");
        assert!(found_hint.contains(hint), "{text:?}\n  hints   {found_hint}\n  not     {hint}");
    }
}

#[test]
fn what_a_file_says_is_what_the_node_gets() {
    let config = Config::parse(
        "f.toml",
        r#"
            [node]
            id = 7
            data_dir = "/var/lib/stentor"
            auto_create = true
            drain_timeout = "5s"
            ack_flush = "20ms"
            [listen]
            quic = "[::1]:0"
            [tls]
            cert = "c.pem"
            key = "k.pem"
            client_ca = "ca.pem"
            [log]
            format = "json"
            [defaults]
            partitions = 2
            lease = "5s"
            [[topic]]
            name = "metrics.*"
            storage = "memory"
            [[group]]
            topic = "trade.*"
            group = "red-packet"
            ordered = true
        "#,
    )
    .unwrap();
    assert_eq!(config.data_dir, PathBuf::from("/var/lib/stentor"));
    assert_eq!(config.drain_timeout, Duration::from_secs(5));
    assert_eq!(config.listen.quic, "[::1]:0");
    assert_eq!(config.listen.admin, "127.0.0.1:7412");
    assert_eq!(config.tls.unwrap().client_ca, Some(PathBuf::from("ca.pem")));
    assert_eq!(config.log.format, LogFormat::Json);
    assert!(config.broker.auto_create);
    assert_eq!((config.broker.node.id, config.broker.node.ack_flush), (7, Duration::from_millis(20)));
    assert_eq!(config.broker.defaults["partitions"], "2");
    assert_eq!(config.broker.topics[0].0.as_str(), "metrics.*");
    assert_eq!(config.broker.groups[0].2["ordered"], "true");
}

#[test]
fn the_annotated_file_is_a_good_one() {
    Config::parse("stentor.toml", ANNOTATED).unwrap();
}

/// The values that stand behind `key =` at the start of a line, commented out or not.
fn stated<'a>(key: &'a str) -> impl Iterator<Item = &'static str> + 'a {
    ANNOTATED.lines().filter_map(move |line| {
        let (found, rest) = line.trim_start_matches(['#', ' ']).split_once('=')?;
        let value = rest.split('#').next().unwrap_or_default().trim().trim_matches('"');
        (found.trim() == key).then_some(value)
    })
}

#[test]
fn the_annotated_file_names_every_setting_with_its_default() {
    let topic = |key: &str, value: &str| {
        let mut settings = TopicSettings::default();
        settings.set(key, value).is_ok() && settings == TopicSettings::default()
    };
    let group = |key: &str, value: &str| {
        let mut settings = GroupSettings::default();
        settings.set(key, value).is_ok() && settings == GroupSettings::default()
    };
    let node = |key: &str, value: &str| {
        let mut settings = NodeSettings::default();
        settings.set(key, value).is_ok() && settings == NodeSettings::default()
    };
    type IsDefault<'a> = &'a dyn Fn(&str, &str) -> bool;
    let all: [(&[&str], IsDefault<'_>); 3] =
        [(TopicSettings::KEYS, &topic), (GroupSettings::KEYS, &group), (NodeSettings::KEYS, &node)];
    for (keys, is_default) in all {
        for key in keys {
            assert!(
                stated(key).any(|value| is_default(key, value)),
                "stentor.toml does not name `{key}` with its default"
            );
        }
    }
    let defaults = Config::default();
    let drain_timeout = humantime::format_duration(defaults.drain_timeout).to_string();
    for (key, default) in [
        ("data_dir", defaults.data_dir.to_str().unwrap()),
        ("drain_timeout", &drain_timeout),
        ("auto_create", "false"),
        ("quic", &defaults.listen.quic),
        ("admin", &defaults.listen.admin),
        ("level", "info"),
        ("format", "text"),
    ] {
        assert!(stated(key).any(|value| value == default), "stentor.toml does not name `{key}` with its default");
    }
}
