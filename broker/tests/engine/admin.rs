//! Requests about topics, messages and the node.

use stentor_core::{MessageId, RecordBatch};
use stentor_protocol::ErrorCode;
use stentor_protocol::wire::show_message::Which;
use stentor_protocol::wire::{self, request, response, to_client};

use crate::support::{Rig, TOPIC, config, record, settings, subscribe};

fn create(name: &str, set: &[(&str, &str)]) -> request::Kind {
    let settings = settings(set).into_iter().collect();
    request::Kind::CreateTopic(wire::CreateTopic { name: name.into(), settings })
}

#[tokio::test]
async fn topics_are_created_shown_set_and_deleted() {
    let rig = Rig::start(config(&[], &[])).await;
    let memory = [("storage", "memory"), ("partitions", "3")];
    rig.ask(create("made", &memory)).await.unwrap();
    assert_eq!(rig.ask(create("made", &memory)).await.unwrap_err().code(), ErrorCode::TopicExists);
    let (response::Kind::Topics(topics), _) =
        rig.ask(request::Kind::ListTopics(wire::ListTopics::default())).await.unwrap()
    else {
        panic!("no topics")
    };
    let names: Vec<_> = topics.topics.iter().map(|topic| (topic.name.as_str(), topic.partitions.len())).collect();
    assert_eq!(names, [("made", 3), (TOPIC, 1)]);
    let set = |key: &str, value: &str| {
        let settings = [(key.to_owned(), value.to_owned())].into();
        request::Kind::SetTopic(wire::SetTopic { name: "made".into(), settings })
    };
    rig.ask(set("message_bytes_max", "10B")).await.unwrap();
    assert_eq!(rig.ask(set("partitions", "4")).await.unwrap_err().code(), ErrorCode::Invalid);
    let peer = rig.connect().await;
    let mut producer = peer.producer("made", 1, 0).await.unwrap();
    let large = crate::support::batch_of(&[record(vec![0; 11])], None);
    assert_eq!(producer.try_publish(0, &large).await.unwrap_err().code(), ErrorCode::MessageTooLarge);
    let mut consumer = peer.subscribe(wire::Subscribe { topic: "made".into(), ..subscribe("group") }).await.unwrap();

    rig.ask(request::Kind::DeleteTopic(wire::DeleteTopic { name: "made".into() })).await.unwrap();
    assert_eq!(producer.answer().await.unwrap_err().code(), ErrorCode::TopicNotFound);
    consumer.ended().await;
    let gone = rig.ask(request::Kind::ShowTopic(wire::ShowTopic { name: "made".into() })).await.unwrap_err();
    assert_eq!(gone.code(), ErrorCode::TopicNotFound);
    // A topic of the same name is another one.
    rig.ask(create("made", &memory)).await.unwrap();
    let rig = rig.restart().await;
    let (response::Kind::Topic(made), _) =
        rig.ask(request::Kind::ShowTopic(wire::ShowTopic { name: "made".into() })).await.unwrap()
    else {
        panic!("no topic")
    };
    assert!(made.groups.is_empty());
    assert_eq!(made.settings["message_bytes_max"], "4MiB");
}

#[tokio::test]
async fn what_a_storage_does_not_keep_is_refused_by_name() {
    let rig = Rig::start(config(&[], &[])).await;
    let unsupported = rig.ask(create("x", &[("storage", "memory"), ("durability", "synced")])).await.unwrap_err();
    assert_eq!(unsupported.code(), ErrorCode::DurabilityUnsupported);
    let missing = rig.ask(create("x", &[("storage", "lsm")])).await.unwrap_err();
    assert!(missing.message.contains("lsm") && missing.hint.contains("memory"), "{missing:?}");
    let typo = rig.ask(create("x", &[("retain_fro", "1h")])).await.unwrap_err();
    assert!(typo.message.contains("did you mean `retain_for`?"), "{typo:?}");
    for bad in ["", "../x", "a/b", ".hidden", "a\0"] {
        assert_eq!(rig.ask(create(bad, &[])).await.unwrap_err().code(), ErrorCode::Invalid, "{bad:?}");
    }
}

