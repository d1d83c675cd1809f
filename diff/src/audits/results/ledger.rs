//! Audits of claims: does their evidence still stand, and does it reach as far as they do.

use std::collections::BTreeSet;

use super::super::facts::{Claim, ClaimScope, Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Sample, Subject, registry};

/// Claims whose evidence is gone.
pub(super) static RETRACTED: Audit = Audit {
    number: 62,
    slug: "retracted-evidence",
    title: "a claim still rests on evidence that is void or was withdrawn",
    compares: "what each claim cites with withdrawn claims, with the ledger's own verdict, and with every audit that voids a cited run",
    needs: "claims",
    gate: false,
    each: None,
    pair: None,
    whole: Some(retracted),
    controls: retracted_controls,
};

fn live<'e>(evidence: &'e Evidence<'_>) -> impl Iterator<Item = (&'e Subject<'e>, &'e Claim)> {
    let all = evidence
        .subjects
        .iter()
        .flat_map(|subject| subject.claims.iter().map(move |claim| (subject, claim)));
    all.filter(|(_, claim)| !claim.retracted)
}

fn retracted(evidence: &Evidence<'_>) -> Vec<Note> {
    let voided = voided(evidence);
    let withdrawn: BTreeSet<&str> = evidence
        .subjects
        .iter()
        .flat_map(|subject| &subject.claims)
        .filter(|claim| claim.retracted)
        .map(|claim| claim.id.as_str())
        .collect();
    live(evidence)
        .map(|(subject, claim)| {
            let mut reasons = claim.unsupported.clone();
            for cited in &claim.evidence {
                if withdrawn.contains(cited.as_str()) {
                    reasons.push(format!("claim `{cited}` was withdrawn"));
                }
                let voids = voided.iter().filter(|(label, _)| label == cited);
                reasons
                    .extend(voids.map(|(label, number)| format!("audit {number} voids {label}")));
            }
            let note = if reasons.is_empty() {
                Note::pass(format!(
                    "claim `{}`: nothing that it cites ({}) is void or withdrawn",
                    claim.id,
                    claim.evidence.len()
                ))
            } else {
                Note::flag(format!("claim `{}` is unsupported: {}", claim.id, reasons.join("; ")))
                    .at(claim.id.clone())
                    .remedy("prove it again, or withdraw it")
            };
            note.of([subject.label.as_str()])
        })
        .collect()
}

/// Cited subjects that an audit of evidence voids, with its number.
fn voided(evidence: &Evidence<'_>) -> BTreeSet<(String, u8)> {
    let cited: BTreeSet<&str> =
        live(evidence).flat_map(|(_, claim)| &claim.evidence).map(String::as_str).collect();
    let mut out = BTreeSet::new();
    if !evidence.subjects.iter().any(|subject| cited.contains(subject.label.as_str())) {
        return out;
    }
    for audit in registry::all().filter(|audit| audit.number < RETRACTED.number) {
        for note in audit.notes(evidence).into_iter().filter(|note| note.outcome == Outcome::Void) {
            let hit = note.subjects.into_iter().filter(|label| cited.contains(label.as_str()));
            out.extend(hit.map(|label| (label, audit.number)));
        }
    }
    out
}

fn claim(id: &str, evidence: &[&str], scope: ClaimScope) -> Claim {
    Claim {
        id: id.to_owned(),
        evidence: evidence.iter().map(|cited| (*cited).to_owned()).collect(),
        scope,
        ..Claim::default()
    }
}

fn ledger(claims: Vec<Claim>, others: Vec<Subject<'static>>) -> Evidence<'static> {
    let mut subject = Subject::new("claims.toml", Kind::Claims);
    subject.claims = claims;
    let mut subjects = vec![subject];
    subjects.extend(others);
    Evidence::all(subjects)
}

fn run(rows: u64, samples: &[&str]) -> Subject<'static> {
    let mut run = Subject::new("runs/a", Kind::Run);
    run.state.rows_written = Some(rows);
    for sample in samples {
        run = run.with_sample(Sample::new(*sample));
    }
    run
}

