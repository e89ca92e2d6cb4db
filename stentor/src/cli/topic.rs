//! `stentor topic`: makes, shows, changes and deletes topics.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde_json::json;
use stentor_client::Client;

use super::args::pair;
use super::connect::Context;
use crate::output::{Failure, Output};
use crate::view::TopicView;

/// Create, list, show, change and delete topics
#[derive(Debug, Args)]
pub(super) struct Topic {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a topic
    Create(Create),
    /// List the topics
    List,
    /// Show a topic: its partitions, its groups with their backlogs, its settings
    Show {
        /// Which one
        name: String,
    },
    /// Change settings of a topic
    Set {
        /// Which one
        name: String,
        /// Settings, such as retain_for=72h
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = pair)]
        settings: Vec<(String, String)>,
    },
    /// Delete a topic with all its messages and groups
    Delete {
        /// Which one
        name: String,
    },
}

#[derive(Debug, Args)]
struct Create {
    /// Its name: letters, digits, `.`, `_`, `-`
    name: String,
    /// Where its messages are kept: memory or lsm
    #[arg(long, value_name = "S")]
    storage: Option<String>,
    /// What an acknowledged publish survives: memory, buffered, synced
    #[arg(long, value_name = "D")]
    durability: Option<String>,
    /// How many partitions it has; fixed for its life
    #[arg(long, value_name = "N")]
    partitions: Option<u32>,
    /// Any other setting; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,
}

impl Create {
    fn settings(self) -> BTreeMap<String, String> {
        let named = [
            ("storage", self.storage),
            ("durability", self.durability),
            ("partitions", self.partitions.map(|partitions| partitions.to_string())),
        ];
        let named = named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        self.settings.into_iter().chain(named).collect()
    }
}

impl Topic {
    pub(super) async fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.connect().await?;
        let done = self.act(&client, context.output).await;
        client.close().await;
        done
    }

    async fn act(self, client: &Client, output: Output) -> Result<(), Failure> {
        let admin = client.admin();
        match self.action {
            Action::Create(create) => {
                let name = create.name.clone();
                admin.create_topic(&name, create.settings()).await?;
                output.either(&json!({ "topic": name, "created": true }), || format!("created {name}"))
            }
            Action::List => {
                let topics: Vec<_> = admin.list_topics().await?.into_iter().map(TopicView::from).collect();
                if output.json {
                    return topics.iter().try_for_each(|topic| output.json(topic));
                }
                if topics.is_empty() {
                    output.note("there are no topics");
                    return Ok(());
                }
                TopicView::table(&topics).show(output)
            }
            Action::Show { name } => {
                let topic = TopicView::from(admin.show_topic(&name).await?);
                output.either(&topic, || topic.words())
            }
            Action::Set { name, settings } => {
                admin.set_topic(&name, settings.into_iter().collect()).await?;
                output.either(&json!({ "topic": name, "set": true }), || format!("changed {name}"))
            }
            Action::Delete { name } => {
                output.confirm(&format!("delete topic {name} with all its messages and groups"))?;
                admin.delete_topic(&name).await?;
                output.either(&json!({ "topic": name, "deleted": true }), || format!("deleted {name}"))
            }
        }
    }
}
