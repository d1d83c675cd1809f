//! Audits of prompts.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lockstep_traces::hash::ids_sha256;

use super::facts::{Evidence, Kind};
use super::{Audit, Control, Note, Outcome, Pair, Sample, Subject, short};
use crate::answers::{Normalise, compare};

/// Two prompts under one comparison.
pub(super) static MISMATCH: Audit = Audit {
    number: 11,
    slug: "prompt-mismatch",
    title: "the two sides were given different prompts",
    compares: "hash of the prompt's token ids (else of its text) and its length, sample by sample",
    needs: "`prompt_ids_sha256` or `prompt_text_sha256` of a sample on both sides",
    gate: true,
    each: None,
    pair: Some(mismatch),
    whole: None,
    controls: mismatch_controls,
};

fn mismatch(pair: &Pair<'_, '_>) -> Vec<Note> {
    let mut equal = 0_u64;
    let mut lacking: Option<Note> = None;
    let mut wrong: Vec<Note> = Vec::new();
    for (left, right) in pair.samples() {
        match same_prompt(left, right) {
            Some(true) => equal += 1,
            Some(false) => wrong.push(unequal(left, right).at(left.id.clone())),
            None => {
                let note = Note::no_evidence(
                    "neither `prompt_ids_sha256` nor `prompt_text_sha256` is recorded on both sides",
                );
                lacking.get_or_insert(note.at(left.id.clone()));
            }
        }
    }
    if !wrong.is_empty() {
        return wrong;
    }
    let mut notes = Vec::new();
    if equal > 0 {
        notes.push(Note::pass(format!("prompts of {equal} samples are equal")));
    }
    notes.extend(lacking);
    notes
}

/// By ids where both sides have them, else by text, else by length, which can only tell prompts apart.
pub(super) fn same_prompt(left: &Sample, right: &Sample) -> Option<bool> {
    for (l, r) in [
        (&left.prompt_ids_sha256, &right.prompt_ids_sha256),
        (&left.prompt_text_sha256, &right.prompt_text_sha256),
    ] {
        if let (Some(l), Some(r)) = (l, r) {
            return Some(l == r);
        }
    }
    if let (Some(l), Some(r)) = (&left.prompt_text, &right.prompt_text) {
        return Some(l == r);
    }
    let (l, r) = (left.prompt_tokens?, right.prompt_tokens?);
    (l != r).then_some(false)
}

/// Where they part, with what stands there on both sides.
fn unequal(left: &Sample, right: &Sample) -> Note {
    let mut said = match (left.prompt_hash(), right.prompt_hash()) {
        (Some((what, l)), Some((other, r))) if what == other => {
            format!("{what} {} against {}", short(l), short(r))
        }
        _ => "prompts differ".to_owned(),
    };
    if let (Some(l), Some(r)) = (left.prompt_tokens, right.prompt_tokens) {
        let _ = write!(said, ", {l} against {r} tokens");
    }
    if let (Some(l), Some(r)) = (&left.prompt_ids, &right.prompt_ids) {
        let at = common(l.iter(), r.iter());
        let around =
            |ids: &[u32]| format!("{:?}", ids.get(at..(at + 4).min(ids.len())).unwrap_or_default());
        let _ = write!(said, ", first at token {at}: {} against {}", around(l), around(r));
    }
    if let (Some(l), Some(r)) = (&left.prompt_text, &right.prompt_text) {
        let at = common(l.chars(), r.chars());
        let head = |text: &str| text.chars().take(40).collect::<String>();
        let _ =
            write!(said, ", first at character {at}; they begin {:?} and {:?}", head(l), head(r));
    }
    Note::void(said).remedy("give both sides the same token ids")
}

/// Length of the common head.
fn common<T: PartialEq>(left: impl Iterator<Item = T>, right: impl Iterator<Item = T>) -> usize {
    left.zip(right).take_while(|(l, r)| l == r).count()
}

fn with_ids(label: &str, ids: &[u32]) -> Subject<'static> {
    Subject::new(label, Kind::Run).with_sample(of_ids("s", ids))
}

