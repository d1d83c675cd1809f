//! `demo`: the whole chain on the embedded model, clean or with one mistake planted.

pub(crate) mod embedded;
mod evidence;
mod experiment;
mod probe;
mod sampled;
mod story;

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use lockstep_reports::{Report, text, write_all};
use lockstep_runtime::engine::{DeviceChoice, Engine, LoadOptions};
use lockstep_traces::{Cause, DType};
use serde::Serialize;

use super::{device, inputs};
use crate::cli::{DemoArgs, DeviceArg, Format};
use crate::console;
use crate::exit::{Status, usage};
use evidence::Evidence;
use experiment::{Arm, Bench, Recorded};
use story::Story;

/// Problems of the clean demo, by size: 90 to 230 lines, so that each run compacts.
const PROBLEMS: [&str; 8] = [
    "ledger_11",
    "ledger_13",
    "ledger_15",
    "ledger_17",
    "ledger_19",
    "ledger_21",
    "ledger_23",
    "ledger_25",
];

/// The problem of a planted demo: it compacts twice, since some mistakes cannot show at the first compaction.
const PLANTED: [&str; 1] = ["ledger_17"];

#[derive(Debug, Serialize)]
struct SplitAt {
    sample_id: String,
    position: u32,
}

#[derive(Debug, Serialize)]
struct Splits {
    structural: Option<SplitAt>,
    logit: Option<SplitAt>,
    argmax: Option<SplitAt>,
    token: Option<SplitAt>,
}

#[derive(Debug, Serialize)]
struct Gather {
    compared: u64,
    different: u64,
}

#[derive(Debug, Serialize)]
struct Selector {
    rule_set: &'static str,
    events: u64,
    heads: u64,
    exact: u64,
    ties: u64,
}

/// `demo --format json`. `splits`, `gather` and `selector` speak of dense against `trt` on the first sample that splits.
#[derive(Debug, Serialize)]
struct Answer {
    verdict: &'static str,
    story: &'static str,
    sample_id: String,
    splits: Splits,
    gather: Gather,
    selector: Selector,
    policies: Vec<lockstep_reports::model::PolicyRow>,
    planted: Option<&'static str>,
    fault: Option<&'static str>,
    findings: Vec<lockstep_traces::Finding>,
    device: String,
    seconds: f64,
    report: String,
}

pub(crate) fn execute(args: &DemoArgs, format: Format) -> anyhow::Result<Status> {
    if args.plant.as_deref() == Some("list") {
        return list(format);
    }
    let plant = inputs::plant(args.plant.as_deref())?;
    if let Some(cause) = plant.filter(|cause| cause.is_sampler()) {
        // Most of the sampler's mistakes are planted in the host's sampler only, so that `auto` takes the CPU.
        let device = match args.device {
            DeviceArg::Auto => DeviceChoice::Cpu,
            asked => device::choose(asked)?,
        };
        prepare(&args.out)?;
        return sampled::execute(cause, device, &args.out, format);
    }
    let device = device::choose(args.device)?;
    prepare(&args.out)?;
    let started = Instant::now();
    let files = embedded::write(&args.out)?;
    let engine = Engine::load(
        &files.model,
        &LoadOptions { dtype: Some(DType::F32), device, ..LoadOptions::default() },
    )?;
    let stats = lockstep_traces::stats::read(&files.stats)?;
    let bench =
        Bench { engine: &engine, stats: &stats, stats_path: &files.stats, out: &args.out, plant };
    let arms: &[Arm] = if plant.is_some() {
        &[Arm::Dense, Arm::Trt]
    } else {
        &[Arm::Dense, Arm::Trt, Arm::Recent, Arm::Random]
    };
    let names: &[&str] = if plant.is_some() { &PLANTED } else { &PROBLEMS };
    let mut recorded = Vec::new();
    for problem in embedded::problems(names)? {
        let Some(one) = bench.record(&problem, arms)? else {
            console::note("lockstep: interrupted; the runs so far are in the output folder");
            return Ok(Status::Inconclusive);
        };
        recorded.push(one);
    }
    let evidence = Evidence::collect(&recorded, &files.model, &args.out, plant)?;
    let story = Story::tell(&recorded, &evidence, plant, engine.tokenizer())?;
    let written = write_all(&story.report, &args.out.join("report"))?;
    let seconds = started.elapsed().as_secs_f64();
    let page = written.first().map(|path| path.display().to_string()).unwrap_or_default();
    let device = device::name(&engine);
    let answer = answer((&recorded, device), &evidence, &story, plant, seconds, page)?;
    let mut screen = text::render(&one_screen(&story.report), console::text_options());
    let _ = write!(screen, "\nreport: {} ({seconds:.0} s on {})\n", answer.report, answer.device);
    console::answer(format, &screen, &answer)?;
    Ok(story.status)
}

