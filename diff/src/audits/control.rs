//! The controls that every audit ships: evidence with its fault planted, which it must catch, and clean evidence, which it
//! must pass. A check that cannot fail is a defect, so an audit without both is refused.

use super::{Audit, Evidence, Outcome, Subject, facts::Kind};

/// Evidence made for one audit, with what the audit must say about it.
#[derive(Debug)]
pub struct Control {
    /// What was planted, or that nothing was.
    pub name: &'static str,
    /// The evidence.
    pub evidence: Evidence<'static>,
    /// Gravest outcome that the audit must reach.
    pub expect: Outcome,
    /// Text that a finding of this outcome must hold (in what was compared, where, or the remedy).
    pub says: &'static str,
}

impl Control {
    /// A planted fault.
    #[must_use]
    pub const fn planted(
        name: &'static str,
        evidence: Evidence<'static>,
        expect: Outcome,
        says: &'static str,
    ) -> Self {
        Self { name, evidence, expect, says }
    }

    /// Clean evidence; `says` is part of what the audit has compared.
    #[must_use]
    pub const fn clean(
        name: &'static str,
        evidence: Evidence<'static>,
        says: &'static str,
    ) -> Self {
        Self { name, evidence, expect: Outcome::Pass, says }
    }
}

/// Runs the controls of one audit and counts them.
///
/// # Errors
/// Which control the audit got wrong, or which kind it lacks.
pub fn verify(audit: &Audit) -> Result<usize, String> {
    let controls = (audit.controls)();
    let name = |what: &str| format!("audit {} ({}): {what}", audit.number, audit.slug);
    let planted = |control: &&Control| matches!(control.expect, Outcome::Flag | Outcome::Void);
    if controls.iter().filter(planted).count() == 0 {
        return Err(name("no control with a planted fault"));
    }
    if !controls.iter().any(|control| control.expect == Outcome::Pass) {
        return Err(name("no clean control"));
    }
    for control in &controls {
        judge(audit, control)
            .map_err(|what| name(&format!("control `{}` {what}", control.name)))?;
    }
    silent(audit).map_err(|what| name(&what))?;
    Ok(controls.len())
}

fn judge(audit: &Audit, control: &Control) -> Result<(), String> {
    let notes = audit.notes(&control.evidence);
    let said: Vec<String> =
        notes.iter().map(|note| format!("{}: {}", note.outcome.word(), note.compared)).collect();
    let gravest = notes.iter().map(|note| note.outcome).max();
    if gravest != Some(control.expect) {
        let wanted = control.expect.word();
        return Err(format!("wants {wanted}, the audit says: {}", said.join(" / ")));
    }
    let holds =
        |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains(control.says));
    let told = notes.iter().filter(|note| note.outcome == control.expect).any(|note| {
        note.compared.contains(control.says) || holds(&note.place) || holds(&note.remedy)
    });
    if control.says.is_empty() || !told {
        return Err(format!("wants `{}`, the audit says: {}", control.says, said.join(" / ")));
    }
    Ok(())
}

/// Of subjects that say nothing, an audit may only say what it lacks.
fn silent(audit: &Audit) -> Result<(), String> {
    let kinds = [Kind::Run, Kind::Replay, Kind::Trace, Kind::Benchmark, Kind::Bundle, Kind::Dump];
    for kind in kinds {
        let pair = Evidence::pair(Subject::new("left", kind), Subject::new("right", kind));
        for evidence in [Evidence::default(), pair] {
            let notes = audit.notes(&evidence);
            if let Some(note) = notes.iter().find(|note| note.outcome != Outcome::NoEvidence) {
                return Err(format!(
                    "says {} of a {} of which nothing is known: {}",
                    note.outcome.word(),
                    kind.word(),
                    note.compared
                ));
            }
            if notes.iter().any(|note| note.compared.trim().is_empty()) {
                return Err("does not say what it lacks".to_owned());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Note, Sample};
    use super::*;

    fn clean() -> Control {
        let sample = Sample { effective_seed: Some(1), ..Sample::new("a") };
        let run = Subject::new("run", Kind::Run).with_sample(sample);
        Control::clean("one seed", Evidence::one(run), "seed 1")
    }

    fn planted() -> Control {
        let sample = Sample { effective_seed: Some(2), ..Sample::new("a") };
        let run = Subject::new("run", Kind::Run).with_sample(sample);
        Control::planted("another seed", Evidence::one(run), Outcome::Flag, "seed 2")
    }

    fn honest(subject: &Subject<'_>) -> Vec<Note> {
        let Some(seed) = subject.samples.as_ref().and_then(|all| all.first()?.effective_seed)
        else {
            return vec![Note::missing("effective_seed", &subject.label)];
        };
        let said = format!("seed {seed}");
        vec![if seed == 1 { Note::pass(said) } else { Note::flag(said) }]
    }

    fn blind(subject: &Subject<'_>) -> Vec<Note> {
        honest(subject).into_iter().map(|note| Note::pass(note.compared)).collect()
    }

    fn mute(subject: &Subject<'_>) -> Vec<Note> {
        let mut notes = honest(subject);
        notes.iter_mut().for_each(|note| note.compared = "something".to_owned());
        notes
    }

    fn audit(each: super::super::Each, controls: fn() -> Vec<Control>) -> Audit {
        Audit {
            number: 16,
            slug: "x",
            title: "t",
            compares: "c",
            needs: "n",
            gate: false,
            each: Some(each),
            pair: None,
            whole: None,
            controls,
        }
    }

    #[test]
    fn an_audit_without_a_planted_or_a_clean_control_is_refused() {
        assert_eq!(verify(&audit(honest, || vec![planted(), clean()])), Ok(2));
        let wrong = verify(&audit(honest, || vec![clean()])).unwrap_err();
        assert!(wrong.contains("no control with a planted fault"), "{wrong}");
        let wrong = verify(&audit(honest, || vec![planted()])).unwrap_err();
        assert!(wrong.contains("no clean control"), "{wrong}");
    }

    #[test]
    fn an_audit_that_misses_its_fault_or_does_not_name_it_is_refused() {
        let wrong = verify(&audit(blind, || vec![planted(), clean()])).unwrap_err();
        assert!(wrong.contains("control `another seed` wants flag"), "{wrong}");
        let wrong = verify(&audit(mute, || vec![planted(), clean()])).unwrap_err();
        assert!(wrong.contains("wants `seed 2`"), "{wrong}");
    }

    #[test]
    fn an_audit_that_passes_what_it_knows_nothing_of_is_refused() {
        fn hopeful(subject: &Subject<'_>) -> Vec<Note> {
            let notes = honest(subject);
            let silent = notes.iter().any(|note| note.outcome == Outcome::NoEvidence);
            if silent { vec![Note::pass("surely fine")] } else { notes }
        }
        let wrong = verify(&audit(hopeful, || vec![planted(), clean()])).unwrap_err();
        assert!(wrong.contains("of which nothing is known"), "{wrong}");
    }
}
