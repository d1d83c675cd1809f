//! What a source could not say is not available: a planted difference beside it is found, and a clean twin never counts as more than it is.

use lockstep_traces::limits::{TokenIds, Values};
use lockstep_traces::manifest::ValueEncoding;
use lockstep_traces::{TokenTexts, UNKNOWN_TOKEN, Verdict};

use crate::lists::ListFaultKind;
use crate::numbering::Numbering;
use crate::testing::{Trace, dense, row};
use crate::{DiffReport, Options, compare};

fn compared(left: &mut Trace, right: &mut Trace) -> DiffReport {
    compare(&left.side(), &right.side(), Options::default())
}

fn says(report: &DiffReport, what: &str) -> bool {
    report.limits.iter().any(|limit| limit.contains(what))
}

fn logit_split(report: &DiffReport) -> Option<u32> {
    report.samples[0].splits.logit.as_ref().map(|split| split.position)
}

#[test]
fn rows_that_a_source_does_not_count_are_neither_equal_nor_different() {
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    right.manifest.limits.rows = false;
    // The left was compressed; the right's placeholders say nothing of it.
    for row in left.rows.iter_mut().skip(20) {
        row.rows_before -= 8;
        row.rows_after -= 8;
    }
    let report = compared(&mut left, &mut right);
    assert!(report.samples[0].splits.structural.is_none());
    assert!(report.samples[0].alignment.rows_offset.is_none() && report.findings.is_empty());
    assert_eq!(report.verdict, Verdict::WithinNoise);
    assert!(report.summary.contains("rows not available on the right"), "{}", report.summary);
    assert!(says(&report, "rows: not available on the right"));
    assert_eq!(report.available.rows, "not available on the right");
    let point = &report.samples[0].series.points[25];
    assert_eq!((point.left_rows, point.right_rows), (Some(18), None));
    left.manifest.limits.rows = false;
    let report = compared(&mut left, &mut right);
    assert!(says(&report, "rows: not available on the left and right"));
    right.rows[12].next_token = Some(3);
    right.rows[13].token_id = 3;
    let report = compared(&mut left, &mut right);
    assert_eq!(report.verdict, Verdict::Diverged);
    assert_eq!(report.samples[0].splits.token.as_ref().unwrap().position, 12);
}

/// The right side's list as log-probabilities over exactly the listed ids, computed here in f64.
fn as_logprobs(trace: &mut Trace, values: Values) {
    trace.manifest.limits.values = values;
    for row in &mut trace.rows {
        let sum: f64 = row.top_logits.iter().map(|value| f64::from(*value).exp()).sum::<f64>().ln();
        for value in &mut row.top_logits {
            *value = (f64::from(*value) - sum) as f32;
        }
        row.logsumexp = Some(0.0);
    }
}

fn with_sums(trace: &mut Trace) {
    for row in &mut trace.rows {
        let sum: f64 = row.top_logits.iter().map(|value| f64::from(*value).exp()).sum();
        row.logsumexp = Some(sum.ln());
    }
}

#[test]
fn logits_and_log_probabilities_are_compared_after_normalising() {
    for sums in [true, false] {
        let (mut left, mut right) = (dense(5, 30), dense(5, 30));
        if sums {
            with_sums(&mut left);
        }
        as_logprobs(&mut right, Values::Logprobs);
        let report = compared(&mut left, &mut right);
        assert_eq!(report.verdict, Verdict::WithinNoise, "{}", report.summary);
        assert!(report.summary.contains("35 of 35 rows agree"), "{}", report.summary);
        assert!(says(&report, "compared as log-probabilities: the logits of the left"));
        right.rows[17].top_logits[1] += 0.001;
        let report = compared(&mut left, &mut right);
        assert_eq!((logit_split(&report), report.verdict.exit_code()), (Some(17), 1));
        let max = report.samples[0].stats.max_diff.as_ref().unwrap();
        assert!((max.abs - 0.001).abs() < 1e-5, "{max:?}");
    }
}

