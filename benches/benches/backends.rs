//! All benches, in one binary: `cargo bench -p stentor-benches`, or with `-- NAME` those whose name holds it.
//!
//! Files go to a folder under the build folder, or under `STENTOR_BENCH_DIR`, for another disk.

use std::path::PathBuf;

use stentor_benches::lab::{self, Failure, Lab};
use tikv_jemallocator::Jemalloc;

// As the broker's binary has it.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> Result<(), Failure> {
    // Criterion's own rule: what is not run by `cargo bench` is only to be seen running.
    let quick = std::env::args().any(|argument| argument == "--test" || argument == "--list")
        || !std::env::args().any(|argument| argument == "--bench");
    let folder =
        std::env::var_os("STENTOR_BENCH_DIR").map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let lab = Lab::new(&folder, quick)?;
    let mut criterion = lab::criterion();
    stentor_benches::run(&mut criterion, &lab);
    criterion.final_summary();
    Ok(())
}
