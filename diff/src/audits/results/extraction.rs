//! Audits of how answers were read from texts.

use lockstep_traces::FinishReason;

use super::super::facts::{Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Sample, Subject};
use crate::answers::{Normalise, Rule, compare, extract};

/// Answers that were guessed.
pub(super) static RULE: Audit = Audit {
    number: 54,
    slug: "extraction-rule",
    title: "an answer was guessed from a phrase or the last number of a text, and counts as wrong or right",
    compares: "the rule that found each answer; where it is not recorded, the rule that reads the same answer in the text",
    needs: "answers with `answer_rule` or text",
    gate: false,
    each: Some(rule),
    pair: None,
    whole: None,
    controls: rule_controls,
};

fn rule(subject: &Subject<'_>) -> Vec<Note> {
    let (mut marked, mut unknown, mut guessed) = (0, Vec::new(), Vec::new());
    for sample in subject.samples.iter().flatten().filter(|sample| sample.pred.is_some()) {
        match origin(sample) {
            Origin::Marked => marked += 1,
            Origin::Unknown => unknown.push(sample.id.clone()),
            Origin::Guessed(how) => guessed.push(format!("{} ({how})", sample.id)),
        }
    }
    let mut notes = Vec::new();
    if !guessed.is_empty() {
        let text = format!(
            "{} answers are guesses: read them as \"no boxed answer\", not as wrong ones",
            guessed.len()
        );
        notes.push(
            Note::flag(text)
                .at(guessed.join(", "))
                .remedy("store the rule with each answer and score boxed answers"),
        );
    }
    if !unknown.is_empty() {
        notes.push(Note::missing("answer_rule", &subject.label).at(unknown.join(", ")));
    }
    if notes.is_empty() && marked > 0 {
        notes.push(Note::pass(format!("{marked} answers were marked as such in their texts")));
    }
    notes
}

enum Origin {
    Marked,
    Guessed(String),
    Unknown,
}

fn origin(sample: &Sample) -> Origin {
    if let Some(rule) = &sample.pred_rule {
        let guess =
            ["phrase", "last-integer", "last integer"].iter().any(|word| rule.contains(word));
        return if guess { Origin::Guessed(rule.clone()) } else { Origin::Marked };
    }
    let (Some(text), Some(pred)) = (&sample.text, &sample.pred) else { return Origin::Unknown };
    for rule in [Rule::StrictBoxed, Rule::TrtmcPython, Rule::TrtmcCpp] {
        let read = extract(text, rule);
        if !read.answer.as_deref().is_some_and(|answer| equal(answer, pred)) {
            continue;
        }
        if !read.fallback {
            return Origin::Marked;
        }
        let cut = if sample.finish == Some(FinishReason::Length) {
            ", of a text that was cut off"
        } else {
            ""
        };
        let how = if read.step == Some(4) { "the last integer" } else { "a phrase" };
        return Origin::Guessed(format!("{pred} is {how}{cut}"));
    }
    Origin::Unknown
}

fn equal(left: &str, right: &str) -> bool {
    let whole = compare(left, right, Normalise::Integer { range: None });
    whole.equal.unwrap_or(whole.same_text)
}

fn answered(text: &str, gold: &str, pred: &str) -> Sample {
    Sample {
        text: Some(text.to_owned()),
        gold: Some(gold.to_owned()),
        pred: Some(pred.to_owned()),
        ..Sample::new("a")
    }
}

fn one(sample: Sample) -> Evidence<'static> {
    Evidence::one(Subject::new("rows.jsonl", Kind::Benchmark).with_sample(sample))
}

fn rule_controls() -> Vec<Control> {
    let cut = Sample {
        finish: Some(FinishReason::Length),
        ..answered("then x = 7 and so we try -1848", "62", "-1848")
    };
    let recorded =
        Sample { pred_rule: Some("last-boxed".to_owned()), text: None, ..answered("", "62", "62") };
    vec![
        Control::planted(
            "a text that was cut off",
            one(cut),
            Outcome::Flag,
            "-1848 is the last integer, of a text that was cut off",
        ),
        Control::planted(
            "a phrase",
            one(answered("so the answer is 3, I think", "62", "3")),
            Outcome::Flag,
            "3 is a phrase",
        ),
        Control::clean(
            "a box",
            one(answered("so \\boxed{62}", "62", "62")),
            "1 answers were marked",
        ),
        Control::clean("the rule is recorded", one(recorded), "1 answers were marked"),
    ]
}

/// 062 and 62.
pub(super) static NORMALISATION: Audit = Audit {
    number: 55,
    slug: "answer-normalisation",
    title: "a verdict depends on how answers were normalised or which box was taken",
    compares: "the recorded verdict with that of one canonical comparison, and the first box with the last",
    needs: "gold and predicted answers",
    gate: false,
    each: Some(normalisation),
    pair: None,
    whole: None,
    controls: normalisation_controls,
};

fn normalisation(subject: &Subject<'_>) -> Vec<Note> {
    let (mut seen, mut turned) = (0, Vec::new());
    for sample in subject.samples.iter().flatten() {
        let (Some(gold), Some(pred)) = (&sample.gold, &sample.pred) else { continue };
        seen += 1;
        let as_written = sample.correct.unwrap_or(gold == pred);
        let canonical = equal(gold, pred);
        if as_written != canonical {
            turned.push(format!(
                "{} (gold {gold}, answer {pred}: {} as written, {} as numbers)",
                sample.id,
                word(as_written),
                word(canonical)
            ));
        } else if let Some(boxes) = sample.text.as_deref().and_then(|text| boxes(text, gold)) {
            turned.push(format!("{} ({boxes})", sample.id));
        }
    }
    vec![match (seen, turned.len()) {
        (0, _) => return Vec::new(),
        (_, 0) => Note::pass(format!(
            "{seen} verdicts do not depend on normalisation or the choice of a box"
        )),
        (_, count) => {
            Note::flag(format!("{count} of {seen} verdicts depend on how the answer was read"))
                .at(turned.join(", "))
                .remedy("read and compare both sides with one declared rule")
        }
    }]
}

fn word(right: bool) -> &'static str {
    if right { "right" } else { "wrong" }
}

/// The first box (without nested braces) against the last (with), where gold tells them apart.
fn boxes(text: &str, gold: &str) -> Option<String> {
    let (first, last) = (extract(text, Rule::TrtmcCpp), extract(text, Rule::StrictBoxed));
    if first.step != Some(1) {
        return None;
    }
    let (first, last) = (first.answer?, last.answer?);
    let (of_first, of_last) = (equal(gold, &first), equal(gold, &last));
    (of_first != of_last).then(|| {
        format!("first box {first} is {}, last box {last} is {}", word(of_first), word(of_last))
    })
}

fn normalisation_controls() -> Vec<Control> {
    vec![
        Control::planted(
            "a leading zero",
            one(answered("\\boxed{062}", "62", "062")),
            Outcome::Flag,
            "wrong as written, right as numbers",
        ),
        Control::planted(
            "a box on the way",
            one(answered("first \\boxed{3}, no: \\boxed{62}", "62", "62")),
            Outcome::Flag,
            "first box 3 is wrong, last box 62 is right",
        ),
        Control::clean(
            "one box",
            one(answered("\\boxed{62}", "62", "62")),
            "1 verdicts do not depend",
        ),
    ]
}