#[test]
fn a_shift_of_a_whole_row_is_seen_where_the_sum_is_known() {
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    with_sums(&mut left);
    as_logprobs(&mut right, Values::Logprobs);
    for value in &mut right.rows[9].top_logits {
        *value -= 0.01;
    }
    assert_eq!(logit_split(&compared(&mut left, &mut right)), Some(9));
}

#[test]
fn values_after_temperature_are_compared_by_rank_only() {
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    right.manifest.limits.values = Values::ProcessedLogprobs;
    for value in right.rows.iter_mut().flat_map(|row| &mut row.top_logits) {
        *value = *value / 0.6 - 30.0;
    }
    let report = compared(&mut left, &mut right);
    assert_eq!(report.verdict, Verdict::WithinNoise, "{}", report.summary);
    assert!(report.summary.contains("tokens and ranks of 35 rows agree"), "{}", report.summary);
    assert!(report.summary.contains("values not available on the right"), "{}", report.summary);
    assert!(says(&report, "a temperature keeps them"));
    assert!(report.samples[0].stats.max_diff.is_none() && report.samples[0].stats.kl.is_none());
    // A filter cut the lists, which says nothing against their order.
    let mut cut = right.clone();
    cut.rows.iter_mut().for_each(|row| {
        row.top_ids.truncate(2);
        row.top_logits.truncate(2);
    });
    assert_eq!(compared(&mut left, &mut cut).verdict, Verdict::WithinNoise);
    right.rows[21].top_ids.swap(1, 2);
    let report = compared(&mut left, &mut right);
    assert_eq!((logit_split(&report), report.verdict.exit_code()), (Some(21), 1));
    let note = &report.samples[0].splits.logit.as_ref().unwrap().note;
    assert!(note.contains("rank 2 is id 3 against id 8"), "{note}");
}

#[test]
fn one_factor_between_all_margins_is_said() {
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    as_logprobs(&mut left, Values::Logprobs);
    right.manifest.limits.values = Values::UnsaidLogprobs;
    for row in &mut right.rows {
        row.top_logits.iter_mut().for_each(|value| *value /= 1.25);
    }
    as_logprobs(&mut right, Values::UnsaidLogprobs);
    let report = compared(&mut left, &mut right);
    assert_eq!(report.verdict, Verdict::Diverged);
    let titles: Vec<&String> = report.findings.iter().map(|finding| &finding.title).collect();
    assert!(
        titles.iter().any(|title| title.contains("0.80000 times")
            && title.contains("temperature of 1.25000 on the right")),
        "{titles:?}"
    );
    // One row with another factor: no temperature explains it.
    right.rows[11].top_logits[2] -= 0.5;
    assert!(compared(&mut left, &mut right).findings.is_empty());
    let mut twin = left.clone();
    twin.manifest.limits.values = Values::UnsaidLogprobs;
    let report = compared(&mut left, &mut twin);
    assert!(report.findings.is_empty());
    assert!(says(&report, "does not say whether its log-probabilities stand before or after"));
}

#[test]
fn a_source_without_values_is_compared_by_its_tokens() {
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    right.manifest.limits.values = Values::Nothing;
    right.rows.iter_mut().for_each(|row| {
        row.top_ids.clear();
        row.top_logits.clear();
    });
    let report = compared(&mut left, &mut right);
    assert_eq!(report.verdict, Verdict::WithinNoise, "{}", report.summary);
    // 30 decode rows choose a token, and so does the last row of the prompt; the very last row's choice is recorded.
    assert!(report.summary.contains("chosen tokens of 31 rows agree"), "{}", report.summary);
    assert!(says(&report, "values: not available on the right"));
    right.rows[20].token_id = 5;
    right.rows[19].next_token = Some(5);
    let report = compared(&mut left, &mut right);
    assert_eq!(report.samples[0].splits.token.as_ref().unwrap().position, 19);
    // Without chosen tokens nothing is left.
    let mut bare = dense(30, 0);
    bare.manifest.limits.values = Values::Nothing;
    bare.rows.iter_mut().for_each(|row| row.next_token = None);
    assert_eq!(compared(&mut bare.clone(), &mut bare).verdict.exit_code(), 4);
}