fn retracted_controls() -> Vec<Control> {
    let free = ClaimScope::default;
    let withdrawn = Claim { retracted: true, ..claim("old", &[], free()) };
    let told =
        Claim { unsupported: vec!["runs/a has changed".to_owned()], ..claim("new", &[], free()) };
    vec![
        Control::planted(
            "the cited run is void",
            ledger(vec![claim("fast", &["runs/a"], free())], vec![run(0, &["a"])]),
            Outcome::Flag,
            "claim `fast` is unsupported: audit 50 voids runs/a",
        ),
        Control::planted(
            "the cited claim was withdrawn",
            ledger(vec![withdrawn, claim("new", &["old"], free())], Vec::new()),
            Outcome::Flag,
            "claim `old` was withdrawn",
        ),
        Control::planted(
            "the ledger says so",
            ledger(vec![told], Vec::new()),
            Outcome::Flag,
            "runs/a has changed",
        ),
        Control::clean(
            "the cited run stands",
            ledger(vec![claim("fast", &["runs/a"], free())], vec![run(9, &["a"])]),
            "nothing that it cites (1) is void",
        ),
    ]
}

/// Claims that reach further than what was looked at.
pub(super) static WIDER: Audit = Audit {
    number: 63,
    slug: "claim-scope",
    title: "a claim is wider than its evidence",
    compares: "samples, compaction ordinals and positions of each claim with those of the subjects that it cites",
    needs: "claims that cite a subject, or the answer of a claims ledger",
    gate: false,
    each: None,
    pair: None,
    whole: Some(wider),
    controls: wider_controls,
};

fn wider(evidence: &Evidence<'_>) -> Vec<Note> {
    live(evidence)
        .filter_map(|(subject, claim)| Some(reach(evidence, claim)?.of([subject.label.as_str()])))
        .collect()
}

/// `None` where the claim cites nothing that was given and its ledger says nothing.
fn reach(evidence: &Evidence<'_>, claim: &Claim) -> Option<Note> {
    let cited: Vec<&Subject<'_>> = evidence
        .subjects
        .iter()
        .filter(|subject| claim.evidence.contains(&subject.label))
        .collect();
    let mut faults = claim.wider.clone();
    let covered = Covered::of(&cited);
    if !cited.is_empty() {
        faults.extend(
            covered.lacks(claim, &Covered::of(&evidence.subjects.iter().collect::<Vec<_>>())),
        );
    } else if faults.is_empty() && !claim.held {
        return None;
    }
    let scope = scope_line(&claim.scope);
    let within = if cited.is_empty() {
        "its ledger finds every part of it in what it cites".to_owned()
    } else {
        covered.line()
    };
    Some(if faults.is_empty() {
        Note::pass(format!("claim `{}` ({scope}) is within its evidence: {}", claim.id, within))
    } else {
        Note::flag(format!(
            "claim `{}` ({scope}) is wider than its evidence: {}",
            claim.id,
            faults.join("; ")
        ))
        .at(claim.id.clone())
        .remedy("narrow the claim, or add evidence")
    })
}

/// What subjects cover.
#[derive(Debug, Default)]
struct Covered {
    samples: BTreeSet<String>,
    ordinals: BTreeSet<u32>,
    positions: Option<(u32, u32)>,
}