/// The report without what fills more than a screen: the page holds all of it.
fn one_screen(report: &Report) -> Report {
    let mut short = report.clone();
    short.diffs.clear();
    short.limits.truncate(2);
    short
}

/// An empty folder, or what an earlier demo left, which is replaced.
fn prepare(out: &Path) -> anyhow::Result<()> {
    const MARK: &str = ".lockstep-demo";
    if out.join(MARK).exists() {
        for part in ["runs", "replay", "tie-probe", "report", "model"] {
            let path = out.join(part);
            if path.exists() {
                std::fs::remove_dir_all(&path)?;
            }
        }
    } else if out.exists() && std::fs::read_dir(out)?.next().is_some() {
        return Err(usage(format!(
            "{} holds files that are no demo's; give --out another folder",
            out.display()
        )));
    }
    std::fs::create_dir_all(out)?;
    Ok(std::fs::write(
        out.join(MARK),
        "made by lockstep demo; its folders are replaced by the next demo\n",
    )?)
}

fn list(format: Format) -> anyhow::Result<Status> {
    let text: String = Cause::ALL
        .iter()
        .map(|cause| {
            let place = if cause.is_harness() { "replay" } else { "engine" };
            format!("{:<26} {place}  {}\n", cause.slug(), cause.title())
        })
        .collect();
    let all: Vec<_> = Cause::ALL
        .iter()
        .map(|cause| serde_json::json!({"slug": cause.slug(), "title": cause.title(), "harness": cause.is_harness()}))
        .collect();
    console::answer(format, &text, &all)?;
    Ok(Status::Parity)
}

fn answer(
    (recorded, device): (&[Recorded], String),
    evidence: &Evidence,
    story: &Story,
    plant: Option<Cause>,
    seconds: f64,
    report: String,
) -> anyhow::Result<Answer> {
    let chosen = &recorded[evidence.chosen];
    let diff = chosen.diff(Arm::Trt)?;
    let at = |split: &Option<lockstep_diff::report::SplitAt>| {
        split
            .as_ref()
            .map(|split| SplitAt { sample_id: split.sample_id.clone(), position: split.position })
    };
    let mine = evidence.of_chosen();
    let heads = mine.selector.compared;
    Ok(Answer {
        verdict: diff.verdict.word(),
        story: story.word,
        sample_id: chosen.problem.request.sample_id.clone(),
        splits: Splits {
            structural: at(&diff.splits.structural),
            logit: at(&diff.splits.logit),
            argmax: at(&diff.splits.argmax),
            token: at(&diff.splits.token),
        },
        gather: Gather { compared: mine.gather.compared, different: mine.gather.different },
        selector: Selector {
            rule_set: "trt",
            events: diff.right.compactions,
            heads,
            exact: heads - mine.selector.different - mine.tie_heads(),
            ties: mine.tie_heads(),
        },
        policies: story.report.policy_table.clone(),
        planted: plant.map(Cause::slug),
        fault: evidence.fault().map(Cause::slug),
        findings: evidence.findings.clone(),
        device,
        seconds,
        report,
    })
}
