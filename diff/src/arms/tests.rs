use lockstep_traces::forms::{Arm, ArmTable};
use serde_json::{Value, json};

use super::{ArmReport, Question, judge};

fn table(factors: &[&str], arms: &[(&str, &[Value], f64)]) -> ArmTable {
    let arm = |(name, levels, effect): &(&str, &[Value], f64)| Arm {
        name: (*name).to_owned(),
        levels: levels.to_vec(),
        effect: *effect,
    };
    ArmTable {
        factors: factors.iter().map(|name| (*name).to_owned()).collect(),
        arms: arms.iter().map(arm).collect(),
        without_effect: Vec::new(),
    }
}

fn asked(table: &ArmTable, factor: &str) -> ArmReport {
    let question =
        Question { factor: factor.to_owned(), baseline: None, tolerance: 0.0, block: 32 };
    judge(table, "score", &question).unwrap()
}

#[test]
fn a_full_grid_puts_each_difference_where_it_belongs() {
    // The score follows b and not a.
    let (a, b) = ([json!(0), json!(1)], ["x", "y"]);
    let grid = [
        ("00", &[a[0].clone(), json!(b[0])][..], 0.9),
        ("01", &[a[0].clone(), json!(b[1])][..], 0.1),
        ("10", &[a[1].clone(), json!(b[0])][..], 0.9),
        ("11", &[a[1].clone(), json!(b[1])][..], 0.1),
    ];
    let table = table(&["a", "b"], &grid);
    let of_a = asked(&table, "a");
    assert_eq!((of_a.levels[0].outcome.as_str(), of_a.verdict.exit_code()), ("contradicted", 1));
    let of_b = asked(&table, "b");
    assert_eq!((of_b.levels[0].outcome.as_str(), of_b.verdict.exit_code()), ("supported", 0));
    assert!(of_b.attributable && of_b.missing_controls.is_empty());
}

#[test]
fn several_factors_can_confound_together_and_none_alone() {
    let table = table(
        &["a", "b", "c"],
        &[
            ("base", &[json!(0), json!(0), json!(0)], 0.9),
            ("b too", &[json!(1), json!(1), json!(0)], 0.1),
            ("c too", &[json!(1), json!(0), json!(1)], 0.1),
        ],
    );
    let report = asked(&table, "a");
    assert_eq!(report.verdict.exit_code(), 4);
    assert!(report.confounders.iter().all(|one| !one.always && one.differing == 1), "{report:?}");
    assert!(report.findings.iter().any(|one| one.name == "jointly_confounded"), "{report:?}");
    assert_eq!(report.missing_controls.len(), 3, "{:?}", report.missing_controls);
}

#[test]
fn controls_that_disagree_decide_nothing() {
    let table = table(
        &["a", "b"],
        &[
            ("00", &[json!(0), json!(0)], 0.9),
            ("10", &[json!(1), json!(0)], 0.9),
            ("01", &[json!(0), json!(1)], 0.9),
            ("11", &[json!(1), json!(1)], 0.2),
        ],
    );
    let report = asked(&table, "a");
    assert_eq!((report.levels[0].outcome.as_str(), report.verdict.exit_code()), ("interaction", 4));
}

#[test]
fn a_factor_of_one_level_and_a_factor_that_is_not_there_are_no_answer() {
    let table = table(&["a"], &[("x", &[json!(0)], 0.9), ("y", &[json!(0)], 0.1)]);
    let report = asked(&table, "a");
    assert_eq!(report.verdict.exit_code(), 4);
    let question = Question { factor: "z".to_owned(), baseline: None, tolerance: 0.0, block: 32 };
    assert!(judge(&table, "score", &question).is_none());
}
