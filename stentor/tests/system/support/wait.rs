//! Waiting for what another process does, within a deadline.
//!
//! The tests have no hand on the clock of the processes that they look at. They wait for an event (a line, an exit, a
//! message) wherever there is one, and ask again and again where there is none. No test asserts how long something took:
//! the deadlines only keep a fault from hanging the run.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

/// Longer than anything here takes on a loaded machine, by far.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Between two looks at something that cannot be waited for.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// The outcome of `future`, or a panic that says what was waited for.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(outcome) => outcome,
        Err(_) => panic!("gave up after {limit:?}: {what}"),
    }
}

/// Asks until `look` gives what `enough` is content with.
pub(crate) async fn until<T, F>(what: &str, mut look: impl FnMut() -> F, enough: impl Fn(&T) -> bool) -> T
where
    T: Debug,
    F: Future<Output = T>,
{
    let mut last = None;
    let asking = async {
        loop {
            let seen = look().await;
            if enough(&seen) {
                return seen;
            }
            last = Some(seen);
            pause(LOOK_AGAIN_AFTER).await;
        }
    };
    match tokio::time::timeout(DEADLINE, asking).await {
        Ok(seen) => seen,
        Err(_) => panic!("gave up after {DEADLINE:?}: {what}; last seen: {last:?}"),
    }
}

/// Lets real time pass: between two looks, for a random moment, or where time passing is what the test is about.
#[expect(clippy::disallowed_methods, reason = "the processes under test run by the machine's clock")]
pub(crate) async fn pause(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Measures how long something takes, to print it.
pub(crate) struct Stopwatch(std::time::Instant);

impl Stopwatch {
    /// Starts now.
    #[expect(clippy::disallowed_methods, reason = "the processes under test run by the machine's clock")]
    pub(crate) fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Since then.
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
