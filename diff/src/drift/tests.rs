//! Small dumps, drifted by hand.

use lockstep_traces::manifest::Producer;
use lockstep_traces::store::RunWriter;
use lockstep_traces::{Dump, Manifest, RecordPlan, Tensor, TraceSink};

use super::*;

/// Two positions; every tensor is (3, 4), so its norm is 5; `change` adds to the first element.
fn run(home: &tempfile::TempDir, name: &str, change: impl Fn(&str, u32) -> f32) -> RunReader {
    run_of(home, name, None, &[], change)
}

/// As [`run`], of a dtype and without some tensors.
fn run_of(
    home: &tempfile::TempDir,
    name: &str,
    dtype: Option<DType>,
    without: &[&str],
    change: impl Fn(&str, u32) -> f32,
) -> RunReader {
    let dir = home.path().join(name);
    let mut manifest = Manifest::new(Producer::default(), "cpu");
    manifest.dtype = dtype;
    let mut writer = RunWriter::create(&dir, manifest, RecordPlan::default()).unwrap();
    for position in [3, 7] {
        let tensors = [
            "hidden.embed",
            "hidden.layer00.q_norm",
            "hidden.layer00.q_rope",
            "hidden.layer01.out",
            "hidden.final_norm",
            "logits",
        ]
        .into_iter()
        .filter(|name| !without.contains(name))
        .map(|name| Tensor::from_f32(name, vec![2], &[3.0 + change(name, position), 4.0]))
        .collect();
        let id = DumpId::Step { sample_id: "s".into(), position };
        writer.dump(Dump { id, metadata: BTreeMap::new(), tensors }).unwrap();
    }
    writer.finish().unwrap();
    RunReader::open(&dir).unwrap()
}

#[test]
fn the_first_stage_beyond_is_named_in_order_of_computation() {
    let home = tempfile::tempdir().unwrap();
    let left = run(&home, "a", |_, _| 0.0);
    let right = run(&home, "b", |name, position| {
        if position == 7 && name != "hidden.embed" && name != "hidden.layer00.q_norm" {
            0.5
        } else {
            0.0
        }
    });
    let tolerance = default_tolerance(DType::F32);
    let options = DriftOptions { tolerance: Some(&tolerance), ..DriftOptions::default() };
    let report = compare(&left, &right, options).unwrap().remove(0);
    assert_eq!(report.first_beyond, Some(("layer00.q_rope".to_owned(), 7)));
    assert_eq!(report.verdict, Verdict::Diverged);
    let order: Vec<&str> = report.rows.iter().map(|row| row.tensor.as_str()).collect();
    assert_eq!(
        order,
        ["embed", "layer00.q_norm", "layer00.q_rope", "layer01.out", "final_norm", "logits"]
    );
    assert!((report.rows[2].cells[1].relative_l2.unwrap() - 0.1).abs() < 1e-12);
    assert_eq!((report.compared, report.skipped), (12, 0));
}

#[test]
fn drift_no_larger_than_the_controls_is_noise_and_without_a_judge_it_stays_open() {
    let home = tempfile::tempdir().unwrap();
    let left = run(&home, "a", |_, _| 0.0);
    let right = run(&home, "b", |_, _| 0.003);
    let control = run(&home, "c", |_, _| -0.002);
    let options = DriftOptions { control: Some(&control), ..DriftOptions::default() };
    let report = compare(&left, &right, options).unwrap().remove(0);
    assert_eq!(report.verdict, Verdict::WithinNoise);
    assert!((report.rows[0].cells[0].control.unwrap() - 0.0004).abs() < 1e-6);
    let open = compare(&left, &right, DriftOptions::default()).unwrap().remove(0);
    assert_eq!(open.verdict.exit_code(), 4);
    assert_eq!(compare(&left, &left, options).unwrap()[0].verdict, Verdict::Identical);
}

#[test]
fn a_tensor_on_one_side_only_or_not_finite_is_never_equal() {
    let home = tempfile::tempdir().unwrap();
    let left = run(&home, "a", |_, _| 0.0);
    let right = run(&home, "b", |name, _| if name == "logits" { f32::NAN } else { 0.0 });
    let report = compare(&left, &right, DriftOptions::default()).unwrap().remove(0);
    assert_eq!((report.compared, report.skipped), (10, 2));
    assert_eq!(report.first_beyond, Some(("logits".to_owned(), 3)));
}

#[test]
fn without_a_control_the_dtype_says_what_its_roundings_can_leave() {
    let home = tempfile::tempdir().unwrap();
    let f32 = Some(DType::F32);
    let left = run_of(&home, "a", f32, &[], |_, _| 0.0);
    // 4096 roundings of 2^-24 are 2.4e-4; a change of 0.001 in (3, 4) is 2e-4, of 0.0015 3e-4.
    let near = run_of(&home, "b", f32, &[], |_, _| 0.001);
    let report = compare(&left, &near, DriftOptions::default()).unwrap().remove(0);
    assert_eq!(report.verdict, Verdict::WithinNoise);
    assert!(report.summary.contains("no control was given"), "{}", report.summary);
    let far = run_of(&home, "c", f32, &[], |name, _| if name == "logits" { 0.0015 } else { 0.0 });
    let report = compare(&left, &far, DriftOptions::default()).unwrap().remove(0);
    assert_eq!(report.verdict, Verdict::Diverged);
    assert_eq!(report.first_beyond, Some(("logits".to_owned(), 3)));
    let half = run_of(&home, "d", Some(DType::Bf16), &[], |_, _| 0.0015);
    let report = compare(&left, &half, DriftOptions::default()).unwrap().remove(0);
    assert_eq!(report.verdict, Verdict::WithinNoise);
}

#[test]
fn a_stage_that_one_side_dropped_is_named_and_never_equal() {
    let home = tempfile::tempdir().unwrap();
    let left = run(&home, "a", |_, _| 0.0);
    let right = run_of(&home, "b", None, &["hidden.layer00.q_rope"], |_, _| 0.0);
    for (l, r) in [(&left, &right), (&right, &left)] {
        let report = compare(l, r, DriftOptions::default()).unwrap().remove(0);
        assert_eq!((report.compared, report.skipped), (10, 2));
        assert_eq!(report.verdict.exit_code(), 4);
        assert!(report.summary.contains("`layer00.q_rope`"), "{}", report.summary);
        assert!(report.summary.contains("position 3"), "{}", report.summary);
    }
    let report = compare(&right, &right, DriftOptions::default()).unwrap().remove(0);
    assert_eq!((report.verdict, report.skipped), (Verdict::Identical, 0));
}

#[test]
fn runs_without_common_dumps_give_no_report() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("none");
    let manifest = Manifest::new(Producer::default(), "cpu");
    RunWriter::create(&dir, manifest, RecordPlan::default()).unwrap().finish().unwrap();
    let (left, right) = (run(&home, "a", |_, _| 0.0), RunReader::open(&dir).unwrap());
    assert!(compare(&left, &right, DriftOptions::default()).unwrap().is_empty());
}
