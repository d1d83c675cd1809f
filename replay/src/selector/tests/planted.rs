//! Each selector mistake is found, located and named; the clean control is clean.

use lockstep_traces::store::RunReader;
use lockstep_traces::{Cause, CheckReport, Verdict};

use super::producer::{BUDGET, Recipe, record};
use crate::selector::{SelectorDetail, SelectorOptions, SetStatus, check};

fn checked(recipe: Recipe) -> (CheckReport, SelectorDetail) {
    let dir = tempfile::tempdir().unwrap();
    let (run, stats) = record(dir.path(), recipe);
    let options = SelectorOptions { stats: Some(stats), ..SelectorOptions::default() };
    let report = check(&RunReader::open(&run).unwrap(), &options).unwrap();
    let detail = serde_json::from_value(report.detail.clone()).unwrap();
    (report, detail)
}

fn said(report: &CheckReport, words: &str) -> bool {
    report.limits.iter().any(|line| line.contains(words))
}

/// The one finding must carry this cause, at this compaction and stage.
fn named(report: &CheckReport, cause: Cause, ordinal: u32, stage: &str) {
    assert_eq!(report.verdict, Verdict::Diverged, "{report:#?}");
    assert_eq!(report.findings.len(), 1, "{:#?}", report.findings);
    let finding = &report.findings[0];
    assert_eq!(finding.cause, Some(cause), "{finding:#?}");
    assert_eq!(finding.location.ordinal, Some(ordinal), "{finding:#?}");
    assert_eq!(finding.location.stage.as_deref(), Some(stage), "{finding:#?}");
    assert_eq!(finding.location.sample_id.as_deref(), Some("one"));
}

#[test]
fn the_clean_control_is_clean() {
    let (report, detail) = checked(Recipe::clean());
    assert_eq!(report.verdict, Verdict::WithinNoise, "{report:#?}");
    assert!(report.findings.is_empty());
    assert_eq!((detail.events, detail.heads, detail.exact), (2, 4, 4));
    assert_eq!((report.compared, report.different, report.skipped), (4, 0, 0));
    for event in &detail.by_event {
        assert_eq!(event.stages.len(), 4);
        assert!(
            event.stages.iter().all(|stage| stage.within && stage.compared > 90),
            "{:#?}",
            event.stages
        );
        assert!(event.hypotheses.is_empty());
    }
    assert!(
        said(&report, "one #1"),
        "compaction 1 cannot show the round start: {:?}",
        report.limits
    );
    assert!(said(&report, "the order of ties is not tested"));
}

#[test]
fn a_round_start_from_rows_is_invisible_at_compaction_1_and_named_at_2() {
    let (report, detail) = checked(Recipe::with(Cause::RoundStartRows));
    named(&report, Cause::RoundStartRows, 2, "scores.raw");
    assert_eq!(detail.by_event[0].status, SetStatus::Exact);
    assert_eq!(detail.by_event[1].first_stage.as_deref(), Some("score"));
    let only_first = checked(Recipe { compactions: 1, ..Recipe::with(Cause::RoundStartRows) }).0;
    assert_eq!(only_first.verdict, Verdict::WithinNoise);
    assert!(said(&only_first, "a wrong round start would not show"), "{:?}", only_first.limits);
}

#[test]
fn z_scores_over_other_rows_are_named_at_the_z_stage() {
    let (report, detail) = checked(Recipe::with(Cause::ZscoreRows));
    named(&report, Cause::ZscoreRows, 1, "scores.z");
    let raw = detail.by_event[0].stages.iter().find(|stage| stage.stage == "scores.raw").unwrap();
    assert!(raw.within);
}

#[test]
fn n_for_n_minus_1_leaves_keep_sets_equal_and_is_named_at_the_z_stage() {
    let (report, detail) = checked(Recipe::with(Cause::ZscorePopulation));
    named(&report, Cause::ZscorePopulation, 1, "scores.z");
    assert_eq!(report.different, 0);
    assert_eq!(detail.exact, detail.heads);
    assert_eq!(
        report.findings[0].evidence.iter().find(|e| e.name == "compactions").unwrap().value,
        2
    );
}

#[test]
fn a_maximum_over_layers_is_named_at_the_final_stage() {
    let (report, _) = checked(Recipe::with(Cause::LayerMax));
    named(&report, Cause::LayerMax, 1, "scores.final");
}

#[test]
fn another_order_of_ties_is_named_where_there_are_ties() {
    let tied = Recipe { fives: true, ..Recipe::with(Cause::TieOrder) };
    let (report, detail) = checked(tied);
    named(&report, Cause::TieOrder, 1, "keep");
    assert_eq!(detail.by_event[0].first_stage.as_deref(), Some("tie"));
    assert_eq!(report.different, 0, "ties never count as different");
    let control = checked(Recipe { fault: None, ..tied }).0;
    assert_eq!(control.verdict, Verdict::WithinNoise, "{control:#?}");
    assert!(!said(&control, "the order of ties is not tested"));
    let untied = checked(Recipe::with(Cause::TieOrder)).0;
    assert_eq!(untied.verdict, Verdict::WithinNoise);
    assert!(said(&untied, "the order of ties is not tested"));
}