#[test]
fn printed_decimals_are_equal_within_half_a_digit_of_each_side() {
    let (mut exact, mut printed) = (dense(5, 30), dense(5, 30));
    as_logprobs(&mut exact, Values::Logprobs);
    as_logprobs(&mut printed, Values::Logprobs);
    printed.manifest.encoding = ValueEncoding::Decimals;
    printed.manifest.limits.decimals = Some(3);
    for value in printed.rows.iter_mut().flat_map(|row| &mut row.top_logits) {
        *value = (*value * 1000.0).round() / 1000.0;
    }
    let report = compared(&mut exact, &mut printed);
    assert_eq!(report.verdict, Verdict::WithinNoise, "{}", report.summary);
    assert!(
        report.summary.contains("35 of 35 rows are equal within the precision"),
        "{}",
        report.summary
    );
    printed.rows[8].top_logits[2] += 0.0012;
    assert_eq!(logit_split(&compared(&mut exact, &mut printed)), Some(8));
}

#[test]
fn equal_printed_values_are_never_a_tie() {
    let make = |next| {
        let mut trace = Trace::new(vec![row(4, 1, next, &[(5, -0.7), (7, -0.7)])]);
        trace.rows[0].argmax = next;
        trace.manifest.limits.values = Values::Logprobs;
        trace.manifest.encoding = ValueEncoding::Decimals;
        trace.manifest.limits.decimals = Some(1);
        trace
    };
    let report = compared(&mut make(5), &mut make(7));
    let split = report.samples[0].splits.argmax.as_ref().unwrap();
    assert_eq!(split.class, crate::report::SplitClass::NearTie);
    assert_eq!((report.ties.exact_left, report.ties.near_left), (0, 1));
    // One step is both errors: 0.1.
    assert_eq!(report.verdict, Verdict::Diverged);
}

#[test]
fn codes_are_equal_within_the_error_that_the_manifest_names() {
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    as_logprobs(&mut left, Values::Logprobs);
    as_logprobs(&mut right, Values::Logprobs);
    right.manifest.encoding = ValueEncoding::Codes16;
    right.manifest.limits.value_error = Some(1.0e-4);
    right.rows[8].top_logits[2] += 0.9e-4;
    assert_eq!(compared(&mut left, &mut right).verdict, Verdict::WithinNoise);
    right.rows[8].top_logits[2] += 0.3e-4;
    assert_eq!(logit_split(&compared(&mut left, &mut right)), Some(8));
    right.manifest.limits.value_error = None;
    let report = compared(&mut left, &mut right);
    assert!(says(&report, "values: not available on the right: their precision is not recorded"));
}

#[test]
fn an_unknown_token_is_never_equal_and_never_a_split() {
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    for trace in [&mut left, &mut right] {
        trace.rows[10].token_id = UNKNOWN_TOKEN;
        trace.rows[9].next_token = Some(UNKNOWN_TOKEN);
    }
    right.rows[20].argmax = UNKNOWN_TOKEN;
    let report = compared(&mut left, &mut right);
    let one = &report.samples[0];
    assert!(one.splits.argmax.is_none() && one.splits.token.is_none());
    assert!(one.dependent_from.is_none());
    let line = one.remarks.iter().find(|remark| remark.contains("not known on a side")).unwrap();
    assert!(line.contains("fed token in 1 rows") && line.contains("argmax in 1 rows"), "{line}");
    assert!(compared(&mut dense(5, 30), &mut dense(5, 30)).samples[0].remarks.is_empty());
    right.rows[25].argmax = 3;
    let report = compared(&mut left, &mut right);
    assert_eq!(report.samples[0].splits.argmax.as_ref().unwrap().position, 25);
}

