//! `check states`, `check visible`, `check shifts` and `check keepsets`: evidence that somebody wrote down.

use std::fmt::Write as _;

use lockstep_diff::states::{self, CacheReport, ShiftReport, StateFinding, VisibleReport};
use lockstep_replay::keepsets::{self, KeepReport};
use lockstep_traces::forms::{CacheStates, KeepSpec, KeptRows, Shifts, VisibleKeys};

use crate::cli::{FormArgs, Format, KeepsetsArgs};
use crate::console;
use crate::exit::Status;

/// `check states`.
pub(crate) fn cache(args: &FormArgs, format: Format) -> anyhow::Result<Status> {
    let report = states::check_states(&CacheStates::read(&args.file)?);
    console::answer(format, &cache_text(&report), &report)?;
    Ok(Status::of(&report.verdict))
}

fn cache_text(report: &CacheReport) -> String {
    let mut out = format!("{}: {}\n", report.verdict.word(), report.rule.words);
    for one in &report.implementations {
        let _ = writeln!(out, "{}: {}", one.name, if one.right { "right" } else { "WRONG" });
        for step in one.steps.iter().filter(|step| !step.right) {
            let slots: Vec<String> = step
                .observed
                .iter()
                .map(|slot| slot.map_or("-".to_owned(), |row| row.to_string()))
                .collect();
            let _ = writeln!(
                out,
                "  after {} tokens: {:?} expected, [{}] observed",
                step.tokens,
                step.expected,
                slots.join(", ")
            );
        }
    }
    ending(&mut out, &report.findings, &report.limits, &report.summary);
    out
}

/// `check visible`.
pub(crate) fn visible(args: &FormArgs, format: Format) -> anyhow::Result<Status> {
    let report = states::check_visible(&VisibleKeys::read(&args.file)?);
    console::answer(format, &visible_text(&report), &report)?;
    Ok(Status::of(&report.verdict))
}

fn visible_text(report: &VisibleReport) -> String {
    let mut out = format!("{}: {}\n", report.verdict.word(), report.convention);
    for one in &report.engines {
        let word = match one.agrees {
            Some(true) => "agrees",
            Some(false) => "does NOT agree",
            None => "no window to agree with",
        };
        let stays =
            one.saturates_at.map_or_else(String::new, |keys| format!(", stays at {keys} keys"));
        let _ = writeln!(out, "{}: {word}{stays}", one.name);
    }
    for pair in &report.pairs {
        if let Some(first) = &pair.first_difference {
            let _ = writeln!(
                out,
                "{} against {}: {} queries equal; at query {} only the left sees {:?}, only the right {:?}",
                pair.left,
                pair.right,
                pair.equal_before,
                first.query,
                first.only_left,
                first.only_right
            );
        }
    }
    ending(&mut out, &report.findings, &report.limits, &report.summary);
    out
}

/// `check shifts`.
pub(crate) fn shifts(args: &FormArgs, format: Format) -> anyhow::Result<Status> {
    let report = states::check_shifts(&Shifts::read(&args.file)?);
    console::answer(format, &shifts_text(&report), &report)?;
    Ok(Status::of(&report.verdict))
}

fn shifts_text(report: &ShiftReport) -> String {
    let positions: Vec<String> = report
        .positions
        .iter()
        .map(|position| position.map_or("-".to_owned(), |position| position.to_string()))
        .collect();
    let mut out = format!(
        "{}: positions [{}] after all operations\n",
        report.verdict.word(),
        positions.join(", ")
    );
    for list in &report.observed_positions {
        let _ = writeln!(out, "{}: {}", list.name, if list.right { "right" } else { "WRONG" });
    }
    for list in &report.observed_angles {
        let _ = writeln!(out, "{}: {}", list.name, if list.right { "right" } else { "WRONG" });
    }
    ending(&mut out, &report.findings, &report.limits, &report.summary);
    out
}

/// `check keepsets`.
pub(crate) fn keepsets(args: &KeepsetsArgs, format: Format) -> anyhow::Result<Status> {
    let (spec, records) = (KeepSpec::read(&args.spec)?, KeptRows::read(&args.keeps)?);
    let report = keepsets::check(&spec, &records, args.time.as_deref())?;
    console::answer(format, &keepsets_text(&report), &report)?;
    Ok(Status::of(&report.verdict))
}

fn keepsets_text(report: &KeepReport) -> String {
    let mut out = format!(
        "{}: {}, t = {}, {} kept\n",
        report.verdict.word(),
        report.formula,
        report.claimed_time,
        report.budget
    );
    for one in &report.compactions {
        let _ = write!(out, "compaction {}: {}/{} match", one.compaction, one.matches, one.of);
        if !one.right {
            let _ = write!(out, "; reference {:?}, engine {:?}", one.reference, one.engine);
        }
        out.push('\n');
    }
    for finding in &report.findings {
        let _ = writeln!(out, "  ! {}: {}", finding.name, finding.title);
    }
    ending(&mut out, &[], &report.limits, &report.summary);
    out
}

fn ending(out: &mut String, findings: &[StateFinding], limits: &[String], summary: &str) {
    for finding in findings {
        let of = if finding.of.is_empty() { String::new() } else { format!("{}: ", finding.of) };
        let _ = writeln!(out, "  ! {of}{}: {}", finding.name, finding.title);
    }
    for limit in limits {
        let _ = writeln!(out, "  not shown: {limit}");
    }
    let _ = writeln!(out, "{summary}");
}
