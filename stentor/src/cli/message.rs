//! `stentor message`: one message, and what became of it.

use clap::{Args, Subcommand};
use stentor_client::MessageId;
use stentor_client::admin::Which;

use super::args::Place;
use super::connect::Context;
use crate::output::{Failure, MessageLine};
use crate::view::StoryView;

/// Show a message and what became of it
#[derive(Debug, Args)]
pub(super) struct Message {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show a message, its properties, and per group what became of it
    Show {
        /// Its topic
        topic: String,
        /// Its id, or where it is stored
        #[arg(value_name = "ID|PARTITION:OFFSET")]
        which: String,
    },
}

impl Message {
    pub(super) async fn run(self, context: &Context) -> Result<(), Failure> {
        let Action::Show { topic, which } = self.action;
        let which = match which.parse::<Place>() {
            Ok(place) => Which::At(place.partition, place.offset),
            Err(_) => Which::Id(which.parse::<MessageId>().map_err(|error| Failure::new("usage", error.to_string()))?),
        };
        let client = context.connect().await?;
        let story = client.admin().show_message(&topic, which).await;
        client.close().await;
        let story = story?;
        let message = MessageLine {
            topic: &topic,
            partition: story.partition,
            offset: story.offset,
            record: &story.record,
            published_at: story.stored_at,
            delivery: None,
        };
        let view = StoryView { message, groups: &story.groups };
        context.output.either(&view, || view.words())
    }
}
