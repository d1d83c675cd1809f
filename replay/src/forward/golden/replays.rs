//! Replays against the golden rows.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use lockstep_reference::forward::Precision;
use lockstep_testkit::{golden, ledger};
use lockstep_traces::store::{DumpFile, RunReader, RunWriter, StepQuery};
use lockstep_traces::{
    Cause, Choice, EventRow, MemorySink, PolicyKind, PolicySpec, RecordPlan, RuleSet, Trigger,
    Verdict,
};

use super::{Make, WHOLE, compare, recorded, replay, rows, run, run_of};
use crate::ReplayError;
use crate::forward::{Claim, ForwardOptions, Policy, Replayed, describe, forward, self_check};

#[test]
fn recorded_keep_sets_reproduce_the_run() {
    for name in ["compressed/ledger_05.a", "compressed/ledger_17.b", "compressed/ledger_05.plph"] {
        let (_dir, run) = run(name, WHOLE);
        let sink = replay(&run, &recorded()).unwrap();
        let (flips, worst) = compare(&rows(name), &sink.steps);
        assert!(flips == 0 && worst < 2e-4, "{name}: {flips} flips, worst {worst}");
        let events = run.events(None).unwrap();
        assert!(!events.is_empty());
        let key = |e: &EventRow| (e.ordinal, e.absolute_position, e.rows_before, e.rows_after);
        assert_eq!(
            events.iter().map(key).collect::<Vec<_>>(),
            sink.events.iter().map(key).collect::<Vec<_>>()
        );
        let report =
            self_check(&run, &Replayed::from_sink(&sink), &ledger(), &Claim::of(Precision::F32))
                .unwrap();
        assert_eq!(report.verdict, Verdict::WithinNoise, "{:?}", report.findings);
        assert_eq!(report.compared, sink.steps.len() as u64);
    }
}

#[test]
fn a_missing_keep_set_is_an_error_and_not_a_dense_replay() {
    let (_dir, run) = run("compressed/ledger_05.a", Make { keeps: false, ..WHOLE });
    let error = replay(&run, &recorded()).unwrap_err();
    assert!(matches!(error, ReplayError::Incomparable { .. }), "{error}");
    assert!(error.to_string().contains("compaction 1 at position"), "{error}");
}

#[test]
fn prompt_rows_are_fed_once_whether_or_not_the_trace_holds_them() {
    let name = "dense/ledger_01.fp32";
    let (_dir, run) = run(name, Make { prompt_rows: false, keeps: false });
    let sink = replay(&run, &ForwardOptions::default()).unwrap();
    let (flips, worst) = compare(&rows(name), &sink.steps);
    assert!(flips == 0 && worst < 2e-4, "{flips} flips, worst {worst}");
}

#[test]
fn the_reference_selects_what_upstream_selected() {
    let name = "compressed/ledger_05.a";
    let (_dir, run) = run(name, WHOLE);
    let stats =
        lockstep_traces::stats::read(&golden().join("traces/stats/ledger_stats.safetensors"))
            .unwrap();
    let first = run.events(None).unwrap()[0].clone();
    let spec = PolicySpec {
        kind: Some(PolicyKind::Triattention),
        rule_set: Some(RuleSet::Hf),
        kv_budget: Some(first.rows_after as usize),
        divide_length: Some((first.rows_before - first.rows_after) as usize),
        trigger: Some(Trigger::Slack),
        count_prompt_tokens: Some(true),
        noise_seed: Some(0),
        normalize: Some(true),
        ..PolicySpec::default()
    };
    let policy = Policy::Own { spec: Box::new(spec), stats: Box::new(stats) };
    let plan = RecordPlan { scores: Choice::All, top_k: 8, ..RecordPlan::default() };
    let mut sink = MemorySink { plan, ..MemorySink::default() };
    let options = ForwardOptions { policy, ..ForwardOptions::default() };
    forward(&run, &ledger(), &options, &mut sink, &mut |_| ControlFlow::Continue(())).unwrap();
    let (flips, worst) = compare(&rows(name), &sink.steps);
    assert!(flips == 0 && worst < 2e-4, "{flips} flips, worst {worst}");
    let ours = sink.dumps[0].tensors.iter().find(|tensor| tensor.name == "keep").unwrap();
    let path = golden().join("traces").join(format!("{name}.keep.safetensors"));
    let theirs = DumpFile::open(&path).unwrap().get("c000.keep").unwrap().to_i32().unwrap();
    let ours: Vec<i32> =
        ours.data.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
    let rows = theirs.len() / 2;
    for head in 0..2 {
        let set = |list: &[i32]| {
            list[head * rows..(head + 1) * rows].iter().copied().collect::<BTreeSet<_>>()
        };
        assert_eq!(set(&ours), set(&theirs));
    }
}

