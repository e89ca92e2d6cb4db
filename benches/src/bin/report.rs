//! Renews the tables of a README: `bench-report CRITERION_FOLDER README DAY LOAD`, where LOAD
//! is the load of the machine before the benches ran. `script/bench-report` calls it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use stentor_benches::host::Host;
use stentor_benches::report::{self, Occasion};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [home, readme, day, load] = arguments.as_slice() else {
        eprintln!("usage: bench-report CRITERION_FOLDER README DAY LOAD");
        return ExitCode::from(2);
    };
    let measured = std::env::var_os("STENTOR_BENCH_DIR").map_or_else(|| PathBuf::from(home), PathBuf::from);
    let renewed = report::read(Path::new(home)).and_then(|figures| {
        report::renew(Path::new(readme), &figures, &Host::this(&measured), &Occasion { day, load })
    });
    match renewed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("no report: {error}");
            ExitCode::FAILURE
        }
    }
}
