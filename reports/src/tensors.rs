//! The comparison of two sets of tensors on a terminal: what passed is counted, every failure is listed.

use std::fmt::Write as _;

use lockstep_diff::tensor_sets::{PairReport, SetSummary, SetsReport, Status};

use crate::text::TextOptions;

/// Names and paths come from files: nothing in them may steer a terminal.
fn visible(text: &str) -> String {
    crate::escape::visible(text.as_bytes())
}

/// The text of a comparison. `listed` failures are shown in full; the others by name and figure only.
#[must_use]
pub fn text(report: &SetsReport, listed: usize, options: TextOptions) -> String {
    let paint = |code: &str, text: &str| {
        if options.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    };
    let mut out = String::new();
    side(&mut out, "baseline", &report.left);
    side(&mut out, "target", &report.right);
    if let Some(control) = &report.control {
        side(&mut out, "control", control);
    }
    for unfit in &report.unfit {
        let _ = writeln!(
            out,
            "{} {} ({}): {}",
            paint("31", "UNFIT"),
            visible(&unfit.name),
            unfit.side,
            visible(&unfit.why)
        );
    }
    let failing =
        |pair: &&PairReport| matches!(pair.status, Status::Diverged | Status::Incomparable);
    for (at, pair) in report.pairs.iter().filter(failing).enumerate() {
        let word = if pair.status == Status::Diverged {
            paint("31", "DIVERGED")
        } else {
            paint("33", "INCOMPARABLE")
        };
        let _ = writeln!(out, "{word} [{}] {}{}", pair.order, visible(&pair.name), partner(pair));
        let _ = writeln!(out, "    {}", visible(&pair.why));
        if at < listed {
            figures(&mut out, pair);
        }
        for hint in &pair.hints {
            let error = match (hint.before, hint.after) {
                (Some(before), Some(after)) => {
                    format!(" (relative L2 of a sample {before:.1e}, undone {after:.1e})")
                }
                (None, Some(after)) => format!(" (relative L2 of a sample, undone: {after:.1e})"),
                _ => String::new(),
            };
            let _ = writeln!(out, "    {}: {}{error}", hint.name, hint.text);
        }
    }
    for (names, side) in [(&report.left_only, "baseline"), (&report.right_only, "target")] {
        for name in names {
            let _ = writeln!(
                out,
                "{} {} is on the {side}'s side only",
                paint("33", "NO PARTNER"),
                visible(name)
            );
        }
    }
    for root in &report.roots {
        let _ = writeln!(
            out,
            "root [{}] {}: {} inputs agree, {} outputs differ",
            root.order,
            visible(&root.call),
            root.inputs.len(),
            root.outputs.len()
        );
    }
    for limit in &report.limits {
        let _ = writeln!(out, "limit: {limit}");
    }
    let color = match report.verdict.exit_code() {
        0 => "32",
        1 => "31",
        _ => "33",
    };
    let _ = writeln!(out, "{}: {}", paint(color, report.verdict.word()), visible(&report.summary));
    out
}

fn side(out: &mut String, word: &str, set: &SetSummary) {
    let _ =
        writeln!(out, "{word}: {} ({}, {} tensors)", visible(&set.path), set.format, set.tensors);
    for remark in &set.remarks {
        let _ = writeln!(out, "  note: {}", visible(remark));
    }
}

fn partner(pair: &PairReport) -> String {
    let same = pair.left == pair.right && pair.left.len() == 1;
    let names =
        if same { String::new() } else { format!(" against {}", visible(&pair.right.join(" + "))) };
    let types = if pair.left_element == pair.right_element {
        pair.left_element.clone()
    } else {
        format!("{} against {}", pair.left_element, pair.right_element)
    };
    format!("{names}  {types} {:?}", pair.shape)
}

fn figures(out: &mut String, pair: &PairReport) {
    let figures = &pair.figures;
    let shown = |name: &str, value: Option<f64>| value.map(|value| format!("{name} {value:.3e}"));
    let parts: Vec<String> = [
        shown("mean |d|", figures.mean_abs),
        shown("max rel", figures.max_rel),
        shown("mean rel", figures.mean_rel),
        shown("DeepGEMM", figures.deepgemm),
        figures.cosine.map(|cosine| format!("cosine {cosine:.6}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !parts.is_empty() {
        let _ = writeln!(out, "    {}", parts.join(", "));
    }
    if let Some(q) = &figures.abs_quantiles {
        let _ = writeln!(
            out,
            "    |d| p50 {:.3e}, p90 {:.3e}, p99 {:.3e}, p99.9 {:.3e}, max {:.3e}",
            q.p50, q.p90, q.p99, q.p999, q.max
        );
    }
    if !figures.ulp_histogram.is_empty() {
        let bins: Vec<String> = figures
            .ulp_histogram
            .iter()
            .map(|bin| {
                let range = if bin.from == bin.to {
                    bin.from.to_string()
                } else {
                    format!("{}-{}", bin.from, bin.to)
                };
                format!("{range}: {}", bin.elements)
            })
            .collect();
        let _ = writeln!(out, "    ulp {}", bins.join(", "));
    }
    if let Some(worst) = &figures.worst {
        let value = |value: Option<f64>| {
            value.map_or_else(|| "not finite".to_owned(), |value| format!("{value:e}"))
        };
        let _ = writeln!(
            out,
            "    worst at {:?}: {} against {}",
            worst.index,
            value(worst.left),
            value(worst.right)
        );
    }
}
