//! Comparisons of two runs, in order of judgement.

use lockstep_diff::report::{DiffReport, NoiseReport, SampleDiff, SideInfo};
use lockstep_traces::Verdict;

use super::checks;
use super::page::badge;
use super::view::View;
use crate::error::ReportError;

/// Samples shown in a table; `report.json` has all.
const MOST_SAMPLES: usize = 200;

/// One comparison.
pub(super) fn diff(view: &mut View<'_>, diff: &DiffReport, at: &str) -> Result<(), ReportError> {
    view.raw("<h3>");
    view.text(&diff.left.label);
    view.raw(" against ");
    view.text(&diff.right.label);
    view.raw("</h3>\n<p>");
    badge(view, &diff.verdict);
    view.raw(" ");
    view.text(&diff.summary);
    view.raw("</p>\n<p>");
    view.text(&side(&diff.left));
    view.raw(" · ");
    view.text(&side(&diff.right));
    view.raw("<br>");
    view.text(&diff.proves);
    view.raw("</p>\n");
    inputs(view, diff, at)?;
    firsts(view, diff, at)?;
    coverage(view, at)?;
    checks::findings(view, &format!("{at}/findings"), &diff.findings)?;
    samples(view, diff, at)?;
    if let Some(report) = &diff.noise {
        noise(view, report, &format!("{at}/noise"))?;
    }
    pairing(view, diff, at)?;
    view.lines("plain", &diff.limits);
    Ok(())
}

fn side(side: &SideInfo) -> String {
    let mut parts = vec![side.producer.clone(), side.device.clone()];
    parts.extend(side.dtype.clone());
    parts.extend(side.policy.clone());
    parts.extend(side.rule_set.clone());
    if let Some(plant) = &side.plant {
        parts.push(format!("planted fault {plant}"));
    }
    if !side.complete {
        parts.push("incomplete".to_owned());
    }
    format!("{}: {}", side.label, parts.join(", "))
}

fn inputs(view: &mut View<'_>, diff: &DiffReport, at: &str) -> Result<(), ReportError> {
    if diff.inputs.differences.is_empty() {
        return Ok(());
    }
    view.open_table(
        "Settings that differ, looked at before anything else",
        &["setting", "#left", "source", "#right", "source"],
    );
    for (index, difference) in diff.inputs.differences.iter().enumerate() {
        let key = |name: &str| format!("{at}/inputs/differences/{index}/{name}");
        view.raw("<tr>");
        view.element("th scope=\"row\"", &difference.key);
        view.raw("<td class=\"n\">");
        view.any(&key("left"))?;
        view.raw("</td>");
        view.text_cell(difference.left_source.as_deref());
        view.raw("<td class=\"n\">");
        view.any(&key("right"))?;
        view.raw("</td>");
        view.text_cell(difference.right_source.as_deref());
        view.raw("</tr>\n");
    }
    view.close_table();
    Ok(())
}

fn firsts(view: &mut View<'_>, diff: &DiffReport, at: &str) -> Result<(), ReportError> {
    view.open_table(
        "The four firsts: the deciding row and the row that is fed its choice",
        &["first", "sample", "#row", "#fed at"],
    );
    let all = [
        ("structural", &diff.splits.structural),
        ("logit", &diff.splits.logit),
        ("argmax", &diff.splits.argmax),
        ("token", &diff.splits.token),
    ];
    for (name, split) in all {
        view.raw("<tr>");
        view.element("th scope=\"row\"", name);
        match split {
            None => view.raw("<td>none</td><td class=\"n\">–</td><td class=\"n\">–</td>"),
            Some(split) => {
                view.text_cell(Some(&split.sample_id));
                view.figure_cell(&format!("{at}/splits/{name}/position"))?;
                view.figure_cell(&format!("{at}/splits/{name}/fed_at"))?;
            }
        }
        view.raw("</tr>\n");
    }
    view.close_table();
    Ok(())
}

fn coverage(view: &mut View<'_>, at: &str) -> Result<(), ReportError> {
    view.open_table(
        "What was covered",
        &[
            "#samples",
            "#rows compared",
            "#dependent rows",
            "#left only",
            "#right only",
            "#not finite",
            "#identical",
            "#within noise",
            "#tie",
            "#diverged",
            "#incomparable",
            "#near-tie density",
        ],
    );
    view.raw("<tr>");
    for name in [
        "samples",
        "rows_compared",
        "rows_dependent",
        "rows_left_only",
        "rows_right_only",
        "rows_non_finite",
        "identical",
        "within_noise",
        "tie",
        "diverged",
        "incomparable",
    ] {
        view.figure_cell(&format!("{at}/counts/{name}"))?;
    }
    view.figure_cell(&format!("{at}/near_tie_density"))?;
    view.raw("</tr>\n");
    view.close_table();
    Ok(())
}