fn of_ids(id: &str, ids: &[u32]) -> Sample {
    Sample {
        prompt_ids: Some(ids.to_vec()),
        prompt_ids_sha256: Some(ids_sha256(ids)),
        prompt_tokens: u32::try_from(ids.len()).ok(),
        ..Sample::new(id)
    }
}

fn mismatch_controls() -> Vec<Control> {
    let text = |label: &str, text: &str| {
        let sample = Sample {
            prompt_text: Some(text.to_owned()),
            prompt_text_sha256: Some(lockstep_traces::hash::sha256_hex(text.as_bytes())),
            ..Sample::new("s")
        };
        Subject::new(label, Kind::Benchmark).with_sample(sample)
    };
    vec![
        Control::planted(
            "one token in the middle",
            Evidence::pair(with_ids("l", &[5, 6, 7, 8]), with_ids("r", &[5, 6, 9, 8])),
            Outcome::Void,
            "first at token 2: [7, 8] against [9, 8]",
        ),
        Control::planted(
            "an older wording of the question",
            Evidence::pair(
                text("l", "You are given a math problem: find n."),
                text("r", "Find n."),
            ),
            Outcome::Void,
            "first at character 0; they begin \"You are given",
        ),
        Control::clean(
            "the same ids",
            Evidence::pair(with_ids("l", &[5, 6, 7, 8]), with_ids("r", &[5, 6, 7, 8])),
            "prompts of 1 samples are equal",
        ),
    ]
}

/// One sample id, two prompts.
pub(super) static SAME_ID: Audit = Audit {
    number: 12,
    slug: "id-reused",
    title: "one sample id stands for different prompts or gold answers",
    compares: "prompt hashes and gold answers of each sample id over everything that was given",
    needs: "prompt hashes or gold answers of a sample id in two runs or files",
    gate: false,
    each: None,
    pair: None,
    whole: Some(same_id),
    controls: same_id_controls,
};

fn same_id(evidence: &Evidence<'_>) -> Vec<Note> {
    let invented =
        |subject: &Subject<'_>| subject.text("trace.sample_ids").as_deref() == Some("invented");
    // Sample id and what is hashed -> hash -> labels.
    let mut known: BTreeMap<(&str, &str), BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for subject in evidence.subjects.iter().filter(|subject| !invented(subject)) {
        for sample in subject.samples.iter().flatten() {
            let hashes = [
                ("prompt ids", &sample.prompt_ids_sha256),
                ("prompt text", &sample.prompt_text_sha256),
            ];
            for (what, hash) in hashes {
                if let Some(hash) = hash {
                    known
                        .entry((&sample.id, what))
                        .or_default()
                        .entry(hash)
                        .or_default()
                        .push(&subject.label);
                }
            }
        }
    }
    let mut notes = Vec::new();
    let mut shared = 0;
    for ((id, what), hashes) in &known {
        if hashes.len() > 1 {
            let list: Vec<String> = hashes
                .iter()
                .map(|(hash, labels)| format!("{} in {}", short(hash), labels.join(", ")))
                .collect();
            let labels: Vec<&str> = hashes.values().flatten().copied().collect();
            let note =
                Note::flag(format!("{} different {what}: {}", hashes.len(), list.join("; ")));
            notes.push(
                note.at((*id).to_owned()).of(labels).remedy("give each prompt an id of its own"),
            );
        } else if hashes.values().any(|labels| labels.len() > 1) {
            shared += 1;
        }
    }
    if notes.is_empty() && shared > 0 {
        let labels = evidence.subjects.iter().map(|subject| subject.label.as_str());
        notes.push(
            Note::pass(format!("{shared} prompts that several hold under one id are equal"))
                .of(labels),
        );
    }
    notes.extend(same_gold(evidence));
    notes
}

