//! The page from top to bottom.

use lockstep_traces::Verdict;

use super::view::View;
use super::{checks, claims, diffs, figures, strip, style, tables};
use crate::charts::{Figure, FigureKind};
use crate::error::ReportError;
use crate::model::{ParagraphKind, Report, verdict_sentence};

/// The report as one HTML file.
///
/// # Errors
/// [`ReportError`] where a figure cannot be drawn or a number is not in the report.
pub fn page(report: &Report) -> Result<String, ReportError> {
    page_with(report, &crate::charts::figures(report))
}

/// The same from figures that are drawn already.
pub(crate) fn page_with(report: &Report, drawn: &[Figure]) -> Result<String, ReportError> {
    let json = serde_json::to_value(report)?;
    let mut view = View::new(&json);
    view.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    view.raw("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n");
    view.raw(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n",
    );
    view.element("title", &report.title);
    view.raw("\n<style>");
    view.raw(&style::sheet());
    view.raw("</style>\n</head>\n<body>\n");
    head(&mut view, report);
    navigation(&mut view, report);
    view.raw("<main>\n");
    story(&mut view, report);
    findings_section(&mut view, report)?;
    parting(&mut view, report, drawn)?;
    if !report.policy_table.is_empty() {
        section(&mut view, "policies", "Policies beside each other");
        tables::policies(&mut view, report)?;
    }
    comparisons(&mut view, report)?;
    if !report.checks.is_empty() {
        section(&mut view, "checks", "Checks");
        checks::table(&mut view, report)?;
    }
    inside(&mut view, report, drawn)?;
    if !report.runs.is_empty() {
        section(&mut view, "runs", "Runs");
        tables::runs(&mut view, report)?;
    }
    if let Some(ledger) = &report.claims {
        section(&mut view, "claims", "Claims, oldest first");
        claims::timeline(&mut view, ledger)?;
    }
    if !report.limits.is_empty() {
        section(&mut view, "limits", "What this does not show");
        view.lines("plain", &report.limits);
    }
    view.raw("</main>\n<footer><p>Figures in tables, findings and token boxes are values of report.json, rounded to five ");
    view.raw("significant digits; a dash stands for a figure that does not exist. Drawings and their captions are made ");
    view.raw("from its lists.</p></footer>\n</body>\n</html>\n");
    Ok(view.finish())
}

pub(super) fn section(view: &mut View<'_>, id: &str, title: &str) {
    view.raw("<h2 id=\"");
    view.raw(id);
    view.raw("\">");
    view.text(title);
    view.raw("</h2>\n");
}

/// A verdict as a badge: a sign, the word, and a colour.
pub(super) fn badge(view: &mut View<'_>, verdict: &Verdict) {
    let (class, sign) = match verdict {
        Verdict::Identical => ("good", "="),
        Verdict::WithinNoise => ("good", "≈"),
        Verdict::Tie => ("good", "≡"),
        Verdict::Diverged => ("bad", "≠"),
        Verdict::Incomparable { .. } => ("unsure", "?"),
    };
    view.raw("<span class=\"verdict ");
    view.raw(class);
    view.raw("\"><span aria-hidden=\"true\">");
    view.raw(sign);
    view.raw("</span> ");
    view.text(verdict.word());
    view.raw("</span>");
}

fn head(view: &mut View<'_>, report: &Report) {
    view.raw("<header>\n");
    view.element("h1", &report.title);
    view.raw("\n<p>");
    badge(view, &report.verdict);
    view.raw(" ");
    view.text(&verdict_sentence(&report.verdict));
    view.raw("</p>\n");
    if !report.command.is_empty() {
        view.raw("<p class=\"command\"><span class=\"sr\">Command: </span>");
        view.element("code", &report.command);
        view.raw("</p>\n");
    }
    view.raw("</header>\n");
}

fn has_parting(report: &Report) -> bool {
    !(report.timelines.is_empty()
        && report.splits_view.is_empty()
        && report.strips.is_empty()
        && report.curves.is_empty())
}

fn has_inside(report: &Report) -> bool {
    !(report.drift.is_empty() && report.keep_maps.is_empty())
}

