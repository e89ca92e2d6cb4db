//! How a command fails: what failed, why, what to do next, and with which exit status.
//!
//! Invariant: every failure has a kind out of one of two lists, the broker's error codes
//! ([`stentor_protocol::error::kinds`]) or [`LOCAL_KINDS`]; scripts may rely on these words.

use std::fmt;
use std::io;
use std::process::ExitCode;

use serde::Serialize;

/// The kinds that begin on this side, with what each means. The others are the codes of the protocol.
pub(crate) const LOCAL_KINDS: &[(&str, &str)] = &[
    ("usage", "the command line is wrong"),
    ("config", "a configuration file or a profile does not say what it should"),
    ("io", "a file or a device could not be read or written"),
    ("connect", "the broker could not be reached"),
    ("certificate", "a certificate or a key is missing, unreadable or not trusted"),
    ("address_in_use", "another process listens on the address"),
    ("data_dir", "the data folder cannot be used: locked, read-only, or damaged"),
    ("confirmation", "a destructive command was not confirmed"),
    ("nothing_received", "nothing came before the timeout"),
    ("connection_lost", "the connection to the broker ended"),
    ("damaged", "`verify` found damage"),
    ("demo", "the demo did not see what it promises"),
    ("interrupted", "the user or a signal ended the command"),
];

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something to tell.
    Told {
        /// A word of [`LOCAL_KINDS`] or of the protocol's error codes.
        kind: &'static str,
        /// What failed and why, in one line.
        message: String,
        /// What to do next; may be empty.
        hint: String,
    },
    /// It was told when it happened, and the command went on with the rest.
    Reported,
    /// Whoever read the output has gone away, which is how pipes end (`stentor subscribe … | head -1`).
    BrokenPipe,
}

impl Failure {
    /// A failure of this kind without a hint.
    pub(crate) fn new(kind: &'static str, message: impl Into<String>) -> Self {
        debug_assert!(is_known(kind), "`{kind}` is on neither list of kinds");
        Self::Told { kind, message: one_line(&message.into()), hint: String::new() }
    }

    /// The same failure, saying what to do next.
    #[must_use]
    pub(crate) fn hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Told { hint, .. } = &mut self {
            *hint = one_line(&text.into());
        }
        self
    }

    /// The same failure, saying first what was being done.
    #[must_use]
    pub(crate) fn during(mut self, what: impl fmt::Display) -> Self {
        if let Self::Told { message, .. } = &mut self {
            *message = format!("{what}: {message}");
        }
        self
    }

    /// What the operating system refused while `what` was being done.
    pub(crate) fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self::new("io", format!("{what}: {error}"))
    }

    /// The exit status: 0 done, 1 failed, 2 wrong usage, 3 nothing received before the timeout.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::BrokenPipe => 0,
            Self::Told { kind: "usage" | "confirmation", .. } => 2,
            Self::Told { kind: "nothing_received", .. } => 3,
            Self::Told { .. } | Self::Reported => 1,
        }
    }

    /// Says it on standard error, in words or as JSON, and gives the exit status.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        if let Self::Told { kind, message, hint } = self {
            if json {
                let hint = (!hint.is_empty()).then_some(hint.as_str());
                let line = serde_json::to_string(&ErrorLine { error: ErrorBody { kind, message, hint } });
                // Three texts always serialize.
                say(&line.unwrap_or_default());
            } else {
                say(&format!("stentor: {message}"));
                if !hint.is_empty() {
                    say(&format!("  hint: {hint}"));
                }
            }
        }
        ExitCode::from(self.status())
    }
}

/// An error as a program reads it.
#[derive(Serialize)]
struct ErrorLine<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
pub(crate) struct ErrorBody<'a> {
    pub(crate) kind: &'a str,
    pub(crate) message: &'a str,
    pub(crate) hint: Option<&'a str>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told { message, .. } => f.write_str(message),
            Self::Reported => f.write_str("part of it was not done"),
            Self::BrokenPipe => f.write_str("the reader of the output has gone away"),
        }
    }
}

/// Writes a line to standard error; that nobody reads it is no reason to fail.
pub(crate) fn say(line: &str) {
    use std::io::Write;
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Whether scripts may rely on this word.
fn is_known(kind: &str) -> bool {
    LOCAL_KINDS.iter().any(|(known, _)| *known == kind) || stentor_protocol::error::kinds().any(|known| known == kind)
}

/// Every kind of error, for the long help.
pub(crate) fn kinds_help() -> String {
    let local: Vec<_> = LOCAL_KINDS.iter().map(|(kind, meaning)| format!("  {kind:<18}{meaning}")).collect();
    let others: Vec<_> = stentor_protocol::error::kinds().collect();
    format!(
        "Exit status: 0 done, 1 failed, 2 wrong usage, 3 nothing received before the timeout.\n\n\
         Kinds of errors (`error.kind` with --json):\n{}\nand from brokers and the SDK: {}",
        local.join("\n"),
        others.join(", "),
    )
}

/// Errors of other crates may run over several lines; a log or a script wants one.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_kinds_do_not_collide_with_those_of_the_protocol() {
        for (kind, meaning) in LOCAL_KINDS {
            assert!(!meaning.is_empty());
            assert!(stentor_protocol::error::kinds().all(|other| other != *kind), "{kind} stands for two things");
        }
    }

    #[test]
    fn the_exit_status_follows_from_the_kind() {
        assert_eq!(Failure::new("topic_not_found", "no").status(), 1);
        assert_eq!(Failure::new("usage", "no").status(), 2);
        assert_eq!(Failure::new("nothing_received", "no").status(), 3);
        assert_eq!(Failure::BrokenPipe.status(), 0);
    }

    #[test]
    fn a_message_stays_on_one_line() {
        assert_eq!(Failure::new("io", "first\n   second\n").to_string(), "first; second");
    }
}
