//! Audits of answers that nobody gave: gold copied into a result, and text that is none.

use super::super::facts::{Evidence, Kind};
use super::super::{Audit, Control, Note, Outcome, Sample, Subject};
use crate::answers::{Normalise, Rule, State, compare, degenerate_text, extract};

/// A gold answer in the place of a prediction.
pub(super) static GOLD_ECHO: Audit = Audit {
    number: 52,
    slug: "gold-echo",
    title: "the answer field of a result is the gold answer copied, not what the text says",
    compares: "the answer field of every row with gold, and with what an extractor reads in its text",
    needs: "rows with an answer field and text",
    gate: false,
    each: None,
    pair: None,
    whole: Some(gold_echo),
    controls: echo_controls,
};

fn gold_echo(evidence: &Evidence<'_>) -> Vec<Note> {
    let rows = evidence.subjects.iter().filter(|subject| subject.kind == Kind::Benchmark);
    rows.filter_map(|subject| Some(echo(evidence, subject)?.of([subject.label.as_str()]))).collect()
}

/// Gold of a sample: its own, else that of a dataset.
fn gold<'e>(evidence: &'e Evidence<'_>, sample: &'e Sample) -> Option<&'e str> {
    let datasets = evidence.subjects.iter().filter(|other| other.kind == Kind::Dataset);
    let told = || datasets.clone().find_map(|set| set.sample(&sample.id)?.gold.as_deref());
    sample.gold.as_deref().or_else(told)
}

fn same(left: &str, right: &str) -> bool {
    let whole = compare(left, right, Normalise::Integer { range: None });
    whole.equal.unwrap_or(whole.same_text)
}

fn echo(evidence: &Evidence<'_>, subject: &Subject<'_>) -> Option<Note> {
    let (mut rows, mut disagree) = (0_usize, Vec::new());
    let mut copied_schema = false;
    for sample in subject.samples.iter().flatten() {
        let field = sample.pred.as_deref().or(sample.field_answer.as_deref());
        let (Some(field), Some(text)) = (field, sample.text.as_deref()) else { continue };
        // A schema without a prediction can only hold gold there; elsewhere the field must equal gold in every row.
        let schema = sample.pred.is_none();
        copied_schema |= schema;
        match gold(evidence, sample) {
            Some(gold) if !same(gold, field) => {
                return Some(Note::pass(format!(
                    "the field is not gold in every row: `{field}` against `{gold}` in {}",
                    sample.id
                )));
            }
            None if !schema => {
                return Some(Note::missing("gold_answer", &subject.label).at(sample.id.clone()));
            }
            _ => {}
        }
        rows += 1;
        let read = extract(text, Rule::TrtmcPython).answer;
        if !read.as_deref().is_some_and(|read| same(field, read)) {
            disagree.push(format!(
                "{} (field {field}, text {})",
                sample.id,
                read.as_deref().unwrap_or("has none")
            ));
        }
    }
    if rows == 0 {
        return None;
    }
    if disagree.is_empty() {
        return Some(Note::pass(format!(
            "an extractor reads the answers of all {rows} rows in their texts"
        )));
    }
    let why = if copied_schema { ", and the rows have no prediction" } else { "" };
    let text = format!(
        "the answer field is gold in all {rows} rows{why}; the texts of {} say otherwise",
        disagree.len()
    );
    Some(
        Note::void(text)
            .at(disagree.join(", "))
            .remedy("read the answers in the texts; the field is the gold answer copied"),
    )
}

fn rows(list: &[(&str, &str, &str)], predicted: bool) -> Evidence<'static> {
    let mut subject = Subject::new("rows.jsonl", Kind::Benchmark);
    for (id, answer, text) in list {
        let answer = Some((*answer).to_owned());
        let mut sample = Sample { text: Some((*text).to_owned()), ..Sample::new(*id) };
        if predicted {
            sample.gold.clone_from(&answer);
            sample.pred = answer;
        } else {
            sample.field_answer = answer;
        }
        subject = subject.with_sample(sample);
    }
    Evidence::one(subject)
}

