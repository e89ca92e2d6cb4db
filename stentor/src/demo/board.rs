//! The table that is drawn while the demo runs: in place on a terminal, a line now and then otherwise.

use std::time::Duration;

use stentor_client::Client;

use super::Scene;
use super::services::{Health, SERVICES};
use crate::output::{Failure, Output, Table, count_text, duration_text};
use crate::view::GroupView;

/// Without a terminal, a line this often.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Draws how it goes.
pub(super) struct Board {
    output: Output,
    in_place: bool,
    /// Lines of the last drawing, to be drawn over.
    drawn: usize,
    next_line: Duration,
}

impl Board {
    pub(super) fn new(output: Output, rows: usize) -> Self {
        // A table that is higher than the terminal cannot be drawn over: the lines that left the top stay where they are.
        let height = terminal_height().unwrap_or_default();
        let in_place = output.is_terminal() && !output.quiet && rows + 8 <= height;
        Self { output, in_place, drawn: 0, next_line: Duration::ZERO }
    }

    /// Shows the state of things so long after the beginning.
    pub(super) async fn draw(&mut self, client: &Client, scenes: &[Scene], at: Duration) -> Result<(), Failure> {
        if self.output.json || self.output.quiet {
            return Ok(());
        }
        if !self.in_place {
            if at >= self.next_line {
                self.next_line = at + LINE_EVERY;
                scenes.iter().try_for_each(|scene| self.output.line(&line(scene, at)))?;
            }
            return Ok(());
        }
        let mut text = String::new();
        for scene in scenes {
            text += &table(client, scene).await?;
            text += "\n\n";
        }
        // Up to where the last drawing began, and away with it.
        let clear = if self.drawn > 0 { format!("\x1b[{}A\x1b[J", self.drawn) } else { String::new() };
        self.drawn = text.lines().count() + 1;
        self.output.line(&format!("{clear}{text}"))
    }
}

fn terminal_height() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(size.ws_row.into())
}

/// One topic on one line.
fn line(scene: &Scene, at: Duration) -> String {
    let published = scene.published.count();
    let heard = |health: Health| {
        let of_it = SERVICES.iter().zip(&scene.heard).filter(move |(service, _)| service.health == health);
        of_it.map(|(_, heard)| heard.distinct()).min().unwrap_or_default()
    };
    let refused: u64 = scene.heard.iter().map(|heard| heard.refused()).sum();
    format!(
        "{:>5.1} s  {:<21} published {:>6}  p99 {:>8}   healthy heard {:>6}   slow heard {:>5}   broken refused {:>6}",
        at.as_secs_f64(),
        scene.topic,
        count_text(published),
        duration_text(scene.published.latencies().at(0.99)),
        count_text(heard(Health::Healthy)),
        count_text(heard(Health::Slow)),
        count_text(refused),
    )
}

/// One topic with all its groups.
async fn table(client: &Client, scene: &Scene) -> Result<String, Failure> {
    let topic = client.admin().show_topic(scene.topic).await?;
    let groups: Vec<_> = topic.groups.into_iter().map(GroupView::from).collect();
    let columns = ["service", ">step", ">heard", ">backlog", ">in flight", ">retrying", ">dead letters", ""];
    let mut table = Table::new(&columns);
    for (service, heard) in SERVICES.iter().zip(&scene.heard) {
        let Some(group) = groups.iter().find(|group| group.group == service.name) else { continue };
        table.row([
            service.name.to_owned(),
            duration_text(service.step),
            count_text(heard.distinct()),
            count_text(group.backlog),
            count_text(group.in_flight),
            count_text(group.retrying),
            count_text(group.dead_letters),
            match service.health {
                Health::Healthy => String::new(),
                Health::Slow => "slow".to_owned(),
                Health::Broken => "broken".to_owned(),
            },
        ]);
    }
    let latencies = scene.published.latencies();
    Ok(format!(
        "{} ({}, {}): {} published, publisher waits p50 {}, p99 {}\n{}",
        scene.topic,
        scene.storage,
        topic.durability,
        count_text(scene.published.count()),
        duration_text(latencies.at(0.5)),
        duration_text(latencies.at(0.99)),
        table.text(),
    ))
}
