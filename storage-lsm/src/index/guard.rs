//! Calls whose panics are caught: fjall asserts what it expects of its files, and so answers some damage by a panic.
//!
//! To the engine that is damage like any other. What the panic's hook would print is of no use to anybody then: a process
//! may ask [`panics_are_caught`] in its hook and stay silent.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is within a call of this crate that catches panics and reports them as damage. To be asked by the
/// process's panic hook.
#[must_use]
pub fn panics_are_caught() -> bool {
    GUARDED.get()
}

/// The outcome of `call`, or what it said as it panicked.
pub(super) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    let before = GUARDED.replace(true);
    // What the call was at is given up with its outcome: whoever gets the error takes the store for damaged.
    let outcome = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(before);
    outcome.map_err(|panic| said(&*panic).to_owned())
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("its code gave up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_inside_is_an_error_and_the_guard_ends_with_the_call() {
        assert!(!panics_are_caught());
        assert_eq!(guarded(panics_are_caught), Ok(true));
        let nested = guarded(|| (guarded(|| panic!("row {}", 7)), panics_are_caught()));
        assert_eq!(nested, Ok((Err::<(), _>("row 7".to_owned()), true)));
        assert!(!panics_are_caught());
    }
}
