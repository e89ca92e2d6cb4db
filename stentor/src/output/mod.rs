//! What a command says: lines and tables for people, one JSON object a line for programs, errors on standard error.
//!
//! Invariants: with `--json` nothing but JSON goes to standard output; a reader that goes away ends the command quietly
//! ([`Failure::BrokenPipe`]) and is never a panic; colours, progress and questions appear on a terminal only.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

mod confirm;
mod failure;
mod message;
pub(crate) mod panics;
mod progress;
mod table;
mod value;

pub(crate) use failure::{Failure, kinds_help, say};
pub(crate) use message::MessageLine;
pub(crate) use progress::Progress;
pub(crate) use table::Table;
pub(crate) use value::{bytes_text, count_text, duration_text, parse_time, time_text};

/// Where a command's words go, and in which form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// One JSON object a line on standard output, nothing else there.
    pub(crate) json: bool,
    /// No notes and no progress.
    pub(crate) quiet: bool,
    /// The answer to every question is yes.
    pub(crate) yes: bool,
}

impl Output {
    /// Writes a line to standard output.
    pub(crate) fn line(self, line: &str) -> Result<(), Failure> {
        write(|out| {
            out.write_all(line.as_bytes())?;
            out.write_all(b"\n")
        })
    }

    /// Writes bytes and a line's end to standard output, as they are.
    pub(crate) fn raw_line(self, bytes: &[u8]) -> Result<(), Failure> {
        write(|out| {
            out.write_all(bytes)?;
            out.write_all(b"\n")
        })
    }

    /// Writes an object as a line of JSON to standard output.
    pub(crate) fn json(self, object: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_vec(object).map_err(|error| Failure::new("internal", error.to_string()))?;
        self.raw_line(&line)
    }

    /// Writes the object with `--json`, else the words.
    pub(crate) fn either(self, object: &impl Serialize, words: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.json { self.json(object) } else { self.line(&words()) }
    }

    /// A remark for a person: on standard error, and not at all with `--quiet` or `--json`.
    pub(crate) fn note(self, text: &str) {
        if !self.quiet && !self.json {
            say(text);
        }
    }

    /// Whether standard output is a terminal that a person looks at.
    pub(crate) fn is_terminal(self) -> bool {
        !self.json && io::stdout().is_terminal()
    }
}

/// Standard output is line-buffered by the standard library; it is flushed here so that a consumer of the lines sees each
/// as it comes, also through a pipe.
fn write(with: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    with(&mut out).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
        _ => Failure::io("cannot write to standard output", &error),
    })
}
