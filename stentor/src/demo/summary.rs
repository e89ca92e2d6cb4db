//! What the demo has shown, and whether it was what it promises.

use serde::Serialize;
use stentor_client::Client;

use super::direct::{Direct, stated};
use super::services::{Health, SERVICES};
use super::{REGISTRATIONS_PER_SECOND, Scene};
use crate::bench::{Latencies, Percentiles};
use crate::output::{Failure, Table, count_text, duration_text};
use crate::view::GroupView;

/// A publisher has slowed when its slowest window falls below this share of its fastest.
const SLOWED_BELOW: f64 = 0.9;

/// `demo --json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    /// What the publisher waits for when it performs the ten steps itself.
    in_series_latency_us: Percentiles,
    in_parallel_latency_us: Percentiles,
    direct_failed: usize,
    direct_registrations: usize,
    topics: Vec<TopicSummary>,
    /// Whether everything was as promised.
    ok: bool,
    #[serde(skip)]
    direct: Direct,
}

#[derive(Clone, Debug, Serialize)]
struct TopicSummary {
    topic: &'static str,
    storage: &'static str,
    durability: String,
    published: u64,
    publish_failed: u64,
    latency_us: Percentiles,
    /// Registrations a second in each third of the time.
    window_rates: Vec<f64>,
    never_slowed: bool,
    healthy_got_everything: bool,
    services: Vec<ServiceSummary>,
    #[serde(skip)]
    latencies: Latencies,
}

#[derive(Clone, Debug, Serialize)]
struct ServiceSummary {
    service: &'static str,
    health: &'static str,
    heard: u64,
    got_everything: bool,
    refused: u64,
    backlog: u64,
    dead_letters: u64,
}

impl Summary {
    /// Takes stock.
    pub(super) async fn of(client: &Client, scenes: &[Scene], direct: Direct) -> Result<Self, Failure> {
        let mut topics = Vec::new();
        for scene in scenes {
            topics.push(topic(client, scene).await?);
        }
        let ok = topics.iter().all(|topic| complaint(topic).is_none());
        Ok(Self {
            in_series_latency_us: direct.series.percentiles(),
            in_parallel_latency_us: direct.parallel.percentiles(),
            direct_failed: direct.failed,
            direct_registrations: direct.registrations,
            topics,
            ok,
            direct,
        })
    }

    /// What was not as promised, if anything.
    pub(super) fn complaint(&self) -> Option<String> {
        self.topics.iter().find_map(complaint)
    }

    /// For people.
    pub(super) fn words(&self) -> String {
        let (series, parallel) = stated();
        let mut table = Table::new(&["what a registration costs the publisher", ">p50", ">p99", ">max"]);
        let mut row = |what: String, latencies: &Latencies| {
            let at = |share| duration_text(latencies.at(share));
            table.row([what, at(0.5), at(0.99), at(1.0)]);
        };
        row(format!("ten steps in series ({} stated)", duration_text(series)), &self.direct.series);
        row(format!("ten steps in parallel ({} stated)", duration_text(parallel)), &self.direct.parallel);
        for topic in &self.topics {
            row(format!("one message to stentor ({}, {})", topic.storage, topic.durability), &topic.latencies);
        }
        let mut text = table.text();
        text += &format!(
            "\n\nwithout a broker {} of {} registrations failed with the broken service; with it, none waited for it\n",
            self.direct_failed, self.direct_registrations,
        );
        for topic in &self.topics {
            text += &topic.words();
        }
        text + if self.ok { "\n\nall as promised" } else { "" }
    }
}

impl TopicSummary {
    fn words(&self) -> String {
        let mut text = format!("\n{} ({}, {})\n", self.topic, self.storage, self.durability);
        let healthy = self.services.iter().filter(|service| service.health == "healthy");
        let everything = healthy.clone().filter(|service| service.got_everything).count();
        text += &format!(
            "  {} of {} healthy services heard of all {} registrations, each exactly those\n",
            everything,
            healthy.count(),
            count_text(self.published),
        );
        for service in self.services.iter().filter(|service| service.health != "healthy") {
            text += &format!(
                "  {} ({}): heard {}, refused {} deliveries, {} wait, {} dead letters\n",
                service.service,
                service.health,
                count_text(service.heard),
                count_text(service.refused),
                count_text(service.backlog),
                count_text(service.dead_letters),
            );
        }
        let rates: Vec<_> = self.window_rates.iter().map(|rate| format!("{rate:.1}/s")).collect();
        let slowed = if self.never_slowed { "the publisher never slowed" } else { "the publisher slowed" };
        text + &format!(
            "  {slowed}: {} in the thirds of the run, {REGISTRATIONS_PER_SECOND}/s asked for",
            rates.join(", ")
        )
    }
}

