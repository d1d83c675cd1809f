//! All cases of a golden directory.

use std::path::Path;

use rayon::prelude::*;

use super::implementation::{Implementation, Reference};
use super::index::{self, Case, Index};
use super::report::{CaseReport, ConformanceReport};
use super::{ConformanceError, configs, lifecycles, plain, sampling, selections};

/// Runs every case that the directory's index lists through the reference. Vectors of another kind are named in
/// `not_covered` and never count as passed.
///
/// # Errors
/// [`ConformanceError`] where there is no index, an empty one, or one that cannot be read. A case whose files are missing
/// is a failed case.
pub fn run(dir: &Path) -> Result<ConformanceReport, ConformanceError> {
    let name = Reference::default().name().to_owned();
    if let Some(report) = sampling::run(dir, &name)? {
        return Ok(report);
    }
    let cases = match cases(dir, &name)? {
        Ok(cases) => cases,
        Err(uncovered) => return Ok(uncovered),
    };
    let one = |case: &Case| {
        let own = rule_set_case(dir, case, &mut Reference::default());
        own.or_else(|| plain::run(dir, case)).unwrap_or_else(|| unknown(case))
    };
    let mut reports: Vec<CaseReport> = cases.par_iter().map(one).collect();
    let serving: Vec<&Case> = cases.iter().filter(|case| configs::serves_trt(case)).collect();
    let trt = |case: &&Case| selections::run_trt(dir, case, &mut Reference::default());
    reports.par_extend(serving.par_iter().map(trt));
    Ok(ConformanceReport::new(&name, cases.len(), reports))
}

/// Runs the rule-set cases through another implementation; the cases without a rule set are not covered by it.
///
/// # Errors
/// As [`run`].
pub fn run_with(
    dir: &Path,
    by: &mut dyn Implementation,
) -> Result<ConformanceReport, ConformanceError> {
    let name = by.name().to_owned();
    let cases = match cases(dir, &name)? {
        Ok(cases) => cases,
        Err(uncovered) => return Ok(uncovered),
    };
    let (mut reports, mut not_covered) = (Vec::new(), Vec::new());
    for case in &cases {
        match rule_set_case(dir, case, by) {
            Some(report) => reports.push(report),
            None => {
                not_covered.push(format!("{}: group {} has no rule set", case.name, case.group));
            }
        }
    }
    for case in cases.iter().filter(|case| configs::serves_trt(case)) {
        reports.push(selections::run_trt(dir, case, by));
    }
    let mut report = ConformanceReport::new(&name, cases.len(), reports);
    report.not_covered = not_covered;
    Ok(report)
}

/// The listed cases, or the report that says that this directory holds vectors of another kind.
fn cases(
    dir: &Path,
    implementation: &str,
) -> Result<Result<Vec<Case>, ConformanceReport>, ConformanceError> {
    match index::read(dir)? {
        Index::Selector(cases) => Ok(Ok(cases)),
        Index::Other { kind, cases } => {
            let mut report = ConformanceReport::new(implementation, cases, Vec::new());
            report.not_covered.push(format!(
                "{}: {cases} cases of {kind}; this verb does not run them yet",
                dir.display()
            ));
            Ok(Err(report))
        }
    }
}

/// `None` for a group that has no rule set.
fn rule_set_case(dir: &Path, case: &Case, by: &mut dyn Implementation) -> Option<CaseReport> {
    match case.group.as_str() {
        "vllm_selector" | "hf" | "sglang" => Some(selections::run(dir, case, by)),
        "hf_lifecycle" | "vllm_lifecycle" => Some(lifecycles::run(dir, case, by)),
        _ => None,
    }
}

fn unknown(case: &Case) -> CaseReport {
    let mut report = CaseReport::new(&case.name, &case.group);
    report.fail(format!("group `{}` is not known to this build", case.group));
    report
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::conformance::CaseStatus;

    #[test]
    fn an_empty_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(run(dir.path()), Err(ConformanceError::NoIndex { .. })));
    }

    #[test]
    fn an_index_without_cases_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cases.json"), r#"{"version": 1, "cases": []}"#).unwrap();
        assert!(matches!(run(dir.path()), Err(ConformanceError::Empty { .. })));
        fs::write(dir.path().join("cases.json"), "{").unwrap();
        assert!(matches!(run(dir.path()), Err(ConformanceError::Trace(_))));
    }

    #[test]
    fn a_listed_case_without_files_or_of_an_unknown_group_fails() {
        let dir = tempfile::tempdir().unwrap();
        let index = r#"{"cases": [
            {"name": "a", "impl": "trig", "stats": "no.safetensors", "expected": "none.safetensors", "config": {"divide_length": 8, "table_max": 64}},
            {"name": "b", "impl": "mystery", "config": {}}]}"#;
        fs::write(dir.path().join("cases.json"), index).unwrap();
        let report = run(dir.path()).unwrap();
        assert_eq!(report.exit_code(), 1);
        for case in &report.cases {
            assert!(matches!(&case.status, CaseStatus::Fail { .. }), "{case:?}");
        }
        assert!(
            matches!(&report.cases[0].status, CaseStatus::Fail { why } if why.contains("none.safetensors"))
        );
    }

    #[test]
    fn vectors_of_another_kind_are_named_and_do_not_pass() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("index.json"),
            r#"{"made_with": {}, "file": "x", "cases": [{"case": 1}]}"#,
        )
        .unwrap();
        let report = run(dir.path()).unwrap();
        assert!(!report.passed());
        assert_eq!(report.exit_code(), 4);
        assert_eq!(report.not_covered.len(), 1);
    }
}
