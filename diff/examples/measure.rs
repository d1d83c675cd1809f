//! Measures this crate on synthetic runs and prints ratios: two 40,000-step traces compared, a gather check and a tensor
//! comparison against memcpy from the page cache.
//!
//! `cargo run --release -p lockstep-diff --example measure -- [compactions]`; one compaction is 0.93 GB of dumps.
#![expect(clippy::print_stdout, reason = "a measuring program prints what it measured")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

use lockstep_diff::gather::GatherOptions;
use lockstep_diff::{Options, Side, compare, gather, tensors};
use lockstep_traces::hash::{DEFAULT_SEEDS, logits_hash};
use lockstep_traces::manifest::Producer;
use lockstep_traces::store::{DumpFile, RunReader, RunWriter};
use lockstep_traces::{
    DType, Dump, DumpId, FinishReason, Manifest, Phase, RecordPlan, SampleRow, StepRow, Tensor,
    TraceSink, load,
};
use rayon::prelude::*;

const STEPS: u32 = 40_000;
const LAYERS: usize = 36;
const HEADS: usize = 8;
const BEFORE: usize = 3200;
const AFTER: usize = 3072;
const ROW: usize = 128 * 2;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let compactions = std::env::args().nth(1).map_or(Ok(2), |text| text.parse::<u32>())?;
    let home = tempfile::tempdir()?;
    let (left, right) = (home.path().join("left"), home.path().join("right"));
    write_steps(&left, STEPS)?;
    write_steps(&right, 31_000)?;
    traces(&left, &right)?;
    let run = home.path().join("dumps");
    write_dumps(&run, compactions)?;
    dumps(&run)
}

/// A run of 40,000 rows whose logits part at `parts`.
fn write_steps(dir: &Path, parts: u32) -> Outcome {
    let mut manifest = Manifest::new(Producer::default(), "cpu");
    manifest.dtype = Some(DType::F32);
    manifest.logits_hash_seeds = Some(DEFAULT_SEEDS);
    let mut writer = RunWriter::create(dir, manifest, RecordPlan::default())?;
    let mut state = 7_u32;
    for position in 0..STEPS {
        let top_logits: Vec<f32> = (0..8_u8)
            .map(|at| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let jitter = f32::from(u16::try_from(state >> 16).unwrap_or(0)) / 65_536.0;
                25.0 - 2.0 * f32::from(at) + jitter + if position >= parts { 0.001 } else { 0.0 }
            })
            .collect();
        writer.step(StepRow {
            sample_id: "s".to_owned(),
            position,
            phase: if position < 100 { Phase::Prompt } else { Phase::Decode },
            token_id: position % 1000,
            next_token: Some((position + 1) % 1000),
            rows_before: position,
            rows_after: position + 1,
            rows_bucketed: None,
            compaction: None,
            rope_index: Some(position),
            argmax: (position + 1) % 1000,
            top_ids: (0..8).map(|at| (position + 1 + at) % 1000).collect(),
            logsumexp: Some(f64::from(top_logits.first().copied().unwrap_or(0.0)) + 0.2),
            top2_margin: Some(1.0),
            finite: true,
            logits_hash: Some(logits_hash(&top_logits, DEFAULT_SEEDS)),
            top_logits,
            rng_offset: None,
            uniform: None,
        })?;
    }
    writer.sample(SampleRow {
        sample_id: "s".to_owned(),
        prompt_ids: (0..100).collect(),
        prompt_ids_sha256: String::new(),
        prompt_text_sha256: None,
        prompt_len: Some(100),
        base_seed: None,
        seed_index: None,
        effective_seed: None,
        generated_ids: Vec::new(),
        text: None,
        gold: None,
        answer: None,
        answer_rule: None,
        finish: FinishReason::Length,
        prefill_seconds: 0.0,
        decode_seconds: 0.0,
    })?;
    writer.finish()?;
    Ok(())
}

fn traces(left: &Path, right: &Path) -> Outcome {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        let (a, b) = rayon::join(|| load(left), || load(right));
        let (a, b) = (a?, b?);
        let read = start.elapsed().as_secs_f64();
        let report =
            compare(&Side::of("left", &a, &[]), &Side::of("right", &b, &[]), Options::default());
        let all = start.elapsed().as_secs_f64();
        let at = report.splits.logit.map(|split| split.position);
        println!(
            "two {STEPS}-step traces: {all:.3} s, of it reading {read:.3} s; logits part at {at:?}"
        );
        best = best.min(all);
    }
    println!("best {best:.3} s, bar 0.2 s");
    Ok(())
}