#[test]
fn a_written_replay_is_a_run_that_says_what_it_is() {
    let (_dir, run) = run("dense/ledger_01.fp32", WHOLE);
    let out = tempfile::tempdir().unwrap();
    let options =
        ForwardOptions { positions: Some(60..=63), chunk: 16, ..ForwardOptions::default() };
    let manifest = describe(&run, &ledger(), &options).unwrap();
    let plan = RecordPlan {
        hidden: Choice::These(vec![62]),
        hidden_layers: Choice::These(vec![1]),
        logits: Choice::These(vec![62]),
        top_k: 8,
        ..RecordPlan::default()
    };
    let mut writer = RunWriter::create(out.path(), manifest, plan).unwrap();
    let summary =
        forward(&run, &ledger(), &options, &mut writer, &mut |_| ControlFlow::Continue(()))
            .unwrap();
    writer.finish().unwrap();
    assert_eq!((summary.rows, summary.fed, summary.chunks), (4, 64, 4));
    let written = RunReader::open(out.path()).unwrap();
    assert_eq!(written.manifest().producer.name, "lockstep-reference");
    assert_eq!(written.manifest().get("policy.kind").unwrap(), "dense");
    let positions = written.steps(&StepQuery::default()).unwrap().position;
    assert_eq!(positions, [60, 61, 62, 63]);
    let dumps = written.dumps().unwrap();
    assert_eq!(dumps.len(), 1);
    let dump = written.dump(&dumps[0]).unwrap().unwrap();
    let names: Vec<&str> = dump.names().collect();
    assert!(names.contains(&"logits") && names.contains(&"hidden.layer01.q_rope"), "{names:?}");
    assert!(names.contains(&"hidden.embed") && !names.contains(&"hidden.layer00.out"), "{names:?}");
}

#[test]
fn a_replay_can_be_stopped_after_any_chunk() {
    let (_dir, run) = run("dense/ledger_01.fp32", WHOLE);
    let mut sink = MemorySink::default();
    let options = ForwardOptions { chunk: 10, ..ForwardOptions::default() };
    let summary = forward(&run, &ledger(), &options, &mut sink, &mut |progress| {
        if progress.fed >= 30 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert!(summary.interrupted && summary.samples == 0 && sink.samples.is_empty());
    assert_eq!(sink.steps.len(), 30);
}

#[test]
fn engine_mistakes_and_unknown_samples_are_refused() {
    let (_dir, run) = run("dense/ledger_01.fp32", WHOLE);
    let options = ForwardOptions { plant: Some(Cause::GqaTile), ..ForwardOptions::default() };
    assert!(replay(&run, &options).unwrap_err().to_string().contains("gqa-tile"));
    let options =
        ForwardOptions { samples: Some(vec!["nobody".to_owned()]), ..ForwardOptions::default() };
    assert!(replay(&run, &options).unwrap_err().to_string().contains("nobody"));
}

#[test]
fn a_compaction_before_a_forward_belongs_to_that_step() {
    let name = "compressed/ledger_05.a";
    let mut golden = rows(name);
    let at = golden.iter().position(|row| row.compaction.is_some()).unwrap();
    let kept = golden[at].rows_after;
    // The same run as a program reports it that compacts when the next step begins.
    golden[at].rows_after = golden[at].rows_before + 1;
    golden[at + 1].rows_before = golden[at].rows_after;
    golden[at + 1].compaction = golden[at].compaction.take();
    let (_dir, run) = run_of(name, &golden, WHOLE, Some((at, kept)));
    let sink = replay(&run, &recorded()).unwrap();
    let (flips, worst) = compare(&golden, &sink.steps);
    assert!(flips == 0 && worst < 2e-4, "{flips} flips, worst {worst}");
    let replayed = Replayed::from_sink(&sink);
    let report = self_check(&run, &replayed, &ledger(), &Claim::of(Precision::F32)).unwrap();
    assert_eq!(report.verdict, Verdict::WithinNoise, "{:?}", report.findings);
}
