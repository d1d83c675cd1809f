//! The self-check and the search for the first departing stage, on golden runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use lockstep_reference::forward::Precision;
use lockstep_testkit::{golden, ledger};
use lockstep_traces::manifest::Producer;
use lockstep_traces::store::{DumpFile, RunReader, RunWriter};
use lockstep_traces::{
    Cause, Choice, DType, Dump, DumpId, Manifest, RecordPlan, Tensor, TraceSink, Verdict,
};
use tempfile::TempDir;

use super::{WHOLE, recorded, replay, rows, run, sample, step};
use crate::forward::{
    Claim, ForwardOptions, LocalizeOptions, Replayed, describe, forward, localize, self_check,
};

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
