//! The measurements. Each makes its own data, warms up, and takes the best or the median as it says.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use lockstep_diff::gather::GatherOptions;
use lockstep_runtime::engine::{Engine, LoadOptions, Request, RunOptions};
use lockstep_traces::hash::DEFAULT_SEEDS;
use lockstep_traces::manifest::Manifest;
use lockstep_traces::store::{DumpFile, RunReader, RunWriter, write_safetensors};
use lockstep_traces::trtmc::{TraceExport, export_trace};
use lockstep_traces::{
    DType, DumpId, EventRow, FinishReason, MemorySink, Phase, RecordPlan, SampleRow, SamplingSpec,
    StepRow, Tensor, TraceSink as _,
};
use rayon::prelude::*;

use super::{Figure, model};
use crate::cli::BenchArgs;
use crate::commands::recording;

pub(super) const GB: f64 = 1e9;

fn seconds(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64())
}

pub(super) fn best(
    times: usize,
    mut work: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..times {
        least = least.min(seconds(&mut work)?);
    }
    Ok(least)
}

/// Bytes a second that all threads read of `bytes` when they only add up.
fn read_rate(bytes: &[u8]) -> anyhow::Result<f64> {
    let least = best(5, || {
        let sum: u64 = bytes
            .par_chunks(1 << 20)
            .map(|chunk| {
                let words = chunk
                    .chunks_exact(8)
                    .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
                words.fold(0, u64::wrapping_add)
            })
            .reduce(|| 0, u64::wrapping_add);
        std::hint::black_box(sum);
        Ok(())
    })?;
    Ok(bytes.len() as f64 / least)
}

