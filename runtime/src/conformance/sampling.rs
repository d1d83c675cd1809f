//! Sampler vectors: draws of `torch.multinomial`, and kept sets of transformers' logits processors.
//!
//! A folder of draws has an `index.json` that names its tensor file and its cases by `kind`; a folder of filters a `cases.json` with `draws`
//! of a CPU beside its cases, `logits.safetensors` and `expected.safetensors`.

mod draws;
mod filters;

use std::path::Path;

use lockstep_traces::TraceError;
use lockstep_traces::store::DumpFile;
use serde_json::Value;

use self::draws::draws;
use self::filters::filters;
use super::error::{CaseError, ConformanceError, differs};
use super::run::{CaseResult, Status};

/// Figures of one case.
#[derive(Debug, Default)]
struct Tally {
    /// Draws or kept sets compared, and those equal.
    compared: usize,
    equal: usize,
    ties: usize,
    /// Largest difference of a probability or an exponential number.
    error: Option<f64>,
}

impl Tally {
    fn raise(&mut self, error: f64) {
        self.error = Some(self.error.map_or(error, |most| most.max(error)));
    }
}

/// The results of a folder of sampler vectors; `None` where it holds none.
///
/// # Errors
/// [`ConformanceError`] where the index or a tensor file cannot be read.
pub fn run_sampling(dir: &Path) -> Result<Option<Vec<CaseResult>>, ConformanceError> {
    let index_path = dir.join("index.json");
    if index_path.is_file() {
        let index = json(&index_path)?;
        return if index.get("file").is_some_and(Value::is_string) {
            draws(dir, &index).map(Some)
        } else {
            Ok(None)
        };
    }
    let cases_path = dir.join("cases.json");
    if !cases_path.is_file() {
        return Ok(None);
    }
    let cases = json(&cases_path)?;
    if cases.get("draws").is_some() { filters(dir, &cases).map(Some) } else { Ok(None) }
}

fn json(path: &Path) -> Result<Value, ConformanceError> {
    let bytes =
        std::fs::read(path).map_err(|source| TraceError::Io { path: path.to_owned(), source })?;
    Ok(serde_json::from_slice(&bytes).map_err(|source| TraceError::Json {
        path: path.to_owned(),
        line: source.line(),
        source,
    })?)
}

fn result(name: String, group: &str, tally: Tally, outcome: Result<(), CaseError>) -> CaseResult {
    let status = match outcome {
        Err(error) => Status::Fail { why: error.to_string() },
        Ok(()) if tally.compared == 0 => Status::Fail { why: "nothing was compared".to_owned() },
        Ok(()) if tally.ties > 0 => Status::TieEquivalent { rows: tally.ties },
        Ok(()) => Status::Pass,
    };
    CaseResult {
        name,
        group: group.to_owned(),
        status,
        max_raw_rel: None,
        max_agg_abs: tally.error,
        keep_rows: tally.compared,
        keep_equal: tally.equal,
    }
}

fn whole(case: &Value, key: &str) -> Result<u64, CaseError> {
    case.get(key).and_then(Value::as_u64).ok_or_else(|| differs(format!("the case has no `{key}`")))
}

fn size(case: &Value, key: &str) -> Result<usize, CaseError> {
    usize::try_from(whole(case, key)?).map_err(|_| differs(format!("`{key}` is too large")))
}

fn ids(file: &DumpFile, name: &str) -> Result<Vec<u32>, CaseError> {
    let tensor = file.get(name)?;
    let ids = tensor.to_i32()?.into_iter().map(u32::try_from).collect::<Result<_, _>>();
    ids.map_err(|_| tensor.error("holds a negative id").into())
}

#[cfg(test)]
mod tests;
