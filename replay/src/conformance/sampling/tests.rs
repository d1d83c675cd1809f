//! Golden folders pass, changed ones fail by name.

use super::*;
use crate::conformance::CaseStatus;

fn agrees(folder: &str) -> ConformanceReport {
    let report = run(&lockstep_testkit::golden().join(folder), "reference").unwrap().unwrap();
    for case in &report.cases {
        assert!(!matches!(case.status, CaseStatus::Fail { .. }), "{case:?}");
    }
    report
}

#[test]
fn every_draw_of_torch_is_reproduced() {
    let report = agrees("sampler");
    assert!(report.groups.len() >= 4);
    for group in report.groups.values() {
        assert!(group.keep_rows > 0);
        assert_eq!(group.keep_rows, group.keep_equal, "{report:?}");
    }
}

#[test]
fn every_kept_set_of_transformers_agrees() {
    let report = agrees("filters");
    let filters = &report.groups["filters"];
    assert_eq!(filters.cases, 932);
    assert!(filters.keep_equal >= 873, "{filters:?}");
    assert!(report.groups["cpu_draws"].cases >= 16);
}

#[test]
fn another_seed_fails_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let source = lockstep_testkit::golden().join("sampler");
    let name = "torch_multinomial.safetensors";
    std::fs::copy(source.join(name), folder.path().join(name)).unwrap();
    let index = std::fs::read_to_string(source.join("index.json")).unwrap();
    let index = index.replacen("\"seed\": 99", "\"seed\": 98", 1);
    std::fs::write(folder.path().join("index.json"), index).unwrap();
    let report = run(folder.path(), "reference").unwrap().unwrap();
    let failed = |case: &&CaseReport| matches!(case.status, CaseStatus::Fail { .. });
    let names: Vec<_> = report.cases.iter().filter(failed).map(|case| &case.name).collect();
    assert_eq!(names, ["dt_float16"]);
    assert_eq!(report.exit_code(), 1);
}