/// Gold answers of one id in two subjects; a field that can only be gold counts as gold. Equal are whole numbers of one value, else
/// equal texts.
fn same_gold(evidence: &Evidence<'_>) -> Vec<Note> {
    let mut known: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for subject in &evidence.subjects {
        let invented = subject.text("trace.sample_ids").as_deref() == Some("invented");
        for sample in subject.samples.iter().flatten().filter(|_| !invented) {
            if let Some(gold) = sample.gold.as_deref().or(sample.field_answer.as_deref()) {
                let golds = known.entry(&sample.id).or_default();
                // Rows of several filters repeat it.
                if !golds.iter().any(|(label, _)| *label == subject.label) {
                    golds.push((&subject.label, gold));
                }
            }
        }
    }
    let equal = |left: &str, right: &str| {
        let whole = compare(left, right, Normalise::Integer { range: None });
        whole.equal.unwrap_or(whole.same_text)
    };
    let (mut shared, mut notes) = (0, Vec::new());
    for (id, golds) in known.iter().filter(|(_, golds)| golds.len() > 1) {
        let Some((_, first)) = golds.first() else { continue };
        if golds.iter().all(|(_, gold)| equal(first, gold)) {
            shared += 1;
            continue;
        }
        let list: Vec<String> =
            golds.iter().map(|(label, gold)| format!("`{gold}` in {label}")).collect();
        notes.push(
            Note::flag(format!("different gold answers: {}", list.join("; ")))
                .at((*id).to_owned())
                .of(golds.iter().map(|(label, _)| *label))
                .remedy("score both against one dataset"),
        );
    }
    if notes.is_empty() && shared > 0 {
        let labels = evidence.subjects.iter().map(|subject| subject.label.as_str());
        notes.push(
            Note::pass(format!("{shared} gold answers that several hold under one id are equal"))
                .of(labels),
        );
    }
    notes
}

fn same_id_controls() -> Vec<Control> {
    let golds = |left: &str, right: &str| {
        let side = |label: &str, gold: &str| {
            let sample = Sample { gold: Some(gold.to_owned()), ..Sample::new("s") };
            Subject::new(label, Kind::Benchmark).with_sample(sample)
        };
        Evidence::pair(side("left", left), side("right", right))
    };
    let three = |ids: &[u32]| {
        Evidence::all(vec![
            with_ids("monday", &[1, 2, 3]),
            with_ids("tuesday", &[1, 2, 3]),
            with_ids("wednesday", ids),
        ])
    };
    vec![
        Control::planted(
            "rewritten on Wednesday",
            three(&[1, 2, 4]),
            Outcome::Flag,
            "2 different prompt ids",
        ),
        Control::planted(
            "another gold answer on the other side",
            golds("62", "26"),
            Outcome::Flag,
            "different gold answers: `62` in left; `26` in right",
        ),
        Control::clean("one prompt", three(&[1, 2, 3]), "under one id are equal"),
        Control::clean(
            "gold with a leading zero",
            golds("62", "062"),
            "1 gold answers that several",
        ),
    ]
}

/// Chat template, thinking switch, beginning-of-sequence token.
pub(super) static TEMPLATE: Audit = Audit {
    number: 13,
    slug: "template",
    title: "the two sides used another chat template or thinking switch, or one has a doubled BOS token",
    compares: "template, thinking switch and the first two prompt ids, sample by sample",
    needs: "`prompt_ids` on both sides, or `template` and `thinking`",
    gate: true,
    each: Some(doubled_alone),
    pair: Some(template),
    whole: None,
    controls: template_controls,
};

fn bos(subject: &Subject<'_>) -> Option<u32> {
    subject.count("model.bos_token_id").and_then(|id| u32::try_from(id).ok())
}

fn doubled_alone(subject: &Subject<'_>) -> Vec<Note> {
    let Some(bos) = bos(subject) else { return Vec::new() };
    let mut twice = subject.samples.iter().flatten().filter(|sample| {
        sample.prompt_ids.as_ref().is_some_and(|ids| ids.starts_with(&[bos, bos]))
    });
    let note = |sample: &Sample| {
        Note::flag(format!("BOS token {bos} stands at positions 0 and 1"))
            .at(sample.id.clone())
            .remedy("let either the template or the tokenizer add it")
    };
    twice.next().map(note).into_iter().collect()
}