#[tokio::test]
async fn a_message_is_found_by_offset_and_by_id_with_what_became_of_it() {
    let rig = Rig::start(config(&[], &[("filter", "tag IS NULL OR tag <> 'hidden'")])).await;
    let peer = rig.connect().await;
    for group in ["acked", "retrying", "waiting"] {
        rig.group_from_start(group, &[]).await;
    }
    let mut producer = peer.producer(TOPIC, 7, 0).await.unwrap();
    let mut wanted = record("wanted");
    wanted.id = MessageId::generate(wanted.timestamp, 99);
    let mut named = record("named");
    named.id = "order-17".parse().unwrap();
    let mut hidden = record("hidden");
    hidden.tag = Some("hidden".into());
    producer.publish_records(0, &[record("other"), wanted.clone(), named, hidden]).await;
    let mut acked = peer.subscribe(subscribe("acked")).await.unwrap();
    acked.grant(10).await;
    let got = acked.take_many(3).await;
    acked.ack(&got).await;
    let mut retrying = peer.subscribe(subscribe("retrying")).await.unwrap();
    retrying.grant(10).await;
    let got = retrying.take_many(3).await;
    retrying.nack(&got[1], "later", Some(60_000)).await;

    let show = |which| request::Kind::ShowMessage(wire::ShowMessage { topic: TOPIC.into(), which: Some(which) });
    let at = |offset| Which::Offset(wire::PartitionOffset { partition: 0, offset });
    for which in [at(1), Which::Id(wanted.id.to_string())] {
        let (response::Kind::Message(story), body) = rig.ask(show(which)).await.unwrap() else { panic!("no message") };
        assert_eq!((story.partition, story.offset, story.producer), (0, 1, 7));
        let found = RecordBatch::decode(body).unwrap().records(u32::MAX).unwrap().next().unwrap().unwrap();
        assert_eq!(found, wanted);
        let states: Vec<_> = story.groups.iter().map(|g| (g.group.as_str(), g.state.as_str(), g.attempts)).collect();
        assert_eq!(states, [("acked", "acknowledged", 0), ("retrying", "retrying", 1), ("waiting", "waiting", 0)]);
        assert_eq!(story.groups[1].reasons[0].reason, "later");
    }
    let (response::Kind::Message(story), _) = rig.ask(show(Which::Id("order-17".into()))).await.unwrap() else {
        panic!("no message")
    };
    assert_eq!(story.offset, 2);
    assert_eq!(story.groups[1].state, "in-flight");
    assert!(story.groups[1].consumer.starts_with("test"), "{}", story.groups[1].consumer);
    let (response::Kind::Message(story), _) = rig.ask(show(at(3))).await.unwrap() else { panic!("no message") };
    assert!(story.groups.iter().all(|group| group.state == "filtered"), "{story:?}");
    for which in [at(4), Which::Id("nobody".into())] {
        assert_eq!(rig.ask(show(which)).await.unwrap_err().code(), ErrorCode::MessageNotFound);
    }
}

#[tokio::test]
async fn the_node_says_what_it_uses_and_its_metrics_what_it_did() {
    let rig = Rig::start(config(&[], &[])).await;
    let mut peer = rig.connect().await;
    let mut producer = peer.producer(TOPIC, 1, 0).await.unwrap();
    let mut consumer = peer.subscribe(subscribe("group")).await.unwrap();
    consumer.grant(10).await;
    producer.publish(&["a", "b"]).await;
    let got = consumer.take_many(2).await;
    consumer.ack(&got[..1]).await;
    let wire::response::Kind::Node(node) = peer.ask(request::Kind::NodeStatus(wire::NodeStatus {})).await else {
        panic!("no node")
    };
    assert_eq!((node.id, node.cpu_seconds, node.rss_bytes, node.connections), (1, 1.5, 1 << 20, 1));
    rig.clock.advance(std::time::Duration::from_secs(3));
    for _ in 0..3 {
        rig.group("group").await;
    }
    let mut registry = prometheus_client::registry::Registry::with_prefix("stentor");
    rig.broker.register_metrics(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        "stentor_published_total{topic=\"orders\"} 2",
        "stentor_delivered_total{topic=\"orders\",group=\"group\"} 2",
        "stentor_acked_total{topic=\"orders\",group=\"group\"} 1",
        "stentor_backlog{topic=\"orders\",group=\"group\"} 1",
        "stentor_in_flight{topic=\"orders\",group=\"group\"} 1",
        "stentor_publish_seconds_count{topic=\"orders\"} 1",
        "stentor_connections 1",
        "stentor_fsyncs_total{storage=\"memory\"}",
    ] {
        assert!(text.contains(line), "{line} is missing from:\n{text}");
    }
}

#[tokio::test]
async fn whoever_asked_for_a_route_is_told_when_the_topic_changes_and_nobody_else_is() {
    let rig = Rig::start(config(&[], &[])).await;
    let (mut asking, mut sending, mut other) = (rig.connect().await, rig.connect().await, rig.connect().await);
    let get = request::Kind::GetRoute(wire::GetRoute { topic: TOPIC.into() });
    let response::Kind::Route(route) = asking.ask(get).await else { panic!("no route") };
    assert_eq!((route.version, route.message_bytes_max), (1, 4 << 20));
    let _producer = sending.producer(TOPIC, 1, 0).await.unwrap();
    for (version, megabytes) in [(2, 8), (3, 1)] {
        let settings = [("message_bytes_max".to_owned(), format!("{megabytes}MiB"))].into();
        let set = wire::SetTopic { name: TOPIC.into(), settings };
        // The one who changes it has not asked for the route.
        assert!(matches!(other.ask(request::Kind::SetTopic(set)).await, response::Kind::Done(_)));
        for peer in [&mut asking, &mut sending] {
            match crate::support::peer::hear(&mut peer.control).await {
                Some((to_client::Kind::Route(route), _)) => {
                    assert_eq!((route.version, route.message_bytes_max), (version, megabytes << 20));
                    assert_eq!(route.topic, TOPIC);
                }
                told => panic!("instead of a route: {told:?}"),
            }
        }
    }
    // Versions never start again while the topic lives.
    let rig = rig.restart().await;
    let get = request::Kind::GetRoute(wire::GetRoute { topic: TOPIC.into() });
    let response::Kind::Route(route) = rig.connect().await.ask(get).await else { panic!("no route") };
    assert_eq!((route.version, route.message_bytes_max), (3, 1 << 20));
}
