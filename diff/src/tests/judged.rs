//! Verdicts: what equality, noise, six digits and missing rows come to.

use lockstep_traces::manifest::ValueEncoding;
use lockstep_traces::{DType, Status, Verdict};

use crate::report::SplitClass;
use crate::testing::{Trace, dense, row, sample};
use crate::{Options, Tolerance, compare};

#[test]
fn equal_hashes_over_all_rows_are_identical() {
    let (mut left, mut right) = (dense(5, 30).hashed(), dense(5, 30).hashed());
    let report = compare(&left.side(), &right.side(), Options::default());
    assert_eq!(report.verdict, Verdict::Identical);
    let stats = &report.samples[0].stats;
    assert_eq!((stats.rows_by_hash, stats.rows_equal, stats.same_top), (35, 35, Some(1.0)));
    assert!(report.proves.contains("bit equality can be proved"));
    assert!(report.findings.is_empty());
}

#[test]
fn a_difference_outside_the_stored_values_is_seen_by_the_hash_alone() {
    let (mut left, mut right) = (dense(5, 30).hashed(), dense(5, 30).hashed());
    right.rows[20].logits_hash = Some([1, 2]);
    let report = compare(&left.side(), &right.side(), Options::default());
    let split = report.samples[0].splits.logit.as_ref().unwrap();
    assert_eq!(split.position, 20);
    assert!(split.note.contains("outside the values stored"), "{}", split.note);
    assert_eq!(report.verdict, Verdict::Diverged);
}

#[test]
fn hashes_of_other_seeds_are_not_compared() {
    let (mut left, mut right) = (dense(5, 30).hashed(), dense(5, 30).hashed());
    right.manifest.logits_hash_seeds = Some([7, 8]);
    right.rows[20].logits_hash = Some([1, 2]);
    let report = compare(&left.side(), &right.side(), Options::default());
    assert_eq!(report.samples[0].stats.rows_by_hash, 0);
    assert_eq!(report.verdict, Verdict::Identical);
    assert!(report.limits.iter().any(|limit| limit.contains("no common hash")));
}

#[test]
fn equal_hashes_with_other_values_are_a_contradiction_and_not_equality() {
    let (mut left, mut right) = (dense(5, 30).hashed(), dense(5, 30).hashed());
    right.rows[12].top_logits[1] += 0.5;
    let report = compare(&left.side(), &right.side(), Options::default());
    assert_eq!(report.samples[0].splits.logit.as_ref().unwrap().position, 12);
    assert!(report.findings[0].title.contains("contradicts itself"), "{:?}", report.findings);
}

#[test]
fn six_digits_are_never_called_identical_and_never_a_tie() {
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    for trace in [&mut left, &mut right] {
        trace.manifest.encoding = ValueEncoding::Digits6;
    }
    let report = compare(&left.side(), &right.side(), Options::default());
    assert_eq!(report.verdict, Verdict::WithinNoise);
    assert!(report.summary.contains("equal to six digits"), "{}", report.summary);
    for (trace, next) in [(&mut left, 5), (&mut right, 7)] {
        trace.rows = vec![row(4, 1, next, &[(5, 21.375), (7, 21.375)])];
        trace.rows[0].argmax = next;
    }
    let report = compare(&left.side(), &right.side(), Options::default());
    assert_eq!(report.samples[0].splits.argmax.as_ref().unwrap().class, SplitClass::NearTie);
}

#[test]
fn a_side_of_six_digits_is_compared_after_rounding_the_other() {
    let mut exact = Trace::new(vec![row(0, 1, 2, &[(2, 27.531_25), (3, 20.906_25)])]);
    let mut printed = Trace::new(vec![row(0, 1, 2, &[(2, 27.5312), (3, 20.9062)])]);
    printed.manifest.encoding = ValueEncoding::Digits6;
    let report = compare(&exact.side(), &printed.side(), Options::default());
    assert!(report.samples[0].splits.logit.is_none());
    printed.rows[0].top_logits[0] = 27.5313;
    let report = compare(&exact.side(), &printed.side(), Options::default());
    assert_eq!(report.samples[0].splits.logit.as_ref().unwrap().position, 0);
}