impl Covered {
    fn of(subjects: &[&Subject<'_>]) -> Self {
        let mut covered = Self::default();
        for subject in subjects {
            covered
                .samples
                .extend(subject.samples.iter().flatten().map(|sample| sample.id.clone()));
            covered.ordinals.extend(subject.events.iter().flatten().map(|event| event.ordinal));
            covered.ordinals.extend(subject.dumps.iter().flatten().filter_map(|dump| dump.ordinal));
            for position in
                subject.trace.iter().flat_map(|trace| trace.steps.position.iter().copied())
            {
                let (first, last) = covered.positions.unwrap_or((position, position));
                covered.positions = Some((first.min(position), last.max(position)));
            }
        }
        covered
    }

    /// What `claim` says and this does not hold. A claim without samples is about all that are known of.
    fn lacks(&self, claim: &Claim, all: &Self) -> Vec<String> {
        let scope = &claim.scope;
        let mut faults = Vec::new();
        let wanted: BTreeSet<&String> = if scope.samples.is_empty() {
            all.samples.iter().collect()
        } else {
            scope.samples.iter().collect()
        };
        let missing: Vec<&str> =
            wanted.iter().filter(|id| !self.samples.contains(**id)).map(|id| id.as_str()).collect();
        if !missing.is_empty() {
            faults.push(format!(
                "{} of {} samples are not in it ({})",
                missing.len(),
                wanted.len(),
                missing.join(", ")
            ));
        }
        let ordinals: Vec<String> = scope
            .ordinals
            .iter()
            .filter(|ordinal| !self.ordinals.contains(ordinal))
            .map(u32::to_string)
            .collect();
        if !ordinals.is_empty() {
            faults.push(format!("compactions {} are not in it", ordinals.join(", ")));
        }
        if let Some((first, last)) = scope.window {
            match self.positions {
                Some((from, to)) if from <= first && last <= to => {}
                Some((from, to)) => {
                    faults.push(format!("positions {first}-{last} claimed, {from}-{to} covered"));
                }
                None => faults.push(format!("positions {first}-{last} claimed, none covered")),
            }
        }
        faults
    }

    fn line(&self) -> String {
        let positions = self
            .positions
            .map_or_else(String::new, |(first, last)| format!(", positions {first}-{last}"));
        format!("{} samples, {} compactions{positions}", self.samples.len(), self.ordinals.len())
    }
}

fn scope_line(scope: &ClaimScope) -> String {
    let mut parts = vec![match scope.samples.len() {
        0 => "all samples".to_owned(),
        _ => format!("samples {}", scope.samples.join(", ")),
    }];
    if !scope.ordinals.is_empty() {
        let list: Vec<String> = scope.ordinals.iter().map(u32::to_string).collect();
        parts.push(format!("compactions {}", list.join(", ")));
    }
    if let Some((first, last)) = scope.window {
        parts.push(format!("positions {first}-{last}"));
    }
    parts.extend(scope.mode.iter().cloned());
    parts.join(", ")
}

fn wider_controls() -> Vec<Control> {
    let scope = |samples: &[&str], ordinals: &[u32]| ClaimScope {
        samples: samples.iter().map(|id| (*id).to_owned()).collect(),
        ordinals: ordinals.to_vec(),
        ..ClaimScope::default()
    };
    let dataset = || {
        let mut set = Subject::new("data.jsonl", Kind::Dataset);
        set.samples = Some(vec![Sample::new("a"), Sample::new("b")]);
        set
    };
    let of =
        |scope| ledger(vec![claim("cleared", &["runs/a"], scope)], vec![run(9, &["a"]), dataset()]);
    let told = Claim {
        wider: vec!["ordinals: claimed 2, covered 1".to_owned()],
        ..claim("cleared", &[], scope(&["a"], &[2]))
    };
    vec![
        Control::planted(
            "everything, from one sample",
            of(scope(&[], &[])),
            Outcome::Flag,
            "1 of 2 samples are not in it (b)",
        ),
        Control::planted(
            "a compaction that was not looked at",
            of(scope(&["a"], &[2])),
            Outcome::Flag,
            "compactions 2 are not in it",
        ),
        Control::planted(
            "the ledger says so",
            ledger(vec![told], Vec::new()),
            Outcome::Flag,
            "claimed 2, covered 1",
        ),
        Control::clean(
            "one sample, and it says so",
            of(scope(&["a"], &[])),
            "samples a) is within its evidence",
        ),
    ]
}
