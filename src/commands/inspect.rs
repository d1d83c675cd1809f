//! `inspect`: what a run, a foreign trace, a file of tensors, a GGUF file, a file of log-probabilities or a base file of llama-perplexity
//! holds.

mod gguf;
mod kld;

use std::fmt::Write as _;
use std::path::Path;

use lockstep_runtime::weights::WeightFiles;
use lockstep_traces::gguf::is_gguf;
use lockstep_traces::limits::{TokenIds, Values};
use lockstep_traces::store::{DumpFile, RunReader, StepColumns, is_run};
use lockstep_traces::{Choice, Loaded, SourceLimits, Status as RunStatus, StepRow, UNKNOWN_TOKEN};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{Format, InspectArgs};
use crate::console;
use crate::exit::{Status, usage};

/// `inspect --format json` of a trace.
#[derive(Debug, Serialize)]
struct Summary {
    path: String,
    kind: &'static str,
    status: RunStatus,
    producer: String,
    device: String,
    dtype: Option<&'static str>,
    encoding: Value,
    limits: SourceLimits,
    rows_exact: bool,
    includes_prompt: bool,
    samples: Vec<SampleSummary>,
    steps: usize,
    compactions: usize,
    non_finite_rows: usize,
    dumps: Vec<String>,
    config: Value,
    remarks: Vec<String>,
    rows: Vec<StepRow>,
}

#[derive(Debug, Serialize)]
struct SampleSummary {
    sample_id: String,
    rows: usize,
    first_position: u32,
    last_position: u32,
    compactions: usize,
    prompt_len: Option<u32>,
    generated: Option<usize>,
    finish: Value,
    text: Option<String>,
}

pub(crate) fn execute(args: &InspectArgs, format: Format) -> anyhow::Result<Status> {
    if has_extension(&args.run, "safetensors") {
        return tensors(&args.run, format);
    }
    if is_gguf(&args.run) || has_extension(&args.run, "gguf") {
        return gguf::execute(&args.run, format);
    }
    if lockstep_traces::llamacpp::is_kld(&args.run) {
        return kld::execute(&args.run, format);
    }
    if lockstep_traces::parquet_trace::is_parquet(&args.run) {
        return trace(args, format);
    }
    if lockstep_traces::logprobs::looks_like(&args.run) {
        return super::logprobs::inspect(args, format);
    }
    if !is_run(&args.run) && lockstep_traces::tensor_files::recognised(&args.run) {
        return super::tensors::inspect(&args.run, format);
    }
    trace(args, format)
}

fn trace(args: &InspectArgs, format: Format) -> anyhow::Result<Status> {
    let loaded = match lockstep_traces::load(&args.run) {
        Ok(loaded) => loaded,
        Err(error) => {
            return Err(super::import::elsewhere(&args.run).unwrap_or_else(|| error.into()));
        }
    };
    let summary = summarise(args, &loaded)?;
    console::answer(format, &text(&summary), &summary)?;
    Ok(Status::Parity)
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.is_file() && path.extension().is_some_and(|extension| extension == wanted)
}

fn summarise(args: &InspectArgs, loaded: &Loaded) -> anyhow::Result<Summary> {
    let run = is_run(&args.run).then(|| RunReader::open(&args.run)).transpose()?;
    let finished = run.as_ref().map(RunReader::samples).transpose()?.unwrap_or_default();
    let dumps = run.as_ref().map(RunReader::dumps).transpose()?.unwrap_or_default();
    let samples = loaded.samples.iter().map(|id| sample_summary(id, loaded, &finished)).collect();
    let manifest = &loaded.manifest;
    Ok(Summary {
        path: args.run.display().to_string(),
        kind: if run.is_some() { "run" } else { "trace" },
        status: manifest.status,
        producer: format!("{} {}", manifest.producer.name, manifest.producer.version)
            .trim()
            .to_owned(),
        device: manifest.device.clone(),
        dtype: manifest.dtype.map(lockstep_traces::DType::name),
        encoding: serde_json::to_value(manifest.encoding)?,
        limits: manifest.limits.clone(),
        rows_exact: manifest.rows_exact,
        includes_prompt: manifest.includes_prompt,
        samples,
        steps: loaded.steps.len,
        compactions: loaded.events.len(),
        non_finite_rows: loaded.steps.finite.iter().filter(|finite| !**finite).count(),
        dumps: dumps.iter().map(lockstep_traces::DumpId::relative_path).collect(),
        config: serde_json::to_value(&manifest.config)?,
        remarks: loaded.remarks.clone(),
        rows: chosen_rows(args, &loaded.steps)?,
    })
}

fn sample_summary(
    id: &str,
    loaded: &Loaded,
    finished: &[lockstep_traces::SampleRow],
) -> SampleSummary {
    let steps = &loaded.steps;
    let mut positions = (0..steps.len)
        .filter(|&i| steps.sample_id(i) == Some(id))
        .filter_map(|i| steps.position.get(i).copied());
    let first = positions.next();
    let (mut rows, mut last) = (usize::from(first.is_some()), first.unwrap_or(0));
    for position in positions {
        rows += 1;
        last = position;
    }
    let row = finished.iter().find(|row| row.sample_id == id);
    SampleSummary {
        sample_id: id.to_owned(),
        rows,
        first_position: first.unwrap_or(0),
        last_position: last,
        compactions: loaded.events.iter().filter(|event| event.sample_id == id).count(),
        prompt_len: row.and_then(|row| row.prompt_len),
        generated: row.map(|row| row.generated_ids.len()),
        finish: row.map_or(Value::Null, |row| json!(row.finish)),
        text: row.and_then(|row| row.text.clone()),
    }
}

