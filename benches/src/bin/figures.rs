//! Makes the table of `docs/figures.md`: `bench-figures LINES DAY LOAD`, on standard output. `script/bench-table` calls it.

use std::path::Path;
use std::process::ExitCode;

use stentor_benches::figures;
use stentor_benches::host::Host;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [lines, day, load] = arguments.as_slice() else {
        eprintln!("usage: bench-figures LINES DAY LOAD");
        return ExitCode::from(2);
    };
    // The brokers of `stentor bench` keep their data in the folder for temporary files.
    let host = Host::this(&std::env::temp_dir());
    let rendered = std::fs::read_to_string(Path::new(lines))
        .map_err(|error| format!("{lines}: {error}"))
        .and_then(|text| figures::render(&text, &host, day, load).map_err(|error| format!("{lines}: {error}")));
    match rendered {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("no table: {error}");
            ExitCode::FAILURE
        }
    }
}
