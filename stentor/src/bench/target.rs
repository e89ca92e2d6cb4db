//! Where a benchmark runs: a broker of its own, or one that is there already; and its topic.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stentor_client::{Client, ConnectError, Profile};
use stentor_core::limits::{BATCH_BYTES_SLACK, MESSAGE_BYTES_MAX_CEILING};
use stentor_transport_quic::{ClientConfig, ClientTls, QuicSettings, QuicTransport};

use super::limit::quic_settings;
use super::options::{Options, Work};
use super::usage;
use crate::child::ChildBroker;
use crate::cli::Context;
use crate::output::Failure;
use crate::serve::PROFILE_FILE;
use crate::view::NodeView;

/// A broker with a topic to work on.
pub(super) struct Target {
    broker: Broker,
    topic: String,
    /// Whether the topic was made for this run.
    made: bool,
    /// The largest datagram, if that is bounded.
    mtu: Option<u16>,
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
        let target = Self { broker, topic, made, mtu: options.mtu };
        if made {
            let mut settings = BTreeMap::from([
                ("storage".to_owned(), options.storage.clone()),
                ("partitions".to_owned(), options.partitions.to_string()),
            ]);
            if let Some(durability) = &options.durability {
                settings.insert("durability".to_owned(), durability.clone());
            }
            if options.work == Work::Backlog {
                // What every group is done with goes at once, to show whether the room comes back.
                settings.insert("retain_for".to_owned(), "0s".to_owned());
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
        let (profile, server) = match (&self.broker, self.mtu) {
            (Broker::Own(broker), None) => return broker.client().await,
            (Broker::Other(context), None) => return context.connect().await,
            (Broker::Own(broker), Some(_)) => (broker.folder().join(PROFILE_FILE), None),
            (Broker::Other(context), Some(_)) => (context.find_profile()?, context.server.clone()),
        };
        let profile = Profile::read(&profile).map_err(ConnectError::from)?;
        let identity = profile.cert.zip(profile.key);
        let quic = QuicSettings {
            // As the SDK has it.
            frame_body_bytes_max: MESSAGE_BYTES_MAX_CEILING + BATCH_BYTES_SLACK,
            ..quic_settings(self.mtu)
        };
        // Each end tells the other what it takes, so this bounds what the broker sends as well.
        let config = ClientConfig { tls: ClientTls { ca: profile.ca, identity }, server_name: None, quic };
        let transport = QuicTransport::new(config).map_err(ConnectError::from)?;
        let mut servers = server.map_or(profile.servers, |server| vec![server]).into_iter();
        let first = servers.next().ok_or(ConnectError::NoServer)?;
        let builder = servers.fold(Client::connect(first), stentor_client::ConnectBuilder::server);
        Ok(builder.transport(Arc::new(transport)).open().await?)
    }

    /// Room on the disk that the broker's folder takes, in bytes; none where the folder is not known.
    pub(super) async fn disk_bytes(&self) -> Option<u64> {
        disk_bytes(self.own_folder()).await
    }

    /// The folder of a broker that was started for this run.
    pub(super) fn own_folder(&self) -> Option<PathBuf> {
        match &self.broker {
            Broker::Own(broker) => Some(broker.folder()),
            Broker::Other(_) => None,
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

/// Room on the disk that a folder takes.
pub(super) async fn disk_bytes(folder: Option<PathBuf>) -> Option<u64> {
    let folder = folder?;
    tokio::task::spawn_blocking(move || usage::disk_bytes(&folder)).await.ok()
}
