//! Runs, policies, and the summaries beside drift and keep-set maps.

use lockstep_traces::Status;

use super::page::badge;
use super::view::{View, step};
use crate::error::ReportError;
use crate::model::{Report, RunSummary};

/// The table of runs and, folded, their effective configurations.
pub(super) fn runs(view: &mut View<'_>, report: &Report) -> Result<(), ReportError> {
    view.open_table(
        "Runs, baseline first",
        &[
            "run",
            "policy",
            "dtype",
            "device",
            "#samples",
            "#rows",
            "#compactions",
            "state",
            "producer",
        ],
    );
    for (index, run) in report.runs.iter().enumerate() {
        view.raw("<tr>");
        view.element("th scope=\"row\"", &run.label);
        view.text_cell(Some(&run.policy));
        view.text_cell(Some(&dtypes(run)));
        view.text_cell(Some(&run.device));
        for key in ["samples", "rows", "compactions"] {
            view.figure_cell(&format!("/runs/{index}/{key}"))?;
        }
        view.text_cell(Some(match run.status {
            Status::Complete => "complete",
            Status::Incomplete => "incomplete",
        }));
        let planted = run.plant.as_ref().map(|slug| format!(" (planted fault: {slug})"));
        view.text_cell(Some(&format!("{}{}", run.producer, planted.unwrap_or_default())));
        view.raw("</tr>\n");
    }
    view.close_table();
    for (index, run) in report.runs.iter().enumerate() {
        view.lines("plain", &run.remarks);
        configuration(view, run, index)?;
    }
    Ok(())
}

fn dtypes(run: &RunSummary) -> String {
    match (&run.dtype, &run.cache_dtype) {
        (Some(dtype), Some(cache)) if dtype != cache => format!("{dtype}, cache {cache}"),
        (Some(dtype), _) => dtype.clone(),
        (None, Some(cache)) => format!("cache {cache}"),
        (None, None) => "unknown".to_owned(),
    }
}

fn configuration(view: &mut View<'_>, run: &RunSummary, index: usize) -> Result<(), ReportError> {
    if run.config.is_empty() {
        return Ok(());
    }
    view.raw("<details><summary>Effective configuration of ");
    view.text(&run.label);
    view.raw("</summary>\n");
    view.open_table("Value in force and where it comes from", &["setting", "#value", "source"]);
    for (key, setting) in &run.config {
        view.raw("<tr>");
        view.element("th scope=\"row\"", key);
        view.raw("<td class=\"n\">");
        view.any(&format!("/runs/{index}/config/{}/value", step(key)))?;
        view.raw("</td>");
        view.text_cell(Some(&setting.source));
        view.raw("</tr>\n");
    }
    view.close_table();
    view.raw("</details>\n");
    Ok(())
}

/// The table of policies.
pub(super) fn policies(view: &mut View<'_>, report: &Report) -> Result<(), ReportError> {
    let answers = report.policy_table.iter().any(|row| row.right.is_some());
    let mut heads = vec!["policy", "#samples that compact", "#exact"];
    if answers {
        heads.push("#right answers");
    }
    heads.extend([
        "#earliest wrong token after a compaction",
        "#share of completion before it (median)",
        "#McNemar p",
        "against",
        "note",
    ]);
    view.open_table("Completions equal to the baseline's, token for token", &heads);
    for (index, row) in report.policy_table.iter().enumerate() {
        let key = |name: &str| format!("/policy_table/{index}/{name}");
        view.raw("<tr>");
        view.element("th scope=\"row\"", &row.policy);
        view.figure_cell(&key("n"))?;
        view.figure_cell(&key("exact"))?;
        if answers {
            view.figure_cell(&key("right"))?;
        }
        for name in ["first_wrong", "prefix_share", "mcnemar_p"] {
            view.figure_cell(&key(name))?;
        }
        view.text_cell(row.against.as_deref());
        view.text_cell(row.note.as_deref());
        view.raw("</tr>\n");
    }
    view.close_table();
    for paired in report.policy_table.iter().filter_map(|row| row.paired.as_ref()) {
        view.raw("<p>");
        view.text(&format!("{paired}."));
        view.raw("</p>\n");
    }
    Ok(())
}

/// The answer behind a drift map.
pub(super) fn drift_summary(
    view: &mut View<'_>,
    report: &Report,
    index: usize,
) -> Result<(), ReportError> {
    let Some(drift) = report.drift_reports.get(index) else { return Ok(()) };
    view.raw("<p>");
    badge(view, &drift.verdict);
    view.raw(" Drift, sample ");
    view.text(&drift.sample_id);
    view.raw(": ");
    view.text(&drift.summary);
    view.raw(" Cells compared: ");
    view.figure(&format!("/drift_reports/{index}/compared"))?;
    view.raw(", not comparable: ");
    view.figure(&format!("/drift_reports/{index}/skipped"))?;
    view.raw(".</p>\n");
    Ok(())
}

/// The answer behind keep-set maps.
pub(super) fn keep_summary(
    view: &mut View<'_>,
    report: &Report,
    index: usize,
) -> Result<(), ReportError> {
    let Some(keep) = report.keep_reports.get(index) else { return Ok(()) };
    view.raw("<p>");
    badge(view, &keep.verdict);
    view.raw(" Keep-sets: ");
    view.text(&keep.summary);
    view.raw("</p>\n");
    view.open_table(
        "Heads by what the two keep-sets are to each other",
        &[
            "#compared",
            "#equal",
            "#other order",
            "#ties only",
            "#near the cut",
            "#different",
            "#dependent",
            "#skipped events",
            "#mean Jaccard",
        ],
    );
    view.raw("<tr>");
    for name in [
        "heads",
        "equal",
        "order",
        "tie_equivalent",
        "near_cut",
        "different",
        "dependent",
        "skipped",
        "mean_jaccard",
    ] {
        view.figure_cell(&format!("/keep_reports/{index}/{name}"))?;
    }
    view.raw("</tr>\n");
    view.close_table();
    view.lines("plain", &keep.remarks);
    Ok(())
}