#[test]
fn rows_without_a_finite_logit_are_non_finite_and_neither_zero_nor_equal() {
    let nan = f32::NAN;
    let broken = |at| row(at, 0, 0, &[(0, nan), (1, nan), (2, nan)]);
    let mut bad = Trace::new((4..8).map(broken).collect());
    let tokens = [17, 23, 5, 90];
    let mut good = Trace::new(
        (4..8)
            .zip(tokens)
            .scan(0, |fed, (at, token)| {
                let row = row(at, *fed, token, &[(token, 12.0), (1, 8.0), (2, 7.5)]);
                *fed = token;
                Some(row)
            })
            .collect(),
    );
    let report = compare(&good.side(), &bad.side(), Options::default());
    let one = &report.samples[0];
    assert_eq!(one.splits.logit.as_ref().unwrap().class, SplitClass::NonFinite);
    assert_eq!(one.splits.logit.as_ref().unwrap().position, 4);
    assert!(one.splits.argmax.is_none());
    assert_eq!(one.splits.token.as_ref().unwrap().class, SplitClass::NonFinite);
    assert!(one.stats.max_diff.is_none());
    assert_eq!(one.non_finite.first, Some(4));
    assert!(one.non_finite.hint.as_ref().unwrap().contains("65504"));
    assert_eq!(report.verdict, Verdict::Diverged);
    let report = compare(&bad.clone().side(), &bad.side(), Options::default());
    assert_eq!(
        (report.samples[0].non_finite.both, report.samples[0].non_finite.no_finite_logit),
        (4, 4)
    );
    assert_eq!(report.verdict.exit_code(), 4);
}

#[test]
fn infinities_in_the_same_place_are_equal_where_the_hash_agrees() {
    let make =
        || Trace::new(vec![row(0, 1, 2, &[(2, 5.0), (3, 1.0), (4, f32::NEG_INFINITY)])]).hashed();
    let report = compare(&make().side(), &make().side(), Options::default());
    assert_eq!(report.verdict, Verdict::Identical);
    assert_eq!(report.samples[0].non_finite.both, 1);
}

#[test]
fn nothing_in_common_is_incomparable() {
    let report = compare(&Trace::new(Vec::new()).side(), &dense(2, 2).side(), Options::default());
    assert_eq!(report.verdict.exit_code(), 4);
    assert_eq!(report.missing_left, ["s"]);
    let (mut one, mut other) = (dense(2, 4), dense(2, 4));
    other.rows[0].token_id = 7;
    let report = compare(&one.side(), &other.side(), Options::default());
    assert_eq!(report.samples[0].prompt_differs_at, Some(0));
    assert_eq!(report.verdict.exit_code(), 4);
}

#[test]
fn an_incomplete_side_is_not_equal_to_a_whole_one() {
    let (mut whole, mut cut) = (dense(4, 20).hashed(), dense(4, 20).hashed());
    cut.rows.truncate(15);
    cut.manifest.status = Status::Incomplete;
    let report = compare(&whole.side(), &cut.side(), Options::default());
    assert_eq!(report.verdict.exit_code(), 4);
    assert!(report.summary.contains("incomplete"), "{}", report.summary);
    cut.manifest.status = Status::Complete;
    let report = compare(&whole.side(), &cut.side(), Options::default());
    assert_eq!(report.samples[0].splits.structural.as_ref().unwrap().position, 15);
    assert_eq!(report.verdict, Verdict::Diverged);
}

#[test]
fn a_last_token_fed_on_one_side_only_is_a_remark() {
    let (mut left, mut right) = (dense(4, 20).hashed(), dense(4, 20).hashed());
    right.rows.pop();
    let report = compare(&left.side(), &right.side(), Options::default());
    assert_eq!(report.verdict, Verdict::Identical);
    assert!(report.samples[0].remarks[0].contains("fed its last token"));
}

