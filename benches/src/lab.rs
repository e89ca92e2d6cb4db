//! Where the benches run: a runtime, a clock, a folder on the disk that is measured.

use std::future::Future;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode};
use stentor_core::Clock as _;
use stentor_core::clock::SystemClock;
use stentor_core::storage::StorageError;
use stentor_core::transport::TransportError;
use tempfile::TempDir;
use thiserror::Error;
use tokio::runtime::Runtime;

/// Runs before it is measured, for each point.
const WARM_UP: Duration = Duration::from_millis(300);

/// Is measured for so long, for each point; short, so that the whole run ends within minutes.
const MEASUREMENT: Duration = Duration::from_secs(1);

/// The least that criterion takes.
const SAMPLES: usize = 10;

/// What `--test`, which only shows that everything runs, makes of the amounts of data.
const QUICK_SHARE: u64 = 16;

/// What keeps a bench from going on.
#[derive(Debug, Error)]
pub enum Failure {
    /// A backend refused or failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A transport did.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A batch is none.
    #[error(transparent)]
    Batch(#[from] stentor_core::batch::BatchError),
    /// The machine said no.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A certificate could not be made.
    #[error(transparent)]
    Certificate(#[from] rcgen::Error),
    /// A task panicked.
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
    /// Something is not as the bench needs it.
    #[error("{0}")]
    Unfit(&'static str),
}

/// Where the benches run.
#[derive(Debug)]
pub struct Lab {
    runtime: Runtime,
    clock: SystemClock,
    folder: TempDir,
    quick: bool,
}

impl Lab {
    /// A lab whose files lie in a new folder under `parent`; it should be on the disk that is to be measured. With `quick`
    /// the amounts of data are small, since every work is done only once.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(parent: &Path, quick: bool) -> Result<Self, Failure> {
        std::fs::create_dir_all(parent)?;
        let folder = TempDir::with_prefix_in("stentor-benches-", parent)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { runtime, clock: SystemClock::new(), folder, quick })
    }

    /// Waits for `work` on the runtime. A bench that fails has no result, so it ends the run.
    ///
    /// # Panics
    /// With what went wrong.
    pub fn run<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> T {
        self.must(self.runtime.block_on(work))
    }

    /// The result of what must not fail.
    ///
    /// # Panics
    /// With what went wrong.
    pub fn must<T>(&self, outcome: Result<T, Failure>) -> T {
        match outcome {
            Ok(done) => done,
            Err(failure) => panic!("the bench cannot go on: {failure}"),
        }
    }

    /// How long `work` takes.
    pub fn time(&self, work: impl FnOnce()) -> Duration {
        let started = self.clock.monotonic();
        work();
        self.clock.monotonic().since(started)
    }

    /// The clock that times.
    #[must_use]
    pub fn clock(&self) -> SystemClock {
        self.clock.clone()
    }

    /// How long it takes until all `workers` have done `work`, each as a task of its own. They come back in their order.
    pub fn together<W, F>(&self, workers: &mut Vec<W>, work: impl Fn(W) -> F) -> Duration
    where
        W: Send + 'static,
        F: Future<Output = Result<W, Failure>> + Send + 'static,
    {
        let idle = std::mem::take(workers);
        self.time(|| {
            *workers = self.run(async {
                let tasks: Vec<_> = idle.into_iter().map(|worker| tokio::spawn(work(worker))).collect();
                let mut done = Vec::with_capacity(tasks.len());
                for task in tasks {
                    done.push(task.await??);
                }
                Ok(done)
            });
        })
    }

    /// A new folder, which goes when it is dropped.
    ///
    /// # Errors
    /// What the system says.
    pub fn folder(&self) -> Result<TempDir, Failure> {
        Ok(TempDir::new_in(&self.folder)?)
    }

    /// So many bytes, or a small part of them when everything is done only once.
    #[must_use]
    pub fn bytes(&self, full: u64) -> u64 {
        if self.quick { full / QUICK_SHARE } else { full }
    }

    /// How many threads work at a time.
    #[must_use]
    pub fn cores() -> usize {
        std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
    }
}

/// Criterion as all benches use it; the command line says the rest.
#[must_use]
pub fn criterion() -> Criterion {
    Criterion::default()
        .warm_up_time(WARM_UP)
        .measurement_time(MEASUREMENT)
        .sample_size(SAMPLES)
        .without_plots()
        .configure_from_args()
}

/// A group whose samples are all of the same length: a work that has many tasks is not what it is in a sample of one
/// iteration.
pub fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sampling_mode(SamplingMode::Flat);
    group
}