/// Decode of one sequence with tracing on against the read bandwidth of the same threads over the same file.
pub(super) fn decode(args: &BenchArgs, scratch: &Path) -> anyhow::Result<Vec<Figure>> {
    let dir = scratch.join("bench-model");
    let shape = model::write(&dir, args.model_mb)?;
    let engine = Engine::load(&dir, &LoadOptions::default())?;
    let weights = std::fs::read(dir.join("model.safetensors"))?;
    let vocab = u32::try_from(shape.vocab).unwrap_or(u32::MAX);
    let request = Request {
        sample_id: "bench".to_owned(),
        prompt_ids: (0..16).map(|id| (id * 37) % vocab).collect(),
        ..Request::default()
    };
    let options =
        RunOptions { max_new_tokens: 96, stop_ids: Some(Vec::new()), ..RunOptions::default() };
    let (mut ratios, mut last) = (Vec::new(), (0.0, 0.0, 0.0));
    for _ in 0..3 {
        let read = read_rate(&weights)?;
        let mut sink = MemorySink {
            plan: RecordPlan { top_k: 8, ..RecordPlan::default() },
            ..MemorySink::default()
        };
        let summary =
            engine.run(std::slice::from_ref(&request), &options, &mut sink, &mut |_| {
                ControlFlow::Continue(())
            })?;
        let bytes = (summary.weight_bytes * summary.decode_passes + summary.kv_bytes) as f64;
        let rate = bytes / summary.decode_seconds;
        ratios.push(rate / read);
        last = (rate, read, summary.decode_tokens as f64 / summary.decode_seconds);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied().unwrap_or(0.0);
    let note = format!(
        "{} layers, {:.0} MB bf16, KV {} B a row, top-8 tracing on, {} threads; median ratio of {} rounds {median:.3}",
        shape.layers,
        shape.weight_bytes as f64 / 1e6,
        shape.kv_row_bytes,
        rayon::current_num_threads(),
        ratios.len()
    );
    Ok(vec![
        Figure::ratio("decode: weights + KV read", (last.0 / GB, last.1 / GB), "GB/s", note),
        Figure::plain("decode", last.2, "tok/s", ""),
    ])
}

/// Chunked forward replay against token by token, and against the machine's own f32 product.
pub(super) fn replay(args: &BenchArgs, scratch: &Path) -> anyhow::Result<Vec<Figure>> {
    let dir = scratch.join("bench-replay-model");
    model::write(&dir, args.model_mb.min(150))?;
    let rates = lockstep_replay::forward::measure(&dir, 768, 256, 12)?;
    Ok(vec![
        Figure::ratio(
            "replay: chunked, token by token",
            (rates.chunked_rows, rates.single_rows),
            "rows/s",
            "chunks of 256 rows, f32",
        ),
        Figure::ratio(
            "replay: matmul rate",
            (rates.chunked_flops / GB, rates.gemm_flops / GB),
            "GFLOP/s",
            "against one large f32 product",
        ),
    ])
}

/// Gather check over dumps in the page cache against memcpy of the same bytes.
pub(super) fn gather(args: &BenchArgs, scratch: &Path) -> anyhow::Result<Vec<Figure>> {
    let dir = scratch.join("bench-dumps");
    let bytes = write_dumps(&dir, args.dump_mb)?;
    let run = RunReader::open(&dir)?;
    let check = || {
        let report = lockstep_diff::gather::check(&run, &GatherOptions::default())?;
        anyhow::ensure!(
            report.different == 0 && report.compared > 0,
            "the made dumps do not agree: {:?}",
            report.verdict
        );
        Ok(())
    };
    check()?;
    let (least, peak) = watched(|| best(3, check))?;
    let copy = copy_rate()?;
    let rate = bytes as f64 / least;
    let note =
        format!("{:.2} GB of dumps; largest anonymous memory seen {peak:.0} MB", bytes as f64 / GB);
    let mut figures = vec![Figure::ratio("gather check", (rate / GB, copy / GB), "GB/s", note)];
    figures.extend(tensors(&run, scratch, copy)?);
    Ok(figures)
}

/// Two dump files value by value: equal ones, and one against another in which every value differs.
fn tensors(run: &RunReader, scratch: &Path, copy: f64) -> anyhow::Result<Vec<Figure>> {
    let dump = |ordinal: u32| {
        let id = DumpId::Compaction { sample_id: "bench".to_owned(), ordinal };
        run.dir().join(id.relative_path())
    };
    let (path, twin) = (dump(1), scratch.join("bench-twin.safetensors"));
    std::fs::copy(&path, &twin)?;
    let bytes = 2 * std::fs::metadata(&path)?.len();
    let mut figures = Vec::new();
    for (name, right) in
        [("tensor comparison, equal", twin), ("tensor comparison, all different", dump(2))]
    {
        let (left, right) = (DumpFile::open(&path)?, DumpFile::open(&right)?);
        let compare = || {
            std::hint::black_box(lockstep_diff::tensors::compare(&left, &right)?);
            Ok(())
        };
        compare()?;
        let (least, peak) = watched(|| best(5, compare))?;
        let note = format!("both sides counted; largest anonymous memory seen {peak:.0} MB");
        figures.push(Figure::ratio(name, (bytes as f64 / least / GB, copy / GB), "GB/s", note));
    }
    Ok(figures)
}

/// Runs `work` while another thread looks at the process's anonymous memory every 2 ms; gives the largest it saw, in MB.
pub(super) fn watched(work: impl FnOnce() -> anyhow::Result<f64>) -> anyhow::Result<(f64, f64)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = anonymous_mb();
            while !done.load(Ordering::Relaxed) {
                peak = peak.max(anonymous_mb());
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            peak
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        let peak = watcher.join().unwrap_or(f64::NAN);
        Ok((result?, peak))
    })
}

/// Bytes read a second by a copy of all threads between two buffers of 256 MB.
pub(super) fn copy_rate() -> anyhow::Result<f64> {
    let source = vec![7_u8; 1 << 28];
    let mut target = vec![0_u8; 1 << 28];
    let least = best(5, || {
        target
            .par_chunks_mut(1 << 20)
            .zip(source.par_chunks(1 << 20))
            .for_each(|(to, from)| to.copy_from_slice(from));
        std::hint::black_box(&target);
        Ok(())
    })?;
    Ok(source.len() as f64 / least)
}

