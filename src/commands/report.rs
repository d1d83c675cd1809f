//! `report`: the page, its figures and report.json from runs, a pair of traces, or the answer of `diff`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use lockstep_diff::DiffReport;
use lockstep_diff::audits::report::Ignored;
use lockstep_diff::gather::GatherOptions;
use lockstep_reports::build::{self, Labels};
use lockstep_reports::model::{Paragraph, ParagraphKind};
use lockstep_reports::{Report, write_all};
use lockstep_runtime::tokenize::Tokenizer;
use lockstep_traces::Verdict;
use lockstep_traces::store::{RunReader, is_run};
use serde_json::json;

use super::inputs::Trace;
use super::{audit, diff, numbering, pages};
use crate::cli::{Format, ReportArgs};
use crate::console;
use crate::exit::Status;

pub(crate) fn execute(args: &ReportArgs, format: Format) -> anyhow::Result<Status> {
    let tokenizer = args.model.as_deref().map(Tokenizer::read).transpose()?.flatten();
    let mut report = match args.inputs.as_slice() {
        [one] if !is_run(one) && is_json_answer(one) => of_answer(one)?,
        [one] => of_run(one, tokenizer.as_ref())?,
        [baseline, targets @ ..] => of_pairs(
            baseline,
            targets,
            tokenizer.as_ref(),
            &audit::ignored(&args.aside.ignore_audit)?,
        )?,
        [] => Report::new("A ledger of claims", "lockstep report", Verdict::Identical),
    };
    if let Some(ledger) = &args.claims {
        let claims = super::claim::report(ledger)?;
        let _ = write!(report.command, " --claims {}", ledger.display());
        if args.inputs.is_empty() {
            report.verdict = claims.verdict.clone();
        }
        report.claims = Some(claims);
    }
    let files = write_all(&report, &args.out)?;
    let paths: Vec<_> = files.iter().map(|path| path.display().to_string()).collect();
    let page = paths.first().cloned().unwrap_or_default();
    console::answer(
        format,
        &page,
        &json!({"report": page, "files": paths, "verdict": report.verdict}),
    )?;
    Ok(Status::Parity)
}

fn is_json_answer(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

fn of_answer(path: &Path) -> anyhow::Result<Report> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let diff: DiffReport = serde_json::from_slice(&bytes).with_context(|| {
        format!("{}: no answer of `lockstep diff --format json`", path.display())
    })?;
    let mut report = Report::new(
        "Where two traces part",
        format!("lockstep report {}", path.display()),
        diff.verdict.clone(),
    );
    report.story.push(Paragraph::new(ParagraphKind::Headline, diff.summary.clone()));
    audit::add_paragraphs(&mut report, &diff);
    let (left, right) = pages::names(&diff);
    let labels = Labels { left: &left, right: &right };
    for sample in &diff.samples {
        report.timelines.push(build::timeline_of_diff(sample, labels));
        report.curves.push(build::curve(sample, labels));
        if let Some(split) = sample.splits.token.as_ref().or(sample.splits.argmax.as_ref()) {
            let text = |id: u32| pages::token_bytes(None, id);
            report.splits_view.push(build::split_view(&sample.sample_id, split, labels, &text));
        }
    }
    report.findings.clone_from(&diff.findings);
    report.limits.clone_from(&diff.limits);
    report.diffs.push(diff);
    Ok(report)
}

/// One run: its time line, its checks, its keep-sets.
fn of_run(path: &Path, tokenizer: Option<&Tokenizer>) -> anyhow::Result<Report> {
    let trace = Trace::read(path)?;
    let command = format!("lockstep report {}", path.display());
    let mut report = Report::new("A recorded run", command, Verdict::Identical);
    report.limits.push("one run alone: nothing is compared with a baseline".to_owned());
    let itself = diff::compare(&trace, &trace, None, tokenizer);
    pages::add_pair(&mut report, &trace, &trace, &itself, tokenizer);
    report.runs.truncate(1);
    for fault in itself.list_faults.iter().filter(|fault| fault.side == "left") {
        report.limits.push(format!("{} rows: {}", fault.rows, fault.what));
    }
    report.curves.clear();
    for timeline in &mut report.timelines {
        timeline.runs.truncate(1);
        timeline.firsts_of.clear();
    }
    if is_run(path) {
        let run = RunReader::open(path)?;
        let checks = [
            lockstep_diff::positions::check(&run)?,
            lockstep_diff::gather::check(&run, &GatherOptions::default())?,
        ];
        for check in checks {
            report.verdict = report.verdict.clone().worst(check.verdict.clone());
            pages::add_check(&mut report, check);
        }
        for id in trace.loaded.samples.iter().take(4) {
            pages::add_keep_maps(&mut report, "run", &run, id)?;
        }
    }
    Ok(report)
}

fn of_pairs(
    baseline: &Path,
    targets: &[PathBuf],
    tokenizer: Option<&Tokenizer>,
    ignored: &[Ignored],
) -> anyhow::Result<Report> {
    let left = Trace::read(baseline)?;
    let mut report = Report::new("Where traces part", String::new(), Verdict::Identical);
    report.command = format!("lockstep report {}", baseline.display());
    for path in targets {
        let _ = write!(report.command, " {}", path.display());
        let mut right = Trace::read(path)?;
        let mut left = left.clone();
        let joined = numbering::join(&mut left, &mut right, tokenizer)?;
        let mut diff = diff::compare(&left, &right, None, tokenizer);
        diff.limits.extend(joined);
        audit::of_pair(&left, &right, &mut diff, ignored);
        report.verdict = report.verdict.clone().worst(diff.verdict.clone());
        report.story.push(Paragraph::new(
            ParagraphKind::Text,
            format!("{}: {}", path.display(), diff.summary),
        ));
        audit::add_paragraphs(&mut report, &diff);
        pages::add_pair(&mut report, &left, &right, &diff, tokenizer);
        report.findings.extend(diff.findings.iter().cloned());
        report.limits.extend(diff.limits.iter().cloned());
        if is_run(path) {
            let run = RunReader::open(path)?;
            for id in right.loaded.samples.iter().take(2) {
                pages::add_keep_maps(&mut report, &pages::names(&diff).1, &run, id)?;
            }
        }
        report.diffs.push(diff);
    }
    Ok(report)
}
