//! Does what ran before a sample leave traces in it?

use super::facts::{Evidence, Kind};
use super::{Audit, Control, Note, Outcome, Pair, Sample, Subject, prompts, seeds};
use crate::settings;

/// A sample depends on the ones before it.
pub(super) static LEAK: Audit = Audit {
    number: 15,
    slug: "state-leak",
    title: "a sample came out differently after other samples than alone",
    compares: "token streams of a sample that ran after different samples on the two sides, with equal prompt, seed and settings",
    needs: "`generated_ids` of a sample alone and in sequence, with `prompt_ids_sha256` and `effective_seed`",
    gate: false,
    each: None,
    pair: Some(leak),
    whole: None,
    controls: leak_controls,
};

fn leak(pair: &Pair<'_, '_>) -> Vec<Note> {
    if pair.lineage() || !(pair.left.kind.is_run() && pair.right.kind.is_run()) {
        return Vec::new();
    }
    // Anything else that differs explains a difference by itself.
    let changed = settings::variables(&settings::compare(pair.left, pair.right), false);
    if !changed.is_empty() {
        return Vec::new();
    }
    let (Some(lefts), Some(rights)) = (&pair.left.samples, &pair.right.samples) else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    for left in lefts {
        let Some(right) = rights.iter().find(|right| right.id == left.id) else { continue };
        let (before_l, before_r) = (before(lefts, &left.id), before(rights, &left.id));
        if before_l != before_r {
            let note = of_sample(pair, left, right);
            notes.push(note.at(format!(
                "{} after [{}] and after [{}]",
                left.id,
                before_l.join(", "),
                before_r.join(", ")
            )));
        }
    }
    notes
}

/// Ids that ran before.
fn before<'s>(samples: &'s [Sample], id: &str) -> Vec<&'s str> {
    samples.iter().map(|sample| sample.id.as_str()).take_while(|other| *other != id).collect()
}

fn of_sample(pair: &Pair<'_, '_>, left: &Sample, right: &Sample) -> Note {
    match prompts::same_prompt(left, right) {
        None => return Note::no_evidence("`prompt_ids_sha256` is not recorded on both sides"),
        Some(false) => {
            return Note::no_evidence("the prompts differ (audit 11): no leak can be shown");
        }
        Some(true) => {}
    }
    let greedy = pair.left.greedy() == Some(true) && pair.right.greedy() == Some(true);
    if !greedy {
        match (seeds::effective(pair.left, left), seeds::effective(pair.right, right)) {
            (Some(l), Some(r)) if l == r => {}
            (Some(l), Some(r)) => {
                return Note::no_evidence(format!(
                    "`effective_seed` is {l} against {r} (audit 14): no leak can be shown"
                ));
            }
            _ => return Note::no_evidence("`effective_seed` is not recorded on both sides"),
        }
    }
    let (Some(l), Some(r)) = (pair.left.stream(&left.id), pair.right.stream(&right.id)) else {
        return Note::no_evidence("`generated_ids` are not recorded on both sides");
    };
    if l == r {
        return Note::pass(format!("{} tokens are equal whatever ran before", l.len()));
    }
    let at = l.iter().zip(&r).take_while(|(l, r)| l == r).count();
    Note::flag(format!(
        "state leak: equal prompt and seed, and the streams part at generated token {at}"
    ))
    .remedy("reset the cache, the sampler and the position between samples")
}

fn leak_controls() -> Vec<Control> {
    let sample = |id: &str, tail: u32| Sample {
        prompt_ids_sha256: Some(id.repeat(8)),
        effective_seed: Some(7),
        generated_ids: Some(vec![1, 2, tail]),
        ..Sample::new(id)
    };
    let run =
        |label: &str| Subject::new(label, Kind::Run).with("sampling.temperature", 0.6, "flag");
    let pair = |tail: u32| {
        let sequence = run("in sequence").with_sample(sample("a", 5)).with_sample(sample("b", 9));
        Evidence::pair(run("alone").with_sample(sample("b", tail)), sequence)
    };
    vec![
        Control::planted(
            "b after a ends otherwise",
            pair(8),
            Outcome::Flag,
            "part at generated token 2",
        ),
        Control::clean("b after a and alone", pair(9), "3 tokens are equal"),
    ]
}
