//! What audits do to a comparison: a void takes its verdict.

use lockstep_traces::Verdict;

use super::report::Ignored;
use super::{Audit, AuditReport, Evidence, Outcome, registry, report};
use crate::DiffReport;

/// Audits that speak about a pair of runs.
pub fn relevant() -> impl Iterator<Item = &'static Audit> {
    registry::all().filter(|audit| audit.gate || audit.pair.is_some())
}

/// Runs the audits of a pair, without those set aside. Findings that only name a missing fact are left out; the audit's line
/// says `no_evidence`.
#[must_use]
pub fn of_pair(evidence: &Evidence<'_>, ignored: &[Ignored]) -> AuditReport {
    let aside = |audit: &&Audit| ignored.iter().any(|one| one.audit == audit.number);
    let mut found = report::run(evidence, relevant().filter(|audit| !aside(audit)));
    found.findings.retain(|finding| finding.verdict != Outcome::NoEvidence);
    found.ignored = ignored.to_vec();
    found
}

/// Puts the audits into the answer. A void of a gate makes the verdict `incomparable`: neither parity nor a difference is
/// shown by evidence that proves nothing.
pub fn apply(diff: &mut DiffReport, audits: AuditReport) {
    let gates = |number: u8| registry::all().any(|audit| audit.number == number && audit.gate);
    let voids: Vec<_> = audits.of(Outcome::Void).filter(|finding| gates(finding.audit)).collect();
    if let Some(first) = voids.first() {
        let mut why = format!("audit {} ({}) is void: {}", first.audit, first.slug, first.compared);
        if let Some(place) = &first.place {
            why.push_str(" at ");
            why.push_str(place);
        }
        let others: std::collections::BTreeSet<u8> = voids
            .iter()
            .map(|finding| finding.audit)
            .filter(|number| *number != first.audit)
            .collect();
        if !others.is_empty() {
            let list: Vec<String> = others.iter().map(u8::to_string).collect();
            why.push_str("; void too: ");
            why.push_str(&list.join(", "));
        }
        diff.summary = format!("{why}. Without that: {}", diff.summary);
        diff.verdict = Verdict::Incomparable { why };
    }
    for one in &audits.ignored {
        diff.limits
            .push(format!("audit {} ({}) was set aside: {}", one.audit, one.slug, one.reason));
    }
    diff.audits = Some(audits);
}

#[cfg(test)]
mod tests {
    use super::super::{Subject, subject_of};
    use super::*;
    use crate::testing::{Trace, dense};
    use crate::{Options, compare};

    fn judged(left: &mut Trace, right: &mut Trace, ignored: &[Ignored]) -> DiffReport {
        let (l, r) = (left.side(), right.side());
        let mut diff = compare(&l, &r, Options::default());
        let evidence = Evidence::pair(subject_of(l, None), subject_of(r, None));
        apply(&mut diff, of_pair(&evidence, ignored));
        diff
    }

    fn drawn(sampler: &str) -> Trace {
        let mut trace = dense(4, 6).hashed();
        trace.manifest.set("sampling.sampler", sampler, "flag");
        trace
    }

    #[test]
    fn a_void_takes_the_verdict_and_says_which_audit_and_why() {
        let diff = judged(&mut drawn("argmax"), &mut drawn("xorshift"), &[]);
        let Verdict::Incomparable { why } = &diff.verdict else { panic!("{:?}", diff.verdict) };
        assert!(
            why.starts_with("audit 20 (sampler-kind) is void: `argmax` against `xorshift`"),
            "{why}"
        );
        assert!(why.ends_with("void too: 24"), "{why}");
        assert!(diff.summary.contains("rows are equal"), "{}", diff.summary);
        assert_eq!(diff.verdict.exit_code(), 4);
    }

    #[test]
    fn an_audit_set_aside_is_told_with_its_reason_and_takes_nothing() {
        let aside = |audit: u8, slug: &str| Ignored {
            audit,
            slug: slug.to_owned(),
            reason: "the draws are compared elsewhere".to_owned(),
        };
        let ignored = [aside(20, "sampler-kind"), aside(24, "greedy-for-sampled")];
        let diff = judged(&mut drawn("argmax"), &mut drawn("xorshift"), &ignored);
        assert_eq!(diff.verdict, Verdict::Identical);
        assert!(
            diff.limits.iter().any(|limit| limit.contains("audit 20 (sampler-kind) was set aside"))
        );
        let audits = diff.audits.unwrap();
        assert!(audits.audits.iter().all(|line| line.number != 20));
        assert_eq!(audits.ignored.len(), 2);
    }

    #[test]
    fn runs_in_good_faith_keep_their_verdict() {
        let diff = judged(&mut drawn("argmax"), &mut drawn("argmax"), &[]);
        assert_eq!(diff.verdict, Verdict::Identical);
        let audits = diff.audits.unwrap();
        assert_eq!(audits.of(Outcome::Void).count(), 0);
        assert!(
            audits.audits.iter().any(|line| line.number == 20 && line.verdict == Outcome::Pass)
        );
        assert!(audits.audits.iter().any(|line| line.verdict == Outcome::NoEvidence));
        assert!(audits.of(Outcome::NoEvidence).next().is_none());
    }

    #[test]
    fn a_difference_on_void_evidence_is_no_finding_either() {
        let mut other = drawn("argmax");
        other.rows[5].top_logits[0] += 1.0;
        let mut other = other.hashed();
        other.manifest.set("sampling.sampler", "xorshift", "flag");
        let diff = judged(&mut drawn("argmax"), &mut other, &[]);
        assert_eq!(diff.verdict.exit_code(), 4);
        assert!(diff.summary.contains("Without that: "), "{}", diff.summary);
    }

    #[test]
    fn a_trace_that_says_nothing_is_not_void() {
        let evidence = Evidence::pair(
            Subject::new("a", super::super::facts::Kind::Trace),
            Subject::new("b", super::super::facts::Kind::Trace),
        );
        assert_eq!(of_pair(&evidence, &[]).of(Outcome::Void).count(), 0);
    }
}
