//! An audit, and how the registry runs it.

use super::{Control, Evidence, Note, Pair, Subject};

/// A check that is made of each subject by itself; no note: the audit does not apply to it.
pub type Each = fn(&Subject<'_>) -> Vec<Note>;
/// A check of a baseline against a target; no note: the audit does not apply to them.
pub type Against = fn(&Pair<'_, '_>) -> Vec<Note>;
/// A check over everything that was given.
pub type Whole = fn(&Evidence<'_>) -> Vec<Note>;

/// A mechanical check of whether evidence proves what it is used for.
#[derive(Debug, Clone, Copy)]
pub struct Audit {
    /// Its number.
    pub number: u8,
    /// Stable identifier.
    pub slug: &'static str,
    /// One line: what goes wrong where it fails.
    pub title: &'static str,
    /// What it holds against what.
    pub compares: &'static str,
    /// The facts that it needs: what is said where no subject has any of them.
    pub needs: &'static str,
    /// A `void` of this audit takes the verdict from a comparison of the pair.
    pub gate: bool,
    /// Check of each subject.
    pub each: Option<Each>,
    /// Check of each pair.
    pub pair: Option<Against>,
    /// Check over everything.
    pub whole: Option<Whole>,
    /// Evidence with the fault planted, and clean evidence.
    pub controls: fn() -> Vec<Control>,
}

impl Audit {
    /// Everything that it says about `evidence`; never empty.
    #[must_use]
    pub fn notes(&self, evidence: &Evidence<'_>) -> Vec<Note> {
        let mut notes = Vec::new();
        if let Some(each) = self.each {
            for subject in &evidence.subjects {
                notes.extend(each(subject).into_iter().map(|note| about(note, [&subject.label])));
            }
        }
        if let Some(pair) = self.pair {
            for one in evidence.pairs() {
                let labels = [&one.left.label, &one.right.label];
                notes.extend(pair(&one).into_iter().map(|note| about(note, labels)));
            }
        }
        if let Some(whole) = self.whole {
            notes.extend(whole(evidence));
        }
        if notes.is_empty() {
            let alone = self.pair.is_some() && evidence.pairs().is_empty();
            let pair = if alone { "; no baseline and target were given" } else { "" };
            notes.push(Note::no_evidence(format!("it needs {}{pair}", self.needs)));
        }
        notes
    }
}

fn about<const N: usize>(mut note: Note, labels: [&String; N]) -> Note {
    if note.subjects.is_empty() {
        note.subjects = labels.into_iter().cloned().collect();
        note.subjects.dedup();
    }
    note
}
