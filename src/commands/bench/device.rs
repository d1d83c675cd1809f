//! The GPU's figures, with random weights of a named shape. Every run is recorded as a user's run would be, and timed by the engine.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context as _;
use lockstep_runtime::cuda::model::DeviceOptions;
use lockstep_runtime::engine::{Engine, LoadOptions, Request, RunOptions, RunSummary};
use lockstep_traces::stats::QueryStats;
use lockstep_traces::store::RunWriter;
use lockstep_traces::{
    Choice, Dump, EventRow, PolicyKind, PolicySpec, Probe, RecordPlan, SampleRow, SamplingSpec,
    StepRow, TraceError, TraceSink,
};

use super::Figure;
use crate::cli::BenchArgs;
use crate::commands::demo::embedded;
use crate::commands::{device, recording};

/// Rounds of a figure; the median counts.
const ROUNDS: usize = 3;

/// A measurement on a loaded model.
type Part = fn(&Stage<'_>) -> anyhow::Result<Vec<Figure>>;

pub(super) const PARTS: [(&str, Part); 8] = [
    ("decode", decode),
    ("batch", batch),
    ("long", long),
    ("compaction", compaction),
    ("prefill", prefill),
    ("dump", dump),
    ("sampling", sampling),
    ("ledger", ledger),
];

/// What the parts share.
pub(super) struct Stage<'a> {
    args: &'a BenchArgs,
    scratch: &'a Path,
    engine: Engine,
    stats: QueryStats,
    /// Bytes a second of a large copy, read and write counted.
    copy: f64,
    /// KV bytes of one row.
    row_bytes: f64,
    /// Long and short contexts, budget and step of the policy.
    sizes: Sizes,
}

#[derive(Clone, Copy)]
struct Sizes {
    context: usize,
    short: usize,
    long: usize,
    budget: usize,
    divide: usize,
    tokens: usize,
}

impl Sizes {
    fn of(shape: &str) -> Self {
        if shape == "qwen3-tiny" {
            return Self { context: 16, short: 24, long: 48, budget: 16, divide: 4, tokens: 8 };
        }
        Self { context: 512, short: 4096, long: 32_512, budget: 3072, divide: 128, tokens: 256 }
    }
}

/// Everything that a sink is told, dropped.
struct Nothing;

impl TraceSink for Nothing {
    fn wants(&self, _: Probe<'_>) -> bool {
        false
    }
    fn top_k(&self) -> usize {
        8
    }
    fn step(&mut self, _: StepRow) -> Result<(), TraceError> {
        Ok(())
    }
    fn event(&mut self, _: EventRow) -> Result<(), TraceError> {
        Ok(())
    }
    fn dump(&mut self, _: Dump) -> Result<(), TraceError> {
        Ok(())
    }
    fn sample(&mut self, _: SampleRow) -> Result<(), TraceError> {
        Ok(())
    }
}

impl<'a> Stage<'a> {
    pub(super) fn open(args: &'a BenchArgs, scratch: &'a Path) -> anyhow::Result<Self> {
        let load = LoadOptions { device: device::choose(args.device)?, ..LoadOptions::default() };
        let engine = Engine::random(&args.random, &load)?;
        let hyper = engine.hyper().clone();
        let stats = statistics(hyper.layers, hyper.heads, hyper.head_dim / 2);
        let row_bytes = (4 * hyper.layers * hyper.kv_heads * hyper.head_dim) as f64;
        let sizes = Sizes::of(&args.random);
        let copy = copy_rate(&engine)?;
        Ok(Self { args, scratch, engine, stats, copy, row_bytes, sizes })
    }

    fn request(&self, name: &str, length: usize) -> Request {
        let vocab = self.engine.hyper().vocab_size;
        let prompt_ids = (0..length).map(|at| ((at * 7919 + 13) % vocab) as u32).collect();
        Request { sample_id: name.to_owned(), prompt_ids, ..Request::default() }
    }

    fn requests(&self, count: usize, length: usize) -> Vec<Request> {
        (0..count).map(|index| self.request(&format!("s{index}"), length)).collect()
    }

    fn dense(&self, batch: usize, tokens: usize) -> RunOptions {
        let (max_new_tokens, stop_ids) = (tokens, Some(Vec::new()));
        RunOptions { batch, max_new_tokens, stop_ids, ..RunOptions::default() }
    }

    fn compressed(&self, batch: usize, tokens: usize) -> RunOptions {
        let policy = PolicySpec {
            kind: Some(PolicyKind::Triattention),
            kv_budget: Some(self.sizes.budget),
            divide_length: Some(self.sizes.divide),
            recent_window: Some(self.sizes.divide),
            // Prompts here are as long as the contexts measured; protected, they would fill the budget.
            protect_prefill: Some(false),
            ..PolicySpec::default()
        };
        RunOptions { policy, stats: Some(self.stats.clone()), ..self.dense(batch, tokens) }
    }

