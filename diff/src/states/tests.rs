use lockstep_traces::forms::{CacheState, CacheStates, CacheStep, ShiftOp, Shifts};

use super::policies::{Policy, written};
use super::{check_shifts, check_states, ranges};

/// `tokens` fed one by one from position 0, under `sink` and `recent`.
fn fed(sink: usize, recent: usize, tokens: u64) -> CacheStates {
    let steps =
        (0..tokens).map(|at| CacheStep { fed: vec![at], tokens: at + 1, states: Vec::new() });
    CacheStates {
        sink,
        recent,
        window: sink == 0,
        start: Vec::new(),
        steps: steps.collect(),
        names: Vec::new(),
    }
}

/// The form with the states of a policy under the name `it`.
fn observed(mut form: CacheStates, policy: Policy) -> CacheStates {
    let states = policy.states(&form);
    for (step, slots) in form.steps.iter_mut().zip(states) {
        step.states = vec![CacheState { name: "it".to_owned(), slots }];
    }
    form.names = vec!["it".to_owned()];
    form
}

#[test]
fn the_rule_keeps_the_first_and_the_last_rows() {
    for (sink, recent) in [(0, 1), (0, 5), (2, 4), (3, 1)] {
        let form = fed(sink, recent, 12);
        for (tokens, slots) in (1_u64..).zip(Policy::AsStated.states(&form)) {
            let (sink, recent) = (sink as u64, recent as u64);
            let rows: Vec<u64> =
                (0..tokens).filter(|row| *row < sink || row + recent >= tokens).collect();
            assert_eq!(written(&slots), rows, "{sink} + {recent} after {tokens}");
        }
    }
}

#[test]
fn every_mistake_is_found_by_its_own_name_and_the_rule_by_none() {
    let right = check_states(&observed(fed(2, 4, 12), Policy::AsStated));
    assert!(right.wrong.is_empty() && right.findings.is_empty(), "{right:?}");
    assert_eq!(right.implementations[0].not_excluded, [""; 0]);
    for policy in Policy::MISTAKES {
        let report = check_states(&observed(fed(2, 4, 12), policy));
        assert_eq!(report.wrong, ["it"], "{policy:?}");
        let names = &report.implementations[0].recognised;
        assert_eq!(names, &[policy.name()], "{policy:?}");
    }
}

#[test]
fn a_step_without_a_state_is_no_parity() {
    let mut form = observed(fed(0, 3, 6), Policy::AsStated);
    form.steps[4].states.clear();
    let report = check_states(&form);
    assert_eq!((report.verdict.exit_code(), report.wrong.len()), (4, 0), "{report:?}");
}

fn shifts(ops: Vec<ShiftOp>, angles: Vec<f64>) -> Shifts {
    let cells: Vec<i64> = (0..angles.len() as i64).collect();
    Shifts {
        theta: vec![1.0; cells.len()],
        cells,
        ops,
        positions: Vec::new(),
        angles: vec![("observed_angle".to_owned(), angles.into_iter().map(Some).collect())],
        wrapped: false,
    }
}

#[test]
fn every_subset_of_three_shifts_is_told_apart() {
    let ops = [(2, 1), (4, 10), (12, 100)];
    let ops: Vec<ShiftOp> =
        ops.map(|(from, delta)| ShiftOp::Add { from, to: i64::MAX, delta }).to_vec();
    // Cells 0 and 1 stay, 2 goes to 3, 3 to 4 to 14 to 114.
    let right = check_shifts(&shifts(ops.clone(), vec![0.0, 1.0, 3.0, 114.0]));
    assert_eq!(right.positions, [Some(0), Some(1), Some(3), Some(114)]);
    assert!(right.observed_angles[0].right && right.findings.is_empty(), "{right:?}");
    for (last, name, applied) in [
        (3.0, "no_rotation", vec![]),
        (4.0, "only_first_shift", vec![1]),
        (103.0, "only_last_shift", vec![3]),
        (14.0, "only_shifts", vec![1, 2]),
    ] {
        let second = if applied.contains(&1) { 3.0 } else { 2.0 };
        let report = check_shifts(&shifts(ops.clone(), vec![0.0, 1.0, second, last]));
        let list = &report.observed_angles[0];
        assert!(list.recognised.contains(&name.to_owned()), "{name}: {list:?}");
        let fit = list.hypotheses.iter().find(|fit| fit.name == name).unwrap();
        assert_eq!(fit.ops, applied, "{name}");
    }
}

#[test]
fn a_division_rounds_down_and_a_fall_below_zero_removes() {
    let ops = vec![
        ShiftOp::Div { from: 2, to: 4, factor: 2 },
        ShiftOp::Add { from: 0, to: 1, delta: -1 },
    ];
    let report = check_shifts(&shifts(ops, vec![9.0, 1.0, 1.0, 1.0]));
    assert_eq!(report.positions, [None, Some(1), Some(1), Some(1)]);
    // The angle of a cell that is gone is nobody's.
    assert!(report.observed_angles[0].right && !report.nothing_removed, "{report:?}");
}

#[test]
fn a_band_too_slow_to_show_a_shift_decides_nothing() {
    let mut form = shifts(vec![ShiftOp::Add { from: 0, to: i64::MAX, delta: 1 }], vec![0.0, 0.0]);
    form.theta = vec![1e-7; 2];
    assert_eq!(check_shifts(&form).verdict.exit_code(), 4);
}

#[test]
fn lists_are_written_as_ranges() {
    assert_eq!(ranges(&[1, 3, 4, 6, 7, 8]), "1, 3, 4, 6..8");
    assert_eq!(ranges(&[]), "");
}