/// Anonymous resident memory of this process, in MB (`RssAnon` of the kernel; file mappings are not in it).
fn anonymous_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|text| text.trim().trim_end_matches(" kB").trim().parse::<f64>().ok())
        .map_or(f64::NAN, |kb| kb / 1024.0)
}

/// Dumps of one sample whose rows after are the kept rows before, a compaction of 4 layers a file.
fn write_dumps(dir: &Path, megabytes: u64) -> anyhow::Result<u64> {
    const LAYERS: usize = 4;
    const HEADS: usize = 8;
    const DIM: usize = 128;
    const BEFORE: usize = 3200;
    const AFTER: usize = 3072;
    if dir.exists() {
        std::fs::remove_dir_all(dir)?;
    }
    let row = DIM * 2;
    let per_dump = (LAYERS * 2 * HEADS * (BEFORE + AFTER) * row) as u64;
    let count = (megabytes * 1_000_000).div_ceil(per_dump).max(1);
    let mut manifest = Manifest::new(recording::producer("bench"), "cpu");
    manifest.cache_dtype = Some(DType::Bf16);
    let mut writer = RunWriter::create(dir, manifest, RecordPlan::default())?;
    let mut state = 1_u64;
    let mut total = 0;
    for ordinal in 1..=u32::try_from(count)? {
        let keep: Vec<i32> =
            (0..HEADS).flat_map(|_| (0..BEFORE as i32).filter(|row| row % 25 != 0)).collect();
        let mut tensors = vec![Tensor::from_i32("keep", vec![HEADS, AFTER], &keep)];
        for layer in 0..LAYERS {
            for kind in ["k", "v"] {
                let before = noise(HEADS * BEFORE * row, &mut state);
                let after = before
                    .chunks(BEFORE * row)
                    .zip(keep.chunks(AFTER))
                    .flat_map(|(head, keep)| {
                        keep.iter().flat_map(move |&at| &head[at as usize * row..][..row])
                    })
                    .copied()
                    .collect::<Vec<u8>>();
                total += (before.len() + after.len()) as u64;
                for (when, rows, data) in [("pre", BEFORE, before), ("post", AFTER, after)] {
                    let name = format!("{when}.{kind}.layer{layer:02}");
                    tensors.push(Tensor {
                        name,
                        dtype: DType::Bf16,
                        shape: vec![HEADS, rows, DIM],
                        data,
                    });
                }
            }
        }
        let id = DumpId::Compaction { sample_id: "bench".to_owned(), ordinal };
        let path = dir.join(id.relative_path());
        std::fs::create_dir_all(path.parent().context("a dump lies in a folder")?)?;
        write_safetensors(&path, &BTreeMap::new(), &tensors)?;
        writer.event(EventRow {
            sample_id: "bench".to_owned(),
            ordinal,
            absolute_position: ordinal * 128,
            round_start: None,
            rows_before: BEFORE as u32,
            rows_after: AFTER as u32,
            protected: 0,
            candidates: BEFORE as u32,
            score_seconds: 0.0,
            reduce_seconds: 0.0,
            select_seconds: 0.0,
            gather_seconds: 0.0,
            dump: Some(id.relative_path()),
        })?;
    }
    writer.sample(sample(Vec::new()))?;
    writer.finish()?;
    Ok(total)
}

