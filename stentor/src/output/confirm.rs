//! Asking before something is destroyed.

use std::io::{self, BufRead, IsTerminal, Write};

use super::{Failure, Output};

impl Output {
    /// Asks on a terminal whether to do `what`; `--yes` answers for the user, and without a terminal nothing is done
    /// unasked.
    ///
    /// # Errors
    /// When the answer is not yes, or nobody can be asked.
    pub(crate) fn confirm(self, what: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(Failure::new("confirmation", format!("will not {what} without being told so"))
                .hint("add --yes; there is no terminal to ask on"));
        }
        let mut terminal = io::stderr().lock();
        let asked =
            write!(terminal, "{}{}? [y/N] ", &what[..1].to_uppercase(), &what[1..]).and_then(|()| terminal.flush());
        asked.map_err(|error| Failure::io("cannot ask", &error))?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map_err(|error| Failure::io("cannot read the answer", &error))?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Failure::new("interrupted", format!("did not {what}: the answer was not yes"))),
        }
    }
}
