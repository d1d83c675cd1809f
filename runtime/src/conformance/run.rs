//! Runs a directory of cases.

use std::path::Path;

use lockstep_traces::{Cause, RuleSet};

use super::case::{Case, Index};
use super::compare::Tally;
use super::error::{CaseError, ConformanceError};
use super::{lifecycle, selector};

/// Outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Within every tolerance, keep-sets equal as sets.
    Pass,
    /// As [`Status::Pass`], but for rows at the cut whose expected scores tie.
    TieEquivalent {
        /// Rows that differ, over all keep-sets.
        rows: usize,
    },
    /// Differs, or could not be run.
    Fail {
        /// One line.
        why: String,
    },
}

/// One case and its figures.
#[derive(Debug, Clone, PartialEq)]
pub struct CaseResult {
    /// Name in `cases.json`.
    pub name: String,
    /// Its group there, or `trt`.
    pub group: String,
    /// Outcome.
    pub status: Status,
    /// Largest error of a raw score over the largest raw score, where some are stored.
    pub max_raw_rel: Option<f64>,
    /// Largest error of a finite ranked score, where some are stored.
    pub max_agg_abs: Option<f64>,
    /// Keep-sets compared (one a KV head, layer or both).
    pub keep_rows: usize,
    /// Those equal as sets.
    pub keep_equal: usize,
}

impl CaseResult {
    fn new(case: &Case, group: &str, (tally, outcome): (Tally, Result<(), CaseError>)) -> Self {
        let status = match outcome {
            Err(error) => Status::Fail { why: error.to_string() },
            Ok(()) if tally.ties > 0 => Status::TieEquivalent { rows: tally.ties },
            Ok(()) => Status::Pass,
        };
        Self {
            name: case.name.clone(),
            group: group.to_owned(),
            status,
            max_raw_rel: tally.raw,
            max_agg_abs: tally.ranked,
            keep_rows: tally.keep_rows,
            keep_equal: tally.keep_equal,
        }
    }
}

/// Runs every case of the four rule sets below `dir`, in the order of its `cases.json`, then the shared ones under `trt`. With a planted
/// fault, cases whose rules cannot show it fail and say so.
///
/// # Errors
/// [`ConformanceError`] where `cases.json` cannot be read or lists no such case. A case whose files are missing is a failed
/// case and no error.
pub fn run(dir: &Path, plant: Option<Cause>) -> Result<Vec<CaseResult>, ConformanceError> {
    let index = Index::read(dir)?;
    let mut results = Vec::new();
    for case in &index.cases {
        let answer = match case.group.as_str() {
            "vllm_selector" => selector::run(dir, case, RuleSet::Vllm, plant),
            "hf" => selector::run(dir, case, RuleSet::Hf, plant),
            "sglang" => selector::run(dir, case, RuleSet::Sglang, plant),
            "hf_lifecycle" => lifecycle::run(dir, case, RuleSet::Hf, plant),
            "vllm_lifecycle" => lifecycle::run(dir, case, RuleSet::Vllm, plant),
            _ => continue,
        };
        results.push(CaseResult::new(case, &case.group, answer));
    }
    for case in index.cases.iter().filter(|case| case.serves_trt()) {
        if let Some(answer) = selector::run_trt(dir, case, plant) {
            results.push(CaseResult::new(case, "trt", answer));
        }
    }
    if results.is_empty() {
        return Err(ConformanceError::Empty(dir.to_owned()));
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> std::path::PathBuf {
        lockstep_testkit::golden().join("triattention")
    }

    #[test]
    fn every_case_of_the_four_rule_sets_agrees() {
        let results = run(&golden(), None).unwrap();
        for result in &results {
            println!("{result:?}");
        }
    }
}
