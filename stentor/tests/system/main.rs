//! The system as its users see it: the `stentor` binary as a process of its own, used by the SDK, by the command line, by
//! peers that break the rules, and by whoever pulls the plug.
//!
//! These are the promises of the project, each tried from outside. With `cargo test` every test runs with few rounds;
//! `script/slow short` and `script/slow long` run the same tests with more (`STENTOR_SLOW`, see [`support::scale`]). What is
//! random comes from seeds that stand in the tests. Every test has a broker of its own on free ports, and whatever it
//! starts ends with it.

#![expect(clippy::unwrap_used, reason = "all of it is test code, also what is no test function itself")]

mod acknowledgements;
mod backends;
mod consumer_death;
mod crash;
mod credit;
mod damage;
mod disk_full;
mod fan_out;
mod hostile;
mod messages;
mod operator;
mod resets;
mod shutdown;
mod soak;
mod support;