fn echo_controls() -> Vec<Control> {
    vec![
        Control::planted(
            "rows of the first schema",
            rows(&[("a", "588", "so the sum is 4"), ("b", "16", "\\boxed{16}")], false),
            Outcome::Void,
            "a (field 588, text 4)",
        ),
        Control::planted(
            "a prediction that is always right",
            rows(&[("a", "588", "\\boxed{12}")], true),
            Outcome::Void,
            "gold in all 1 rows",
        ),
        Control::clean(
            "the texts say so",
            rows(&[("a", "588", "\\boxed{588}"), ("b", "16", "\\boxed{16}")], true),
            "all 2 rows",
        ),
        Control::clean(
            "the first schema, and the texts say so",
            rows(&[("b", "016", "\\boxed{16}")], false),
            "all 1 rows",
        ),
    ]
}

/// Loops.
pub(super) static DEGENERATE: Audit = Audit {
    number: 53,
    slug: "degenerate-text",
    title: "a text is a loop: it is no measure of quality, nor of speed",
    compares: "the share of distinct tokens in every window of 512 with 0.05, and stretches that repeat",
    needs: "`generated_ids` or text of samples of at least 512 units",
    gate: false,
    each: Some(degenerate),
    pair: None,
    whole: None,
    controls: degenerate_controls,
};

fn degenerate(subject: &Subject<'_>) -> Vec<Note> {
    if !subject.kind.is_run() {
        return Vec::new();
    }
    let (mut judged, mut short, mut bad) = (0, 0, Vec::new());
    for sample in subject.samples.iter().flatten() {
        let ids = subject.stream(&sample.id);
        let Some(found) = degenerate_text(ids.as_deref(), sample.text.as_deref()) else { continue };
        match found.state {
            State::TooShort => short += 1,
            State::Clean => judged += 1,
            State::Degenerate => {
                judged += 1;
                bad.push(format!(
                    "{} from unit {} of {}",
                    sample.id,
                    found.start.unwrap_or(0),
                    found.units
                ));
            }
        }
    }
    vec![match (judged, bad.len()) {
        (0, _) if short > 0 => {
            Note::no_evidence(format!("{short} texts are shorter than 512 units: none was judged"))
        }
        (0, _) => return Vec::new(),
        (_, 0) => Note::pass(format!(
            "none of {judged} texts is a loop; {short} are too short to be judged"
        )),
        (_, count) => Note::flag(format!("{count} of {judged} texts are degenerate"))
            .at(bad.join(", "))
            .remedy("leave them out of scores, and mark their speed \"on degenerate text\""),
    }]
}

fn degenerate_controls() -> Vec<Control> {
    let words = |looped: bool| {
        let mut text = String::new();
        for word in 0..900_u32 {
            let next = if looped && word >= 300 {
                ["Let", "me."][word as usize % 2].to_owned()
            } else {
                format!("w{word}")
            };
            text.push_str(&next);
            text.push(' ');
        }
        rows(&[("a", "1", &text)], true)
    };
    vec![
        Control::planted("two words over and over", words(true), Outcome::Flag, "a from unit"),
        Control::clean("new words throughout", words(false), "none of 1 texts"),
    ]
}

/// The golden case: gold copied beside a text that ends in a loop without a box.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_gold_answer_beside_a_loop_is_found_by_both_audits() {
        let text = format!("We count pairs: 4 ways. {}", "Let me. ".repeat(400));
        let evidence = rows(&[("toy_2", "588", &text)], false);
        let echo = GOLD_ECHO.notes(&evidence);
        assert_eq!((echo.len(), echo[0].outcome), (1, Outcome::Void));
        assert_eq!(echo[0].place.as_deref(), Some("toy_2 (field 588, text 4)"));
        let degenerate = DEGENERATE.notes(&evidence);
        assert_eq!((degenerate.len(), degenerate[0].outcome), (1, Outcome::Flag));
        assert!(degenerate[0].place.as_deref().unwrap().starts_with("toy_2 from unit"));
    }
}
