//! Checks of one run, and what was found.

use lockstep_traces::{CheckKind, CheckReport, Finding, Location};
use serde_json::Value;

use super::page::badge;
use super::view::{View, step};
use crate::error::ReportError;
use crate::model::Report;

/// Name of a check.
pub(crate) const fn name(kind: CheckKind) -> &'static str {
    match kind {
        CheckKind::Gather => "gather",
        CheckKind::Selector => "selector",
        CheckKind::Positions => "positions",
        CheckKind::Forward => "forward",
        CheckKind::Sampler => "sampler",
    }
}

/// Where something was found, in words.
pub(crate) fn place(location: &Location) -> String {
    let mut parts = Vec::new();
    if let Some(sample) = &location.sample_id {
        parts.push(format!("sample {sample}"));
    }
    for (name, value) in [
        ("position", location.position),
        ("compaction", location.ordinal),
        ("layer", location.layer),
        ("head", location.head),
        ("row", location.row),
    ] {
        if let Some(value) = value {
            parts.push(format!("{name} {value}"));
        }
    }
    if let Some(stage) = &location.stage {
        parts.push(format!("stage {stage}"));
    }
    parts.join(", ")
}

/// The table of checks, then each check's findings, limits and figures.
pub(super) fn table(view: &mut View<'_>, report: &Report) -> Result<(), ReportError> {
    view.open_table(
        "What was checked; nothing skipped counts as equal",
        &["check", "verdict", "#compared", "#different", "#skipped", "unit"],
    );
    for (index, check) in report.checks.iter().enumerate() {
        view.raw("<tr>");
        view.element("th scope=\"row\"", name(check.kind));
        view.raw("<td>");
        badge(view, &check.verdict);
        if let lockstep_traces::Verdict::Incomparable { why } = &check.verdict {
            view.raw(" ");
            view.text(why);
        }
        view.raw("</td>");
        for key in ["compared", "different", "skipped"] {
            view.figure_cell(&format!("/checks/{index}/{key}"))?;
        }
        view.text_cell(Some(&check.unit));
        view.raw("</tr>\n");
    }
    view.close_table();
    for (index, check) in report.checks.iter().enumerate() {
        more(view, check, index)?;
    }
    Ok(())
}

fn more(view: &mut View<'_>, check: &CheckReport, index: usize) -> Result<(), ReportError> {
    let pointer = format!("/checks/{index}");
    let figures = scalars(&check.detail);
    if check.findings.is_empty() && check.limits.is_empty() && figures.is_empty() {
        return Ok(());
    }
    // What is wrong is open, what passed is folded.
    view.raw(if check.findings.is_empty() {
        "<details><summary>"
    } else {
        "<details open><summary>"
    });
    view.raw("More about the check ");
    view.text(name(check.kind));
    view.raw("</summary>\n");
    findings(view, &format!("{pointer}/findings"), &check.findings)?;
    if !figures.is_empty() {
        view.open_table("Figures", &["name", "#value"]);
        for key in figures {
            view.raw("<tr>");
            view.element("th scope=\"row\"", key);
            view.raw("<td class=\"n\">");
            view.any(&format!("{pointer}/detail/{}", step(key)))?;
            view.raw("</td></tr>\n");
        }
        view.close_table();
    }
    view.lines("plain", &check.limits);
    view.raw("</details>\n");
    Ok(())
}

/// Keys of the detail that hold one value each; lists and objects stay in `report.json`.
fn scalars(detail: &Value) -> Vec<&str> {
    detail.as_object().map_or_else(Vec::new, |object| {
        object
            .iter()
            .filter(|(_, value)| !value.is_array() && !value.is_object())
            .map(|(key, _)| key.as_str())
            .collect()
    })
}

/// Findings with their places and figures.
pub(super) fn findings(
    view: &mut View<'_>,
    pointer: &str,
    findings: &[Finding],
) -> Result<(), ReportError> {
    for (index, finding) in findings.iter().enumerate() {
        view.raw("<div class=\"box bad\"><p><strong>");
        view.text(&finding.title);
        view.raw("</strong></p>\n");
        if let Some(cause) = finding.cause {
            view.raw("<p>Cause: <code>");
            view.text(cause.slug());
            view.raw("</code>, ");
            view.text(cause.title());
            view.raw("</p>\n");
        }
        let place = place(&finding.location);
        if !place.is_empty() {
            view.element("p", &format!("Where: {place}"));
        }
        for (at, evidence) in finding.evidence.iter().enumerate() {
            view.raw("<p>");
            view.text(&evidence.name);
            view.raw(": ");
            view.any(&format!("{pointer}/{index}/evidence/{at}/value"))?;
            view.raw("</p>\n");
        }
        view.raw("</div>\n");
    }
    Ok(())
}
