//! The demo of a mistake of the sampler: short sampled runs of the embedded model, and the sampler named from their tokens.

use std::path::Path;

use lockstep_replay::sampler::{self, SamplerOptions};
use lockstep_reports::model::{Paragraph, ParagraphKind};
use lockstep_reports::{Report, text, write_all};
use lockstep_runtime::engine::{DeviceChoice, Engine, LoadOptions, Request, RunOptions};
use lockstep_traces::store::RunReader;
use lockstep_traces::{Cause, Choice, DType, Finding, RecordPlan, SamplingSpec};
use serde::Serialize;

use super::embedded;
use crate::cli::Format;
use crate::commands::recording::{self, Job};
use crate::commands::{device, pages};
use crate::console;
use crate::exit::Status;

/// Three short problems, so that seeds of several samples can be told apart.
const PROBLEMS: [&str; 3] = ["ledger_01", "ledger_03", "ledger_05"];

/// Tokens of each sample.
const TOKENS: usize = 64;

/// `demo --format json` for a mistake of the sampler. Keys that the other mistakes have too mean the same.
#[derive(Debug, Serialize)]
struct Answer {
    verdict: &'static str,
    planted: &'static str,
    fault: Option<&'static str>,
    findings: Vec<Finding>,
    sampler: serde_json::Value,
    device: String,
    seconds: f64,
    report: String,
}

/// Settings under which a mistake shows. The model is sure of itself: high temperatures make its draws a matter of chance.
pub(super) fn settings(cause: Cause) -> SamplingSpec {
    let base = SamplingSpec {
        temperature: Some(6.0),
        top_k: Some(40),
        top_p: Some(0.9),
        min_p: Some(0.02),
        seed: Some(1234),
        sampler: Some("torch-cuda".to_owned()),
        ..SamplingSpec::default()
    };
    match cause {
        // Ties are likeliest among few survivors of coarse logits, and decide most where those are alike.
        Cause::TopKTies => SamplingSpec {
            temperature: Some(30.0),
            top_k: Some(3),
            top_p: None,
            min_p: None,
            ..base
        },
        // At temperature 1 nearly all mass lies on one id; a floor this low leaves others.
        Cause::TemperatureAfterFilters => SamplingSpec { top_p: None, min_p: Some(1e-9), ..base },
        Cause::MinPOnLogits => SamplingSpec { min_p: Some(0.2), ..base },
        _ => base,
    }
}

/// Rounded logits tie more often.
const fn dtype(cause: Cause) -> DType {
    if matches!(cause, Cause::TopKTies) { DType::Bf16 } else { DType::F32 }
}

/// Records with the mistake planted, names the sampler and writes the report.
pub(super) fn execute(
    cause: Cause,
    asked: DeviceChoice,
    out: &Path,
    format: Format,
) -> anyhow::Result<Status> {
    let clock = std::time::Instant::now();
    let files = embedded::write(out)?;
    let load = LoadOptions { dtype: Some(dtype(cause)), device: asked, ..LoadOptions::default() };
    let engine = Engine::load(&files.model, &load)?;
    let dir = out.join("runs").join("sampled");
    if record(&engine, cause, &dir)?.is_none() {
        console::note("lockstep: interrupted; the runs so far are in the output folder");
        return Ok(Status::Inconclusive);
    }
    let check = sampler::check(&RunReader::open(&dir)?, &SamplerOptions::default())?;
    let verdict = check.verdict.clone();
    let command = format!("lockstep demo --plant {}", cause.slug());
    let mut report = Report::new("demo: a mistake of the sampler", command, verdict.clone());
    report.story.push(Paragraph::new(
        ParagraphKind::Text,
        format!(
            "{} samples of {TOKENS} tokens were drawn with `{}` planted; {} of {} tokens are not those of the claimed sampler.",
            PROBLEMS.len(),
            cause.slug(),
            check.different,
            check.compared
        ),
    ));
    pages::add_check(&mut report, check.clone());
    let written = write_all(&report, &out.join("report"))?;
    let answer = Answer {
        verdict: verdict.word(),
        planted: cause.slug(),
        fault: check.findings.iter().find_map(|finding| finding.cause).map(Cause::slug),
        findings: check.findings,
        sampler: check.detail,
        device: device::name(&engine),
        seconds: clock.elapsed().as_secs_f64(),
        report: written.first().map(|path| path.display().to_string()).unwrap_or_default(),
    };
    console::answer(format, &text::render(&report, console::text_options()), &answer)?;
    Ok(Status::of(&verdict))
}

fn record(engine: &Engine, cause: Cause, dir: &Path) -> anyhow::Result<Option<()>> {
    let problems = embedded::problems(&PROBLEMS)?;
    let requests: Vec<Request> = problems
        .into_iter()
        .zip(0_u64..)
        .map(|(problem, index)| Request { seed_index: Some(index), ..problem.request })
        .collect();
    let options = RunOptions {
        sampling: settings(cause),
        max_new_tokens: TOKENS,
        stop_ids: Some(Vec::new()),
        plant: Some(cause),
        ..RunOptions::default()
    };
    let plan = RecordPlan { logits: Choice::All, ..RecordPlan::default() };
    let job = Job {
        requests: &requests,
        options: &options,
        plan: &plan,
        stats: None,
        label: Some("run"),
    };
    Ok(recording::record(engine, &job, dir, false)?.map(|_| ()))
}
