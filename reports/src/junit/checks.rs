//! Checks, audits and comparisons as cases.

use lockstep_diff::DiffReport;
use lockstep_diff::audits::{self, AuditReport};
use lockstep_diff::settings::SettingsReport;
use lockstep_traces::{CheckReport, Finding, Location, Verdict};
use serde_json::Value;

use super::{Case, Outcome, Suite};

/// A verdict; within noise and ties are parity, as the exit status has it.
fn of_verdict(verdict: &Verdict, why: &str) -> Outcome {
    match verdict {
        Verdict::Identical | Verdict::WithinNoise | Verdict::Tie => Outcome::Passed,
        Verdict::Diverged => Outcome::failed(verdict.word(), why),
        Verdict::Incomparable { why } => Outcome::error(verdict.word(), why.clone()),
    }
}

/// `sample s, position 4, layer 0, head 2`.
fn place(location: &Location) -> String {
    let number = |name: &str, value: Option<u32>| value.map(|value| format!("{name} {value}"));
    let parts = [
        location.sample_id.as_ref().map(|id| format!("sample {id}")),
        number("position", location.position),
        number("compaction", location.ordinal),
        number("layer", location.layer),
        number("head", location.head),
        number("row", location.row),
        location.stage.clone(),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// A finding is something wrong; it passes never.
fn of_finding(class: &str, finding: &Finding) -> Case {
    let place = place(&finding.location);
    let name = if place.is_empty() {
        finding.title.clone()
    } else {
        format!("{} ({place})", finding.title)
    };
    let kind = finding.cause.map_or_else(|| "finding".to_owned(), |cause| cause.slug().to_owned());
    let figures = finding.evidence.iter().map(|one| format!("{}: {}", one.name, one.value));
    Case::new(class, name, Outcome::failed(kind, finding.title.clone())).with(figures)
}

/// One check: its verdict, its findings, and what it skipped.
pub(super) fn of_check(check: &CheckReport) -> Suite {
    let kind = serde_json::to_value(check.kind);
    let kind = kind.ok().and_then(|kind| kind.as_str().map(str::to_owned)).unwrap_or_default();
    let class = format!("check.{kind}");
    let (compared, different, skipped) = (check.compared, check.different, check.skipped);
    let counts =
        format!("{compared} {} compared, {different} differ, {skipped} skipped", check.unit);
    let mut cases = vec![
        Case::new(&class, "verdict", of_verdict(&check.verdict, &counts))
            .with([counts])
            .with(check.limits.iter().cloned()),
    ];
    cases.extend(check.findings.iter().map(|finding| of_finding(&class, finding)));
    if check.skipped > 0 {
        let message = format!("{} {} could not be compared", check.skipped, check.unit);
        cases.push(Case::new(&class, "everything was compared", Outcome::skipped(message)));
    }
    Suite { name: format!("check {kind}"), cases }
}

/// One case an audit, by its gravest finding.
pub(super) fn of_audit(report: &AuditReport) -> Suite {
    let mut cases: Vec<Case> = report
        .audits
        .iter()
        .map(|audit| {
            let own: Vec<&audits::Finding> =
                report.findings.iter().filter(|found| found.audit == audit.number).collect();
            let gravest = own.iter().find(|found| found.verdict == audit.verdict);
            let said = gravest.map_or_else(|| audit.title.clone(), |found| found.compared.clone());
            let outcome = match audit.verdict {
                audits::Outcome::Pass => Outcome::Passed,
                audits::Outcome::NoEvidence => Outcome::skipped(said),
                audits::Outcome::Flag => Outcome::failed("flag", said),
                audits::Outcome::Void => Outcome::error("void", said),
            };
            Case::new("audit", format!("{} {}", audit.number, audit.slug), outcome)
                .with(own.iter().map(|found| found.line()))
        })
        .collect();
    cases.extend(report.ignored.iter().map(|one| {
        let outcome = Outcome::skipped(format!("set aside: {}", one.reason));
        Case::new("audit", format!("{} {}", one.audit, one.slug), outcome)
    }));
    Suite { name: "audit".to_owned(), cases }
}

/// One case a sample, samples of one side alone, findings, and the whole.
pub(super) fn of_diff(report: &DiffReport) -> Vec<Suite> {
    let mut cases = vec![
        Case::new("diff", "verdict", of_verdict(&report.verdict, &report.summary))
            .with([report.summary.clone(), report.proves.clone()])
            .with(report.limits.iter().cloned()),
    ];
    for sample in &report.samples {
        let outcome = of_verdict(&sample.verdict, &sample.summary);
        cases.push(
            Case::new("diff.sample", &sample.sample_id, outcome).with([sample.summary.clone()]),
        );
    }
    for (ids, side) in [(&report.missing_left, "baseline"), (&report.missing_right, "target")] {
        cases.extend(ids.iter().map(|id| {
            let outcome = Outcome::error("missing", format!("the {side} has no such sample"));
            Case::new("diff.sample", id, outcome)
        }));
    }
    cases.extend(report.findings.iter().map(|finding| of_finding("diff.finding", finding)));
    let name = format!("diff {} {}", report.left.label, report.right.label);
    let mut suites = vec![Suite { name, cases }];
    suites.extend(report.audits.as_ref().map(of_audit));
    suites
}

/// One case a differing setting, and the whole.
pub(super) fn of_settings(report: &SettingsReport) -> Suite {
    let counts = format!("{} settings are equal, {} differ", report.equal, report.differing);
    let mut cases =
        vec![Case::new("settings", "verdict", of_verdict(&report.verdict, &counts)).with([counts])];
    for (group, one) in report.differences() {
        let value = |value: &Option<Value>| {
            value.as_ref().map_or_else(|| "not recorded".to_owned(), ToString::to_string)
        };
        let message = format!("{} against {}", value(&one.left), value(&one.right));
        let class = format!("settings.{}", group.word());
        cases.push(Case::new(class, &one.key, Outcome::failed("differs", message)));
    }
    Suite { name: format!("diff --manifest {} {}", report.left, report.right), cases }
}