fn navigation(view: &mut View<'_>, report: &Report) {
    let entries = [
        ("findings", "Findings", !report.findings.is_empty()),
        ("parting", "Where they part", has_parting(report)),
        ("policies", "Policies", !report.policy_table.is_empty()),
        ("comparisons", "Comparisons", !report.diffs.is_empty() || !report.noise.is_empty()),
        ("checks", "Checks", !report.checks.is_empty()),
        ("inside", "Inside the model", has_inside(report)),
        ("runs", "Runs", !report.runs.is_empty()),
        ("claims", "Claims", report.claims.is_some()),
        ("limits", "Limits", !report.limits.is_empty()),
    ];
    view.raw("<nav aria-label=\"Sections\"><ul>");
    for (id, title, _) in entries.iter().filter(|entry| entry.2) {
        view.raw("<li><a href=\"#");
        view.raw(id);
        view.raw("\">");
        view.raw(title);
        view.raw("</a></li>");
    }
    view.raw("</ul></nav>\n");
}

fn story(view: &mut View<'_>, report: &Report) {
    let mut in_list = false;
    for paragraph in &report.story {
        let item = paragraph.kind == ParagraphKind::Item;
        if item != in_list {
            view.raw(if item { "<ul class=\"plain\">\n" } else { "</ul>\n" });
            in_list = item;
        }
        match paragraph.kind {
            ParagraphKind::Headline => view.element("p class=\"lead\"", &paragraph.text),
            ParagraphKind::Text => view.element("p", &paragraph.text),
            ParagraphKind::Item => view.element("li", &paragraph.text),
            ParagraphKind::Passed => boxed(view, "good", "Passed: ", &paragraph.text),
            ParagraphKind::Problem => boxed(view, "bad", "Problem: ", &paragraph.text),
        }
        view.raw("\n");
    }
    if in_list {
        view.raw("</ul>\n");
    }
}

fn boxed(view: &mut View<'_>, class: &str, word: &str, text: &str) {
    view.raw("<div class=\"box ");
    view.raw(class);
    view.raw("\"><p><strong>");
    view.raw(word);
    view.raw("</strong>");
    view.text(text);
    view.raw("</p></div>");
}

fn findings_section(view: &mut View<'_>, report: &Report) -> Result<(), ReportError> {
    if report.findings.is_empty() {
        return Ok(());
    }
    section(view, "findings", "Findings");
    checks::findings(view, "/findings", &report.findings)
}

/// Time lines, then split by split, then curves.
fn parting(view: &mut View<'_>, report: &Report, drawn: &[Figure]) -> Result<(), ReportError> {
    if !has_parting(report) {
        return Ok(());
    }
    section(view, "parting", "Where they part");
    figures::of_kind(view, drawn, FigureKind::Timeline)?;
    figures::of_kind(view, drawn, FigureKind::Split)?;
    for index in 0..report.strips.len() {
        strip::strip(view, report, index)?;
    }
    figures::of_kind(view, drawn, FigureKind::Curves)
}

fn comparisons(view: &mut View<'_>, report: &Report) -> Result<(), ReportError> {
    if report.diffs.is_empty() && report.noise.is_empty() {
        return Ok(());
    }
    section(view, "comparisons", "Comparisons");
    for (index, diff) in report.diffs.iter().enumerate() {
        diffs::diff(view, diff, &format!("/diffs/{index}"))?;
    }
    for (index, noise) in report.noise.iter().enumerate() {
        diffs::noise(view, noise, &format!("/noise/{index}"))?;
    }
    Ok(())
}

fn inside(view: &mut View<'_>, report: &Report, drawn: &[Figure]) -> Result<(), ReportError> {
    if !has_inside(report) {
        return Ok(());
    }
    section(view, "inside", "Inside the model");
    for index in 0..report.drift_reports.len() {
        tables::drift_summary(view, report, index)?;
    }
    figures::of_kind(view, drawn, FigureKind::Drift)?;
    for index in 0..report.keep_reports.len() {
        tables::keep_summary(view, report, index)?;
    }
    figures::of_kind(view, drawn, FigureKind::KeepMap)
}
