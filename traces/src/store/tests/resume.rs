//! Going on after a kill.

use super::*;
use crate::manifest::Setting;
use crate::{Dump, DumpId, Tensor, TraceError};

fn dump(sample_id: &str) -> Dump {
    Dump {
        id: DumpId::Compaction { sample_id: sample_id.to_owned(), ordinal: 1 },
        metadata: std::collections::BTreeMap::new(),
        tensors: vec![Tensor::from_f32("scores.raw", vec![1], &[1.0])],
    }
}

/// `a` ended, `b` has rows, events and a dump.
fn killed(dir: &Path) {
    let mut writer = RunWriter::create(dir, manifest(), RecordPlan::default()).unwrap();
    for position in 0..70 {
        writer.step(step("a", position)).unwrap();
        writer.step(step("b", position)).unwrap();
    }
    writer.event(event("a", 1)).unwrap();
    writer.event(event("b", 1)).unwrap();
    writer.dump(dump("a")).unwrap();
    writer.dump(dump("b")).unwrap();
    writer.sample(sample("a")).unwrap();
}

#[test]
fn ended_samples_stay_and_the_others_start_again() {
    let dir = tempfile::tempdir().unwrap();
    killed(dir.path());
    // The kill cut the last batch.
    let events = dir.path().join("events.arrows");
    let mut tail = std::fs::read(&events).unwrap();
    tail.extend([0xFF, 0xFF, 0xFF, 0xFF, 0x80]);
    std::fs::write(&events, tail).unwrap();

    let (mut writer, kept) =
        RunWriter::resume(dir.path(), &manifest(), RecordPlan::default()).unwrap();
    assert_eq!(kept, [sample("a")]);
    let run = RunReader::open(dir.path()).unwrap();
    assert_eq!(run.sample_ids().unwrap(), ["a"]);
    assert_eq!(run.steps(&StepQuery::default()).unwrap().len, 70);
    assert_eq!(run.events(None).unwrap(), [event("a", 1)]);
    assert_eq!(run.dumps().unwrap(), [dump("a").id]);
    assert!(run.remarks().is_empty());

    assert!(writer.step(step("a", 90)).is_err());
    for position in 0..5 {
        writer.step(step("b", position)).unwrap();
    }
    writer.sample(sample("b")).unwrap();
    writer.finish().unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    assert!(run.is_complete());
    assert_eq!(run.sample_ids().unwrap(), ["a", "b"]);
    assert_eq!(run.steps(&StepQuery::default()).unwrap().len, 75);
}

#[test]
fn another_configuration_is_refused_by_its_key() {
    let dir = tempfile::tempdir().unwrap();
    killed(dir.path());
    type Change = fn(&mut Manifest);
    let changes: [(&str, Change); 7] = [
        ("`policy.kv_budget` was 96 and is now 128", |m| m.set("policy.kv_budget", 128, "flag")),
        ("`sampling.seed` was \"not set\" and is now 5", |m| m.set("sampling.seed", 5, "flag")),
        ("`policy.kind`", |m| {
            m.config.remove("policy.kind");
        }),
        ("`dtype`", |m| m.dtype = Some(crate::DType::Bf16)),
        ("`device`", |m| m.device = "cuda".to_owned()),
        ("`model.weights_sha256`", |m| {
            m.model.weights_sha256.insert("model.safetensors".to_owned(), "00".to_owned());
        }),
        ("`logits_hash_seeds`", |m| m.logits_hash_seeds = Some([1, 2])),
    ];
    for (word, change) in changes {
        let mut other = manifest();
        change(&mut other);
        let error = RunWriter::resume(dir.path(), &other, RecordPlan::default()).unwrap_err();
        assert!(matches!(error, TraceError::Malformed { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    // Nothing was dropped by the refusals, and where a value came from is no difference.
    assert_eq!(RunReader::open(dir.path()).unwrap().sample_ids().unwrap(), ["a", "b"]);
    let mut same = manifest();
    let setting = Setting { value: 96.into(), source: "manifest".to_owned() };
    same.config.insert("policy.kv_budget".to_owned(), setting);
    same.model.path = Some("elsewhere".to_owned());
    RunWriter::resume(dir.path(), &same, RecordPlan::default()).unwrap();
}

#[test]
fn a_complete_run_and_a_run_being_written_are_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let done = dir.path().join("done");
    write(&done, 3, true);
    let error = RunWriter::resume(&done, &manifest(), RecordPlan::default()).unwrap_err();
    assert!(error.to_string().contains("complete"), "{error}");
    let live = dir.path().join("live");
    let writer = RunWriter::create(&live, manifest(), RecordPlan::default()).unwrap();
    let error = RunWriter::resume(&live, &manifest(), RecordPlan::default()).unwrap_err();
    assert!(error.to_string().contains("another process is writing"), "{error}");
    drop(writer);
    RunWriter::resume(&live, &manifest(), RecordPlan::default()).unwrap();
}

#[test]
fn a_finish_that_was_stopped_half_way_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 4, false);
    // Tables are there, the manifest still says incomplete: the streams hold.
    std::fs::write(dir.path().join("steps.parquet"), b"half").unwrap();
    assert_eq!(RunReader::open(dir.path()).unwrap().steps(&StepQuery::default()).unwrap().len, 9);
    let (writer, kept) = RunWriter::resume(dir.path(), &manifest(), RecordPlan::default()).unwrap();
    assert_eq!(kept.len(), 3);
    writer.finish().unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    assert_eq!(run.steps(&StepQuery::default()).unwrap().len, 9);
    assert_eq!(run.sample_ids().unwrap(), ["b", "a", "c"]);
}
