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

/// The seed in force: as recorded, or base + index, or the number that every row of a run without a seed uses.
pub(super) fn effective(subject: &Subject<'_>, sample: &Sample) -> Option<u64> {
    let index = sample.seed_index.or(sample.row_index);
    let made = sample.base_seed.zip(index).map(|(base, index)| base.wrapping_add(index));
    sample.effective_seed.or(made).or_else(|| subject.count("sampling.unseeded_seed"))
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
        let Some(seed) = effective(subject, sample) else {
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
        let (Some(l), Some(r)) = (effective(pair.left, left), effective(pair.right, right)) else {
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

/// The index was added to a seed that already held it.
pub(super) static ADDED_TWICE: Audit = Audit {
    number: 17,
    slug: "index-added-twice",
    title: "the row index was added to the seed twice, or not as recorded",
    compares: "effective seed with base seed + index, and the base seed with the other side's effective seed",
    needs: "`base_seed`, `seed_index` and `effective_seed` of a sample",
    gate: false,
    each: Some(sums),
    pair: Some(twice),
    whole: None,
    controls: twice_controls,
};

fn sums(subject: &Subject<'_>) -> Vec<Note> {
    let mut right = 0_u64;
    for sample in subject.samples.iter().flatten() {
        let (Some(base), Some(index), Some(effective)) =
            (sample.base_seed, sample.seed_index, sample.effective_seed)
        else {
            continue;
        };
        if base.wrapping_add(index) != effective {
            let note = Note::flag(format!(
                "base {base} + index {index} is not the effective seed {effective}"
            ));
            return vec![
                note.at(sample.id.clone()).remedy("find out which of the three was in force"),
            ];
        }
        right += 1;
    }
    if right == 0 {
        return Vec::new();
    }
    vec![Note::pass(format!("base + index is the effective seed of {right} samples"))]
}

fn twice(pair: &Pair<'_, '_>) -> Vec<Note> {
    if pair.left.greedy() == Some(true) || pair.right.greedy() == Some(true) {
        return Vec::new();
    }
    let given_again = |one: &Sample, other: &Sample| {
        let (base, index) = (one.base_seed?, one.seed_index.or(one.row_index)?);
        let effective = other.effective_seed?;
        (index > 0 && base == effective && one.effective_seed != Some(effective))
            .then_some((base, index))
    };
    for (left, right) in pair.samples() {
        let found = given_again(left, right)
            .map(|found| (pair.left, found))
            .or_else(|| given_again(right, left).map(|found| (pair.right, found)));
        if let Some((side, (base, index))) = found {
            let note = Note::flag(format!(
                "base seed {base} of {} is already the other side's effective seed; index {index} was added to it again",
                side.label
            ));
            return vec![note.at(left.id.clone()).remedy("give the base seed, or index 0")];
        }
    }
    Vec::new()
}

fn seeded(label: &str, base: u64, index: u64, effective: u64) -> Subject<'static> {
    let sample = Sample {
        base_seed: Some(base),
        seed_index: Some(index),
        effective_seed: Some(effective),
        prompt_ids_sha256: Some("c4".repeat(32)),
        ..Sample::new("s")
    };
    Subject::new(label, Kind::Run).with("sampling.temperature", 0.6, "flag").with_sample(sample)
}

fn twice_controls() -> Vec<Control> {
    vec![
        Control::planted(
            "the effective seed was given as the base",
            Evidence::pair(seeded("full", 1234, 1, 1235), seeded("alone", 1235, 1, 1236)),
            Outcome::Flag,
            "index 1 was added to it again",
        ),
        Control::planted(
            "the sum is not the seed",
            Evidence::one(seeded("run", 1234, 1, 1234)),
            Outcome::Flag,
            "1234 + index 1 is not the effective seed 1234",
        ),
        Control::clean(
            "base and index on both sides",
            Evidence::pair(seeded("full", 1234, 1, 1235), seeded("alone", 1235, 0, 1235)),
            "effective seed of 1 samples",
        ),
    ]
}

/// One draw counted twice.
pub(super) static OVERLAP: Audit = Audit {
    number: 18,
    slug: "seed-overlap",
    title: "runs that count as independent made the same draw",
    compares: "prompt hash and effective seed of every sample on one side with one another",
    needs: "prompt hashes and `effective_seed` of several sampled runs",
    gate: false,
    each: None,
    pair: None,
    whole: Some(overlap),
    controls: overlap_controls,
};

/// Baselines among themselves, targets among themselves, and what is neither; a pair shares its seeds on purpose.
fn overlap(evidence: &Evidence<'_>) -> Vec<Note> {
    let side = |wanted: &[usize]| -> Vec<&Subject<'_>> {
        wanted.iter().filter_map(|index| evidence.subjects.get(*index)).collect()
    };
    let neither: Vec<usize> = (0..evidence.subjects.len())
        .filter(|index| !evidence.left.contains(index) && !evidence.right.contains(index))
        .collect();
    let sides = [side(&evidence.left), side(&evidence.right), side(&neither)];
    sides.iter().flat_map(|subjects| overlap_of(subjects)).collect()
}

fn overlap_of(subjects: &[&Subject<'_>]) -> Vec<Note> {
    let sampled = |subject: &&&Subject<'_>| {
        subject.kind.is_run() && subject.parent.is_none() && subject.greedy() == Some(false)
    };
    let mut draws: BTreeMap<(&str, u64), Vec<(&str, String)>> = BTreeMap::new();
    for subject in subjects.iter().filter(sampled) {
        for sample in subject.samples.iter().flatten() {
            let (Some((_, prompt)), Some(seed)) =
                (sample.prompt_hash(), effective(subject, sample))
            else {
                continue;
            };
            let number = |value: Option<u64>| {
                value.map_or_else(|| "?".to_owned(), |value| value.to_string())
            };
            let told = format!(
                "{} (base {}, index {})",
                subject.label,
                number(sample.base_seed),
                number(sample.seed_index.or(sample.row_index))
            );
            draws.entry((prompt, seed)).or_default().push((&subject.label, told));
        }
    }
    let all: usize = draws.values().map(Vec::len).sum();
    if all < 2 {
        return Vec::new();
    }
    let labels = || subjects.iter().map(|subject| subject.label.as_str());
    let Some(((_, seed), who)) = draws.iter().find(|(_, who)| who.len() > 1) else {
        return vec![
            Note::pass(format!("{all} draws are of different prompts or seeds")).of(labels()),
        ];
    };
    let told: Vec<&str> = who.iter().map(|(_, told)| told.as_str()).collect();
    let note = Note::flag(format!(
        "one prompt was drawn with seed {seed} {} times: {}",
        who.len(),
        told.join(", ")
    ));
    vec![
        note.of(who.iter().map(|(label, _)| *label))
            .remedy("count it once, or set the bases apart by more than the rows"),
    ]
}

fn overlap_controls() -> Vec<Control> {
    vec![
        Control::planted(
            "base 1234 with index 1 is base 1235 with index 0",
            Evidence::all(vec![seeded("first", 1234, 1, 1235), seeded("second", 1235, 0, 1235)]),
            Outcome::Flag,
            "second (base 1235, index 0)",
        ),
        Control::clean(
            "bases apart",
            Evidence::all(vec![seeded("first", 1234, 1, 1235), seeded("second", 2234, 1, 2235)]),
            "2 draws are of different prompts or seeds",
        ),
    ]
}
