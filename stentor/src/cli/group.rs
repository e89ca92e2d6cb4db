//! `stentor group`: makes, shows, moves, pauses and deletes subscriber groups.

use clap::{Args, Subcommand};
use serde_json::json;
use stentor_client::{Client, StartAt};

use super::args::{Start, pair};
use super::connect::Context;
use crate::output::{Failure, Output};
use crate::view::GroupView;

/// Create, list, show, change, move, pause and delete subscriber groups
#[derive(Debug, Args)]
pub(super) struct Group {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the groups of a topic, or of all topics
    List {
        /// Of which topic
        topic: Option<String>,
    },
    /// Show a group: backlog, in flight, retrying, dead letters, oldest unacknowledged, consumers
    Show(Name),
    /// Create a group
    Create {
        #[command(flatten)]
        name: Name,
        /// Where it starts: earliest, latest, a time, PARTITION:OFFSET
        #[arg(long, value_name = "WHERE", default_value = "latest")]
        from: Start,
        /// A setting, such as max_attempts=5; may be given several times
        #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair)]
        settings: Vec<(String, String)>,
    },
    /// Change settings of a group
    Set {
        #[command(flatten)]
        name: Name,
        /// Settings, such as lease=1m
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = pair)]
        settings: Vec<(String, String)>,
    },
    /// Move a group: it receives again from there, or skips what lies before
    Seek {
        #[command(flatten)]
        name: Name,
        /// Where to: earliest, latest, a time, PARTITION:OFFSET
        to: Start,
    },
    /// Deliver nothing to a group until it is resumed
    Pause(Name),
    /// Deliver to a paused group again
    Resume(Name),
    /// Delete a group with its progress and its dead letters
    Delete(Name),
}

/// Which group.
#[derive(Debug, Args)]
pub(super) struct Name {
    /// Its topic
    pub(super) topic: String,
    /// Its name
    pub(super) group: String,
}

impl From<Start> for StartAt {
    fn from(start: Start) -> Self {
        match start {
            Start::Earliest => Self::Earliest,
            Start::Latest => Self::Latest,
            Start::Time(time) => Self::Time(time),
            Start::Place(place) => Self::Offset { partition: place.partition, offset: place.offset },
        }
    }
}

impl Group {
    pub(super) async fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.connect().await?;
        let done = self.act(&client, context.output).await;
        client.close().await;
        done
    }

    async fn act(self, client: &Client, output: Output) -> Result<(), Failure> {
        let admin = client.admin();
        let did = |Name { topic, group }: Name, what: &'static str| {
            let object = json!({ "topic": topic, "group": group, what: true });
            output.either(&object, || format!("{what} {topic} {group}"))
        };
        match self.action {
            Action::List { topic } => {
                let groups = admin.list_groups(topic.as_deref()).await?;
                let groups: Vec<_> = groups.into_iter().map(GroupView::from).collect();
                if output.json {
                    return groups.iter().try_for_each(|group| output.json(group));
                }
                if groups.is_empty() {
                    output.note("there are no groups");
                    return Ok(());
                }
                GroupView::table(&groups).show(output)
            }
            Action::Show(name) => {
                let group = GroupView::from(admin.show_group(&name.topic, &name.group).await?);
                output.either(&group, || group.words())
            }
            Action::Create { name, from, settings } => {
                admin.create_group(&name.topic, &name.group, Some(from.into()), settings.into_iter().collect()).await?;
                did(name, "created")
            }
            Action::Set { name, settings } => {
                admin.set_group(&name.topic, &name.group, settings.into_iter().collect()).await?;
                did(name, "changed")
            }
            Action::Seek { name, to } => {
                output.confirm(&format!("move group {} of {}", name.group, name.topic))?;
                admin.seek_group(&name.topic, &name.group, to.into()).await?;
                did(name, "moved")
            }
            Action::Pause(name) => {
                admin.pause_group(&name.topic, &name.group).await?;
                did(name, "paused")
            }
            Action::Resume(name) => {
                admin.resume_group(&name.topic, &name.group).await?;
                did(name, "resumed")
            }
            Action::Delete(name) => {
                output.confirm(&format!("delete group {} of {} with its progress", name.group, name.topic))?;
                admin.delete_group(&name.topic, &name.group).await?;
                did(name, "deleted")
            }
        }
    }
}