fn texts(words: &[&str]) -> TokenTexts {
    let mut texts = TokenTexts::new();
    words.iter().for_each(|word| {
        texts.number(word, None);
    });
    texts
}

/// Rows that feed and list the ids of these words.
fn words(fed: &[u32]) -> Trace {
    let rows = fed.windows(2).enumerate().map(|(at, pair)| {
        let position = u32::try_from(at).unwrap();
        row(position, pair[0], pair[1], &[(pair[1], -0.1), (9, -2.5)])
    });
    let mut trace = Trace::new(rows.collect());
    trace.manifest.limits.values = Values::Logprobs;
    trace.manifest.limits.token_ids = TokenIds::Invented;
    trace.manifest.limits.rows = false;
    trace
}

#[test]
fn two_runs_of_texts_are_compared_through_one_numbering() {
    let names = ["the", " cat", " sat", ".", "a", "b", "c", "d", "e", "f"];
    let mut other: Vec<&str> = names.to_vec();
    other.swap(0, 3);
    other.swap(1, 2);
    let (left_texts, right_texts) = (texts(&names), texts(&other));
    let (left, right) = (words(&[0, 1, 2, 3]), words(&[3, 2, 1, 0]));
    // Ids alone mean nothing.
    let report = compared(&mut left.clone(), &mut right.clone());
    assert_eq!(report.verdict.exit_code(), 4, "{}", report.summary);
    assert!(says(&report, "tokens: not available on the left and right"));
    let mut numbering = Numbering::of_texts(&left_texts);
    numbering.extend(&right_texts);
    let joined = |trace: &Trace, texts: &TokenTexts| {
        let mut trace = trace.clone();
        let mut steps = lockstep_traces::StepColumns::from_rows(&trace.rows);
        numbering.texts(texts, &mut steps, &mut trace.samples);
        trace.rows = (0..steps.len).filter_map(|at| steps.row(at)).collect();
        trace
    };
    let options = Options { joint_ids: true, ..Options::default() };
    let mut a = joined(&left, &left_texts);
    let report = compare(&a.side(), &joined(&right, &right_texts).side(), options);
    assert_eq!(report.verdict, Verdict::WithinNoise, "{}", report.summary);
    // The third word is another one: same id as on the left, another text.
    let planted = words(&[3, 2, 2, 0]);
    let report = compare(&a.side(), &joined(&planted, &right_texts).side(), options);
    assert_eq!(report.samples[0].splits.token.as_ref().unwrap().position, 1);
}

#[test]
fn a_vocabulary_tells_which_text_an_id_is_and_counts_texts_of_several_ids() {
    // Ids 2 and 3 read alike.
    let vocabulary: [&[u8]; 5] = [b"the", b" cat", b" sat", b" sat", b"."];
    let bytes = |id: u32| vocabulary.get(id as usize).map(|bytes| bytes.to_vec());
    let numbering = Numbering::of_vocabulary(5, &bytes);
    assert_eq!(numbering.ambiguous_texts(), 1);
    let texts = texts(&["the", " cat", " sat", "?"]);
    let rows: Vec<_> = [0, 1, 2, 3].map(|id| row(id, id, id, &[(id, -0.1)])).into();
    let mut steps = lockstep_traces::StepColumns::from_rows(&rows);
    let done = numbering.texts(&texts, &mut steps, &mut []);
    assert_eq!(steps.token_id, [0, 1, 2, UNKNOWN_TOKEN]);
    assert_eq!((done.unknown, done.ambiguous), (1, 1));
    let rows: Vec<_> = [0, 1, 3, 4].map(|id| row(id, id, id, &[(3, -0.1), (2, -0.2)])).into();
    let mut steps = lockstep_traces::StepColumns::from_rows(&rows);
    numbering.ids(&mut steps, &mut []);
    assert_eq!(steps.token_id, [0, 1, 2, 4]);
    assert_eq!(steps.ids_of(0), [2, UNKNOWN_TOKEN]);
}

