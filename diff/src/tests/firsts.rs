//! Which row is named, for which of the four firsts, and what it is worth.

use lockstep_traces::{DType, Verdict};

use crate::report::{AlignmentKind, SplitClass};
use crate::testing::{Trace, dense, event, row};
use crate::{Options, compare};

fn solo() -> Trace {
    Trace::new(vec![
        row(5, 0, 101, &[(101, 18.25), (202, 18.125), (7, 12.5)]),
        row(6, 101, 33, &[(33, 20.5), (34, 17.0), (101, 11.0)]),
        row(7, 33, 9, &[(9, 16.0), (33, 15.0), (4, 9.5)]),
    ])
}

fn batched() -> Trace {
    Trace::new(vec![
        row(5, 0, 202, &[(202, 18.25), (101, 18.125), (7, 12.5)]),
        row(6, 202, 71, &[(71, 19.0), (72, 18.0), (3, 12.0)]),
        row(7, 71, 88, &[(88, 21.0), (71, 14.0), (5, 10.0)]),
    ])
}

#[test]
fn a_flip_within_one_bf16_step_is_a_near_tie_and_later_rows_are_dependent() {
    let report = compare(&solo().side(), &batched().side(), Options::default());
    assert_eq!((report.ulp_dtype.as_str(), report.ulp_source.as_str()), ("bf16", "values"));
    let sample = &report.samples[0];
    assert!(sample.splits.structural.is_none());
    let logit = sample.splits.logit.as_ref().unwrap();
    assert_eq!((logit.position, logit.max_abs_diff), (5, Some(0.125)));
    for split in [&sample.splits.argmax, &sample.splits.token] {
        let split = split.as_ref().unwrap();
        assert_eq!((split.position, split.fed_at, split.class), (5, 6, SplitClass::NearTie));
        assert!(split.near_tie);
        assert_eq!(split.margin_ulps, Some(1.0));
        let (left, right) = (split.left.as_ref().unwrap(), split.right.as_ref().unwrap());
        assert_eq!((left.chosen, right.chosen), (Some(101), Some(202)));
        assert_eq!((left.margin, right.margin), (Some(0.125), Some(0.125)));
    }
    assert_eq!(
        (sample.rows_compared, sample.rows_dependent, sample.dependent_from),
        (1, 2, Some(6))
    );
    assert_eq!(sample.stats.max_diff.as_ref().map(|max| max.abs), Some(0.125));
    assert!(sample.series.points[1].dependent && sample.series.points[1].max_diff.is_none());
    assert_eq!(report.verdict, Verdict::Diverged);
    assert_eq!(report.splits.token.as_ref().unwrap().fed_at, 6);
}

#[test]
fn in_f32_the_same_margin_is_no_near_tie() {
    let (mut left, mut right) = (solo().dtype(DType::F32), batched().dtype(DType::F32));
    let report = compare(&left.side(), &right.side(), Options::default());
    let split = report.samples[0].splits.argmax.as_ref().unwrap();
    assert_eq!(split.class, SplitClass::Clear);
    // 0.125 / 2^-19, the f32 step in [16, 32).
    assert_eq!(split.margin_ulps, Some(65_536.0));
}

#[test]
fn equal_values_in_another_order_are_a_tie_and_no_split() {
    let mut first = Trace::new(vec![
        row(4, 1, 5, &[(5, 21.375), (7, 21.375), (1, 3.0)]),
        row(5, 5, 9, &[(9, 10.0), (2, 9.0), (5, 1.0)]),
    ]);
    let mut last = Trace::new(vec![
        row(4, 1, 7, &[(7, 21.375), (5, 21.375), (1, 3.0)]),
        row(5, 7, 11, &[(11, 12.0), (9, 8.0), (7, 1.0)]),
    ]);
    for argmax in [5, 7] {
        last.rows[0].argmax = argmax;
        let report = compare(&first.side(), &last.side(), Options::default());
        let sample = &report.samples[0];
        assert!(sample.splits.logit.is_none() && sample.splits.argmax.is_none());
        assert!(sample.splits.token.is_none());
        let parting = sample.tie_parting.as_ref().unwrap();
        assert_eq!((parting.position, parting.fed_at, parting.class), (4, 5, SplitClass::Tie));
        assert_eq!(sample.stats.max_diff.as_ref().map(|max| max.abs), Some(0.0));
        assert_eq!((sample.rows_compared, sample.rows_dependent), (1, 1));
        assert_eq!(sample.ties.entries[0].left_ids, [5, 7]);
        assert_eq!(report.verdict, Verdict::Tie);
    }
}

