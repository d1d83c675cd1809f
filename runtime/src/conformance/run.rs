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
    let own = index.cases.iter().filter_map(|case| run_case(dir, case, plant));
    let shared = index.cases.iter().filter_map(|case| run_trt(dir, case, plant));
    let results: Vec<CaseResult> = own.chain(shared).collect();
    if results.is_empty() {
        return Err(ConformanceError::Empty(dir.to_owned()));
    }
    Ok(results)
}

/// A case under the rule set of its group; `None` for the other groups.
fn run_case(dir: &Path, case: &Case, plant: Option<Cause>) -> Option<CaseResult> {
    let answer = match case.group.as_str() {
        "vllm_selector" => selector::run(dir, case, RuleSet::Vllm, plant),
        "hf" => selector::run(dir, case, RuleSet::Hf, plant),
        "sglang" => selector::run(dir, case, RuleSet::Sglang, plant),
        "hf_lifecycle" => lifecycle::run(dir, case, RuleSet::Hf, plant),
        "vllm_lifecycle" => lifecycle::run(dir, case, RuleSet::Vllm, plant),
        _ => return None,
    };
    Some(CaseResult::new(case, &case.group, answer))
}

/// A case that `trt` shares.
fn run_trt(dir: &Path, case: &Case, plant: Option<Cause>) -> Option<CaseResult> {
    let answer = if case.serves_trt() { selector::run_trt(dir, case, plant) } else { None };
    answer.map(|answer| CaseResult::new(case, "trt", answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn golden() -> std::path::PathBuf {
        lockstep_testkit::golden().join("triattention")
    }

    fn planted(cause: Cause, group: &str, name: &str) -> CaseResult {
        let index = Index::read(&golden()).unwrap();
        let case = index.cases.iter().find(|case| case.name.starts_with(name)).unwrap();
        let result = if group == "trt" {
            run_trt(&golden(), case, Some(cause))
        } else {
            run_case(&golden(), case, Some(cause))
        };
        result.filter(|result| result.group == group).unwrap()
    }

    fn why(result: &CaseResult) -> &str {
        match &result.status {
            Status::Fail { why } => why,
            other => panic!("{} was expected to fail and is {other:?}", result.name),
        }
    }

    #[test]
    fn every_case_of_the_four_rule_sets_agrees() {
        let results = run(&golden(), None).unwrap();
        assert!(!results.is_empty());
        for result in &results {
            match &result.status {
                Status::Pass => assert_eq!(result.keep_rows, result.keep_equal, "{result:?}"),
                // Its protected rows alone exceed the budget and are all +inf upstream.
                Status::TieEquivalent { .. } => {
                    assert!(result.name.starts_with("v17"), "{result:?}");
                }
                Status::Fail { why } => panic!("{} ({}): {why}", result.name, result.group),
            }
        }
    }

    #[test]
    fn every_listed_case_of_a_rule_set_is_run() {
        let index = Index::read(&golden()).unwrap();
        let results = run(&golden(), None).unwrap();
        for group in ["vllm_selector", "hf", "sglang", "hf_lifecycle", "vllm_lifecycle"] {
            let listed = index.cases.iter().filter(|case| case.group == group).count();
            assert!(listed > 0);
            assert_eq!(results.iter().filter(|result| result.group == group).count(), listed);
        }
        assert!(results.iter().filter(|result| result.group == "trt").count() >= 15);
    }

    #[test]
    fn a_wrong_round_start_is_invisible_at_the_first_compaction_and_seen_at_the_second() {
        let result = planted(Cause::RoundStartRows, "vllm_lifecycle", "l10");
        assert!(why(&result).starts_with("compaction 2"), "{result:?}");
        let result = planted(Cause::RoundStartRows, "hf_lifecycle", "l01");
        assert!(why(&result).starts_with("compaction 2"), "{result:?}");
        assert!(why(&planted(Cause::RoundStartRows, "sglang", "s01")).starts_with("raw scores"));
    }

    #[test]
    fn another_divisor_leaves_keep_sets_and_moves_ranked_scores() {
        for (group, name) in
            [("vllm_selector", "v01"), ("hf", "h01"), ("sglang", "s01"), ("trt", "v01")]
        {
            let result = planted(Cause::ZscorePopulation, group, name);
            assert!(why(&result).starts_with("ranked score"), "{result:?}");
            assert_eq!(result.keep_rows, result.keep_equal);
            assert!(result.max_raw_rel.is_some_and(|error| error < 5e-5));
        }
    }

    #[test]
    fn other_rows_in_the_z_score_and_another_layer_reduction_are_seen() {
        for cause in [Cause::ZscoreRows, Cause::LayerMax] {
            for (group, name) in [("vllm_selector", "v05"), ("hf", "h02"), ("trt", "v05")] {
                let result = planted(cause, group, name);
                assert!(!why(&result).starts_with("raw"), "{result:?}");
                assert!(result.max_raw_rel.is_some_and(|error| error < 5e-5));
            }
        }
        assert!(!why(&planted(Cause::LayerMax, "sglang", "s01")).starts_with("raw"));
    }

    #[test]
    fn a_lost_window_row_is_seen_and_a_rule_set_without_window_says_so() {
        let lost = planted(Cause::WindowRowLost, "trt", "v01");
        assert!(why(&lost).contains("[191] there only"), "{lost:?}");
        assert!(why(&planted(Cause::WindowRowLost, "hf", "h01")).contains("no recent window"));
    }

    #[test]
    fn another_tie_order_shows_where_scores_tie_exactly() {
        let result = planted(Cause::TieOrder, "trt", "v38_tie_bf16_b51");
        assert!(matches!(result.status, Status::TieEquivalent { rows } if rows > 0), "{result:?}");
        assert!(result.keep_equal < result.keep_rows);
        assert_eq!(planted(Cause::TieOrder, "trt", "v01").status, Status::Pass);
    }

    #[test]
    fn a_listed_case_without_files_fails_and_a_folder_without_cases_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(run(folder.path(), None), Err(ConformanceError::Trace(_))));
        std::fs::write(folder.path().join("cases.json"), r#"{"cases": []}"#).unwrap();
        assert!(matches!(run(folder.path(), None), Err(ConformanceError::Empty(_))));
        std::fs::copy(golden().join("cases.json"), folder.path().join("cases.json")).unwrap();
        let results = run(folder.path(), None).unwrap();
        for result in &results {
            // The one that upstream refuses by its settings alone needs no file.
            let refused = result.name.starts_with("v20");
            assert_eq!(matches!(result.status, Status::Fail { .. }), !refused, "{result:?}");
        }
    }
}
