//! Audits of seeds.

use std::collections::BTreeMap;

use super::facts::{Evidence, Kind};
use super::{Audit, Control, Note, Outcome, Pair, Sample, Subject};

/// Rows that were to be independent were drawn with one seed, or the two sides with different ones.
pub(super) static ONE_SEED: Audit = Audit {
    number: 16,
    slug: "one-seed",
    title: "one seed for every row, or another seed on the other side",
    compares: "effective seeds of the rows of a sampled run with one another, and sample by sample with the other side's",
    needs: "`effective_seed` of the samples of a run that samples",
    gate: true,
    each: Some(repeated),
    pair: Some(seeds_of_pair),
    whole: None,
    controls: one_seed_controls,
};

/// The seed in force, and whether it was given: a run that samples without a seed uses one number for every row.
fn seed(subject: &Subject<'_>, sample: &Sample) -> Option<u64> {
    sample.effective_seed.or_else(|| subject.count("sampling.unseeded_seed"))
}

fn repeated(subject: &Subject<'_>) -> Vec<Note> {
    if !subject.kind.is_run() {
        return Vec::new();
    }
    let Some(samples) = subject.samples.as_ref().filter(|samples| samples.len() > 1) else {
        return Vec::new();
    };
    match subject.greedy() {
        Some(true) => return vec![Note::pass("argmax draws nothing: seeds are without effect")],
        None => return vec![Note::missing("sampling.temperature", &subject.label)],
        Some(false) => {}
    }
    let mut by_seed: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for sample in samples {
        let Some(seed) = seed(subject, sample) else {
            return vec![Note::missing("effective_seed", &subject.label).at(sample.id.clone())];
        };
        by_seed.entry(seed).or_default().push(&sample.id);
    }
    let Some((seed, ids)) = by_seed.iter().find(|(_, ids)| ids.len() > 1) else {
        return vec![Note::pass(format!("{} rows have {} seeds", samples.len(), by_seed.len()))];
    };
    let note =
        Note::void(format!("{} of {} rows were drawn with seed {seed}", ids.len(), samples.len()));
    vec![note.at(ids.join(", ")).remedy("give each row base seed + row index")]
}

fn seeds_of_pair(pair: &Pair<'_, '_>) -> Vec<Note> {
    let greedy = match pair.both("sampling.temperature", Subject::greedy) {
        Ok(greedy) => greedy,
        Err(note) => return if pair.left.kind.is_run() { vec![note] } else { Vec::new() },
    };
    if greedy.0 || greedy.1 {
        return vec![Note::pass("a side takes the largest logit: seeds are without effect there")];
    }
    let samples = pair.samples();
    for (left, right) in &samples {
        let (Some(l), Some(r)) = (seed(pair.left, left), seed(pair.right, right)) else {
            return vec![
                Note::no_evidence("`effective_seed` is not recorded on both sides")
                    .at(left.id.clone()),
            ];
        };
        if l != r {
            return vec![
                Note::void(format!("effective seed {l} against {r}"))
                    .at(left.id.clone())
                    .remedy("draw both sides with the same effective seed"),
            ];
        }
    }
    if samples.is_empty() {
        return vec![Note::no_evidence(
            "no sample is on both sides: `effective_seed` of none was compared",
        )];
    }
    vec![Note::pass(format!("effective seeds of {} samples agree", samples.len()))]
}

fn sampled(label: &str, seeds: &[u64]) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Run).with("sampling.temperature", 0.6, "flag");
    for (index, seed) in seeds.iter().enumerate() {
        let sample = Sample { effective_seed: Some(*seed), ..Sample::new(format!("row_{index}")) };
        subject = subject.with_sample(sample);
    }
    subject
}

fn one_seed_controls() -> Vec<Control> {
    vec![
        Control::planted(
            "the harness gives every row the base seed",
            Evidence::one(sampled("run", &[1234, 1234, 1234])),
            Outcome::Void,
            "3 of 3 rows were drawn with seed 1234",
        ),
        Control::planted(
            "one side counts the rows of the file, the other those of the dataset",
            Evidence::pair(sampled("left", &[1234, 1235]), sampled("right", &[1234, 1236])),
            Outcome::Void,
            "1235 against 1236",
        ),
        Control::clean(
            "base seed + row index on both sides",
            Evidence::pair(sampled("left", &[1234, 1235]), sampled("right", &[1234, 1235])),
            "effective seeds of 2 samples agree",
        ),
    ]
}
