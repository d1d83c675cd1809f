//! Planted faults of the harness that a comparison alone can name, and the clean pair beside them.

use lockstep_traces::{Cause, DType};

use crate::testing::{Trace, dense};
use crate::{Options, compare};

fn named(left: &mut Trace, right: &mut Trace) -> Vec<Option<Cause>> {
    let report = compare(&left.side(), &right.side(), Options::default());
    report.findings.iter().map(|finding| finding.cause).collect()
}

#[test]
fn clean_pairs_name_nothing() {
    assert_eq!(named(&mut dense(6, 30), &mut dense(6, 30)), []);
}

#[test]
fn a_constant_row_offset_equal_to_the_prompt_is_the_prompt_fed_twice() {
    let mut twice = dense(6, 30);
    for row in &mut twice.rows {
        row.rows_before += 6;
        row.rows_after += 6;
    }
    assert_eq!(named(&mut dense(6, 30), &mut twice), [Some(Cause::PromptFedTwice)]);
}

#[test]
fn another_constant_offset_is_given_as_a_number_without_a_name() {
    let mut off = dense(6, 30);
    for row in &mut off.rows {
        row.rows_before += 5;
        row.rows_after += 5;
    }
    let report = compare(&dense(6, 30).side(), &off.side(), Options::default());
    assert_eq!(report.findings[0].cause, None);
    assert!(report.findings[0].title.contains("offset 5"), "{}", report.findings[0].title);
    assert_eq!(report.samples[0].alignment.rows_offset, Some(5));
}

#[test]
fn one_row_more_from_the_end_of_the_prompt_is_its_last_row_fed_again() {
    let mut again = dense(6, 30);
    for row in again.rows.iter_mut().filter(|row| row.position >= 6) {
        row.rows_before += 1;
        row.rows_after += 1;
    }
    assert_eq!(named(&mut dense(6, 30), &mut again), [Some(Cause::LastPromptRowFedAgain)]);
}

#[test]
fn tokens_fed_one_row_late_or_early_are_a_shifted_trace() {
    for late in [true, false] {
        let mut shifted = dense(6, 30);
        let tokens: Vec<u32> = shifted.rows.iter().map(|row| row.token_id).collect();
        let last = tokens.len() - 1;
        for (at, row) in shifted.rows.iter_mut().enumerate() {
            let from = if late { at.saturating_sub(1) } else { (at + 1).min(last) };
            row.token_id = tokens[from];
        }
        let causes = named(&mut dense(6, 30), &mut shifted);
        assert_eq!(causes, [Some(Cause::TraceShifted)], "late: {late}");
    }
}

#[test]
fn a_side_that_claims_f32_and_stores_bf16_values_only_is_named() {
    let mut coarse = dense(6, 30).dtype(DType::F32);
    for logit in coarse.rows.iter_mut().flat_map(|row| &mut row.top_logits) {
        *logit = half::bf16::from_f32(*logit).to_f32();
    }
    let mut fine = dense(6, 30).dtype(DType::F32);
    assert_eq!(named(&mut fine, &mut coarse), [Some(Cause::ReferenceDtype)]);
    assert_eq!(named(&mut dense(6, 30).dtype(DType::F32), &mut fine), []);
}
