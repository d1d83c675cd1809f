//! Replays of runs that Hugging Face transformers made on the ledger model: the runs themselves.

mod checks;
mod replays;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use lockstep_testkit::{golden, gunzip, ledger};
use lockstep_traces::manifest::Producer;
use lockstep_traces::store::{DumpFile, RunReader, RunWriter};
use lockstep_traces::{
    Dump, DumpId, EventRow, FinishReason, Manifest, MemorySink, Phase, RecordPlan, SampleRow,
    StepRow, Tensor, TraceSink,
};
use tempfile::TempDir;

use super::{ForwardOptions, Policy, forward};
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
    run_of(name, &rows(name), make, None)
}

/// The same from rows as given. `event` is a row after which, and to how many rows, the cache is compacted although another
/// row carries the compaction.
fn run_of(
    name: &str,
    rows: &[Row],
    make: Make,
    event: Option<(usize, u32)>,
) -> (TempDir, RunReader) {
    let file = name.rsplit('/').next().unwrap();
    let sample_id = file.split('.').next().unwrap().to_owned();
    let task = lockstep_testkit::task(&sample_id);
    let prompt = task.prompt_ids.len();
    let dir = tempfile::tempdir().unwrap();
    let manifest = Manifest::new(Producer::default(), "golden");
    let mut writer = RunWriter::create(dir.path(), manifest, RecordPlan::default()).unwrap();
    let mut keep_dump = None;
    for row in rows {
        if make.prompt_rows || row.position_before as usize >= prompt {
            writer.step(step(&sample_id, row, prompt)).unwrap();
        }
        let Some(index) = row.compaction else { continue };
        let (after, kept) = event.map_or((row, row.rows_after), |(at, kept)| (&rows[at], kept));
        writer.event(event_row(&sample_id, after, index + 1, kept)).unwrap();
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

fn event_row(sample_id: &str, row: &Row, ordinal: u32, kept: u32) -> EventRow {
    EventRow {
        sample_id: sample_id.to_owned(),
        ordinal,
        absolute_position: row.position_before + 1,
        round_start: Some(row.position_before + 1),
        rows_before: row.rows_before + 1,
        rows_after: kept,
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
