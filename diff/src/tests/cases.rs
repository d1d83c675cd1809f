//! Public bug reports as small traces (`tests/data/cases`), loaded as a user would and compared.

use std::path::PathBuf;

use lockstep_traces::{Loaded, Verdict, load};

use crate::keepsets::{KeepOptions, classify};
use crate::report::{AlignmentKind, KeepClass, SplitClass};
use crate::{DiffReport, Options, Side, compare};

fn case(number: &str, file: &str) -> PathBuf {
    lockstep_testkit::data().join("cases").join(number).join(file)
}

fn loaded(number: &str, file: &str) -> Loaded {
    load(&case(number, file)).unwrap()
}

fn compared(number: &str, left: &str, right: &str) -> DiffReport {
    let (l, r) = (loaded(number, left), loaded(number, right));
    compare(&Side::of(left, &l, &[]), &Side::of(right, &r, &[]), Options::default())
}

#[test]
fn case_01_a_near_tie_flipped_by_batching() {
    let report = compared("01", "solo.jsonl", "batched.jsonl");
    let one = &report.samples[0];
    assert!(one.splits.structural.is_none());
    let logit = one.splits.logit.as_ref().unwrap();
    assert_eq!((logit.position, logit.max_abs_diff), (5, Some(0.125)));
    let argmax = one.splits.argmax.as_ref().unwrap();
    assert_eq!((argmax.position, argmax.fed_at, argmax.near_tie), (5, 6, true));
    let token = one.splits.token.as_ref().unwrap();
    let chosen = |view: &Option<crate::report::RowView>| view.as_ref().and_then(|view| view.chosen);
    assert_eq!(
        (token.position, chosen(&token.left), chosen(&token.right)),
        (5, Some(101), Some(202))
    );
    assert_eq!((one.rows_compared, one.rows_dependent), (1, 2));
    assert_eq!(one.stats.max_diff.as_ref().map(|max| max.abs), Some(0.125));
}

#[test]
fn case_04_no_finite_logit_is_non_finite_and_not_zero() {
    for broken in ["trace_nan.jsonl", "trace_null.jsonl"] {
        let report = compared("04", "trace_ref.jsonl", broken);
        let one = &report.samples[0];
        assert_eq!(one.non_finite.first, Some(4), "{broken}");
        assert!(one.splits.argmax.is_none());
        assert_eq!(one.splits.token.as_ref().unwrap().class, SplitClass::NonFinite);
        assert!(one.stats.max_diff.is_none() && one.stats.row_max_diff.is_none());
        assert!(one.non_finite.hint.as_ref().unwrap().contains("65504"));
        assert_eq!(report.verdict, Verdict::Diverged);
    }
    let report = compared("04", "trace_nan.jsonl", "trace_null.jsonl");
    assert_eq!(report.samples[0].non_finite.no_finite_logit, 4);
    assert_eq!(report.verdict.exit_code(), 4);
}

#[test]
fn case_11_eviction_after_the_step_and_eviction_visible_to_the_step() {
    let after = compared("11", "dense.jsonl", "evict_after.jsonl");
    let splits = &after.samples[0].splits;
    let structural = splits.structural.as_ref().unwrap();
    let rows = |view: &Option<crate::report::RowView>| {
        view.as_ref().and_then(|view| view.rows_before.zip(view.rows_after)).unwrap()
    };
    assert_eq!(
        (structural.position, rows(&structural.left).1, rows(&structural.right).1),
        (15, 16, 8)
    );
    assert_eq!(rows(&structural.left).0, rows(&structural.right).0);
    let logit = splits.logit.as_ref().unwrap();
    assert_eq!((logit.position, logit.max_abs_diff), (16, Some(0.031_25)));
    assert!(splits.argmax.is_none() && splits.token.is_none());
    let before = compared("11", "dense.jsonl", "evict_before.jsonl");
    let splits = &before.samples[0].splits;
    let structural = splits.structural.as_ref().unwrap();
    assert_eq!(structural.position, 15);
    assert_ne!(rows(&structural.left).0, rows(&structural.right).0);
    let logit = splits.logit.as_ref().unwrap();
    assert_eq!((logit.position, logit.max_abs_diff), (15, Some(1.5)));
    assert!(logit.note.contains("saw the other cache"), "{}", logit.note);
}

#[test]
fn case_25_left_padding_is_aligned_by_step() {
    let report = compared("25", "row0_alone.jsonl", "row0_padded.jsonl");
    let one = &report.samples[0];
    assert_eq!((one.alignment.by, one.alignment.offset), (AlignmentKind::Step, 3));
    for split in [&one.splits.structural, &one.splits.logit, &one.splits.argmax, &one.splits.token]
    {
        assert_eq!(split.as_ref().unwrap().position, 2);
    }
}

