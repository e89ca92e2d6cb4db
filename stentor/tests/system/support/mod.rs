//! What the tests stand on: brokers and commands as processes, the SDK, a model of what must be delivered, and the
//! wilder things (a file system that fills up, a peer that breaks the rules).

pub(crate) mod broker;
pub(crate) mod cli;
pub(crate) mod ledger;
pub(crate) mod pattern;
pub(crate) mod peer;
pub(crate) mod process;
pub(crate) mod room;
pub(crate) mod scale;
pub(crate) mod sdk;
pub(crate) mod wait;
