//! Keep-sets written by hand.

use std::collections::BTreeMap;

use lockstep_traces::manifest::Producer;
use lockstep_traces::store::RunWriter;
use lockstep_traces::{Dump, Manifest, RecordPlan, Tensor, TraceSink};

use super::*;

fn pair(left: &[u32], right: &[u32], scores: &[f64]) -> KeepPair {
    let all: Vec<u32> = (0..u32::try_from(scores.len()).unwrap()).collect();
    classify(left, right, &|row| scores.get(row as usize).copied(), &all, KeepOptions::default())
}

#[test]
fn sets_that_differ_only_at_the_score_of_the_cut_are_tie_equivalent() {
    let scores = [5.0, 4.0, 3.0, 3.0, 3.0, 1.0];
    let found = pair(&[0, 1, 2], &[0, 1, 4], &scores);
    assert_eq!((found.class, found.cut_gap), (KeepClass::TieEquivalent, Some(0.0)));
    assert_eq!((found.left_only, found.right_only), (vec![2], vec![4]));
    assert!((found.jaccard - 0.5).abs() < 1e-12);
}

#[test]
fn a_lower_score_kept_instead_of_a_higher_one_is_a_true_error() {
    let scores = [9.0, 2.0, 7.0, 1.0, 6.0, 5.0];
    let found = pair(&[0, 2, 4], &[0, 2, 5], &scores);
    assert_eq!((found.class, found.cut_gap), (KeepClass::Different, Some(1.0)));
}

#[test]
fn rows_within_the_tolerance_of_the_cut_are_counted_apart() {
    let found = pair(&[0, 1], &[0, 2], &[3.0, 1.00001, 1.0, -4.0]);
    assert_eq!(found.class, KeepClass::NearCut);
    let found = pair(&[0, 1], &[0, 2], &[3.0, 1.001, 1.0, -4.0]);
    assert_eq!(found.class, KeepClass::Different);
}

#[test]
fn order_is_not_a_difference_of_sets_and_protected_rows_are_never_ties() {
    assert_eq!(pair(&[0, 3, 2], &[0, 2, 3], &[0.0; 4]).class, KeepClass::Order);
    assert_eq!(pair(&[0, 2], &[0, 2], &[0.0; 4]).class, KeepClass::Equal);
    let infinite = f64::INFINITY;
    let found = pair(&[0, 1], &[0, 2], &[infinite, infinite, 1.0, 0.5]);
    assert_eq!(found.class, KeepClass::Different);
    let none = classify(&[0, 1], &[0, 2], &|_| None, &[0, 1, 2], KeepOptions::default());
    assert_eq!(none.class, KeepClass::Different);
}

/// Keep-set and positions before, by head.
type Case<'a> = (&'a [&'a [i32]], &'a [&'a [i32]]);

fn run(home: &tempfile::TempDir, name: &str, events: &[Case<'_>]) -> RunReader {
    let dir = home.path().join(name);
    let manifest = Manifest::new(Producer::default(), "cpu");
    let mut writer = RunWriter::create(&dir, manifest, RecordPlan::default()).unwrap();
    for (ordinal, (keep, before)) in (1_u32..).zip(events) {
        let tensor = |name: &str, rows: &[&[i32]]| {
            Tensor::from_i32(name, vec![rows.len(), rows[0].len()], &rows.concat())
        };
        let scores: Vec<f32> =
            before.iter().flat_map(|rows| rows.iter().map(|at| (at % 3) as f32)).collect();
        let tensors = vec![
            tensor("keep", keep),
            tensor("positions.pre", before),
            Tensor::from_f32("scores.final", vec![before.len(), before[0].len()], &scores),
        ];
        let id = DumpId::Compaction { sample_id: "s".into(), ordinal };
        writer.dump(Dump { id, metadata: BTreeMap::new(), tensors }).unwrap();
    }
    writer.finish().unwrap();
    RunReader::open(&dir).unwrap()
}

const ROWS: &[i32] = &[0, 1, 2, 3, 4, 5];

#[test]
fn equal_runs_are_identical_and_a_head_that_rules_all_heads_is_said() {
    let home = tempfile::tempdir().unwrap();
    let left = run(&home, "a", &[(&[&[0, 2, 5], &[1, 2, 5]], &[ROWS, ROWS])]);
    let right = run(&home, "b", &[(&[&[0, 2, 5], &[0, 2, 5]], &[ROWS, ROWS])]);
    let same = compare(&left, &left, KeepOptions::default()).unwrap();
    assert_eq!((same.verdict, same.equal, same.mean_jaccard), (Verdict::Identical, 2, Some(1.0)));
    let found = compare(&left, &right, KeepOptions::default()).unwrap();
    assert_eq!((found.equal, found.different), (1, 1));
    assert_eq!(found.verdict, Verdict::Diverged);
    assert!(found.remarks[0].contains("identical across heads on the right only"));
}

#[test]
fn events_after_a_difference_are_dependent_and_compared_by_position_where_rows_are_permuted() {
    let home = tempfile::tempdir().unwrap();
    let left = run(&home, "a", &[(&[&[0, 2, 5]], &[ROWS]), (&[&[0, 1]], &[&[0, 2, 5, 6]])]);
    let right = run(&home, "b", &[(&[&[0, 2, 4]], &[ROWS]), (&[&[0, 1]], &[&[0, 2, 4, 6]])]);
    let found = compare(&left, &right, KeepOptions::default()).unwrap();
    assert_eq!((found.heads, found.different, found.dependent), (1, 1, 1));
    // The same rows before in another physical order: positions decide, not row numbers.
    let right = run(&home, "c", &[(&[&[0, 3, 5]], &[&[5, 4, 3, 2, 1, 0]])]);
    let found =
        compare(&run(&home, "d", &[(&[&[0, 2, 5]], &[ROWS])]), &right, KeepOptions::default())
            .unwrap();
    assert_eq!((found.order, found.verdict), (1, Verdict::Identical));
}

#[test]
fn missing_events_are_skipped_and_nothing_compared_is_incomparable() {
    let home = tempfile::tempdir().unwrap();
    let left = run(&home, "a", &[(&[&[0, 2, 5]], &[ROWS]), (&[&[0, 1]], &[&[0, 2, 5, 6]])]);
    let right = run(&home, "b", &[(&[&[0, 2, 5]], &[ROWS])]);
    let found = compare(&left, &right, KeepOptions::default()).unwrap();
    assert_eq!((found.skipped, found.verdict.exit_code()), (1, 4));
    let none = run(&home, "c", &[]);
    assert_eq!(compare(&none, &none, KeepOptions::default()).unwrap().verdict.exit_code(), 4);
}