#[test]
fn case_36_an_exact_tie_under_two_rules() {
    let report = compared("36", "first_wins.jsonl", "last_wins.jsonl");
    let one = &report.samples[0];
    assert_eq!(report.verdict, Verdict::Tie, "{}", report.summary);
    assert!(
        one.splits.logit.is_none() && one.splits.argmax.is_none() && one.splits.token.is_none()
    );
    let parting = one.tie_parting.as_ref().unwrap();
    assert_eq!((parting.position, parting.margin_ulps), (4, Some(0.0)));
    assert_eq!((one.rows_compared, one.rows_dependent), (1, 1));
}

fn json(number: &str, file: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(case(number, file)).unwrap()).unwrap()
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| u32::try_from(id.as_u64().unwrap()).unwrap())
        .collect()
}

#[test]
fn case_26_ties_at_the_cut_and_a_true_error_are_told_apart() {
    let (keeps, scores) = (json("26", "keeps.json"), json("26", "scores.json"));
    let classes: Vec<KeepClass> = (0..2)
        .map(|head| {
            let row = &scores["heads"][head];
            let all: Vec<u32> =
                (0..u32::try_from(row.as_array().unwrap().len()).unwrap()).collect();
            let score = |id: u32| row[id as usize].as_f64();
            let (left, right) = (ids(&keeps["rank0"][head]), ids(&keeps["rank1"][head]));
            classify(&left, &right, &score, &all, KeepOptions::default()).class
        })
        .collect();
    assert_eq!(classes, [KeepClass::TieEquivalent, KeepClass::Different]);
}

/// The reference's sets are the four largest scores of each head; the engine gave every head the set of head 0.
#[test]
fn case_17_one_set_for_all_heads_overlaps_as_reported() {
    let (keep, scores) = (json("17", "engine_keep.json"), json("17", "scores.json"));
    let reference: [[u32; 4]; 4] = [[0, 2, 7, 8], [1, 3, 4, 7], [2, 4, 5, 9], [1, 4, 5, 8]];
    let overlaps: Vec<usize> = (0..4)
        .map(|head| {
            let row = &scores["scores"][head];
            let engine = ids(&keep["kept_by_kv_head"][head]);
            let score = |id: u32| row[id as usize].as_f64();
            let all: Vec<u32> = (0..10).collect();
            let pair = classify(&reference[head], &engine, &score, &all, KeepOptions::default());
            assert!(pair.cut_gap.unwrap() > 0.0, "the reference holds the largest scores");
            4 - pair.left_only.len()
        })
        .collect();
    assert_eq!(overlaps, [4, 1, 1, 1]);
}

/// Runs of another harness: where they part stands in its own summary, counted there in generated tokens.
#[test]
fn golden_runs_part_where_their_own_summary_says() {
    let traces = lockstep_testkit::golden().join("traces");
    let summary = std::fs::read(traces.join("compressed").join("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    let mut seen = 0;
    for run in summary["runs"].as_array().unwrap() {
        let (sample, config) =
            (run["sample_id"].as_str().unwrap(), run["config"].as_str().unwrap());
        let dense = traces.join("dense").join(format!("{sample}.fp32.jsonl.gz"));
        let compressed = traces.join("compressed").join(format!("{sample}.{config}.jsonl.gz"));
        if !dense.exists() || !compressed.exists() {
            continue;
        }
        let (l, r) = (load(&dense).unwrap(), load(&compressed).unwrap());
        let report =
            compare(&Side::of("dense", &l, &[]), &Side::of(config, &r, &[]), Options::default());
        let one = &report.samples[0];
        let at =
            |value: &serde_json::Value| value.as_u64().map(|value| u32::try_from(value).unwrap());
        let prompt = at(&run["prompt_len"]).unwrap();
        let token = one.splits.token.as_ref().map(|split| split.fed_at - prompt);
        assert_eq!(token, at(&run["first_split_vs_dense_generated_index"]), "{sample}.{config}");
        let first = at(&run["events"][0]["position_before"]).unwrap();
        let structural = one.splits.structural.as_ref().unwrap();
        assert_eq!(structural.position, first, "{sample}.{config}");
        assert_eq!(one.splits.logit.as_ref().unwrap().position, first + 1, "{sample}.{config}");
        seen += 1;
    }
    assert!(seen >= 8, "only {seen} golden runs were found");
}