fn fault(report: &DiffReport) -> Vec<(ListFaultKind, Option<u32>)> {
    report.list_faults.iter().map(|fault| (fault.kind, fault.position)).collect()
}

#[test]
fn a_list_that_contradicts_itself_is_found_with_its_row() {
    let clean = dense(5, 30);
    assert!(compared(&mut clean.clone(), &mut clean.clone()).list_faults.is_empty());
    let planted = |change: &dyn Fn(&mut lockstep_traces::StepRow)| {
        let mut trace = clean.clone();
        change(&mut trace.rows[14]);
        let report = compared(&mut trace.clone(), &mut trace);
        assert_ne!(report.verdict, Verdict::Identical);
        assert!(report.findings.iter().any(|finding| finding.location.position == Some(14)));
        fault(&report).into_iter().take(1).collect::<Vec<_>>()
    };
    let at = Some(14);
    assert_eq!(planted(&|row| row.top_ids[2] = 3), [(ListFaultKind::Twice, at)]);
    assert_eq!(planted(&|row| row.top_logits[2] = 12.5), [(ListFaultKind::Order, at)]);
    assert_eq!(planted(&|row| row.argmax = 8), [(ListFaultKind::Argmax, at)]);
    assert_eq!(planted(&|row| row.argmax = 77), [(ListFaultKind::Argmax, at)]);
    assert_eq!(planted(&|row| row.top2_margin = Some(2.0)), [(ListFaultKind::Margin, at)]);
    let short = |row: &mut lockstep_traces::StepRow| {
        row.top_ids.pop();
        row.top_logits.pop();
    };
    assert_eq!(planted(&short), [(ListFaultKind::Short, at)]);
}

#[test]
fn a_greedy_run_that_chose_another_token_than_its_largest_is_named() {
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    for trace in [&mut left, &mut right] {
        trace.manifest.set("sampling.temperature", 0.0, "flag");
        trace.rows[12].next_token = Some(3);
        trace.rows[13].token_id = 3;
    }
    let report = compared(&mut left, &mut right);
    assert_eq!(fault(&report)[0], (ListFaultKind::Greedy, Some(12)));
    assert!(report.list_faults[0].what.contains("chose 3"));
}

#[test]
fn sums_and_margins_are_held_against_each_other() {
    let (mut left, mut right) = (dense(5, 30), dense(5, 30));
    with_sums(&mut left);
    with_sums(&mut right);
    // The last bits of a sum are another order of addition.
    right.rows[7].logsumexp = right.rows[7].logsumexp.map(|sum| sum + 1e-6);
    assert_eq!(compared(&mut left, &mut right).verdict, Verdict::Identical);
    right.rows[7].logsumexp = right.rows[7].logsumexp.map(|sum| sum + 0.01);
    let report = compared(&mut left, &mut right);
    assert_eq!(logit_split(&report), Some(7));
    assert!(report.samples[0].splits.logit.as_ref().unwrap().note.contains("log-sum-exp"));
    for trace in [&mut left, &mut right] {
        *trace = dense(5, 30);
        for row in &mut trace.rows {
            row.top_ids.truncate(1);
            row.top_logits.truncate(1);
            row.top2_margin = Some(4.0);
        }
    }
    assert_eq!(compared(&mut left, &mut right).verdict, Verdict::Identical);
    right.rows[7].top2_margin = Some(3.5);
    let report = compared(&mut left, &mut right);
    assert_eq!(logit_split(&report), Some(7));
    assert!(report.samples[0].splits.logit.as_ref().unwrap().note.contains("margin"));
}