#[test]
fn a_drawn_token_is_never_a_tie_and_both_draws_are_shown() {
    let mut left = Trace::new(vec![row(4, 1, 5, &[(5, 2.0), (7, 2.0), (1, 1.0)])]);
    let mut right = Trace::new(vec![row(4, 1, 7, &[(5, 2.0), (7, 2.0), (1, 1.0)])]);
    for (trace, uniform) in [(&mut left, 0.25), (&mut right, 0.75)] {
        trace.manifest.set("sampling.temperature", 0.6, "flag");
        trace.rows[0].uniform = Some(uniform);
    }
    let report = compare(&left.side(), &right.side(), Options::default());
    let split = report.samples[0].splits.token.as_ref().unwrap();
    assert_eq!(split.class, SplitClass::NearTie);
    assert_eq!(split.left.as_ref().unwrap().uniform, Some(0.25));
    assert!(split.note.contains("0.25") && split.note.contains("0.75"), "{}", split.note);
}

fn evicting(before: bool) -> (Trace, Trace) {
    let make = |position: u32, logits: [f32; 3]| {
        row(
            position,
            40 + position,
            41 + position,
            &[(41 + position, logits[0]), (3, logits[1]), (8, logits[2])],
        )
    };
    let dense = Trace::new((12..20).map(|at| make(at, [15.0, 11.0, 9.0])).collect());
    let mut rows: Vec<_> = (12..15).map(|at| make(at, [15.0, 11.0, 9.0])).collect();
    for at in 15..20_u32 {
        let logits = match at {
            15 if before => [16.5, 9.5, 9.0],
            15 => [15.0, 11.0, 9.0],
            _ => [15.031_25, 10.968_75, 9.0],
        };
        let mut row = make(at, logits);
        row.rows_before = if at == 15 && !before { 15 } else { at - 8 };
        row.rows_after = at - 7;
        rows.push(row);
    }
    (dense, Trace::new(rows))
}

#[test]
fn loss_one_row_after_the_rows_changed_is_what_eviction_looks_like() {
    let (mut dense, mut evicted) = evicting(false);
    let report = compare(&dense.side(), &evicted.side(), Options::default());
    let splits = &report.samples[0].splits;
    let structural = splits.structural.as_ref().unwrap();
    assert_eq!(structural.position, 15);
    assert!(structural.note.contains("rows after 16 against 8"), "{}", structural.note);
    let logit = splits.logit.as_ref().unwrap();
    assert_eq!((logit.position, logit.max_abs_diff), (16, Some(0.031_25)));
    assert!(logit.note.contains("what lossy eviction looks like"), "{}", logit.note);
    assert!(splits.argmax.is_none() && splits.token.is_none());
    assert_eq!(report.verdict, Verdict::Diverged);
}

#[test]
fn loss_at_the_very_row_whose_rows_before_are_cut_is_said_to_be_another_thing() {
    let (mut dense, mut evicted) = evicting(true);
    let report = compare(&dense.side(), &evicted.side(), Options::default());
    let splits = &report.samples[0].splits;
    let structural = splits.structural.as_ref().unwrap();
    assert_eq!(structural.position, 15);
    assert!(structural.note.contains("rows before 15 against 7"), "{}", structural.note);
    let logit = splits.logit.as_ref().unwrap();
    assert_eq!((logit.position, logit.max_abs_diff), (15, Some(1.5)));
    assert!(logit.note.contains("its query saw the other cache"), "{}", logit.note);
}

#[test]
fn other_policies_make_the_structural_split_expected_and_it_is_still_reported() {
    let (mut dense, mut evicted) = evicting(false);
    dense.manifest.set("policy.kind", "dense", "flag");
    evicted.manifest.set("policy.kind", "triattention", "flag");
    evicted.manifest.set("policy.rule_set", "trt", "default");
    let report = compare(&dense.side(), &evicted.side(), Options::default());
    let structural = report.samples[0].splits.structural.as_ref().unwrap();
    assert_eq!((structural.position, structural.class), (15, SplitClass::Policy));
    assert!(
        structural.note.starts_with("expected: policies differ (dense against triattention (trt))")
    );
    assert_eq!(report.inputs.policy_equal, Some(false));
}