#[test]
fn argmax_at_prompt_rows_chooses_nothing_and_is_a_remark() {
    let (mut left, mut right) = (dense(8, 4), dense(8, 4));
    right.rows[3].top_logits = vec![11.0, 15.0, 9.1];
    right.rows[3].argmax = 3;
    let report = compare(&left.side(), &right.side(), Options::default());
    let one = &report.samples[0];
    assert!(one.splits.argmax.is_none());
    assert_eq!(one.splits.logit.as_ref().unwrap().position, 3);
    assert!(one.remarks.iter().any(|remark| remark.contains("1 prompt rows, first at position 3")));
    let says =
        "argmax differs at 1 prompt rows, first 3, which choose no token; chosen tokens agree";
    assert!(one.summary.contains(says), "{}", one.summary);
}

fn shifted(by: impl Fn(usize) -> f32) -> Trace {
    let mut trace = dense(4, 40).dtype(DType::F32);
    for (at, row) in trace.rows.iter_mut().enumerate() {
        row.top_logits[0] += by(at);
        row.top_logits[1] -= by(at) / 2.0;
    }
    trace
}

#[test]
fn the_same_error_is_noise_beside_a_control_and_a_difference_without_one() {
    let (mut truth, mut control) =
        (shifted(|_| 0.0), shifted(|at| if at % 2 == 0 { 2e-5 } else { -2e-5 }));
    let mut baseline = shifted(|_| 0.0);
    let mut target = shifted(|at| if at % 3 == 0 { 3e-5 } else { -1e-5 });
    let (truth, control) = (truth.side(), control.side());
    let options = Options { control: Some((&truth, &control)), ..Options::default() };
    let report = compare(&baseline.side(), &target.side(), options);
    assert_eq!(report.verdict, Verdict::WithinNoise, "{}", report.summary);
    let noise = report.noise.as_ref().unwrap();
    assert_eq!((noise.rows, noise.values), (44, 132));
    let report = compare(&baseline.side(), &target.side(), Options::default());
    assert_eq!(report.verdict, Verdict::Diverged);
    assert!(report.summary.contains("noise is not judged"));
    let mut far = shifted(|at| if at == 30 { 0.01 } else { 1e-5 });
    let report = compare(&baseline.side(), &far.side(), options);
    assert_eq!(report.verdict, Verdict::Diverged);
    assert_eq!(report.noise.as_ref().unwrap().first_beyond, Some(30));
}

#[test]
fn a_control_too_coarse_for_its_claimed_dtype_leaves_the_question_open() {
    let (mut truth, mut control) =
        (shifted(|_| 0.0), shifted(|at| if at % 2 == 0 { 0.2 } else { -0.1 }));
    let (mut baseline, mut target) = (shifted(|_| 0.0), shifted(|_| 0.05));
    let (truth, control) = (truth.side(), control.side());
    let options = Options { control: Some((&truth, &control)), ..Options::default() };
    let report = compare(&baseline.side(), &target.side(), options);
    assert_eq!(report.verdict.exit_code(), 4);
    assert!(report.summary.contains("does not compute in the dtype"), "{}", report.summary);
}

#[test]
fn a_fixed_tolerance_is_printed_with_its_reason() {
    let tolerance = Tolerance { relative_l2: 1e-4, reason: "known from the model card".to_owned() };
    let options = Options { tolerance: Some(&tolerance), ..Options::default() };
    let report = compare(&shifted(|_| 0.0).side(), &shifted(|_| 1e-5).side(), options);
    assert_eq!(report.verdict, Verdict::WithinNoise);
    assert!(report.summary.contains("known from the model card"));
    let report = compare(&shifted(|_| 0.0).side(), &shifted(|_| 0.1).side(), options);
    assert_eq!(report.verdict, Verdict::Diverged);
}

