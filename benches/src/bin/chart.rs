//! Draws what `stentor bench backlog --samples FILE` left: `bench-chart SAMPLES SVG [TITLE]`.

use std::path::Path;
use std::process::ExitCode;

use stentor_benches::{chart, samples};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (from, to, title) = match arguments.as_slice() {
        [from, to] => (from, to, "A backlog"),
        [from, to, title] => (from, to, title.as_str()),
        _ => {
            eprintln!("usage: bench-chart SAMPLES SVG [TITLE]");
            return ExitCode::from(2);
        }
    };
    match run(Path::new(from), Path::new(to), title) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("no chart: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(from: &Path, to: &Path, title: &str) -> Result<(), Box<dyn std::error::Error>> {
    let svg = chart::draw(&samples::read(from)?, title)?;
    Ok(std::fs::write(to, svg)?)
}