fn chosen_rows(args: &InspectArgs, steps: &StepColumns) -> anyhow::Result<Vec<StepRow>> {
    if args.sample.is_none() && args.positions.is_none() {
        return Ok(Vec::new());
    }
    if let Some(id) = &args.sample
        && !steps.sample_ids.contains(id)
    {
        return Err(usage(format!(
            "no sample `{id}` here; there are {}",
            steps.sample_ids.join(", ")
        )));
    }
    let positions = match &args.positions {
        Some(text) => text.parse::<Choice>().map_err(usage)?,
        None => Choice::All,
    };
    let wanted = |i: &usize| {
        args.sample.as_deref().is_none_or(|id| steps.sample_id(*i) == Some(id))
            && steps.position.get(*i).is_some_and(|&position| positions.has(position))
    };
    Ok((0..steps.len).filter(wanted).filter_map(|i| steps.row(i)).collect())
}

fn text(summary: &Summary) -> String {
    let mut out = format!(
        "{}: {} by {} on {}\n",
        summary.path, summary.kind, summary.producer, summary.device
    );
    let status = if summary.status == RunStatus::Complete { "complete" } else { "INCOMPLETE" };
    let dtype = summary.dtype.unwrap_or("unknown");
    let _ = writeln!(
        out,
        "{status}, dtype {dtype}, {} rows, {} compactions, {} non-finite rows, {} dumps",
        summary.steps,
        summary.compactions,
        summary.non_finite_rows,
        summary.dumps.len()
    );
    for sample in &summary.samples {
        let _ = writeln!(
            out,
            "  {}: positions {}..{} ({} rows), {} compactions{}",
            sample.sample_id,
            sample.first_position,
            sample.last_position,
            sample.rows,
            sample.compactions,
            sample.generated.map_or_else(String::new, |n| format!(
                ", {n} tokens generated, finish {}",
                sample.finish
            ))
        );
    }
    for line in limit_lines(&summary.limits) {
        let _ = writeln!(out, "  limit: {line}");
    }
    for remark in &summary.remarks {
        let _ = writeln!(out, "  note: {remark}");
    }
    for row in &summary.rows {
        let top: Vec<_> = row
            .top_ids
            .iter()
            .zip(&row.top_logits)
            .map(|(id, logit)| format!("{}:{logit}", token(*id)))
            .collect();
        let next = row.next_token.map_or_else(|| "-".to_owned(), token);
        let rows = if summary.limits.rows {
            format!("{}>{}", row.rows_before, row.rows_after)
        } else {
            "?".to_owned()
        };
        let _ = writeln!(
            out,
            "  {} fed {} rows {rows} next {next} top {}",
            row.position,
            token(row.token_id),
            top.join(" ")
        );
    }
    out
}

/// An id, or `?` where it is not known.
fn token(id: u32) -> String {
    if id == UNKNOWN_TOKEN { "?".to_owned() } else { id.to_string() }
}

/// What the source could not say.
fn limit_lines(limits: &SourceLimits) -> Vec<String> {
    let mut out = Vec::new();
    out.extend(match limits.values {
        Values::Logits => None,
        Values::Logprobs => Some("values are log-probabilities before temperature and filters"),
        Values::ProcessedLogprobs => Some("values are log-probabilities after temperature or filters"),
        Values::UnsaidLogprobs => {
            Some("values are log-probabilities; whether before or after temperature and filters is not said")
        }
        Values::Nothing => Some("values are not available"),
    });
    out.extend(match limits.token_ids {
        TokenIds::Given => None,
        TokenIds::Tokenizer => Some("token ids were found by a tokenizer; the source gives texts"),
        TokenIds::Invented => Some("token ids number the texts of this run (token_texts.json)"),
        TokenIds::Nothing => Some("token ids are not available"),
    });
    if !limits.rows {
        out.push("row counts are not available");
    }
    let mut out: Vec<String> = out.into_iter().map(str::to_owned).collect();
    out.extend(
        limits.decimals.map(|digits| format!("values have {digits} digits behind the point")),
    );
    out.extend(limits.value_error.map(|error| format!("values are off by up to {error:.2e} nats")));
    out.extend(limits.cannot.iter().cloned());
    out
}

fn tensors(path: &Path, format: Format) -> anyhow::Result<Status> {
    let file = DumpFile::open(path).map_err(|error| explained(path, error))?;
    let mut list = Vec::new();
    let mut out = format!("{}: safetensors\n", path.display());
    for name in file.names() {
        let view = file.get(name)?;
        let _ = writeln!(out, "  {name}: {} {:?}", view.dtype.name(), view.shape);
        list.push(json!({"name": name, "dtype": view.dtype.name(), "shape": view.shape}));
    }
    let answer = json!({"path": path.display().to_string(), "kind": "safetensors", "metadata": file.metadata(), "tensors": list});
    console::answer(format, &out, &answer)?;
    Ok(Status::Parity)
}

/// The weight reader says more about a broken header than the reader of our own dumps does.
fn explained(path: &Path, error: lockstep_traces::TraceError) -> anyhow::Error {
    match WeightFiles::open_file(path) {
        Err(better) => better.into(),
        Ok(_) => error.into(),
    }
}
