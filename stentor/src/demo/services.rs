//! The ten services that must hear of a registration.

use std::time::Duration;

/// How a service does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// Does its work.
    Healthy,
    /// Does it, but far more slowly than registrations come in.
    Slow,
    /// Refuses everything.
    Broken,
}

/// A service, and how long its step takes. The work is simulated by waiting: what is real is how the steps are joined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Service {
    pub(super) name: &'static str,
    pub(super) step: Duration,
    pub(super) health: Health,
    /// Registrations that it works on at a time.
    pub(super) at_a_time: usize,
}

const fn service(name: &'static str, step_millis: u64, health: Health, at_a_time: usize) -> Service {
    Service { name, step: Duration::from_millis(step_millis), health, at_a_time }
}

/// All of them.
pub(super) const SERVICES: [Service; 10] = [
    service("welcome-mail", 12, Health::Healthy, 16),
    service("welcome-sms", 8, Health::Healthy, 16),
    service("coupon", 5, Health::Healthy, 16),
    service("loyalty-points", 4, Health::Healthy, 16),
    service("profile", 3, Health::Healthy, 16),
    service("search-index", 6, Health::Healthy, 16),
    service("risk-check", 10, Health::Healthy, 16),
    service("crm", 7, Health::Healthy, 16),
    service("analytics", 40, Health::Slow, 1),
    service("partner-sync", 20, Health::Broken, 16),
];
