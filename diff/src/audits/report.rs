//! The answer of an audit run.

use serde::{Deserialize, Serialize};

use super::{Audit, Evidence, Finding, Outcome, facts::Kind};

/// One subject as far as the answer is concerned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectLine {
    /// Label.
    pub label: String,
    /// What it is.
    pub kind: Kind,
    /// `left`, `right`, or `null`.
    pub side: Option<String>,
}

/// One audit and its gravest outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditLine {
    /// Number.
    pub number: u8,
    /// Slug.
    pub slug: String,
    /// Title.
    pub title: String,
    /// Gravest outcome of its findings.
    pub verdict: Outcome,
}

/// How many audits came out how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditCounts {
    /// Passed.
    pub pass: u64,
    /// Void.
    pub void: u64,
    /// Flagged.
    pub flag: u64,
    /// Without evidence.
    pub no_evidence: u64,
}

/// An audit that was set aside, with the reason given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ignored {
    /// Number.
    pub audit: u8,
    /// Slug.
    pub slug: String,
    /// Why.
    pub reason: String,
}

/// Answer of an audit run. Keys are stable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// What was looked at.
    pub subjects: Vec<SubjectLine>,
    /// Audits that ran, by number.
    pub audits: Vec<AuditLine>,
    /// Audits by outcome.
    pub counts: AuditCounts,
    /// Everything found, gravest first.
    pub findings: Vec<Finding>,
    /// Audits set aside.
    #[serde(default)]
    pub ignored: Vec<Ignored>,
    /// Gravest outcome; `no_evidence` only where no audit passed.
    pub verdict: Option<Outcome>,
}

impl AuditReport {
    /// Findings of this outcome.
    pub fn of(&self, outcome: Outcome) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.verdict == outcome)
    }
}

/// Runs `audits` over `evidence`.
#[must_use]
pub fn run<'r>(
    evidence: &Evidence<'_>,
    audits: impl IntoIterator<Item = &'r Audit>,
) -> AuditReport {
    let mut report = AuditReport { subjects: subjects(evidence), ..AuditReport::default() };
    for audit in audits {
        let notes = audit.notes(evidence);
        let gravest = notes.iter().map(|note| note.outcome).max().unwrap_or(Outcome::NoEvidence);
        *match gravest {
            Outcome::Pass => &mut report.counts.pass,
            Outcome::NoEvidence => &mut report.counts.no_evidence,
            Outcome::Flag => &mut report.counts.flag,
            Outcome::Void => &mut report.counts.void,
        } += 1;
        report.audits.push(AuditLine {
            number: audit.number,
            slug: audit.slug.to_owned(),
            title: audit.title.to_owned(),
            verdict: gravest,
        });
        report.findings.extend(notes.into_iter().map(|note| Finding {
            audit: audit.number,
            slug: audit.slug.to_owned(),
            title: audit.title.to_owned(),
            verdict: note.outcome,
            subjects: note.subjects,
            compared: note.compared,
            place: note.place,
            remedy: note.remedy,
        }));
    }
    report
        .findings
        .sort_by_key(|finding| (std::cmp::Reverse(rank(finding.verdict)), finding.audit));
    report.verdict = verdict(&report);
    report
}

/// Void, flag, no evidence, pass.
const fn rank(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Void => 3,
        Outcome::Flag => 2,
        Outcome::NoEvidence => 1,
        Outcome::Pass => 0,
    }
}

fn verdict(report: &AuditReport) -> Option<Outcome> {
    let has = |outcome| report.of(outcome).next().is_some();
    [Outcome::Void, Outcome::Flag, Outcome::Pass, Outcome::NoEvidence]
        .into_iter()
        .find(|outcome| has(*outcome))
}

fn subjects(evidence: &Evidence<'_>) -> Vec<SubjectLine> {
    let side = |index: usize| {
        if evidence.left.contains(&index) {
            Some("left".to_owned())
        } else if evidence.right.contains(&index) {
            Some("right".to_owned())
        } else {
            None
        }
    };
    let lines = evidence.subjects.iter().enumerate();
    lines
        .map(|(index, subject)| SubjectLine {
            label: subject.label.clone(),
            kind: subject.kind,
            side: side(index),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Sample, Subject, registry};
    use super::*;

    fn seeds(seeds: [u64; 2]) -> Subject<'static> {
        let mut subject =
            Subject::new("run", Kind::Run).with("sampling.sampler", "torch-cuda", "flag");
        for (id, seed) in ["a", "b"].into_iter().zip(seeds) {
            let sample = Sample { effective_seed: Some(seed), ..Sample::new(id) };
            subject = subject.with_sample(sample);
        }
        subject
    }

    #[test]
    fn the_gravest_outcome_comes_first_and_missing_evidence_is_no_pass() {
        let all: Vec<_> = registry::all().collect();
        let found = run(&Evidence::one(seeds([7, 7])), all.iter().copied());
        assert_eq!(found.verdict, Some(Outcome::Void));
        assert_eq!(found.findings[0].audit, 16);
        assert!(found.counts.no_evidence > 0);
        let clean = run(&Evidence::one(seeds([7, 8])), all.iter().copied());
        assert_eq!(clean.verdict, Some(Outcome::Pass));
        let nothing = run(&Evidence::default(), all.iter().copied());
        assert_eq!(nothing.verdict, Some(Outcome::NoEvidence));
        assert_eq!(nothing.counts.no_evidence, all.len() as u64);
        assert_eq!(run(&Evidence::default(), []).verdict, None);
    }
}
