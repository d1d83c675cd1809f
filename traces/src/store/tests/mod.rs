//! Tests of the run directory as a whole: rows whose fields all differ, and what writer and reader make of them.

mod dumps;
mod kill;
mod query;
mod resume;
mod round_trip;

use std::path::Path;

use super::*;
use crate::manifest::Producer;
use crate::{EventRow, FinishReason, Manifest, Phase, RecordPlan, SampleRow, StepRow, TraceSink};

fn manifest() -> Manifest {
    let mut manifest =
        Manifest::new(Producer { name: "test".to_owned(), ..Producer::default() }, "cpu");
    manifest.set("policy.kind", "dense", "flag");
    manifest.set("policy.kv_budget", 96, "flag");
    manifest
}

/// A row whose fields all differ from one another and from the next row's.
fn step(sample_id: &str, position: u32) -> StepRow {
    let odd = position % 2 == 1;
    StepRow {
        sample_id: sample_id.to_owned(),
        position,
        phase: if position < 3 { Phase::Prompt } else { Phase::Decode },
        token_id: 1000 + position,
        next_token: odd.then_some(2000 + position),
        rows_before: position,
        rows_after: position + 1,
        rows_bucketed: odd.then_some(position.next_multiple_of(16)),
        compaction: (position == 5).then_some(1),
        rope_index: odd.then_some(position),
        argmax: 3000 + position,
        top_ids: vec![position, 70_000 + position, 3],
        top_logits: vec![position as f32 + 0.5, f32::from_bits(0x7FC0_1234), f32::NEG_INFINITY],
        logsumexp: odd.then_some(f64::from(position) / 3.0),
        top2_margin: odd.then_some(0.125),
        finite: !odd,
        logits_hash: odd.then_some([u64::MAX - u64::from(position), 7]),
        rng_offset: odd.then_some(u64::from(position) << 40),
        uniform: odd.then_some(0.75),
    }
}

fn event(sample_id: &str, ordinal: u32) -> EventRow {
    EventRow {
        sample_id: sample_id.to_owned(),
        ordinal,
        absolute_position: 100 + ordinal,
        round_start: Some(90 + ordinal),
        rows_before: 128,
        rows_after: 112,
        protected: 12,
        candidates: 116,
        score_seconds: 0.25,
        reduce_seconds: 0.5,
        select_seconds: 1.0,
        gather_seconds: 2.0,
        dump: (ordinal == 1).then(|| "tensors/x/compaction_0001.safetensors".to_owned()),
    }
}

fn sample(sample_id: &str) -> SampleRow {
    SampleRow {
        sample_id: sample_id.to_owned(),
        prompt_ids: vec![5, 6, 70_000],
        prompt_ids_sha256: crate::hash::ids_sha256(&[5, 6, 70_000]),
        prompt_text_sha256: None,
        prompt_len: Some(3),
        base_seed: Some(u64::MAX),
        seed_index: None,
        effective_seed: Some(1),
        generated_ids: vec![],
        text: Some("a \u{1F600} <b>".to_owned()),
        gold: None,
        answer: Some(String::new()),
        answer_rule: Some("boxed".to_owned()),
        finish: FinishReason::CacheFull,
        prefill_seconds: 0.5,
        decode_seconds: f64::INFINITY,
    }
}

/// `b` starts first, `a` interleaves, then `c`.
fn write(dir: &Path, rows: u32, finish: bool) {
    let mut writer = RunWriter::create(dir, manifest(), RecordPlan::default()).unwrap();
    for position in 0..rows {
        writer.step(step("b", position)).unwrap();
        writer.step(step("a", position)).unwrap();
    }
    writer.event(event("a", 1)).unwrap();
    writer.event(event("b", 1)).unwrap();
    writer.event(event("a", 2)).unwrap();
    writer.sample(sample("a")).unwrap();
    writer.step(step("c", 4)).unwrap();
    writer.sample(sample("c")).unwrap();
    writer.sample(sample("b")).unwrap();
    if finish {
        writer.finish().unwrap();
    }
}

fn expected(rows: u32) -> Vec<StepRow> {
    let one = |name: &'static str| (0..rows).map(move |position| step(name, position));
    one("b").chain(one("a")).chain([step("c", 4)]).collect()
}

/// `StepRow` without the NaN, which is equal to nothing.
fn bits(row: &StepRow) -> (StepRow, Vec<u32>) {
    let logits = row.top_logits.iter().map(|logit| logit.to_bits()).collect();
    (StepRow { top_logits: Vec::new(), ..row.clone() }, logits)
}
