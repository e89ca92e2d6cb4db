//! The engine of stentor: topics and partitions, publishing with deduplication, groups and their delivery, dead letters,
//! retention, sessions and administration.
//!
//! The engine is handed its storages, its transport's listeners, its clock and its seed by whoever wires the process, and
//! knows none of them by name. Invariants that hold across its modules:
//!
//! - every partition has one owner, a task, and only that task changes it;
//! - a publisher is answered only from something [`Durable`](stentor_core::Durable);
//! - nothing that a group still owes is removed, unless the topic says so;
//! - every channel is bounded by a named constant, and every task is joined at shutdown.

mod admin;
mod broker;
mod catalogue;
pub mod config;
mod consumer;
mod credit;
mod error;
mod filter;
mod group;
mod metrics;
mod node;
mod partition;
mod session;
pub mod settings;
mod tasks;
mod topic;

pub use broker::{Broker, BrokerParts, ProcessStats, StartError};
pub use config::{BrokerConfig, ConfigError, Section, SettingMap};
pub use settings::{GroupSettings, NodeSettings, Percent, SettingError, Size, StorageKind, TopicSettings};
