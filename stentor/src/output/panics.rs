//! What is said of a panic: to the log where there is one, so that it has a time, a level and the log's format; nothing
//! where it is caught and comes out as an error with words of its own.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;

/// Takes the panic hook over, for the whole process.
pub(crate) fn take_over() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if stentor_storage_lsm::index::panics_are_caught() {
            tracing::debug!(said = words(panic), "the index gave up over its files");
        } else if tracing::dispatcher::has_been_set() {
            let at = panic.location().map(ToString::to_string).unwrap_or_default();
            let thread = std::thread::current();
            let (thread, said) = (thread.name().unwrap_or_default(), words(panic));
            let backtrace = Backtrace::capture();
            match backtrace.status() {
                BacktraceStatus::Captured => tracing::error!(at, thread, %backtrace, "a thread panicked: {said}"),
                _ => tracing::error!(at, thread, "a thread panicked: {said}"),
            }
        } else {
            usual(panic);
        }
    }));
}

fn words<'a>(panic: &'a PanicHookInfo<'_>) -> &'a str {
    let payload = panic.payload();
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("no words")
}
