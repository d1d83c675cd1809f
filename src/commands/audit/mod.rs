//! `audit`: does the evidence prove what it is used for?

mod arms;
mod evidence;
mod imported;
mod ledger;
mod print;

pub(crate) use arms::execute as arms;

use anyhow::Context as _;
use lockstep_diff::DiffReport;
use lockstep_diff::audits::facts::History;
use lockstep_diff::audits::report::Ignored;
use lockstep_diff::audits::{
    Audit, AuditReport, Evidence, Outcome, gate, registry, report, subject_of, verify,
};
use lockstep_reports::Report;
use lockstep_reports::model::{Paragraph, ParagraphKind};
use serde_json::json;

use super::inputs::Trace;
use crate::cli::{AuditArgs, Format};
use crate::console;
use crate::exit::{Status, usage};

pub(crate) fn execute(args: &AuditArgs, verbose: bool, format: Format) -> anyhow::Result<Status> {
    if args.list {
        return list(format);
    }
    if args.self_test {
        return self_test(format);
    }
    let only = args.only.iter().map(|name| find(name)).collect::<anyhow::Result<Vec<_>>>()?;
    let ignored = ignored(&args.aside.ignore_audit)?;
    let sources = evidence::read(args)?;
    let mut evidence = evidence::gather(&sources);
    evidence.history = history(args)?;
    let chosen: Vec<&Audit> =
        if only.is_empty() { registry::all().collect() } else { only.clone() };
    let aside = |audit: &&Audit| ignored.iter().any(|one| one.audit == audit.number);
    let mut found = report::run(&evidence, chosen.into_iter().filter(|audit| !aside(audit)));
    found.ignored = ignored;
    console::answer(format, &print::text(&found, verbose || !only.is_empty()), &found)?;
    Ok(status(&found, !only.is_empty()))
}

/// 1 for a flag or a void; 4 where nothing passed, or an audit that was asked for lacks evidence.
fn status(found: &AuditReport, asked: bool) -> Status {
    match found.verdict {
        Some(Outcome::Void | Outcome::Flag) => Status::Differs,
        Some(Outcome::Pass) if !(asked && found.counts.no_evidence > 0) => Status::Parity,
        _ => Status::Inconclusive,
    }
}

fn find(name: &str) -> anyhow::Result<&'static Audit> {
    registry::find(name)
        .ok_or_else(|| usage(format!("no audit `{name}`; `lockstep audit --list` prints them")))
}

/// Audits set aside, each with its reason.
pub(crate) fn ignored(asides: &[String]) -> anyhow::Result<Vec<Ignored>> {
    let one = |text: &String| {
        let (name, reason) = text.split_once('=').unwrap_or((text, ""));
        let audit = find(name)?;
        if reason.trim().is_empty() {
            let what =
                format!("--ignore-audit {name}: give the reason, `{name}=why it does not apply`");
            return Err(usage(what));
        }
        let reason = reason.trim().to_owned();
        Ok(Ignored { audit: audit.number, slug: audit.slug.to_owned(), reason })
    };
    asides.iter().map(one).collect()
}

fn history(args: &AuditArgs) -> anyhow::Result<Option<History>> {
    let Some(path) = &args.history else { return Ok(None) };
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut commits: Vec<String> =
        text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    if commits.is_empty() {
        anyhow::bail!("{}: no commits; write one a line, newest first", path.display());
    }
    commits.reverse();
    Ok(Some(History { commits, touched: args.touched.clone() }))
}

/// A trace that was read for a comparison, as a subject of audits.
pub(crate) fn subject(trace: &Trace) -> lockstep_diff::audits::Subject<'_> {
    subject_of(trace.side(), trace.identity.clone())
}

/// Audits a pair and puts what they say into its comparison.
pub(crate) fn of_pair(left: &Trace, right: &Trace, diff: &mut DiffReport, ignored: &[Ignored]) {
    let evidence = Evidence::pair(subject(left), subject(right));
    evidence.comparisons.put(0, 1, diff.clone());
    gate::apply(diff, gate::of_pair(&evidence, ignored));
}

/// What the audits of a comparison have to say on its page.
pub(crate) fn add_paragraphs(page: &mut Report, diff: &DiffReport) {
    let Some(audits) = &diff.audits else { return };
    for finding in audits.of(Outcome::Void) {
        page.story.push(Paragraph::new(ParagraphKind::Problem, finding.line()));
    }
    for finding in audits.of(Outcome::Flag) {
        page.story.push(Paragraph::new(ParagraphKind::Item, finding.line()));
    }
    for finding in audits.of(Outcome::Pass) {
        page.story.push(Paragraph::new(ParagraphKind::Passed, finding.line()));
    }
}

fn list(format: Format) -> anyhow::Result<Status> {
    let all: Vec<_> = registry::all()
        .map(|audit| {
            json!({
                "number": audit.number, "slug": audit.slug, "title": audit.title,
                "compares": audit.compares, "needs": audit.needs, "gate": audit.gate,
            })
        })
        .collect();
    console::answer(format, &print::list(), &all)?;
    Ok(Status::Parity)
}

fn self_test(format: Format) -> anyhow::Result<Status> {
    let results: Vec<_> = registry::all().map(|audit| (audit, verify(audit))).collect();
    let wrong: Vec<&String> =
        results.iter().filter_map(|(_, result)| result.as_ref().err()).collect();
    let controls: usize = results.iter().filter_map(|(_, result)| result.as_ref().ok()).sum();
    let mut text = format!("{} audits, {controls} controls right", results.len());
    for line in &wrong {
        text.push('\n');
        text.push_str(line);
    }
    let answer = json!({"audits": results.len(), "controls": controls, "wrong": wrong});
    console::answer(format, &text, &answer)?;
    Ok(if wrong.is_empty() { Status::Parity } else { Status::Differs })
}
