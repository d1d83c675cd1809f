//! Audits on a terminal: what is wrong, what is not known; what passed is counted.

use std::fmt::Write as _;

use lockstep_diff::audits::{AuditReport, Outcome, registry};

/// The answer. `all` also prints what passed, and in words what evidence is missing.
pub(super) fn text(found: &AuditReport, all: bool) -> String {
    let mut out = String::new();
    for subject in &found.subjects {
        let side = subject.side.as_ref().map_or_else(String::new, |side| format!(" ({side})"));
        let _ = writeln!(out, "{}: {}{side}", subject.label, subject.kind.word());
    }
    let counts = &found.counts;
    let _ = writeln!(
        out,
        "{} audits: {} void, {} flagged, {} passed, {} without evidence",
        found.audits.len(),
        counts.void,
        counts.flag,
        counts.pass,
        counts.no_evidence
    );
    for finding in &found.findings {
        if all || matches!(finding.verdict, Outcome::Void | Outcome::Flag) {
            let _ = writeln!(out, "  {}", finding.line());
        }
    }
    for one in &found.ignored {
        let _ = writeln!(out, "  audit {} ({}) set aside: {}", one.audit, one.slug, one.reason);
    }
    if !all && counts.no_evidence > 0 {
        let lines = found.audits.iter().filter(|line| line.verdict == Outcome::NoEvidence);
        let names: Vec<String> =
            lines.map(|line| format!("{} {}", line.number, line.slug)).collect();
        let _ = writeln!(out, "no evidence for: {}", names.join(", "));
    }
    out
}

/// All audits.
pub(super) fn list() -> String {
    let mut out = String::new();
    for audit in registry::all() {
        let _ = writeln!(out, "{:>2}  {}: {}", audit.number, audit.slug, audit.title);
        let _ = writeln!(out, "    compares {}", audit.compares);
    }
    out
}