/// Samples that differ are open, equal ones folded.
fn samples(view: &mut View<'_>, diff: &DiffReport, at: &str) -> Result<(), ReportError> {
    let passed = |sample: &SampleDiff| {
        matches!(sample.verdict, Verdict::Identical | Verdict::WithinNoise | Verdict::Tie)
    };
    for (fold, title) in [(false, "Samples that differ"), (true, "Samples that agree")] {
        let chosen: Vec<usize> =
            (0..diff.samples.len()).filter(|index| passed(&diff.samples[*index]) == fold).collect();
        if chosen.is_empty() {
            continue;
        }
        if fold {
            view.raw("<details><summary>");
            view.text(title);
            view.raw("</summary>\n");
        }
        let shown = &chosen[..chosen.len().min(MOST_SAMPLES)];
        let cut = if shown.len() < chosen.len() { " (the first; report.json has all)" } else { "" };
        sample_table(view, diff, at, shown, &format!("{title}{cut}"))?;
        if fold {
            view.raw("</details>\n");
        }
    }
    Ok(())
}

fn sample_table(
    view: &mut View<'_>,
    diff: &DiffReport,
    at: &str,
    chosen: &[usize],
    caption: &str,
) -> Result<(), ReportError> {
    view.open_table(
        caption,
        &[
            "sample",
            "verdict",
            "#rows compared",
            "#dependent",
            "#structural",
            "#logit",
            "#argmax",
            "#token",
            "#same top",
            "#largest difference",
            "why",
        ],
    );
    for index in chosen {
        let Some(sample) = diff.samples.get(*index) else { continue };
        let key = |name: &str| format!("{at}/samples/{index}/{name}");
        view.raw("<tr>");
        view.element("th scope=\"row\"", &sample.sample_id);
        view.raw("<td>");
        badge(view, &sample.verdict);
        view.raw("</td>");
        view.figure_cell(&key("rows_compared"))?;
        view.figure_cell(&key("rows_dependent"))?;
        for first in ["structural", "logit", "argmax", "token"] {
            optional(view, &key(&format!("splits/{first}")), "position")?;
        }
        view.figure_cell(&key("stats/same_top"))?;
        optional(view, &key("stats/max_diff"), "abs")?;
        view.text_cell(Some(&sample.summary));
        view.raw("</tr>\n");
    }
    view.close_table();
    Ok(())
}

/// A figure inside an object that may be `null`.
fn optional(view: &mut View<'_>, object: &str, key: &str) -> Result<(), ReportError> {
    if view.has(object) {
        view.figure_cell(&format!("{object}/{key}"))
    } else {
        view.figure_cell(object)
    }
}

/// Target against control.
pub(super) fn noise(view: &mut View<'_>, noise: &NoiseReport, at: &str) -> Result<(), ReportError> {
    view.raw("<p>");
    badge(view, &noise.verdict);
    view.raw(" Noise: ");
    view.text(&noise.summary);
    view.raw(" Truth: ");
    view.text(&noise.against.truth);
    view.raw("; control: ");
    view.text(&noise.against.control);
    view.raw(". Rows: ");
    view.figure(&format!("{at}/rows"))?;
    view.raw(", beyond the control: ");
    view.figure(&format!("{at}/rows_beyond"))?;
    view.raw(", first: ");
    view.figure(&format!("{at}/first_beyond"))?;
    view.raw(".</p>\n");
    view.open_table(
        "Error against the truth, target beside control",
        &["metric", "#target", "#control", "#ratio", "#allowed", "within", "why that factor"],
    );
    for (index, metric) in noise.metrics.iter().enumerate() {
        view.raw("<tr>");
        view.element("th scope=\"row\"", &metric.name);
        for name in ["target", "control", "ratio", "allowed"] {
            view.figure_cell(&format!("{at}/metrics/{index}/{name}"))?;
        }
        view.text_cell(Some(if metric.within { "yes" } else { "no" }));
        view.text_cell(Some(&metric.reason));
        view.raw("</tr>\n");
    }
    view.close_table();
    Ok(())
}

fn pairing(view: &mut View<'_>, diff: &DiffReport, at: &str) -> Result<(), ReportError> {
    let Some(pairing) = &diff.pairing else { return Ok(()) };
    view.open_table(
        &format!("Paired {}, exact McNemar", pairing.what),
        &["#pairs", "#both", "#left only", "#right only", "#neither", "#p", "#smallest effect"],
    );
    view.raw("<tr>");
    for name in ["n", "both", "left_only", "right_only", "neither", "p_value", "smallest_effect"] {
        view.figure_cell(&format!("{at}/pairing/{name}"))?;
    }
    view.raw("</tr>\n");
    view.close_table();
    view.raw("<p>");
    view.text(&format!("{pairing}."));
    view.raw("</p>\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_here_writes_a_number_of_its_own() {
        let source = include_str!("diffs.rs");
        let body = source.split("#[cfg(test)]").next().unwrap_or_default();
        assert!(!body.contains(".to_string()"), "numbers go through View::figure");
    }
}
