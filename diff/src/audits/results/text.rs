//! Audits of what text, printed digits and equal answers can prove.

use lockstep_traces::manifest::ValueEncoding;

use super::super::facts::{Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Pair, Sample, Subject};
use super::made::{claimed, dense, traced};
use super::rows::{claims, compared};

/// Offsets in characters.
pub(super) static CHARACTERS: Audit = Audit {
    number: 38,
    slug: "character-offsets",
    title: "text is compared though token ids are there: equal text is not equal ids",
    compares: "generated ids and text of each sample of both sides",
    needs: "`generated_ids` of both sides",
    gate: false,
    each: None,
    pair: Some(characters),
    whole: None,
    controls: character_controls,
};

/// Index of the first difference; `None` where the sequences are equal.
fn first_difference<T: PartialEq>(
    left: impl IntoIterator<Item = T>,
    right: impl IntoIterator<Item = T>,
) -> Option<usize> {
    let (mut left, mut right) = (left.into_iter(), right.into_iter());
    let mut at = 0;
    loop {
        match (left.next(), right.next()) {
            (None, None) => return None,
            (l, r) if l == r => at += 1,
            _ => return Some(at),
        }
    }
}

fn characters(pair: &Pair<'_, '_>) -> Vec<Note> {
    let labels = [pair.left.label.as_str(), pair.right.label.as_str()];
    let textual = claims(pair.evidence, &["text-offset", "text-equality"], &labels);
    let mut notes = Vec::new();
    for (left, right) in pair.samples() {
        let texts = left.text.as_ref().zip(right.text.as_ref());
        let (Some(l), Some(r)) = (pair.left.stream(&left.id), pair.right.stream(&right.id)) else {
            if texts.is_some() {
                notes.push(
                    Note::no_evidence(
                        "`generated_ids` are not recorded on both sides: only text can be compared",
                    )
                    .at(left.id.clone()),
                );
            }
            continue;
        };
        let token = first_difference(&l, &r);
        let character = texts.and_then(|(l, r)| first_difference(l.chars(), r.chars()));
        let ids = token.map_or_else(
            || format!("{} ids are equal", l.len()),
            |at| format!("ids differ from token {at}"),
        );
        let text = match (texts, character) {
            (None, _) => "no text".to_owned(),
            (_, None) => "text is equal".to_owned(),
            (_, Some(at)) => format!("text differs from character {at}"),
        };
        let said = format!("{ids}, {text}");
        notes.push(if let (Some(_), Some(_), None) = (token, texts, character) {
            Note::flag(format!("{said}: equal text is not equal ids"))
                .at(left.id.clone())
                .remedy("compare ids")
        } else if let Some(claim) = textual.first() {
            Note::flag(format!("{said}; claim `{}` rests on text alone", claim.id))
                .at(left.id.clone())
                .remedy("give the token index")
        } else {
            Note::pass(said)
        });
    }
    notes
}

fn completion(label: &str, text: &str, ids: Option<&[u32]>) -> Subject<'static> {
    let sample = Sample {
        text: Some(text.to_owned()),
        generated_ids: ids.map(<[u32]>::to_vec),
        ..Sample::new("a")
    };
    Subject::new(label, Kind::Benchmark).with_sample(sample)
}

fn character_controls() -> Vec<Control> {
    let pair = |left: &str, right: &str, l: &[u32], r: &[u32]| {
        Evidence::pair(completion("left", left, Some(l)), completion("right", right, Some(r)))
    };
    vec![
        Control::planted(
            "two ids that spell the same",
            pair("ab", "ab", &[1, 2], &[3]),
            Outcome::Flag,
            "equal text is not equal ids",
        ),
        Control::planted(
            "a claim about a character",
            claimed(pair("abc", "abd", &[1, 2], &[1, 3]), "text-offset", None),
            Outcome::Flag,
            "ids differ from token 1, text differs from character 2",
        ),
        Control::clean("ids and text agree", pair("ab", "ab", &[1, 2], &[1, 2]), "2 ids are equal"),
        Control::clean(
            "ids and text part",
            pair("ab", "ac", &[1, 2], &[1, 3]),
            "ids differ from token 1",
        ),
    ]
}

/// Six digits.
pub(super) static PRINTED: Audit = Audit {
    number: 39,
    slug: "printed-precision",
    title: "logits are called exactly equal though only six digits are stored",
    compares: "the encodings of both sides and their hashes with claims of exact equality",
    needs: "rows of both sides",
    gate: false,
    each: None,
    pair: Some(printed),
    whole: None,
    controls: printed_controls,
};

