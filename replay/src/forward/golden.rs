//! Replays of runs that Hugging Face transformers made on the ledger model.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use lockstep_reference::forward::Precision;
use lockstep_testkit::{golden, gunzip, ledger};
use lockstep_traces::manifest::Producer;
use lockstep_traces::store::{DumpFile, RunReader, RunWriter};
use lockstep_traces::{
    Cause, Choice, DType, Dump, DumpId, EventRow, FinishReason, Manifest, MemorySink, Phase,
    PolicyKind, PolicySpec, RecordPlan, RuleSet, SampleRow, StepRow, Tensor, TraceSink, Verdict,
};
use tempfile::TempDir;

use super::{
    Claim, ForwardOptions, LocalizeOptions, Policy, Replayed, describe, forward, localize,
    self_check,
};
use crate::ReplayError;

#[derive(Debug, serde::Deserialize)]
struct Row {
    position_before: u32,
    token_id: u32,
    rows_before: u32,
    rows_after: u32,
    argmax_token: u32,
    top_ids: Vec<u32>,
    top_logits: Vec<f32>,
    #[serde(default)]
    compaction: Option<u32>,
}

/// What of a golden trace goes into the run.
#[derive(Debug, Clone, Copy)]
struct Make {
    prompt_rows: bool,
    keeps: bool,
}

const WHOLE: Make = Make { prompt_rows: true, keeps: true };

