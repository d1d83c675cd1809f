//! Files and rows that are gone, and tables that contradict each other or themselves.

use super::*;

/// Breaks a clean run.
type Plant = fn(&mut Run);

#[test]
fn a_missing_dump_or_position_table_does_not_pass() {
    let why = |report: CheckReport| match report.verdict {
        Verdict::Incomparable { why } => why,
        other => panic!("{other:?}"),
    };
    let mut run = clean(18);
    run.events[0].dump = Some("tensors/s/compaction_0001.safetensors".to_owned());
    run.dumps.clear();
    assert!(why(run.check()).contains("compaction_0001.safetensors` is missing"));
    let mut run = clean(18);
    run.events[0].dump = Some("tensors/s/compaction_0001.safetensors".to_owned());
    assert_eq!(run.check().verdict, Verdict::Identical);
    let mut run = clean(18);
    run.dumps.clear();
    assert_eq!(run.check().verdict, Verdict::Identical);
    for name in ["positions.pre", "positions.post"] {
        let report =
            clean(18).check_with(|_, tensors| tensors.retain(|tensor| tensor.name != name));
        assert_eq!(report.skipped, 1);
        assert!(why(report).contains(name));
    }
}

#[test]
fn metadata_of_another_compaction_is_found_in_the_dump() {
    let said = |key: &str, value: &str| {
        clean(18).check_with(|metadata, _| {
            metadata.insert(key.to_owned(), value.to_owned());
        })
    };
    for (key, right, wrong) in [
        ("ordinal", "1", "2"),
        ("absolute_position", "16", "20"),
        ("rows_before", "16", "15"),
        ("rows_after", "12", "13"),
        ("sample_id", "s", "t"),
    ] {
        assert_eq!(said(key, right).verdict, Verdict::Identical);
        let report = said(key, wrong);
        assert_eq!(report.verdict, Verdict::Diverged);
        let told = |finding: &lockstep_traces::Finding| {
            finding.cause.is_none() && finding.title.starts_with("dump of another compaction")
        };
        assert!(report.findings.iter().any(told), "{:?}", report.findings);
    }
}

#[test]
fn step_rows_that_are_gone_or_end_before_a_compaction_do_not_pass() {
    let why = |report: CheckReport| match report.verdict {
        Verdict::Incomparable { why } => why,
        other => panic!("{other:?} {:?}", report.findings),
    };
    let mut run = clean(30);
    run.steps.clear();
    assert!(why(run.check()).contains("has no step rows"));
    let mut run = clean(30);
    run.steps.truncate(27);
    assert!(why(run.check()).contains("end at position 26, before compaction 4"));
    let mut run = clean(30);
    run.steps.truncate(28);
    assert_eq!(run.check().verdict, Verdict::Identical);
}

#[test]
fn a_round_start_counted_by_rows_is_named_where_it_can_be_told() {
    for rule_set in ["trt", "hf", "vllm", "sglang"] {
        let told = |start: u32| {
            let mut run = clean(30);
            run.manifest.set("policy.rule_set", rule_set, "flag");
            run.events[1].round_start = Some(start);
            let report = run.check();
            let of = |stage: Option<&str>| stage == Some("round_start");
            let finding = report.findings.into_iter().find(|one| of(one.location.stage.as_deref()));
            finding.map(|finding| (finding.cause, finding.location.ordinal))
        };
        assert_eq!(told(20), None);
        assert_eq!(told(16), Some((Some(Cause::RoundStartRows), Some(2))), "{rule_set}");
        assert_eq!(told(19), Some((None, Some(2))));
        assert_eq!(told(21).is_none(), rule_set == "sglang");
    }
    let mut run = clean(30);
    run.events[1].round_start = None;
    assert!(run.check().limits.iter().any(|limit| limit.contains("do not record")));
}

#[test]
fn a_samples_table_that_contradicts_itself_or_the_rows_is_found() {
    let generated = |chosen: std::ops::Range<u32>| chosen.map(|at| 101 + at).collect::<Vec<u32>>();
    let mut run = clean(30);
    run.sample.generated_ids = generated(PROMPT - 1..30);
    assert_eq!(run.check().verdict, Verdict::Identical);
    let faults: [(&str, Plant); 4] = [
        ("hash to", |run| run.sample.prompt_ids[2] += 1),
        ("has 4 ids, `prompt_len` says 5", |run| run.sample.prompt_len = Some(5)),
        ("position 5 chose 106, the samples table generates 9", |run| {
            run.sample.generated_ids[2] = 9;
        }),
        ("compaction 2 is in the event table twice", |run| {
            run.events.push(run.events[1].clone());
        }),
    ];
    for (words, plant) in faults {
        let mut run = clean(30);
        run.sample.generated_ids = generated(PROMPT - 1..30);
        plant(&mut run);
        let report = run.check();
        assert_eq!(report.verdict, Verdict::Diverged, "{words}");
        let told =
            |one: &lockstep_traces::Finding| one.cause.is_none() && one.title.contains(words);
        assert!(report.findings.iter().any(told), "{words}: {:?}", report.findings);
    }
    let mut run = clean(30);
    run.sample.generated_ids = vec![9; 3];
    run.sample.finish = lockstep_traces::FinishReason::Forced;
    assert_eq!(run.check().verdict, Verdict::Identical);
}
