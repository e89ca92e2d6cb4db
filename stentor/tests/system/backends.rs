//! Two topics in one configuration, one in memory and one on disk: nobody who uses them knows which is which.

use serde_json::{Value, json};

use crate::support::broker::Broker;
use crate::support::ledger::Received;
use crate::support::pattern::Pattern;
use crate::support::sdk::{self, arrival};

const CONFIG: &str = r#"
[[topic]]
name = "trade.order-paid"
storage = "lsm"
partitions = 2

[[topic]]
name = "metrics.page-views"
storage = "memory"
memory_max = "64MiB"
partitions = 2
"#;

/// What an application does, by the SDK; the topic is a name and nothing else.
async fn use_by_sdk(broker: &Broker, topic: &str) {
    let pattern = Pattern { seed: 0xbac_0001, bytes: 200 };
    let client = sdk::connect(broker).await;
    let published = sdk::publish_all(&client, topic, pattern, 0..1_000).await;
    let mut received = Received::new(pattern);
    let mut consumer = sdk::consumer(&client, topic, "by-sdk", 100).await;
    let mut refused = false;
    sdk::drain(broker, (topic, "by-sdk"), &mut consumer, |delivery| {
        received.arrived(&arrival(&delivery));
        let refuse = !std::mem::replace(&mut refused, true);
        async move {
            if refuse {
                delivery.nack().reason("not now").after(std::time::Duration::from_millis(1)).send().await.unwrap();
            } else {
                delivery.ack().await.unwrap();
            }
        }
    })
    .await;
    assert_eq!(received.repeated(), 1, "the one that was refused");
    received.check(&published);
}

/// What a script does, by the command line.
async fn use_by_command(broker: &Broker, topic: &str) {
    broker.run(["group", "create", topic, "by-command", "--from", "latest"]).await;
    let published = broker
        .show(["publish", topic, "hello", "--key", "order-17", "--tag", "paid", "--header", "trace=4bf92f35"])
        .await;
    let received = broker
        .show(["subscribe", topic, "--group", "by-command", "--max", "1", "--timeout", "30s", "--print", "all"])
        .await;
    for (key, expected) in [
        ("topic", json!(topic)),
        ("body", json!("hello")),
        ("key", json!("order-17")),
        ("tag", json!("paid")),
        ("headers", json!([{ "name": "trace", "value": "4bf92f35" }])),
        ("attempt", json!(1)),
        ("redelivered", json!(false)),
        ("id", published["id"].clone()),
        ("partition", published["partition"].clone()),
        ("offset", published["offset"].clone()),
    ] {
        assert_eq!(received[key], expected, "{key} of {received}");
    }
    // It was acknowledged: nothing more comes, and that has an exit status of its own.
    let nothing =
        broker.attempt(["subscribe", topic, "--group", "by-command", "--max", "1", "--timeout", "300ms"]).await;
    assert_eq!((nothing.status, nothing.lines.len()), (Some(3), 0), "{nothing:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_in_memory_and_one_on_disk_are_used_alike_and_show_says_which_is_which() {
    let broker = Broker::with_config(CONFIG).await;
    for (topic, storage, durability) in
        [("trade.order-paid", "lsm", "synced"), ("metrics.page-views", "memory", "memory")]
    {
        use_by_sdk(&broker, topic).await;
        use_by_command(&broker, topic).await;
        let shown = broker.show(["topic", "show", topic]).await;
        assert_eq!(shown["name"], topic);
        assert_eq!((&shown["storage"], &shown["durability"]), (&json!(storage), &json!(durability)), "{shown}");
        let partitions = shown["partitions"].as_array().unwrap();
        assert_eq!(partitions.len(), 2, "{shown}");
        let messages: u64 = partitions.iter().map(|p| p["end"].as_u64().unwrap() - p["start"].as_u64().unwrap()).sum();
        assert_eq!(messages, 1_001, "{shown}");
        let groups: Vec<&str> =
            shown["groups"].as_array().unwrap().iter().filter_map(|g| g["group"].as_str()).collect();
        assert_eq!(groups, ["by-command", "by-sdk"], "{shown}");
    }
    let listed = broker.run(["topic", "list"]).await;
    let names: Vec<&str> = listed.iter().filter_map(|topic| topic["name"].as_str()).collect();
    assert_eq!(names, ["metrics.page-views", "trade.order-paid"]);
}

/// Nothing of a memory topic outlives the process; the topic itself and its groups do, and serve again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_a_topic_in_memory_is_empty_and_one_on_disk_is_not() {
    let broker = Broker::with_config(CONFIG).await;
    for topic in ["trade.order-paid", "metrics.page-views"] {
        broker.run(["group", "create", topic, "g", "--from", "earliest"]).await;
        broker.run(["publish", topic, "before"]).await;
    }
    assert!(broker.terminate().await.success());
    broker.restart().await;
    for (topic, expected) in [("trade.order-paid", vec!["before", "after"]), ("metrics.page-views", vec!["after"])] {
        broker.run(["publish", topic, "after"]).await;
        let max = expected.len().to_string();
        let lines =
            broker.run(["subscribe", topic, "--group", "g", "--max", &max, "--timeout", "30s", "--print", "all"]).await;
        let mut bodies: Vec<&str> = lines.iter().filter_map(|line: &Value| line["body"].as_str()).collect();
        bodies.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(bodies, expected, "{topic}");
    }
}
