//! Sampler vectors on the reference: draws that torch made, kept sets that transformers' logits processors made.

mod draws;
mod filters;

use std::path::Path;

use lockstep_traces::TraceError;
use lockstep_traces::store::DumpFile;
use rayon::prelude::*;
use serde::Deserialize;
use serde_json::Value;

use self::draws::{DrawCase, draws};
use self::filters::{CpuDraws, Expected, FilterCase, cpu, filter};
use super::error::ConformanceError;
use super::report::{CaseReport, ConformanceReport};

#[derive(Debug, Deserialize)]
struct DrawIndex {
    file: String,
    cases: Vec<DrawCase>,
    #[serde(default)]
    sm_count: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct FilterIndex {
    cases: Vec<FilterCase>,
    draws: Vec<CpuDraws>,
}

/// Runs a folder of sampler vectors; `None` where it holds none.
///
/// # Errors
/// [`ConformanceError`] where a file cannot be read.
pub(crate) fn run(dir: &Path, by: &str) -> Result<Option<ConformanceReport>, ConformanceError> {
    if let Some(index) = read::<DrawIndex>(&dir.join("index.json"))? {
        if index.cases.is_empty() {
            return Err(ConformanceError::Empty { path: dir.join("index.json") });
        }
        let file = DumpFile::open(&dir.join(&index.file))?;
        let multiprocessors = index.sm_count.unwrap_or(132);
        let one = |case: &DrawCase| {
            let mut report = CaseReport::new(&case.name, &case.kind);
            if let Err(why) = draws(case, &file, multiprocessors, &mut report) {
                report.fail(why);
            }
            report.close()
        };
        let reports = index.cases.par_iter().map(one).collect();
        return Ok(Some(ConformanceReport::new(by, index.cases.len(), reports)));
    }
    let Some(index) = read::<FilterIndex>(&dir.join("cases.json"))? else { return Ok(None) };
    let logits = DumpFile::open(&dir.join("logits.safetensors"))?;
    let expected = Expected::read(&dir.join("expected.safetensors"))?;
    let filtered = index.cases.par_iter().enumerate().map(|(number, case)| {
        let mut report = CaseReport::new(&format!("filter_{number}"), "filters");
        if let Err(why) = filter(case, &logits, &expected, &mut report) {
            report.fail(why);
        }
        report.close()
    });
    let mut reports: Vec<CaseReport> = filtered.collect();
    for (number, draws) in index.draws.iter().enumerate() {
        let name = format!("draws_{number}_{}", draws.kind);
        let mut report = CaseReport::new(&name, "cpu_draws");
        if let Err(why) = cpu(draws, &index.cases, &expected, &mut report) {
            report.fail(why);
        }
        reports.push(report.close());
    }
    Ok(Some(ConformanceReport::new(by, reports.len(), reports)))
}

/// An index of this shape; `None` where the file is missing or of another shape.
fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Option<T>, ConformanceError> {
    if !path.is_file() {
        return Ok(None);
    }
    let bytes =
        std::fs::read(path).map_err(|source| TraceError::Io { path: path.to_owned(), source })?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|source| TraceError::Json {
        path: path.to_owned(),
        line: source.line(),
        source,
    })?;
    Ok(T::deserialize(value).ok())
}

fn text(error: TraceError) -> String {
    error.to_string()
}

fn id_list(file: &DumpFile, name: &str) -> Result<Vec<u32>, String> {
    let values = file.get(name).and_then(|tensor| tensor.to_i32()).map_err(text)?;
    values
        .into_iter()
        .map(|id| u32::try_from(id).map_err(|_| format!("`{name}` holds a negative id")))
        .collect()
}

#[cfg(test)]
mod tests;