fn rows(name: &str) -> Vec<Row> {
    let text = gunzip(&golden().join("traces").join(format!("{name}.jsonl.gz")));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A run directory made of a golden trace; sample `ledger_NN`.
fn run(name: &str, make: Make) -> (TempDir, RunReader) {
    let rows = rows(name);
    let file = name.rsplit('/').next().unwrap();
    let sample_id = file.split('.').next().unwrap().to_owned();
    let task = lockstep_testkit::task(&sample_id);
    let prompt = task.prompt_ids.len();
    let dir = tempfile::tempdir().unwrap();
    let manifest = Manifest::new(Producer::default(), "golden");
    let mut writer = RunWriter::create(dir.path(), manifest, RecordPlan::default()).unwrap();
    let mut keep_dump = None;
    for row in &rows {
        if make.prompt_rows || row.position_before as usize >= prompt {
            writer.step(step(&sample_id, row, prompt)).unwrap();
        }
        let Some(index) = row.compaction else { continue };
        writer.event(event(&sample_id, row, index + 1)).unwrap();
        if make.keeps {
            let path = golden().join("traces").join(format!("{name}.keep.safetensors"));
            let keeps = keep_dump.get_or_insert_with(|| DumpFile::open(&path).unwrap());
            writer.dump(keep(&sample_id, keeps, index)).unwrap();
        }
    }
    let fed: Vec<u32> = rows.iter().skip(prompt).map(|row| row.token_id).collect();
    writer.sample(sample(&sample_id, task.prompt_ids, fed)).unwrap();
    writer.finish().unwrap();
    let reader = RunReader::open(dir.path()).unwrap();
    (dir, reader)
}

fn step(sample_id: &str, row: &Row, prompt: usize) -> StepRow {
    let phase = if (row.position_before as usize) < prompt { Phase::Prompt } else { Phase::Decode };
    StepRow {
        sample_id: sample_id.to_owned(),
        position: row.position_before,
        phase,
        token_id: row.token_id,
        next_token: None,
        rows_before: row.rows_before,
        rows_after: row.rows_after,
        rows_bucketed: None,
        compaction: row.compaction.map(|index| index + 1),
        rope_index: None,
        argmax: row.argmax_token,
        top_ids: row.top_ids.clone(),
        top_logits: row.top_logits.clone(),
        logsumexp: None,
        top2_margin: None,
        finite: true,
        logits_hash: None,
        rng_offset: None,
        uniform: None,
    }
}

fn event(sample_id: &str, row: &Row, ordinal: u32) -> EventRow {
    EventRow {
        sample_id: sample_id.to_owned(),
        ordinal,
        absolute_position: row.position_before + 1,
        round_start: Some(row.position_before + 1),
        rows_before: row.rows_before + 1,
        rows_after: row.rows_after,
        protected: 0,
        candidates: 0,
        score_seconds: 0.0,
        reduce_seconds: 0.0,
        select_seconds: 0.0,
        gather_seconds: 0.0,
        dump: None,
    }
}

fn keep(sample_id: &str, file: &DumpFile, index: u32) -> Dump {
    let view = file.get(&format!("c{index:03}.keep")).unwrap();
    let values = view.to_i32().unwrap();
    Dump {
        id: DumpId::Compaction { sample_id: sample_id.to_owned(), ordinal: index + 1 },
        metadata: BTreeMap::new(),
        tensors: vec![Tensor::from_i32("keep", view.shape.clone(), &values)],
    }
}

fn sample(sample_id: &str, prompt_ids: Vec<u32>, generated_ids: Vec<u32>) -> SampleRow {
    SampleRow {
        sample_id: sample_id.to_owned(),
        prompt_ids_sha256: lockstep_traces::hash::ids_sha256(&prompt_ids),
        prompt_len: u32::try_from(prompt_ids.len()).ok(),
        prompt_ids,
        prompt_text_sha256: None,
        base_seed: None,
        seed_index: None,
        effective_seed: None,
        generated_ids,
        text: None,
        gold: None,
        answer: None,
        answer_rule: None,
        finish: FinishReason::Unknown,
        prefill_seconds: 0.0,
        decode_seconds: 0.0,
    }
}

fn replay(run: &RunReader, options: &ForwardOptions) -> Result<MemorySink, ReplayError> {
    let mut sink = MemorySink::default();
    sink.plan.top_k = 8;
    forward(run, &ledger(), options, &mut sink, &mut |_| ControlFlow::Continue(()))?;
    Ok(sink)
}

fn recorded() -> ForwardOptions {
    ForwardOptions { policy: Policy::Recorded, ..ForwardOptions::default() }
}

/// Argmax flips where the golden gap allows no doubt, and the largest difference among the top 8.
fn compare(golden: &[Row], steps: &[StepRow]) -> (usize, f32) {
    assert_eq!(golden.len(), steps.len());
    let (mut flips, mut worst) = (0, 0f32);
    for (row, step) in golden.iter().zip(steps) {
        assert_eq!((row.position_before, row.token_id), (step.position, step.token_id));
        assert_eq!((row.rows_before, row.rows_after), (step.rows_before, step.rows_after));
        assert_eq!(row.compaction.map(|index| index + 1), step.compaction);
        let clear = row.top_logits[0] - row.top_logits[1] >= 4e-4;
        flips += usize::from(clear && step.argmax != row.argmax_token);
        for (ours, theirs) in step.top_logits.iter().zip(&row.top_logits) {
            worst = worst.max((ours - theirs).abs());
        }
    }
    (flips, worst)
}

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
fn each_planted_mistake_of_the_harness_is_named_from_its_rows() {
    let (_dir, run) = run("dense/ledger_01.fp32", WHOLE);
    for plant in Cause::ALL.into_iter().filter(|cause| cause.is_harness()) {
        let options = ForwardOptions { plant: Some(plant), ..ForwardOptions::default() };
        let sink = replay(&run, &options).unwrap();
        let report =
            self_check(&run, &Replayed::from_sink(&sink), &ledger(), &Claim::of(Precision::F32))
                .unwrap();
        assert_eq!(report.verdict, Verdict::Diverged, "{}", plant.slug());
        let causes: BTreeSet<_> = report.findings.iter().map(|finding| finding.cause).collect();
        assert_eq!(causes, BTreeSet::from([Some(plant)]), "{:?}", report.findings);
    }
}

#[test]
fn mistakes_are_named_in_compressed_and_in_narrow_replays_too() {
    let (_dir, run) = run("compressed/ledger_05.a", WHOLE);
    for (plant, precision) in [
        (Cause::PromptFedTwice, Precision::F32),
        (Cause::LastPromptRowFedAgain, Precision::F32),
        (Cause::ReferenceDtype, Precision::Bf16),
        (Cause::ReferenceDtype, Precision::F64),
    ] {
        let options = ForwardOptions { plant: Some(plant), precision, ..recorded() };
        let sink = replay(&run, &options).unwrap();
        let report =
            self_check(&run, &Replayed::from_sink(&sink), &ledger(), &Claim::of(precision))
                .unwrap();
        assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
        assert_eq!(report.findings[0].cause, Some(plant));
    }
}

#[test]
fn every_claimed_dtype_passes_its_own_check_and_no_other() {
    let (_dir, run) = run("dense/ledger_01.fp32", WHOLE);
    let all = [Precision::F32, Precision::F64, Precision::Bf16, Precision::F16];
    for computed in all {
        let options = ForwardOptions { precision: computed, ..ForwardOptions::default() };
        let replayed = Replayed::from_sink(&replay(&run, &options).unwrap());
        for claimed in all {
            let report = self_check(&run, &replayed, &ledger(), &Claim::of(claimed)).unwrap();
            let expected =
                if claimed == computed { Verdict::WithinNoise } else { Verdict::Diverged };
            assert_eq!(report.verdict, expected, "{computed:?} as {claimed:?}: {}", report.detail);
        }
    }
}

#[test]
fn a_recording_with_an_offset_is_said_to_have_one() {
    let rows = rows("dense/ledger_01.fp32");
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(
        dir.path(),
        Manifest::new(Producer::default(), "golden"),
        RecordPlan::default(),
    )
    .unwrap();
    let task = lockstep_testkit::task("ledger_01");
    for row in rows.iter().take(80) {
        let mut step = step("ledger_01", row, task.prompt_ids.len());
        step.rows_before += 3;
        step.rows_after += 3;
        writer.step(step).unwrap();
    }
    writer.sample(sample("ledger_01", task.prompt_ids, Vec::new())).unwrap();
    writer.finish().unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    let sink = replay(&run, &ForwardOptions::default()).unwrap();
    let report =
        self_check(&run, &Replayed::from_sink(&sink), &ledger(), &Claim::of(Precision::F32))
            .unwrap();
    assert_eq!(report.findings.len(), 1);
    assert_eq!(report.findings[0].cause, None);
    let title = &report.findings[0].title;
    assert!(title.contains("the recording's") && title.contains("offset 3"), "{title}");
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
        trigger: Some(lockstep_traces::Trigger::Slack),
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
    let positions = written.steps(&Default::default()).unwrap().position;
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

/// A dense golden run with the hidden states that transformers had at eight positions.
fn with_hidden() -> (TempDir, RunReader) {
    let name = "dense/ledger_05.fp32";
    let task = lockstep_testkit::task("ledger_05");
    let dir = tempfile::tempdir().unwrap();
    let mut manifest = Manifest::new(Producer::default(), "golden");
    manifest.dtype = Some(DType::F32);
    let mut writer = RunWriter::create(dir.path(), manifest, RecordPlan::default()).unwrap();
    for row in &rows(name) {
        writer.step(step("ledger_05", row, task.prompt_ids.len())).unwrap();
    }
    let path = golden().join("traces").join(format!("{name}.hidden.safetensors"));
    let file = DumpFile::open(&path).unwrap();
    let positions = file.get("positions").unwrap().to_i32().unwrap();
    for (place, position) in positions.iter().enumerate() {
        let tensors = file
            .names()
            .filter(|name| *name != "positions")
            .map(|name| {
                let view = file.get(name).unwrap();
                let width = view.shape[1];
                let values = &view.to_f32().unwrap()[place * width..(place + 1) * width];
                Tensor::from_f32(hidden_name(name), vec![width], values)
            })
            .collect();
        let position = u32::try_from(*position).unwrap();
        let id = DumpId::Step { sample_id: "ledger_05".to_owned(), position };
        writer.dump(Dump { id, metadata: BTreeMap::new(), tensors }).unwrap();
    }
    writer.sample(sample("ledger_05", task.prompt_ids, Vec::new())).unwrap();
    writer.finish().unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    (dir, run)
}

fn hidden_name(name: &str) -> String {
    match name.strip_prefix("layer").and_then(|rest| rest.split_once('.')) {
        Some((layer, stage)) => format!("hidden.layer{:02}.{stage}", layer.parse::<u32>().unwrap()),
        None => format!("hidden.{name}"),
    }
}

#[test]
fn transformers_hidden_states_are_within_the_noise_of_the_control() {
    let (_dir, run) = with_hidden();
    let report = localize(&run, &ledger(), &LocalizeOptions::default()).unwrap();
    assert_eq!(report.verdict, Verdict::WithinNoise, "{:#?}", report.findings);
    assert_eq!(report.compared, 8 * (2 + 4 * 8));
    let worst = report.detail["worst_by_stage"].as_object().unwrap();
    for (stage, worst) in worst {
        let (error, control) =
            (worst["error"].as_f64().unwrap(), worst["control_error"].as_f64().unwrap());
        // The limit is 8; two sound f32 programs stay far below it.
        assert!(error <= 3.0 * control.max(2f64.powi(-24)), "{stage}: {worst}");
    }
}

#[test]
fn a_narrow_replay_is_within_the_noise_of_a_narrow_control() {
    let (_dir, run) = run("compressed/ledger_05.a", WHOLE);
    let hidden = Choice::These(vec![0, 100, 340, 345]);
    let plan = RecordPlan {
        hidden,
        hidden_layers: Choice::All,
        scores: Choice::All,
        top_k: 8,
        ..RecordPlan::default()
    };
    for (precision, claimed, verdict) in [
        (Precision::Bf16, DType::Bf16, Verdict::WithinNoise),
        (Precision::Bf16, DType::F32, Verdict::Diverged),
    ] {
        let options = ForwardOptions { precision, ..recorded() };
        let out = tempfile::tempdir().unwrap();
        let mut manifest = describe(&run, &ledger(), &options).unwrap();
        manifest.dtype = Some(claimed);
        let mut writer = RunWriter::create(out.path(), manifest, plan.clone()).unwrap();
        forward(&run, &ledger(), &options, &mut writer, &mut |_| ControlFlow::Continue(()))
            .unwrap();
        writer.finish().unwrap();
        let written = RunReader::open(out.path()).unwrap();
        let report = localize(&written, &ledger(), &LocalizeOptions::default()).unwrap();
        assert_eq!(report.verdict, verdict, "{:#?}", report.findings);
        assert_eq!(report.compared, 4 * (2 + 4 * 13));
    }
}