fn printed(pair: &Pair<'_, '_>) -> Vec<Note> {
    let (Some(left), Some(right)) = (&pair.left.trace, &pair.right.trace) else {
        return Vec::new();
    };
    let (l, r) = (&left.manifest, &right.manifest);
    let hashed = l.logits_hash_seeds.is_some() && l.logits_hash_seeds == r.logits_hash_seeds;
    let six = [l, r].iter().any(|side| !side.encoding.exact());
    let labels = [pair.left.label.as_str(), pair.right.label.as_str()];
    let proves = compared(pair).map(|report| report.proves.clone()).unwrap_or_default();
    let exact = claims(pair.evidence, &["exact"], &labels);
    vec![match exact.first() {
        Some(claim) if six && !hashed => {
            Note::flag(format!("claim `{}` says exact; the evidence says: {proves}", claim.id))
                .remedy("say \"equal to six digits\", or record nine digits or a hash")
        }
        _ => Note::pass(format!("equality means: {proves}")),
    }]
}

fn printed_controls() -> Vec<Control> {
    let side = |label: &str, encoding: ValueEncoding| {
        let mut subject = traced(label, Kind::Trace, &dense(0..5), Vec::new());
        if let Some(trace) = &mut subject.trace {
            trace.manifest.to_mut().encoding = encoding;
        }
        subject
    };
    let pair = |encoding| Evidence::pair(side("left", encoding), side("right", encoding));
    vec![
        Control::planted(
            "\"match exactly\" on printed digits",
            claimed(pair(ValueEncoding::Digits6), "exact", None),
            Outcome::Flag,
            "equal to six digits",
        ),
        Control::clean(
            "exact values",
            claimed(pair(ValueEncoding::F32), "exact", None),
            "exact f32 values",
        ),
        Control::clean("nothing is claimed", pair(ValueEncoding::Digits6), "equal to six digits"),
    ]
}

/// One number at the end of two different texts.
pub(super) static SAME_ANSWER: Audit = Audit {
    number: 40,
    slug: "same-answer-other-text",
    title: "equal answers are taken for equal trajectories",
    compares: "answers of each sample with its ids and text on both sides",
    needs: "answers of both sides with `generated_ids` or text",
    gate: false,
    each: None,
    pair: Some(same_answer),
    whole: None,
    controls: same_controls,
};

/// Ids are equal, or else texts; `None` where neither is on both sides.
pub(super) fn same_completion(pair: &Pair<'_, '_>, left: &Sample, right: &Sample) -> Option<bool> {
    let ids = pair.left.stream(&left.id).zip(pair.right.stream(&right.id)).map(|(l, r)| l == r);
    ids.or_else(|| Some(left.text.as_ref()? == right.text.as_ref()?))
}

fn same_answer(pair: &Pair<'_, '_>) -> Vec<Note> {
    let labels = [pair.left.label.as_str(), pair.right.label.as_str()];
    let (mut equal, mut other) = (0, Vec::new());
    for (left, right) in pair.samples() {
        if left.pred.is_none() || left.pred != right.pred {
            continue;
        }
        match same_completion(pair, left, right) {
            None => continue,
            Some(true) => {}
            Some(false) => other.push(left.id.as_str()),
        }
        equal += 1;
    }
    if equal == 0 {
        return Vec::new();
    }
    let said =
        format!("{equal} answers are equal, {} of them at the end of another text", other.len());
    vec![match claims(pair.evidence, &["parity", "trajectory"], &labels).first() {
        Some(claim) if !other.is_empty() => {
            Note::flag(format!("{said}; claim `{}` takes them for equal trajectories", claim.id))
                .at(other.join(", "))
                .remedy("show equal ids, or claim equal answers only")
        }
        _ => Note::pass(said),
    }]
}

fn same_controls() -> Vec<Control> {
    let side = |label: &str, text: &str| {
        let mut subject = completion(label, text, None);
        if let Some(sample) = subject.samples.iter_mut().flatten().next() {
            sample.pred = Some("10".to_owned());
        }
        subject
    };
    let pair = |right: &str| Evidence::pair(side("left", "so 10"), side("right", right));
    vec![
        Control::planted(
            "both say 10, by other words",
            claimed(pair("thus 10"), "parity", None),
            Outcome::Flag,
            "1 of them at the end of another text",
        ),
        Control::clean("both say the same", claimed(pair("so 10"), "parity", None), "0 of them"),
        Control::clean("nothing is claimed", pair("thus 10"), "1 answers are equal"),
    ]
}