async fn topic(client: &Client, scene: &Scene) -> Result<TopicSummary, Failure> {
    let shown = client.admin().show_topic(scene.topic).await?;
    let groups: Vec<_> = shown.groups.into_iter().map(GroupView::from).collect();
    let services: Vec<_> = SERVICES
        .iter()
        .zip(&scene.heard)
        .map(|(service, heard)| {
            let group = groups.iter().find(|group| group.group == service.name);
            ServiceSummary {
                service: service.name,
                health: match service.health {
                    Health::Healthy => "healthy",
                    Health::Slow => "slow",
                    Health::Broken => "broken",
                },
                heard: heard.distinct(),
                got_everything: scene.published.is_all(&heard.ids()),
                refused: heard.refused(),
                backlog: group.map_or(0, |group| group.backlog),
                dead_letters: group.map_or(0, |group| group.dead_letters),
            }
        })
        .collect();
    let rates = scene.published.rates();
    let (slowest, fastest) =
        (rates.iter().copied().fold(f64::MAX, f64::min), rates.iter().copied().fold(0.0, f64::max));
    let latencies = scene.published.latencies();
    Ok(TopicSummary {
        topic: scene.topic,
        storage: scene.storage,
        durability: shown.durability,
        published: scene.published.count(),
        publish_failed: scene.published.failed(),
        latency_us: latencies.percentiles(),
        window_rates: rates.to_vec(),
        never_slowed: fastest > 0.0 && slowest >= SLOWED_BELOW * fastest,
        healthy_got_everything: services.iter().all(|service| service.health != "healthy" || service.got_everything),
        services,
        latencies,
    })
}

fn complaint(topic: &TopicSummary) -> Option<String> {
    let name = topic.topic;
    if topic.published == 0 || topic.publish_failed > 0 {
        return Some(format!(
            "{name}: {} registrations were published, {} failed",
            topic.published, topic.publish_failed
        ));
    }
    if !topic.healthy_got_everything {
        let missing = topic.services.iter().find(|service| service.health == "healthy" && !service.got_everything);
        let (service, heard) = missing.map_or(("a service", 0), |service| (service.service, service.heard));
        return Some(format!("{name}: {service} heard of {heard} registrations, {} were published", topic.published));
    }
    (!topic.never_slowed)
        .then(|| format!("{name}: the publisher slowed: {:.1?} registrations a second", topic.window_rates))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(rates: [f64; 3], healthy_got_everything: bool) -> TopicSummary {
        let healthy = ServiceSummary {
            service: "crm",
            health: "healthy",
            heard: 7,
            got_everything: healthy_got_everything,
            refused: 0,
            backlog: 0,
            dead_letters: 0,
        };
        TopicSummary {
            topic: "t",
            storage: "memory",
            durability: "memory".to_owned(),
            published: 8,
            publish_failed: 0,
            latency_us: Percentiles::default(),
            window_rates: rates.to_vec(),
            never_slowed: rates[2] >= SLOWED_BELOW * rates[0],
            healthy_got_everything,
            services: vec![healthy],
            latencies: Latencies::new().unwrap(),
        }
    }

    #[test]
    fn a_promise_that_was_not_kept_is_named() {
        assert_eq!(complaint(&shown([150.0, 150.0, 149.0], true)), None);
        assert!(complaint(&shown([150.0, 150.0, 100.0], true)).unwrap().contains("the publisher slowed"));
        let missing = complaint(&shown([150.0, 150.0, 150.0], false)).unwrap();
        assert!(missing.contains("crm heard of 7 registrations, 8 were published"), "{missing}");
    }
}