#[test]
fn left_padding_is_aligned_by_step_with_its_offset_said() {
    let mut alone = Trace::new(vec![
        row(2, 0, 30, &[(30, 8.5), (31, 6.0)]),
        row(3, 30, 40, &[(40, 8.0), (30, 6.0)]),
    ]);
    let mut padded = Trace::new(vec![
        row(5, 0, 31, &[(31, 7.5), (30, 7.25)]),
        row(6, 31, 32, &[(32, 8.0), (30, 6.0)]),
    ]);
    let report = compare(&alone.side(), &padded.side(), Options::default());
    let sample = &report.samples[0];
    assert_eq!((sample.alignment.by, sample.alignment.offset), (AlignmentKind::Step, 3));
    for split in [
        &sample.splits.structural,
        &sample.splits.logit,
        &sample.splits.argmax,
        &sample.splits.token,
    ] {
        assert_eq!(split.as_ref().unwrap().position, 2);
    }
    assert_eq!(sample.splits.token.as_ref().unwrap().right.as_ref().unwrap().position, 5);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn prompt_rows_on_one_side_only_are_a_remark_and_the_rest_is_compared() {
    let (mut whole, mut tail) = (dense(6, 10).hashed(), dense(6, 10).hashed());
    tail.rows.drain(..6);
    let report = compare(&whole.side(), &tail.side(), Options::default());
    let sample = &report.samples[0];
    assert_eq!((sample.rows_compared, sample.rows_left_only), (10, 6));
    assert!(sample.splits.structural.is_none());
    assert!(
        sample.remarks[0].contains("positions 0 to 5 are on the left only"),
        "{:?}",
        sample.remarks
    );
    assert_eq!(report.verdict, Verdict::Identical);
}

#[test]
fn a_row_missing_in_the_middle_is_structural() {
    let (mut whole, mut holed) = (dense(4, 10), dense(4, 10));
    holed.rows.remove(9);
    let report = compare(&whole.side(), &holed.side(), Options::default());
    let split = report.samples[0].splits.structural.as_ref().unwrap();
    assert_eq!(split.position, 9);
    assert!(split.right.is_none() && split.left.is_some());
    assert_eq!(report.verdict, Verdict::Diverged);
}

#[test]
fn another_round_start_in_the_event_table_is_structural_though_the_rows_agree() {
    let (mut left, mut right) = (dense(4, 20), dense(4, 20));
    left.events = vec![event(1, 12, 12, 8), event(2, 16, 12, 8)];
    right.events = left.events.clone();
    right.events[1].round_start = Some(12);
    let report = compare(&left.side(), &right.side(), Options::default());
    let split = report.samples[0].splits.structural.as_ref().unwrap();
    assert_eq!(split.position, 15);
    assert!(split.note.contains("round start 16 against 12"), "{}", split.note);
}

#[test]
fn bucketed_rows_are_compared_as_buckets_only() {
    let (mut exact, mut bucketed) = (dense(4, 40), dense(4, 40));
    bucketed.manifest.rows_exact = false;
    for row in &mut bucketed.rows {
        row.rows_before = row.rows_before.max(1).div_ceil(32) * 32;
        row.rows_after = row.rows_after.div_ceil(32) * 32;
        row.rows_bucketed = Some(row.rows_before);
    }
    let report = compare(&exact.side(), &bucketed.side(), Options::default());
    assert!(report.samples[0].splits.structural.is_none());
    bucketed.rows[40].rows_after = 32;
    let report = compare(&exact.side(), &bucketed.side(), Options::default());
    assert_eq!(report.samples[0].splits.structural.as_ref().unwrap().position, 40);
    assert!(report.limits.iter().any(|limit| limit.contains("rounded up to 32")));
}

#[test]
fn a_recorded_choice_parts_though_the_tokens_fed_agree() {
    use lockstep_traces::FinishReason;
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    for trace in [&mut left, &mut right] {
        trace.samples[0].finish = FinishReason::Forced;
    }
    let clean = compare(&left.side(), &right.side(), Options::default());
    assert!(clean.samples[0].splits.token.is_none());
    assert_eq!(clean.verdict, Verdict::Identical);
    right.rows[12].next_token = Some(3);
    let report = compare(&left.side(), &right.side(), Options::default());
    let split = report.samples[0].splits.token.as_ref().unwrap();
    let chosen = [&split.left, &split.right].map(|view| view.as_ref().unwrap().chosen);
    assert_eq!((split.position, chosen), (12, [Some(112), Some(3)]));
    assert_eq!(report.verdict, Verdict::Diverged);
    assert!(report.findings.is_empty(), "a teacher's tokens need not be the rows' choices");
    for trace in [&mut left, &mut right] {
        trace.manifest.set("sampling.temperature", 0.6, "flag");
    }
    let report = compare(&left.side(), &right.side(), Options::default());
    assert!(report.samples[0].splits.token.is_none(), "a teacher's sample draws from no stream");
}

#[test]
fn a_row_that_chose_another_token_than_was_fed_next_contradicts_its_trace() {
    let mut wrong = dense(5, 30);
    wrong.rows[12].next_token = Some(3);
    let report = compare(&wrong.clone().side(), &wrong.side(), Options::default());
    assert_eq!(report.verdict.exit_code(), 4);
    assert_eq!(report.findings.len(), 2);
    let report = compare(&dense(5, 30).side(), &wrong.side(), Options::default());
    assert_eq!(report.verdict, Verdict::Diverged);
    assert_eq!((report.findings.len(), report.findings[0].cause), (1, None));
    assert_eq!(report.findings[0].location.position, Some(12));
    assert!(report.findings[0].title.contains("right side chose another token"));
    assert_eq!(report.samples[0].splits.token.as_ref().unwrap().position, 12);
}