fn noise(count: usize, state: &mut u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(*state ^ (*state >> 29)).to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

const STEPS: u32 = 40_000;

fn write_trace(dir: &Path) -> anyhow::Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir)?;
    }
    let mut manifest = Manifest::new(recording::producer("bench"), "cpu");
    manifest.dtype = Some(DType::F32);
    manifest.logits_hash_seeds = Some(DEFAULT_SEEDS);
    let temperature = SamplingSpec::default().temperature.unwrap_or(0.0);
    manifest.set("sampling.temperature", f64::from(temperature), "default");
    let mut writer =
        RunWriter::create(dir, manifest, RecordPlan { top_k: 8, ..RecordPlan::default() })?;
    let mut generated = Vec::new();
    for position in 0..STEPS {
        let token = position.wrapping_mul(2_654_435_761) % 30_000;
        let top_logits: Vec<f32> =
            (0..8).map(|k| 20.0 - 0.37 * k as f32 - (position % 97) as f32 * 0.01).collect();
        let next = (position + 1).wrapping_mul(2_654_435_761) % 30_000;
        generated.push(next);
        writer.step(StepRow {
            sample_id: "bench".to_owned(),
            position,
            phase: if position == 0 { Phase::Prompt } else { Phase::Decode },
            token_id: token,
            next_token: Some(next),
            rows_before: position,
            rows_after: position + 1,
            rows_bucketed: None,
            compaction: None,
            rope_index: Some(position),
            argmax: next,
            top_ids: (0..8).map(|k| (next + k) % 30_000).collect(),
            top2_margin: Some(top_logits[0] - top_logits[1]),
            top_logits,
            logsumexp: Some(21.0),
            finite: true,
            logits_hash: Some([u64::from(position) << 20, u64::from(position)]),
            rng_offset: None,
            uniform: None,
        })?;
    }
    writer.sample(sample(generated))?;
    Ok(writer.finish()?)
}

fn sample(generated_ids: Vec<u32>) -> SampleRow {
    SampleRow {
        prompt_ids: vec![0],
        prompt_ids_sha256: lockstep_traces::hash::ids_sha256(&[0]),
        prompt_len: Some(1),
        generated_ids,
        finish: FinishReason::Length,
        ..SampleRow::bare("bench")
    }
}

/// Two traces of 40,000 steps, read and compared.
pub(super) fn diff(_: &BenchArgs, scratch: &Path) -> anyhow::Result<Vec<Figure>> {
    let (left, right) = (scratch.join("bench-left"), scratch.join("bench-right"));
    write_trace(&left)?;
    write_trace(&right)?;
    let least = best(5, || {
        let (left, right) = (
            crate::commands::inputs::Trace::read(&left)?,
            crate::commands::inputs::Trace::read(&right)?,
        );
        let report = crate::commands::diff::compare(&left, &right, None, None);
        anyhow::ensure!(
            report.counts.rows_compared == u64::from(STEPS),
            "only {} rows",
            report.counts.rows_compared
        );
        Ok(())
    })?;
    Ok(vec![Figure::plain(
        "diff of two 40,000-step traces",
        least,
        "s",
        "reading included, best of 5",
    )])
}

/// A step trace in JSON lines: import's parser against serde_json's on the same bytes.
pub(super) fn import(_: &BenchArgs, scratch: &Path) -> anyhow::Result<Vec<Figure>> {
    let (dir, path) = (scratch.join("bench-trace"), scratch.join("bench-trace.jsonl"));
    write_trace(&dir)?;
    export_trace(&RunReader::open(&dir)?, &path, TraceExport::default())?;
    let text = std::fs::read(&path)?;
    let mine = best(5, || lockstep_traces::load(&path).map(|_| ()).map_err(Into::into))?;
    let serde = best(5, || {
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            std::hint::black_box(serde_json::from_slice::<serde_json::Value>(line)?);
        }
        Ok(())
    })?;
    let rate = |seconds: f64| text.len() as f64 / seconds / 1e6;
    let note = format!("{:.1} MB; serde_json into values, one thread", text.len() as f64 / 1e6);
    Ok(vec![Figure::ratio("import of a step trace", (rate(mine), rate(serde)), "MB/s", note)])
}
