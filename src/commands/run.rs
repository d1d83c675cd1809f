//! `run`: a model under a cache policy, recorded.

use std::fmt::Write as _;

use anyhow::Context as _;
use lockstep_runtime::engine::{Engine, LoadOptions, Request, RunOptions, RunSummary};
use lockstep_traces::{Cause, PolicyKind, PolicySpec, RecordPlan, SamplingSpec};
use serde_json::json;

use super::device;
use super::inputs::{self, DatasetRow};
use super::recording::{self, Job};
use super::selection;
use crate::cli::{DeviceArg, Format, PolicyArgs, RecordArgs, RunArgs, SamplingArgs};
use crate::console;
use crate::exit::{Status, usage};

pub(crate) fn execute(args: &RunArgs, format: Format) -> anyhow::Result<Status> {
    let plant = engine_plant(args.plant.as_deref())?;
    if args.source.cache.is_some() {
        if matches!(args.device, DeviceArg::Cuda | DeviceArg::Emulated) {
            return Err(usage("--cache selects on the CPU; leave --device out"));
        }
        return selection::execute(args, plant, format);
    }
    let device = device::choose(args.device)?;
    let load = LoadOptions { dtype: args.dtype, cache_dtype: args.cache_dtype, device };
    let engine = match &args.random {
        Some(shape) => Engine::random(shape, &load)?,
        None => Engine::load(args.model.as_deref().context("--model is needed")?, &load)?,
    };
    for remark in engine.remarks() {
        console::note(&format!("note: {remark}"));
    }
    let requests = requests(args, &engine)?;
    if let Some(line) = unseeded(&args.sampling, requests.len()) {
        console::note(&line);
    }
    let stats = args.policy.stats.as_deref();
    if args.policy.policy == PolicyKind::Triattention && stats.is_none() {
        return Err(usage("--policy triattention needs --stats; `lockstep calibrate` makes them"));
    }
    let options = RunOptions {
        policy: policy_spec(&args.policy),
        sampling: sampling_spec(&args.sampling),
        stats: stats.map(lockstep_traces::stats::read).transpose()?,
        max_new_tokens: args.max_new_tokens,
        stop_ids: args.stop_ids.clone(),
        batch: args.batch,
        plant,
        device: device::options(&args.on_device),
        ..RunOptions::default()
    };
    let plan = record_plan(&args.record);
    let job =
        Job { requests: &requests, options: &options, plan: &plan, stats, label: Some("run") };
    let Some(summary) = recording::record(&engine, &job, &args.out, args.resume)? else {
        console::note(&format!(
            "lockstep: interrupted; {} is incomplete and opens as it is, --resume goes on",
            args.out.display()
        ));
        return Ok(Status::Inconclusive);
    };
    print(args, &device::name(&engine), (&requests, &summary), format)?;
    Ok(Status::Parity)
}

/// A warning where several samples are drawn without a seed: they would share one stream of random numbers.
fn unseeded(sampling: &SamplingArgs, samples: usize) -> Option<String> {
    let drawn = sampling.temperature.is_some_and(|temperature| temperature >= 1e-6);
    let seeded = sampling.seed.is_some_and(|seed| seed >= 0);
    (drawn && !seeded && samples > 1).then(|| {
        format!(
            "note: no --seed: all {samples} samples draw from the stream of seed 42, so that they are no independent draws; \
             with --seed N each draws from N plus its seed index"
        )
    })
}

/// A fault that sits in the engine.
fn engine_plant(slug: Option<&str>) -> anyhow::Result<Option<Cause>> {
    let plant = inputs::plant(slug)?;
    match plant {
        Some(cause) if cause.is_harness() => Err(usage(format!(
            "`{}` is a mistake of the replay; plant it with `lockstep replay forward --plant`",
            cause.slug()
        ))),
        other => Ok(other),
    }
}

