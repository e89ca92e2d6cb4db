//! Where a benchmark runs: a broker of its own, or one that is there already; and its topic.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stentor_client::Client;

use super::options::Options;
use crate::child::ChildBroker;
use crate::cli::Context;
use crate::output::Failure;
use crate::view::NodeView;

/// A broker with a topic to work on.
pub(super) struct Target {
    broker: Broker,
    topic: String,
    /// Whether the topic was made for this run.
    made: bool,
}

enum Broker {
    Own(Box<ChildBroker>),
    Other(Context),
}

impl Target {
    /// Starts a broker unless the user named one, and makes a topic unless the user named one.
    pub(super) async fn prepare(options: &Options, context: &Context) -> Result<Self, Failure> {
        let broker = if context.names_a_broker() {
            Broker::Other(context.clone())
        } else {
            context.output.note("starting a broker of its own …");
            Broker::Own(Box::new(ChildBroker::start().await?))
        };
        let (topic, made) = match &options.topic {
            Some(topic) => (topic.clone(), false),
            None => (format!("bench-{}-{}", options.work.word(), std::process::id()), true),
        };
        let target = Self { broker, topic, made };
        if made {
            let mut settings = BTreeMap::from([
                ("storage".to_owned(), options.storage.clone()),
                ("partitions".to_owned(), options.partitions.to_string()),
            ]);
            if let Some(durability) = &options.durability {
                settings.insert("durability".to_owned(), durability.clone());
            }
            if options.storage == "memory" {
                // A benchmark of a backlog in memory needs room for it.
                settings.insert("memory_max".to_owned(), "4GiB".to_owned());
            }
            let client = target.client().await?;
            client.admin().create_topic(&target.topic, settings).await?;
            client.close().await;
        }
        Ok(target)
    }

    /// A client with a connection of its own.
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        match &self.broker {
            Broker::Own(broker) => broker.client().await,
            Broker::Other(context) => context.connect().await,
        }
    }

    pub(super) fn topic(&self) -> &str {
        &self.topic
    }

    /// The folder whose disk the broker writes to, as far as that is known.
    pub(super) fn folder(&self) -> PathBuf {
        match &self.broker {
            Broker::Own(broker) => broker.folder(),
            Broker::Other(context) => {
                context.profile.as_deref().and_then(Path::parent).map_or_else(std::env::temp_dir, |folder| {
                    if folder.is_dir() { folder.to_owned() } else { std::env::temp_dir() }
                })
            }
        }
    }

    /// What the broker uses.
    pub(super) async fn node(&self) -> Result<NodeView, Failure> {
        let client = self.client().await?;
        let node = NodeView::from(client.admin().node_status().await?);
        client.close().await;
        Ok(node)
    }

    /// How the topic is kept: its storage and its durability.
    pub(super) async fn kept(&self) -> Result<(String, String), Failure> {
        let client = self.client().await?;
        let topic = client.admin().show_topic(&self.topic).await?;
        client.close().await;
        Ok((topic.storage, topic.durability))
    }

    /// Takes away what the run made.
    pub(super) async fn end(self) -> Result<(), Failure> {
        match self.broker {
            Broker::Own(broker) => broker.stop().await,
            Broker::Other(_) if !self.made => Ok(()),
            Broker::Other(context) => {
                let client = context.connect().await?;
                client.admin().delete_topic(&self.topic).await?;
                client.close().await;
                Ok(())
            }
        }
    }
}