    /// A run into a run folder, top-8 tracing on.
    fn recorded(
        &self,
        requests: &[Request],
        options: &RunOptions,
        plan: RecordPlan,
    ) -> anyhow::Result<RunSummary> {
        let dir = self.scratch.join("device-run");
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        let job = recording::Job { requests, options, plan: &plan, stats: None, label: None };
        let manifest = recording::manifest(&self.engine, &job)?;
        let mut writer = RunWriter::create(&dir, manifest, plan.clone())?;
        let mut go = |_: &lockstep_runtime::Progress<'_>| ControlFlow::Continue(());
        let summary = self.engine.run(requests, options, &mut writer, &mut go)?;
        writer.finish()?;
        Ok(summary)
    }

    fn unrecorded(&self, requests: &[Request], options: &RunOptions) -> anyhow::Result<RunSummary> {
        let mut go = |_: &lockstep_runtime::Progress<'_>| ControlFlow::Continue(());
        Ok(self.engine.run(requests, options, &mut Nothing, &mut go)?)
    }

    /// Decode tokens a second with tracing on, median of the rounds.
    fn rate(&self, count: usize, length: usize, options: &RunOptions) -> anyhow::Result<f64> {
        let requests = self.requests(count, length);
        let rates = (0..ROUNDS).map(|_| {
            let summary = self.recorded(&requests, options, plan())?;
            Ok(summary.decode_tokens as f64 / summary.decode_seconds)
        });
        Ok(median(rates.collect::<anyhow::Result<Vec<f64>>>()?))
    }
}

