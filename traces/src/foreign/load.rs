//! One door for everything that holds a trace.

use std::path::Path;

use super::assemble::assemble;
use super::read::read;
use super::table::ForeignOptions;
use crate::parquet_trace;
use crate::store::{RunReader, StepColumns, StepQuery};
use crate::{EventRow, Manifest, Status, TraceError};

/// A trace in memory, whatever it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The run's manifest, or one made from what a foreign file shows.
    pub manifest: Manifest,
    /// Sample ids in order of their first rows. Foreign files name none: they are `sample_0`, `sample_1`, ...
    /// and the manifest says `trace.sample_ids` = `invented`.
    pub samples: Vec<String>,
    /// All step rows.
    pub steps: StepColumns,
    /// All compactions; of a foreign trace those that its rows show, with `protected`, `candidates` and times 0.
    pub events: Vec<EventRow>,
    /// What was read around, one line each.
    pub remarks: Vec<String>,
}

/// Loads a run directory (complete or incomplete), a recording ([`crate::recorded`]) or a foreign trace file: a TensorRT-Model-Connect step trace, a
/// position trace or replay rows with exact counts, a neutral trace ([`super::Dialect`]), or a Parquet file of step rows
/// ([`crate::parquet_trace`]). Files are told apart by
/// their keys, never by their names.
///
/// # Errors
/// [`TraceError`] with path and line where the input is damaged before its end, contradicts itself or holds no row.
pub fn load(path: &Path) -> Result<Loaded, TraceError> {
    load_with(path, &ForeignOptions::default())
}

/// As [`load`], with what the caller knows about a foreign file.
///
/// # Errors
/// As [`load`].
pub fn load_with(path: &Path, options: &ForeignOptions) -> Result<Loaded, TraceError> {
    if crate::recorded::is_recorded(path) {
        return crate::recorded::load_recorded(path).map(|(loaded, _)| loaded);
    }
    if path.is_dir() {
        load_run(path)
    } else if parquet_trace::is_parquet(path) {
        parquet_trace::load(path, options)
    } else {
        assemble(path, read(path, options)?, options)
    }
}

fn load_run(dir: &Path) -> Result<Loaded, TraceError> {
    let run = RunReader::open(dir)?;
    let manifest = run.manifest().clone();
    let mut remarks = manifest.remarks.clone();
    remarks.extend_from_slice(run.remarks());
    if manifest.status == Status::Incomplete {
        remarks
            .push("the run is incomplete: it holds what was written before it stopped".to_owned());
    }
    let steps = run.steps(&StepQuery::default())?;
    let events = run.events(None)?;
    Ok(Loaded { manifest, samples: steps.sample_ids.clone(), steps, events, remarks })
}