fn requests(args: &RunArgs, engine: &Engine) -> anyhow::Result<Vec<Request>> {
    let encode = |text: &str| -> anyhow::Result<Vec<u32>> {
        let tokenizer = engine
            .tokenizer()
            .context("the model has no tokenizer (tokenizer.json, or gpt2-type tokens in a GGUF file); give --prompt-ids")?;
        Ok(tokenizer.encode(text)?)
    };
    let source = &args.source;
    if let Some(path) = &source.dataset {
        let rows = inputs::dataset(path, args.select.as_deref())?;
        return rows.into_iter().map(|(index, row)| inputs::request(index, row, &encode)).collect();
    }
    let (prompt, prompt_ids) = match (&source.prompt, &source.prompt_ids) {
        (Some(text), _) => (Some(text.clone()), None),
        (None, Some(path)) => (None, Some(inputs::prompt_ids(path)?)),
        (None, None) => return Err(usage("give --prompt, --prompt-ids or --dataset")),
    };
    let row = DatasetRow {
        sample_id: Some("prompt".to_owned()),
        prompt,
        prompt_ids,
        answer: None,
        seed_index: Some(0),
        gold_completion_ids: None,
    };
    Ok(vec![inputs::request(0, row, &encode)?])
}

/// The policy as it was asked for.
pub(crate) fn policy_spec(args: &PolicyArgs) -> PolicySpec {
    PolicySpec {
        kind: Some(args.policy),
        rule_set: args.rule_set,
        kv_budget: args.kv_budget,
        divide_length: args.divide_length,
        recent_window: args.recent_window,
        protect_prefill: args.protect_prefill,
        count_prompt_tokens: args.count_prompt_tokens,
        include_prefill_in_budget: args.include_prefill_in_budget,
        allow_prefill_compression: args.allow_prefill_compression,
        offset_max_length: args.offset_max_length,
        score_aggregation: args.score_aggregation,
        layer_aggregation: args.layer_aggregation,
        group_aggregation: args.group_aggregation,
        normalize: args.normalize,
        mode: args.mode,
        trigger: args.trigger,
        disable_mlr: args.disable_mlr,
        disable_trig: args.disable_trig,
        noise_seed: args.noise_seed,
        policy_seed: args.policy_seed,
        kv_cache_bytes: args.kv_cache_size,
        max_rows: args.max_rows,
    }
}

/// Sampling as it was asked for.
pub(crate) fn sampling_spec(args: &SamplingArgs) -> SamplingSpec {
    SamplingSpec {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        seed: args.seed,
        sampler: args.sampler.clone(),
        filters: args.filters.clone(),
        sm_count: args.sm_count,
    }
}

/// What to record, as it was asked for.
pub(crate) fn record_plan(args: &RecordArgs) -> RecordPlan {
    RecordPlan {
        cache: args.record_cache.clone(),
        scores: args.record_scores.clone(),
        hidden: args.record_hidden.clone(),
        hidden_layers: args.record_hidden_layers.clone(),
        logits: args.record_logits.clone(),
        top_k: args.trace_top_k,
    }
}

#[expect(clippy::cast_precision_loss, reason = "token counts in a rate for people")]
fn print(
    args: &RunArgs,
    device: &str,
    (requests, summary): (&[Request], &RunSummary),
    format: Format,
) -> anyhow::Result<()> {
    let rate =
        |tokens: u64, seconds: f64| if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
    let (prefill, decode) = (
        rate(summary.prompt_tokens, summary.prefill_seconds),
        rate(summary.decode_tokens, summary.decode_seconds),
    );
    let mut text = format!("{}: {} samples\n", args.out.display(), requests.len());
    let _ = writeln!(
        text,
        "prefill {} tokens at {prefill:.0} tok/s, decode {} tokens at {decode:.0} tok/s, {} compactions",
        summary.prompt_tokens, summary.decode_tokens, summary.compactions
    );
    let answer = json!({
        "run": args.out.display().to_string(), "samples": requests.len(), "finished": summary.finished,
        "prompt_tokens": summary.prompt_tokens, "decode_tokens": summary.decode_tokens,
        "compactions": summary.compactions, "prefill_seconds": summary.prefill_seconds,
        "decode_seconds": summary.decode_seconds, "device": device,
    });
    console::answer(format, &text, &answer)
}