fn write_dumps(dir: &Path, compactions: u32) -> Outcome {
    let mut writer =
        RunWriter::create(dir, Manifest::new(Producer::default(), "cpu"), RecordPlan::default())?;
    for ordinal in 1..=compactions {
        let keep: Vec<Vec<usize>> = (0..HEADS)
            .map(|head| (0..BEFORE).filter(|row| row % 25 != head).take(AFTER).collect())
            .collect();
        let mut dumped = Vec::new();
        for layer in 0..LAYERS {
            for letter in ["k", "v"] {
                let seed = layer * 31 + usize::from(letter == "v") + ordinal as usize * 977;
                let pre: Vec<u8> = (0..HEADS * BEFORE * ROW)
                    .map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9) >> 13) as u8 & 0x3f)
                    .collect();
                let mut post = Vec::with_capacity(HEADS * AFTER * ROW);
                for (head, rows) in keep.iter().enumerate() {
                    for row in rows {
                        let at = (head * BEFORE + row) * ROW;
                        post.extend_from_slice(&pre[at..at + ROW]);
                    }
                }
                for (prefix, rows, data) in [("pre", BEFORE, pre), ("post", AFTER, post)] {
                    let name = format!("{prefix}.{letter}.layer{layer:02}");
                    dumped.push(Tensor {
                        name,
                        dtype: DType::Bf16,
                        shape: vec![HEADS, rows, ROW / 2],
                        data,
                    });
                }
            }
        }
        let flat: Vec<i32> =
            keep.concat().into_iter().map(i32::try_from).collect::<Result<_, _>>()?;
        dumped.push(Tensor::from_i32("keep", vec![HEADS, AFTER], &flat));
        let id = DumpId::Compaction { sample_id: "s".to_owned(), ordinal };
        writer.dump(Dump { id, metadata: BTreeMap::new(), tensors: dumped })?;
    }
    writer.finish()?;
    Ok(())
}

/// GB/s of copying every tensor byte of the dumps from the page cache into one small buffer per thread.
fn memcpy_rate(files: &[DumpFile]) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    let mut bytes = 0;
    for file in files {
        for name in file.names() {
            let view = file.get(name)?;
            bytes += view.bytes.len();
            view.bytes.par_chunks(1 << 18).for_each_init(
                || vec![0_u8; 1 << 18],
                |buffer, chunk| {
                    buffer[..chunk.len()].copy_from_slice(chunk);
                    std::hint::black_box(&buffer);
                },
            );
        }
    }
    Ok(bytes as f64 / 1e9 / start.elapsed().as_secs_f64())
}

fn anonymous_megabytes() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|line| line.starts_with("RssAnon")).unwrap_or("RssAnon: unknown").to_owned()
}

fn open(run: &RunReader) -> Result<Vec<DumpFile>, Box<dyn Error>> {
    let mut files = Vec::new();
    for id in run.dumps()? {
        files.extend(run.dump(&id)?);
    }
    Ok(files)
}

fn dumps(dir: &Path) -> Outcome {
    let run = RunReader::open(dir)?;
    for _ in 0..3 {
        // Fresh maps each time, so that both sides pay for their page faults.
        let memcpy = memcpy_rate(&open(&run)?)?;
        let start = Instant::now();
        let report = gather::check(&run, &GatherOptions::default())?;
        let seconds = start.elapsed().as_secs_f64();
        let bytes = report.detail["bytes"].as_f64().unwrap_or(0.0);
        let rate = bytes / 1e9 / seconds;
        println!(
            "gather: {} of {} head tensors {}, {:.2} GB in {seconds:.3} s = {rate:.1} GB/s, {:.0} % of memcpy ({memcpy:.1} GB/s); {}",
            report.compared - report.different,
            report.compared,
            report.verdict.word(),
            bytes / 1e9,
            100.0 * rate / memcpy,
            anonymous_megabytes()
        );
    }
    let files = open(&run)?;
    let (Some(first), Some(last)) = (files.first(), files.last()) else { return Ok(()) };
    for (word, other) in [("equal", first), ("different", last)] {
        let again = open(&run)?;
        let fresh = again.first().ok_or("no dump")?;
        let start = Instant::now();
        let report = tensors::compare(fresh, other)?;
        let seconds = start.elapsed().as_secs_f64();
        let rate = 2.0 * report.bytes as f64 / 1e9 / seconds;
        println!(
            "tensors, {word}: {} {:.2} GB/s (both sides counted); {}",
            report.verdict.word(),
            rate,
            anonymous_megabytes()
        );
    }
    Ok(())
}
