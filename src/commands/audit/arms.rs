//! `audit arms`: may a difference of scores be put down to one factor?

use std::fmt::Write as _;

use lockstep_diff::arms::{ArmReport, Question, judge};
use lockstep_traces::forms::ArmTable;
use serde_json::Value;

use crate::cli::{ArmsArgs, Format};
use crate::console;
use crate::exit::{Status, usage};

pub(crate) fn execute(args: &ArmsArgs, format: Format) -> anyhow::Result<Status> {
    if !args.tolerance.is_finite() || args.tolerance < 0.0 {
        return Err(usage("--tolerance is a difference of scores from 0"));
    }
    if args.block == 0 {
        return Err(usage("--block must be at least 1"));
    }
    let table = ArmTable::read(&args.file, &args.effect, &args.ignore)?;
    if table.arms.is_empty() {
        return Err(usage(format!(
            "{}: no arm has `{}`; name the score with --effect",
            args.file.display(),
            args.effect
        )));
    }
    let question = Question {
        factor: args.of.clone(),
        // A word is itself; everything that reads as JSON is what it reads as.
        baseline: args.baseline.as_ref().map(|level| {
            serde_json::from_str(level).unwrap_or_else(|_| Value::String(level.clone()))
        }),
        tolerance: args.tolerance,
        block: args.block,
    };
    let report = judge(&table, &args.effect, &question).ok_or_else(|| {
        usage(format!("--of {}: no such factor; there are {}", args.of, table.factors.join(", ")))
    })?;
    console::answer(format, &text(&report), &report)?;
    Ok(Status::of(&report.verdict))
}

fn text(report: &ArmReport) -> String {
    let mut out = format!("{}: {}\n", report.verdict.word(), report.summary);
    for level in &report.levels {
        let _ = writeln!(
            out,
            "{} = {}: {}, {} of {} pairs differ, {} controlled",
            report.factor,
            level.level,
            level.outcome,
            level.differing,
            level.pairs,
            level.controlled.len()
        );
    }
    for finding in &report.findings {
        let _ = writeln!(out, "  ! {}: {}", finding.name, finding.title);
    }
    for limit in &report.limits {
        let _ = writeln!(out, "  not shown: {limit}");
    }
    out
}