fn plan() -> RecordPlan {
    RecordPlan { top_k: 8, scores: Choice::None, ..RecordPlan::default() }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Statistics of no model: values that look like queries' (mean below modulus), the same everywhere.
fn statistics(layers: usize, heads: usize, freqs: usize) -> QueryStats {
    let count = layers * heads * freqs;
    let wave = |index: usize, step: f64| ((index as f64 * step).sin() * 0.8) as f32;
    let narrow = |count: usize| (0..u32::try_from(count).unwrap_or(0)).collect::<Vec<u32>>();
    let (layer_ids, head_ids) = (narrow(layers), narrow(heads));
    let sampled =
        layer_ids.iter().flat_map(|layer| head_ids.iter().map(move |head| (*layer, *head)));
    QueryStats {
        sampled: sampled.collect(),
        layers: layer_ids.clone(),
        heads: head_ids.clone(),
        freqs,
        q_mean_real: (0..count).map(|index| wave(index, 0.37)).collect(),
        q_mean_imag: (0..count).map(|index| wave(index, 0.61)).collect(),
        q_abs_mean: vec![1.25; count],
        ..QueryStats::default()
    }
}

/// A copy of 2 GB on the device.
fn copy_rate(engine: &Engine) -> anyhow::Result<f64> {
    let gpu = engine.gpu().context("a model on a device")?;
    let bytes = if gpu.info().emulated { 1 << 16 } else { 1_usize << 31 };
    let (from, to) = (gpu.zeros::<u8>(bytes)?, gpu.zeros::<u8>(bytes)?);
    let mut rates = Vec::new();
    for _ in 0..5 {
        let seconds = gpu.timed(|| gpu.copy(from.view(), to.view()))?;
        rates.push(2.0 * bytes as f64 / seconds.max(1e-9));
    }
    Ok(median(rates))
}

fn decode(stage: &Stage<'_>) -> anyhow::Result<Vec<Figure>> {
    let Sizes { context, tokens, .. } = stage.sizes;
    let options = stage.dense(1, tokens);
    let requests = stage.requests(1, context);
    stage.recorded(&requests, &options, plan())?;
    let untraced = RunOptions {
        device: DeviceOptions { summaries: false, ..DeviceOptions::default() },
        ..options.clone()
    };
    let fixed = RunOptions {
        device: DeviceOptions { deterministic: true, ..DeviceOptions::default() },
        ..options.clone()
    };
    let eager = RunOptions {
        device: DeviceOptions { graphs: false, ..DeviceOptions::default() },
        ..options.clone()
    };
    let (mut on, mut off, mut same, mut slow) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut bytes = 0.0;
    let rate = |summary: &RunSummary| summary.decode_tokens as f64 / summary.decode_seconds;
    for _ in 0..ROUNDS {
        let summary = stage.recorded(&requests, &options, plan())?;
        bytes =
            summary.weight_bytes as f64 + summary.kv_bytes as f64 / summary.decode_passes as f64;
        on.push(rate(&summary));
        off.push(rate(&stage.unrecorded(&requests, &untraced)?));
        same.push(rate(&stage.recorded(&requests, &fixed, plan())?));
        slow.push(rate(&stage.recorded(&requests, &eager, plan())?));
    }
    let [on, off, same, slow] = [on, off, same, slow].map(median);
    let ceiling = stage.copy / bytes;
    let note = format!(
        "{}, context {context}, top-8 tracing on; bytes at copy bandwidth",
        stage.args.random
    );
    Ok(vec![
        Figure::plain("copy bandwidth", stage.copy / 1e9, "GB/s", "2 GB, read and write counted"),
        Figure::ratio("decode, batch 1", (on, ceiling), "tok/s", note),
        Figure::ratio(
            "decode, tracing on against off",
            (on, off),
            "tok/s",
            "rows written to a run folder",
        ),
        Figure::ratio(
            "decode, deterministic",
            (same, on),
            "tok/s",
            "fixed splits against those that fill the device",
        ),
        Figure::ratio("decode, graphs against eager", (on, slow), "tok/s", "--no-cuda-graph"),
    ])
}

fn batch(stage: &Stage<'_>) -> anyhow::Result<Vec<Figure>> {
    let Sizes { context, tokens, .. } = stage.sizes;
    let one = stage.rate(1, context, &stage.dense(1, tokens))?;
    let eight = stage.rate(8, context, &stage.dense(8, tokens))?;
    Ok(vec![Figure::ratio("decode, batch 8 in total", (eight, one), "tok/s", "against batch 1")])
}

fn long(stage: &Stage<'_>) -> anyhow::Result<Vec<Figure>> {
    let Sizes { short, long, budget, tokens, .. } = stage.sizes;
    // One token more than a period, so that a compaction is in it.
    let warm = stage.requests(1, short);
    stage.recorded(&warm, &stage.compressed(1, 4), plan())?;
    let dense = stage.rate(1, long, &stage.dense(1, tokens))?;
    let near = stage.rate(1, short, &stage.compressed(1, tokens))?;
    let far = stage.rate(1, long, &stage.compressed(1, tokens))?;
    let saved =
        (long + tokens / 2 - budget - stage.sizes.divide / 2) as f64 * stage.row_bytes / stage.copy;
    let mut figures = vec![
        Figure::plain("decode at 32k, dense", dense, "tok/s", format!("context {long}")),
        Figure::ratio(
            "decode at 32k, triattention",
            (far, near),
            "tok/s",
            "against its own rate at 4k",
        ),
        Figure::ratio(
            "time saved a token at 32k",
            ((1.0 / dense - 1.0 / far) * 1e3, saved * 1e3),
            "ms",
            "against the KV bytes saved at copy bandwidth",
        ),
    ];
    let all = stage.requests(8, long);
    let rate = |options: &RunOptions| -> anyhow::Result<f64> {
        let summary = stage.recorded(&all, options, plan())?;
        Ok(summary.decode_tokens as f64 / summary.decode_seconds)
    };
    let (packed, whole) = (rate(&stage.compressed(8, tokens))?, rate(&stage.dense(8, tokens))?);
    figures.push(Figure::ratio(
        "batch 8 at 32k, triattention",
        (packed, whole),
        "tok/s",
        "against dense, one round",
    ));
    Ok(figures)
}

/// One steady compaction by stage, and its share of decode.
fn compaction(stage: &Stage<'_>) -> anyhow::Result<Vec<Figure>> {
    let Sizes { budget, divide, .. } = stage.sizes;
    let requests = stage.requests(1, budget + 1);
    let timed = DeviceOptions { timed: true, ..DeviceOptions::default() };
    let options = RunOptions { device: timed, ..stage.compressed(1, 5 * divide) };
    let dir = stage.scratch.join("device-run");
    stage.recorded(&requests, &options, plan())?;
    let run = lockstep_traces::store::RunReader::open(&dir)?;
    let mut whole = Vec::new();
    let mut parts = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let mut rows = (0, 0);
    for event in run.events(None)?.iter().skip(1) {
        let stages =
            [event.score_seconds, event.reduce_seconds, event.select_seconds, event.gather_seconds];
        whole.push(stages.iter().sum::<f64>() * 1e3);
        parts.iter_mut().zip(stages).for_each(|(list, seconds)| list.push(seconds * 1e3));
        rows = (event.rows_before, event.rows_after);
    }
    let [score, reduce, select, gather] = parts.map(median);
    let one = median(whole);
    // Share by difference: the same tokens with compactions against a budget that never compacts.
    let plain = stage.compressed(1, 4 * divide);
    let never = RunOptions {
        policy: PolicySpec { kv_budget: Some(budget + 100 * divide), ..plain.policy.clone() },
        ..plain.clone()
    };
    let with = median_seconds(stage, &requests, &plain)?;
    let without = median_seconds(stage, &requests, &never)?;
    let note = format!(
        "{} -> {} rows: score {score:.3}, reduce {reduce:.3}, rank {select:.3}, gather {gather:.3} ms",
        rows.0, rows.1
    );
    Ok(vec![
        Figure::plain("one compaction", one, "ms", note),
        Figure::ratio(
            "decode with compactions",
            (with * 1e3, without * 1e3),
            "ms",
            "a token, against never compacting",
        ),
    ])
}

fn median_seconds(
    stage: &Stage<'_>,
    requests: &[Request],
    options: &RunOptions,
) -> anyhow::Result<f64> {
    let times = (0..ROUNDS).map(|_| {
        let summary = stage.recorded(requests, options, plan())?;
        Ok(summary.decode_seconds / summary.decode_tokens as f64)
    });
    Ok(median(times.collect::<anyhow::Result<Vec<f64>>>()?))
}

fn prefill(stage: &Stage<'_>) -> anyhow::Result<Vec<Figure>> {
    let length = 2 * stage.sizes.short;
    let requests = stage.requests(1, length);
    let mut rates = Vec::new();
    for _ in 0..=ROUNDS {
        let summary = stage.recorded(&requests, &stage.dense(1, 1), plan())?;
        rates.push(summary.prompt_tokens as f64 / summary.prefill_seconds);
    }
    rates.remove(0);
    let note = format!("{length} tokens, every row's logits summarised and written");
    Ok(vec![Figure::plain("prefill", median(rates), "tok/s", note)])
}

/// Dumps of K and V before and after compactions, by the difference to the same run without them.
fn dump(stage: &Stage<'_>) -> anyhow::Result<Vec<Figure>> {
    let Sizes { budget, divide, .. } = stage.sizes;
    let requests = stage.requests(1, budget + 1);
    let options = stage.compressed(1, 2 * divide + 4);
    let wall = |cache: Choice| -> anyhow::Result<f64> {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let plan = RecordPlan { cache: cache.clone(), ..plan() };
            times.push(stage.recorded(&requests, &options, plan)?.decode_seconds);
        }
        Ok(median(times))
    };
    let (without, with) = (wall(Choice::None)?, wall(Choice::All)?);
    let events =
        lockstep_traces::store::RunReader::open(&stage.scratch.join("device-run"))?.events(None)?;
    let rows: u32 = events.iter().map(|event| event.rows_before + event.rows_after).sum();
    let bytes = f64::from(rows) * stage.row_bytes;
    let note = format!(
        "{:.2} GB in {} dumps, pinned memory to page cache, decode going on",
        bytes / 1e9,
        events.len()
    );
    Ok(vec![Figure::plain("cache dump", bytes / (with - without).max(1e-9) / 1e9, "GB/s", note)])
}