#[test]
fn answers_are_paired_by_sample() {
    let (mut left, mut right) = (dense(3, 3), dense(3, 3));
    for (trace, answer) in [(&mut left, "62"), (&mut right, "61")] {
        trace.samples = vec![sample(3)];
        trace.samples[0].gold = Some("62".to_owned());
        trace.samples[0].answer = Some(answer.to_owned());
    }
    let pairing = compare(&left.side(), &right.side(), Options::default()).pairing.unwrap();
    assert_eq!((pairing.n, pairing.left_only, pairing.right_only), (1, 1, 0));
    assert_eq!((pairing.p_value, pairing.smallest_effect), (1.0, None));
    left.samples[0].answer = Some("061".to_owned());
    for trace in [&mut left, &mut right] {
        trace.samples[0].gold = Some("61".to_owned());
    }
    let pairing = compare(&left.side(), &right.side(), Options::default()).pairing.unwrap();
    assert_eq!((pairing.both, pairing.neither), (1, 0));
}

#[test]
fn the_answer_reads_back_from_json() {
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    right.rows[20].top_logits[0] = f32::NAN;
    let report = compare(&left.side(), &right.side(), Options::default());
    let text = serde_json::to_string(&report).unwrap();
    let back: crate::DiffReport = serde_json::from_str(&text).unwrap();
    assert_eq!(back, report);
}

/// Three values a row; errors of the row at index `at`.
fn with_errors(errors: impl Fn(usize) -> [f32; 3]) -> Trace {
    let mut trace = dense(4, 40).dtype(DType::F32);
    for (at, row) in trace.rows.iter_mut().enumerate() {
        for (logit, error) in row.top_logits.iter_mut().zip(errors(at)) {
            *logit += error;
        }
    }
    trace
}

#[test]
fn one_row_far_beyond_every_row_of_the_control_is_beyond_noise() {
    let (mut truth, mut control) =
        (with_errors(|_| [0.0; 3]), with_errors(|_| [1.0 / 4096.0, 0.0, 0.0]));
    let mut judged = |size: f32| {
        let row = [size / 4096.0; 3];
        let mut target = with_errors(|at| if at == 30 { row } else { [0.0; 3] });
        crate::noise::judge(&target.side(), &control.side(), &truth.side())
    };
    // The row's mean error is sqrt(3) times `size`: 8 are allowed, and 5 for the largest value.
    let clean = judged(4.5);
    assert_eq!(clean.verdict, Verdict::WithinNoise, "{}", clean.summary);
    let far = judged(4.75);
    assert_eq!(far.verdict, Verdict::Diverged, "{}", far.summary);
    assert!(far.summary.contains("row_rmse at position 30"), "{}", far.summary);
    let metric = far.metrics.iter().find(|metric| metric.name == "row_rmse").unwrap();
    assert!((metric.ratio.unwrap() - 4.75 * 3f64.sqrt()).abs() < 0.02, "{metric:?}");
    assert!(metric.reason.contains("position 30"));
    assert!(far.metrics.iter().filter(|metric| !metric.within).count() == 1);
}

#[test]
fn a_target_that_is_not_finite_where_the_truth_is_diverges() {
    let mut control = with_errors(|_| [1.0 / 4096.0, 0.0, 0.0]);
    let (mut truth, mut target) = (with_errors(|_| [0.0; 3]), with_errors(|_| [0.0; 3]));
    let broken = |trace: &mut Trace| trace.rows[9].top_logits[1] = f32::NAN;
    broken(&mut target);
    let noise = crate::noise::judge(&target.side(), &control.side(), &truth.side());
    assert_eq!(noise.verdict, Verdict::Diverged);
    assert!(noise.summary.contains("first at position 9"), "{}", noise.summary);
    broken(&mut truth);
    let noise = crate::noise::judge(&target.side(), &control.side(), &truth.side());
    assert_eq!((noise.verdict, noise.rows), (Verdict::WithinNoise, 43));
}