fn template(pair: &Pair<'_, '_>) -> Vec<Note> {
    let samples = pair.samples();
    let mut equal = 0_u64;
    for (left, right) in &samples {
        if let Some(note) = doubled(left, right).or_else(|| switched(left, right)) {
            return vec![note.at(left.id.clone())];
        }
        let told = left.template.is_some() && right.template.is_some();
        equal += u64::from(told || same_ids(left, right) == Some(true));
    }
    if equal > 0 {
        return vec![Note::pass(format!("templates or token ids of {equal} samples are equal"))];
    }
    let note = Note::no_evidence(
        "`template` is not recorded on both sides and `prompt_ids` are not equal on both",
    );
    samples.first().map(|(left, _)| note.at(left.id.clone())).into_iter().collect()
}

fn same_ids(left: &Sample, right: &Sample) -> Option<bool> {
    Some(left.prompt_ids_sha256.as_ref()? == right.prompt_ids_sha256.as_ref()?)
}

/// One side's prompt is the other's with its first token twice.
fn doubled(left: &Sample, right: &Sample) -> Option<Note> {
    let (l, r) = (left.prompt_ids.as_ref()?, right.prompt_ids.as_ref()?);
    let twice = |long: &[u32], short: &[u32]| {
        long.len() == short.len() + 1 && long.first() == long.get(1) && long.get(1..) == Some(short)
    };
    let side = if twice(l, r) {
        "left"
    } else if twice(r, l) {
        "right"
    } else {
        return None;
    };
    let first = l.first().copied().unwrap_or_default();
    Some(
        Note::flag(format!(
            "token {first} stands at positions 0 and 1 on the {side} side: BOS doubled"
        ))
        .remedy("let either the template or the tokenizer add it"),
    )
}

fn switched(left: &Sample, right: &Sample) -> Option<Note> {
    if same_ids(left, right) == Some(true) {
        return None;
    }
    if let (Some(l), Some(r)) = (&left.template, &right.template)
        && l != r
    {
        return Some(
            Note::void(format!("template `{l}` against `{r}`"))
                .remedy("render both prompts with one template"),
        );
    }
    let (l, r) = (left.thinking?, right.thinking?);
    let word = |on: bool| if on { "on" } else { "off" };
    (l != r).then(|| {
        Note::void(format!("thinking {} against {}", word(l), word(r)))
            .remedy("switch it the same way on both sides")
    })
}

fn template_controls() -> Vec<Control> {
    let told = |label: &str, template: &str, thinking: bool| {
        let sample = Sample {
            template: Some(template.to_owned()),
            thinking: Some(thinking),
            ..Sample::new("s")
        };
        Subject::new(label, Kind::Benchmark).with_sample(sample)
    };
    vec![
        Control::planted(
            "BOS from the template and from the tokenizer",
            Evidence::pair(with_ids("l", &[1, 5, 6]), with_ids("r", &[1, 1, 5, 6])),
            Outcome::Flag,
            "positions 0 and 1 on the right side",
        ),
        Control::planted(
            "thinking off on one side",
            Evidence::pair(told("l", "qwen3", true), told("r", "qwen3", false)),
            Outcome::Void,
            "thinking on against off",
        ),
        Control::planted(
            "no template on one side",
            Evidence::pair(told("l", "qwen3", true), told("r", "none", true)),
            Outcome::Void,
            "template `qwen3` against `none`",
        ),
        Control::planted(
            "BOS doubled in a run by itself",
            Evidence::one(with_ids("l", &[1, 1, 5]).with("model.bos_token_id", 1, "config.json")),
            Outcome::Flag,
            "BOS token 1",
        ),
        Control::clean(
            "a prompt that begins with a repeated word, on both sides",
            Evidence::pair(with_ids("l", &[4, 4, 6]), with_ids("r", &[4, 4, 6])),
            "token ids of 1 samples are equal",
        ),
    ]
}
