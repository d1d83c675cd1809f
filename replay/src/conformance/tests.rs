//! The golden selector vectors, and faults planted in copies of them.

use lockstep_testkit::golden;

use super::{CaseStatus, run};

#[test]
fn every_listed_case_agrees() {
    let report = run(&golden().join("triattention")).unwrap();
    for case in &report.cases {
        eprintln!(
            "{:44} {:18} {:?} raw {:.1e} agg {:.1e} keep {}/{} {:?}",
            case.name, case.group, case.status,
            case.max_raw_rel.unwrap_or(f64::NAN), case.max_agg_abs.unwrap_or(f64::NAN),
            case.keep_equal, case.keep_rows, case.notes
        );
    }
    eprintln!("{:#?}", report.groups);
    assert!(report.passed());
}
