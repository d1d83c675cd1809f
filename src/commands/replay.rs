//! `replay`: the run again, on the independent reference.

use lockstep_replay::forward::{ForwardOptions, ForwardSummary, Policy};
use lockstep_reports::model::{Paragraph, ParagraphKind};
use lockstep_reports::{Report, text};
use lockstep_traces::store::RunReader;
use lockstep_traces::{DType, PolicySpec, Verdict};
use serde::Serialize;

use super::replaying::{self, Judged};
use super::{check, inputs, pages};
use crate::cli::{Format, ForwardArgs, ReplayCommand, ReplayPolicy};
use crate::console;
use crate::exit::{Status, usage};

/// `replay forward --format json`.
#[derive(Debug, Serialize)]
struct Answer {
    run: String,
    replay: String,
    policy: &'static str,
    dtype: &'static str,
    rows: u64,
    compactions: u64,
    chunks: u64,
    forward_seconds: f64,
    #[serde(flatten)]
    judged: Judged,
}

pub(crate) fn execute(command: &ReplayCommand, format: Format) -> anyhow::Result<Status> {
    match command {
        ReplayCommand::Forward(args) => forward(args, format),
        ReplayCommand::Selector(args) => check::selector("replay selector", args, format),
        ReplayCommand::Sampler(args) => super::sampler::execute("replay sampler", args, format),
    }
}

fn forward(args: &ForwardArgs, format: Format) -> anyhow::Result<Status> {
    let run = RunReader::open(&args.run)?;
    let options = options(args, &run)?;
    let Some(summary) = replaying::replay(&run, &args.model, &options, &args.out, Some("replay"))?
    else {
        console::note(&format!("lockstep: interrupted; {} is incomplete", args.out.display()));
        return Ok(Status::Inconclusive);
    };
    let judged = replaying::judge(&run, &args.out, &args.model, &options)?;
    let status = Status::of(&judged.verdict);
    let rendered = text::render(&page(args, &judged, &summary), console::text_options());
    let answer = Answer {
        run: args.run.display().to_string(),
        replay: args.out.display().to_string(),
        policy: options.policy.name(),
        dtype: options.precision.dtype().name(),
        rows: summary.rows,
        compactions: summary.events,
        chunks: summary.chunks,
        forward_seconds: summary.forward_seconds,
        judged,
    };
    console::answer(format, &rendered, &answer)?;
    Ok(status)
}

fn options(args: &ForwardArgs, run: &RunReader) -> anyhow::Result<ForwardOptions> {
    let plant = inputs::plant(args.plant.as_deref())?;
    if let Some(cause) = plant.filter(|cause| !cause.is_harness()) {
        return Err(usage(format!(
            "`{}` is a mistake of the engine; plant it with `lockstep run --plant`",
            cause.slug()
        )));
    }
    if args.chunk == 0 {
        return Err(usage("--chunk must be at least 1"));
    }
    let policy = match args.policy {
        ReplayPolicy::Dense => Policy::Dense,
        ReplayPolicy::Recorded => Policy::Recorded,
        ReplayPolicy::Own => own(args, run)?,
    };
    Ok(ForwardOptions {
        policy,
        precision: replaying::precision(args.dtype.or(run.manifest().dtype).unwrap_or(DType::F32))?,
        chunk: args.chunk,
        samples: (!args.sample.is_empty()).then(|| args.sample.clone()),
        positions: None,
        plant,
    })
}

/// The recorded policy as a specification, for the reference to resolve by itself.
fn own(args: &ForwardArgs, run: &RunReader) -> anyhow::Result<Policy> {
    let manifest = run.manifest();
    let recorded =
        manifest.get("policy.stats").and_then(|value| value.as_str()).map(std::path::PathBuf::from);
    let stats =
        args.stats.clone().or_else(|| recorded.filter(|path| path.is_file())).ok_or_else(|| {
            usage(
                "--policy own needs --stats: the run names no statistics file that is still there",
            )
        })?;
    let fields: serde_json::Map<String, serde_json::Value> = manifest
        .config
        .iter()
        .filter_map(|(key, setting)| {
            Some((key.strip_prefix("policy.")?.to_owned(), setting.value.clone()))
        })
        .collect();
    let spec: PolicySpec = serde_json::from_value(serde_json::Value::Object(fields))?;
    Ok(Policy::Own { spec: Box::new(spec), stats: Box::new(lockstep_traces::stats::read(&stats)?) })
}

fn page(args: &ForwardArgs, judged: &Judged, summary: &ForwardSummary) -> Report {
    let command = format!("lockstep replay forward {}", args.run.display());
    let mut report = Report::new("replay forward", command, judged.verdict.clone());
    let mut say = |kind, text: String| report.story.push(Paragraph::new(kind, text));
    say(
        ParagraphKind::Text,
        format!(
            "{} rows in {} chunks, {} compactions, into {}.",
            summary.rows,
            summary.chunks,
            summary.events,
            args.out.display()
        ),
    );
    if judged.self_check.verdict == Verdict::Diverged {
        say(
            ParagraphKind::Problem,
            "The replay itself stands on the wrong rows; nothing is said about the engine."
                .to_owned(),
        );
    }
    if let Some(noise) = &judged.noise {
        say(ParagraphKind::Text, format!("Run against reference: {}", noise.summary));
    }
    for drift in &judged.drift {
        say(
            ParagraphKind::Text,
            format!("Hidden states of {}: {}", drift.sample_id, drift.summary),
        );
    }
    report.noise.extend(judged.noise.clone());
    report.drift_reports.clone_from(&judged.drift);
    pages::add_check(&mut report, judged.self_check.clone());
    if let Some(localized) = judged.localized.clone().filter(|check| check.compared > 0) {
        pages::add_check(&mut report, localized);
    }
    report
}