/// The draw's share of decode: sampled against argmax.
fn sampling(stage: &Stage<'_>) -> anyhow::Result<Vec<Figure>> {
    let Sizes { context, tokens, .. } = stage.sizes;
    let spec = SamplingSpec {
        temperature: Some(0.6),
        top_k: Some(20),
        top_p: Some(0.95),
        seed: Some(1),
        sampler: Some("torch-cuda".to_owned()),
        ..SamplingSpec::default()
    };
    let greedy = stage.rate(1, context, &stage.dense(1, tokens))?;
    let sampled = RunOptions { sampling: spec, ..stage.dense(1, tokens) };
    let drawn = stage.rate(1, context, &sampled)?;
    Ok(vec![Figure::ratio("decode, torch-cuda draws", (drawn, greedy), "tok/s", "against argmax")])
}

/// The embedded model, eight problems at once.
fn ledger(stage: &Stage<'_>) -> anyhow::Result<Vec<Figure>> {
    let files = embedded::write(&stage.scratch.join("ledger"))?;
    let load = LoadOptions { device: device::choose(stage.args.device)?, ..LoadOptions::default() };
    let engine = Engine::load(&files.model, &load)?;
    let names: Vec<String> = (1..=8).map(|number| format!("ledger_{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let requests: Vec<Request> =
        embedded::problems(&names)?.into_iter().map(|problem| problem.request).collect();
    let options = stage.dense(8, stage.sizes.tokens.max(16));
    let mut rates = Vec::new();
    for _ in 0..=ROUNDS {
        let mut go = |_: &lockstep_runtime::Progress<'_>| ControlFlow::Continue(());
        let mut sink = lockstep_traces::MemorySink { plan: plan(), ..Default::default() };
        let summary = engine.run(&requests, &options, &mut sink, &mut go)?;
        rates.push(summary.decode_tokens as f64 / summary.decode_seconds);
    }
    rates.remove(0);
    Ok(vec![Figure::plain("ledger model, 8 sequences", median(rates), "tok/s", "f16, in total")])
}
