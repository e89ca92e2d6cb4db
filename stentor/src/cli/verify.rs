//! `stentor verify`: reads a stopped node's data and reports everything that is damaged.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use stentor_core::storage::StorageError;
use stentor_storage_lsm::{Damage, Report, verify};

use super::connect::Context;
use crate::output::{Failure, count_text};
use crate::serve::LSM_FOLDER;

/// Read a stopped node's data and report every damaged frame, row and file
#[derive(Debug, Args)]
pub(super) struct Verify {
    /// The node's data folder
    dir: PathBuf,
}

const HINT: &str = "name the data folder of a node, which `node.data_dir` of its configuration is";

/// `verify --json`: the last line.
#[derive(Serialize)]
struct Summary<'a> {
    dir: &'a Path,
    ok: bool,
    damaged: usize,
    segments: u64,
    frames: u64,
    partitions: u64,
    batches: u64,
    rows: u64,
}

/// `verify --json`: a line for each damage.
#[derive(Serialize)]
struct DamageLine<'a> {
    file: Option<&'a str>,
    position: Option<u64>,
    partition: Option<u64>,
    offset: Option<u64>,
    detail: &'a str,
}

impl Verify {
    pub(super) async fn run(self, context: &Context) -> Result<(), Failure> {
        let Self { dir } = self;
        let shown = dir.display();
        // The folder of a node, or that of its store itself.
        let inside = dir.join(LSM_FOLDER);
        let store = if inside.is_dir() { inside } else { dir.clone() };
        let reading = tokio::task::spawn_blocking(move || verify(&store)).await;
        let report = reading.map_err(|error| Failure::new("internal", error.to_string()))?;
        let report = report.map_err(|error| not_read(&dir, &error))?;
        // A store has a segment from its first moment on: here is none, or it was emptied.
        if report.segments == 0 && report.damage.is_empty() {
            return Err(Failure::new("data_dir", format!("there is no store in {shown}")).hint(HINT));
        }

        let output = context.output;
        for damage in &report.damage {
            output.either(&DamageLine::of(damage), || damage.to_string())?;
        }
        output.either(&Summary::of(&dir, &report), || {
            let Report { segments, frames, partitions, batches, rows, damage } = &report;
            let found = match damage.len() {
                0 => "nothing is damaged".to_owned(),
                damaged => format!("{damaged} damaged"),
            };
            format!(
                "{shown}: {found}; read {} segments with {} frames, {} partitions with {} batches and {} rows",
                count_text(*segments),
                count_text(*frames),
                count_text(*partitions),
                count_text(*batches),
                count_text(*rows),
            )
        })?;
        match report.damage.first() {
            None => Ok(()),
            Some(first) => {
                let message = format!("{shown} is damaged in {} places, the first: {first}", report.damage.len());
                Err(Failure::new("damaged", message)
                    .hint("restore the folder from a copy; partitions that are not named can still be read"))
            }
        }
    }
}

impl<'a> Summary<'a> {
    fn of(dir: &'a Path, report: &Report) -> Self {
        Self {
            dir,
            ok: report.damage.is_empty(),
            damaged: report.damage.len(),
            segments: report.segments,
            frames: report.frames,
            partitions: report.partitions,
            batches: report.batches,
            rows: report.rows,
        }
    }
}

impl<'a> DamageLine<'a> {
    fn of(damage: &'a Damage) -> Self {
        Self {
            file: damage.file.as_deref(),
            position: damage.position,
            partition: damage.partition.map(|partition| partition.0),
            offset: damage.offset.map(|offset| offset.0),
            detail: &damage.detail,
        }
    }
}

fn not_read(dir: &Path, error: &StorageError) -> Failure {
    let hint = match error {
        StorageError::Locked(_) => "stop the node first: what it is writing cannot be told from damage",
        _ => HINT,
    };
    Failure::new("data_dir", format!("cannot read the data in {}: {error}", dir.display())).hint(hint)
}
