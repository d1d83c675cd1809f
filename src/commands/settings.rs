//! `diff --manifest`: what differs between two effective configurations.

use std::fmt::Write as _;

use lockstep_diff::settings::{self, SettingsReport};
use serde_json::Value;

use super::audit;
use super::inputs::Trace;
use crate::cli::Format;
use crate::console;
use crate::exit::Status;

pub(crate) fn execute(left: &Trace, right: &Trace, format: Format) -> anyhow::Result<Status> {
    let report = settings::compare(&audit::subject(left), &audit::subject(right));
    console::answer(format, &text(&report), &report)?;
    Ok(Status::of(&report.verdict))
}

fn text(report: &SettingsReport) -> String {
    let mut out = format!("{} against {}\n", report.left, report.right);
    if let lockstep_traces::Verdict::Incomparable { why } = &report.verdict {
        let _ = writeln!(out, "incomparable: {why}");
    }
    let _ = writeln!(out, "{} settings are equal, {} differ", report.equal, report.differing);
    for group in &report.groups {
        let _ = writeln!(out, "{}", group.group.word());
        for one in &group.differences {
            let left = value(&one.left, &one.left_source);
            let right = value(&one.right, &one.right_source);
            let _ = writeln!(out, "  {}: {left} against {right}", one.key);
        }
    }
    out
}

/// `256 (flag)`; a hash is cut, since its first digits tell it from another.
fn value(value: &Option<Value>, source: &Option<String>) -> String {
    let text = match value {
        None => return "not recorded".to_owned(),
        Some(Value::String(text))
            if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) =>
        {
            lockstep_diff::audits::short(text).to_owned()
        }
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    source.as_ref().map_or(text.clone(), |source| format!("{text} ({source})"))
}