#[test]
fn the_newest_row_of_the_window_unprotected_is_named() {
    let (report, detail) = checked(Recipe::with(Cause::WindowRowLost));
    named(&report, Cause::WindowRowLost, 1, "scores.final");
    assert_eq!(detail.by_event[0].first_stage.as_deref(), Some("protect"));
    let row = report.findings[0].location.row.unwrap();
    assert_eq!(usize::try_from(row).unwrap(), BUDGET + 16 - 1);
    let gone = checked(Recipe { dropped: true, ..Recipe::with(Cause::WindowRowLost) }).0;
    named(&gone, Cause::WindowRowLost, 1, "scores.final");
    let by = gone.findings[0].evidence.iter().find(|e| e.name == "hypothesis").unwrap();
    assert_eq!(by.value, "window_newest_row_dropped");
}

#[test]
fn keep_sets_alone_name_what_they_can() {
    let alone = |fault| checked(Recipe { fault, scores: false, ..Recipe::clean() }).0;
    let clean = alone(None);
    assert_eq!(clean.verdict, Verdict::Identical);
    assert!(said(&clean, "cannot be told from keep-sets"));
    assert_eq!(alone(Some(Cause::ZscorePopulation)).verdict, Verdict::Identical);
    let report = alone(Some(Cause::RoundStartRows));
    assert_eq!(report.findings[0].cause, Some(Cause::RoundStartRows), "{report:#?}");
    assert_eq!(report.findings[0].location.ordinal, Some(2));
    let report = alone(Some(Cause::LayerMax));
    assert_eq!(report.findings[0].cause, Some(Cause::LayerMax), "{report:#?}");
}

#[test]
fn scores_without_keys_are_checked_from_the_recorded_raw_scores() {
    let without = |fault| checked(Recipe { fault, keys: false, ..Recipe::clean() }).0;
    let clean = without(None);
    assert_eq!(clean.verdict, Verdict::WithinNoise, "{clean:#?}");
    assert!(said(&clean, "keys are not dumped"));
    named(&without(Some(Cause::ZscorePopulation)), Cause::ZscorePopulation, 1, "scores.z");
    named(&without(Some(Cause::LayerMax)), Cause::LayerMax, 1, "scores.final");
    named(&without(Some(Cause::ZscoreRows)), Cause::ZscoreRows, 1, "scores.z");
    // A wrong round start sits before the raw scores: what the run says of it tells, where it is not the row count as well.
    named(&without(Some(Cause::RoundStartRows)), Cause::RoundStartRows, 2, "round_start");
    let first = Recipe { keys: false, compactions: 1, ..Recipe::with(Cause::RoundStartRows) };
    let blind = checked(first).0;
    assert_eq!(blind.verdict, Verdict::WithinNoise, "{blind:#?}");
    assert!(said(&blind, "a wrong round start would not show"), "{:?}", blind.limits);
}

#[test]
fn a_round_start_from_rows_is_named_from_events_alone() {
    let gone = |recipe| {
        let dir = tempfile::tempdir().unwrap();
        let (run, stats) = record(dir.path(), recipe);
        std::fs::remove_dir_all(run.join("tensors")).unwrap();
        let options = SelectorOptions { stats: Some(stats), ..SelectorOptions::default() };
        check(&RunReader::open(&run).unwrap(), &options).unwrap()
    };
    let report = gone(Recipe { compactions: 3, ..Recipe::with(Cause::RoundStartRows) });
    named(&report, Cause::RoundStartRows, 2, "round_start");
    let count = report.findings[0].evidence.iter().find(|e| e.name == "compactions").unwrap();
    assert_eq!(count.value, 2);
    let clean = gone(Recipe::clean());
    let Verdict::Incomparable { why } = &clean.verdict else { panic!("{clean:#?}") };
    assert!(why.contains("compaction_0001.safetensors"), "{why}");
    assert_eq!((clean.skipped, clean.findings.len()), (2, 0));
}

#[test]
fn nothing_dumped_or_other_statistics_is_incomparable() {
    let dir = tempfile::tempdir().unwrap();
    let (run, stats) = record(dir.path(), Recipe::clean());
    let reader = RunReader::open(&run).unwrap();
    let why = |options: &SelectorOptions| match check(&reader, options).unwrap().verdict {
        Verdict::Incomparable { why } => why,
        other => panic!("{other:?}"),
    };
    assert!(why(&SelectorOptions::default()).contains("not given"));
    let none = SelectorOptions {
        stats: Some(stats.clone()),
        ordinals: Some(lockstep_traces::Choice::These(vec![9])),
        ..SelectorOptions::default()
    };
    assert!(why(&none).contains("none of 2 compactions"));
    let mut other = super::producer::stats();
    other.q_mean_real[0] += 1.0;
    let path = dir.path().join("other.safetensors");
    lockstep_traces::stats::write_safetensors(&other, &path).unwrap();
    let options = SelectorOptions { stats: Some(path), ..SelectorOptions::default() };
    assert!(why(&options).contains("is not the statistics file"));
}

#[test]
fn another_rule_set_differs_and_the_matrix_says_which_one_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (run, stats) = record(dir.path(), Recipe::clean());
    let options = SelectorOptions {
        stats: Some(stats),
        rule_set: Some(lockstep_traces::RuleSet::Sglang),
        ..SelectorOptions::default()
    };
    let report = check(&RunReader::open(&run).unwrap(), &options).unwrap();
    assert_eq!(report.verdict, Verdict::Diverged);
    assert_eq!(report.findings[0].cause, None);
    assert!(report.findings[0].title.contains("rules_trt"), "{:#?}", report.findings);
}
