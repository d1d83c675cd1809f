//! `calibrate`: query statistics of dense runs.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context as _;
use lockstep_runtime::calibrate::CalibrationRows;
use lockstep_runtime::engine::{Engine, LoadOptions, Progress as Step, Request, RunOptions};
use lockstep_traces::store::RunReader;
use lockstep_traces::{MemorySink, PolicyKind, PolicySpec, SamplingSpec};
use serde_json::json;

use super::{inputs, recording};
use crate::cli::{CalibrateArgs, Format};
use crate::console::{self, Progress};
use crate::exit::{Status, usage};

type Work = (Vec<Request>, BTreeMap<String, Vec<u32>>);

pub(crate) fn execute(args: &CalibrateArgs, format: Format) -> anyhow::Result<Status> {
    for path in &args.out {
        if !path
            .extension()
            .is_some_and(|extension| extension == "pt" || extension == "safetensors")
        {
            return Err(usage(format!(
                "--out {}: name a .pt or a .safetensors file",
                path.display()
            )));
        }
    }
    let engine =
        Engine::load(&args.model, &LoadOptions { dtype: args.dtype, ..LoadOptions::default() })?;
    let (requests, teacher) = match (&args.dataset, &args.run) {
        (Some(path), _) => of_dataset(path, args.select.as_deref(), &engine)?,
        (None, Some(run)) => of_run(run)?,
        (None, None) => return Err(usage("give --dataset or --run")),
    };
    let options = RunOptions {
        policy: PolicySpec { kind: Some(PolicyKind::Dense), ..PolicySpec::default() },
        sampling: SamplingSpec { temperature: Some(0.0), ..SamplingSpec::default() },
        max_new_tokens: 4096,
        teacher,
        ..RunOptions::default()
    };
    let rows = if args.decode_only { CalibrationRows::DecodeOnly } else { CalibrationRows::All };
    recording::watch_interrupts();
    let mut progress = Progress::new("calibrate");
    let mut watch = |step: &Step<'_>| {
        progress.update(step.fed, step.feed_at_most);
        if recording::interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let (stats, summary) =
        engine.calibrate(&requests, &options, rows, &mut MemorySink::default(), &mut watch)?;
    if summary.interrupted {
        console::note("lockstep: interrupted; nothing was written");
        return Ok(Status::Inconclusive);
    }
    for path in &args.out {
        if path.extension().is_some_and(|extension| extension == "pt") {
            lockstep_traces::stats::write_pt(&stats, path)?;
        } else {
            lockstep_traces::stats::write_safetensors(&stats, path)?;
        }
    }
    let tokens = if args.decode_only {
        summary.decode_tokens
    } else {
        summary.prompt_tokens + summary.decode_tokens
    };
    let files: Vec<_> = args.out.iter().map(|path| path.display().to_string()).collect();
    let text = format!(
        "{}: {} samples, {tokens} tokens, {} layers, {} heads",
        files.join(", "),
        requests.len(),
        stats.layers.len(),
        stats.heads.len()
    );
    let answer = json!({"files": files, "samples": requests.len(), "tokens": tokens, "decode_only": args.decode_only});
    console::answer(format, &text, &answer)?;
    Ok(Status::Parity)
}

fn of_dataset(path: &Path, select: Option<&str>, engine: &Engine) -> anyhow::Result<Work> {
    let encode = |text: &str| -> anyhow::Result<Vec<u32>> {
        let tokenizer = engine
            .tokenizer()
            .context("the model has no tokenizer (tokenizer.json, or gpt2-type tokens in a GGUF file); give prompt_ids")?;
        Ok(tokenizer.encode(text)?)
    };
    let (mut requests, mut teacher) = (Vec::new(), BTreeMap::new());
    for (index, row) in inputs::dataset(path, select)? {
        let completion = row.gold_completion_ids.clone();
        let request = inputs::request(index, row, &encode)?;
        if let Some(ids) = completion {
            teacher.insert(request.sample_id.clone(), ids);
        }
        requests.push(request);
    }
    Ok((requests, teacher))
}

fn of_run(path: &Path) -> anyhow::Result<Work> {
    let (mut requests, mut teacher) = (Vec::new(), BTreeMap::new());
    for row in RunReader::open(path)?.samples()? {
        teacher.insert(row.sample_id.clone(), row.generated_ids);
        requests.push(Request {
            sample_id: row.sample_id,
            prompt_ids: row.prompt_ids,
            ..Request::default()
        });
    }
    Ok((requests, teacher))
}
