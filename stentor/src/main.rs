//! The stentor binary: a broker (`serve`, `dev`), the commands that talk to one, benchmarks and a demonstration.
//!
//! | module | holds |
//! |---|---|
//! | `cli` | the grammar of the command line, one file a command |
//! | `config` | `stentor.toml` |
//! | `serve` | a node as a process: wiring, listeners, signals, certificates, HTTP |
//! | `view` | what topics, groups and messages look like, in JSON and in tables |
//! | `output` | lines, tables, progress, errors |
//! | `bench`, `demo` | `stentor bench` and `stentor demo` |
//!
//! Invariant: this is the run row of the map, the only place that names a backend or a transport.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

mod bench;
mod child;
mod cli;
mod config;
mod demo;
mod output;
mod serve;
mod view;

// Measured with the index under load: 200 to 300 MiB resident instead of 420 with the system's allocator.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    output::panics::take_over();
    let cli = match cli::Cli::read() {
        Ok(cli) => cli,
        Err(status) => return status,
    };
    let output = cli.output();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return output::Failure::io("cannot start", &error).report(output.json),
    };
    let done = runtime.block_on(cli.run());
    // A read of standard input that nobody waits for any more must not hold up the end.
    runtime.shutdown_background();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(output.json),
    }
}
