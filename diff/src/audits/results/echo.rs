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

/// Rows of one subject, counted.
#[derive(Debug, Default)]
struct Tally {
    /// Rows with a field and a text.
    rows: usize,
    /// Of these, the field is gold.
    equal: usize,
    /// Of these, the text says otherwise: where, with both.
    denied: Vec<String>,
    /// Rows whose field is not gold and whose text does not say it either: how often the extractor here differs from the writer's.
    strayed: usize,
    /// A row whose field is not gold.
    other: Option<String>,
    /// The rows have no prediction: their field can only be gold.
    copied: bool,
}

fn tally(evidence: &Evidence<'_>, subject: &Subject<'_>) -> Result<Tally, Note> {
    let mut tally = Tally::default();
    for sample in subject.samples.iter().flatten() {
        let field = sample.pred.as_deref().or(sample.field_answer.as_deref());
        let (Some(field), Some(text)) = (field, sample.text.as_deref()) else { continue };
        let schema = sample.pred.is_none();
        tally.copied |= schema;
        let read = extract(text, Rule::TrtmcPython).answer;
        let denied = !read.as_deref().is_some_and(|read| same(field, read));
        tally.rows += 1;
        match gold(evidence, sample) {
            Some(gold) if !same(gold, field) => {
                tally.strayed += usize::from(denied);
                tally
                    .other
                    .get_or_insert_with(|| format!("`{field}` against `{gold}` in {}", sample.id));
                continue;
            }
            None if !schema => {
                return Err(Note::missing("gold_answer", &subject.label).at(sample.id.clone()));
            }
            _ => tally.equal += 1,
        }
        if denied {
            tally.denied.push(format!(
                "{} (field {field}, text {})",
                sample.id,
                read.as_deref().unwrap_or("has none")
            ));
        }
    }
    Ok(tally)
}

/// Gold in every row and denied by a text: the field is gold. Gold in a part of the rows: worth a look where texts deny it more
/// often than they deny fields that are not gold, which is how often the extractor here reads otherwise than the writer's.
fn echo(evidence: &Evidence<'_>, subject: &Subject<'_>) -> Option<Note> {
    let found = match tally(evidence, subject) {
        Ok(found) => found,
        Err(note) => return Some(note),
    };
    let Tally { rows, equal, strayed, .. } = found;
    if rows == 0 {
        return None;
    }
    let (denied, others) = (found.denied.len(), rows - equal);
    let Some(other) = found.other else {
        if denied == 0 {
            return Some(Note::pass(format!(
                "an extractor reads the answers of all {rows} rows in their texts"
            )));
        }
        let why = if found.copied { ", and the rows have no prediction" } else { "" };
        let text = format!(
            "the answer field is gold in all {rows} rows{why}; the texts of {denied} say otherwise"
        );
        return Some(
            Note::void(text)
                .at(found.denied.join(", "))
                .remedy("read the answers in the texts; the field is the gold answer copied"),
        );
    };
    let said = format!(
        "the field is gold in {equal} of {rows} rows, and the texts of {denied} of these say otherwise; of the other {others} fields \
         {strayed} are not in their texts"
    );
    // Shares denied / equal and strayed / others, without a division.
    if denied * others > strayed * equal {
        return Some(Note::flag(said).at(found.denied.join(", ")).remedy(
            "read the answers in the texts of these rows: gold may have been copied into them",
        ));
    }
    Some(Note::pass(format!("the field is not gold in every row: {other}; {said}")))
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

/// Four rows with a prediction, three of them gold: whose texts say otherwise where they were `copied`.
fn some_copied(copied: bool) -> Evidence<'static> {
    let mut subject = Subject::new("rows.jsonl", Kind::Benchmark);
    for (id, gold, pred) in [("a", "5", "5"), ("b", "6", "6"), ("c", "7", "7"), ("d", "8", "9")] {
        let said = if copied && gold == pred { "1" } else { pred };
        subject = subject.with_sample(Sample {
            gold: Some(gold.to_owned()),
            pred: Some(pred.to_owned()),
            text: Some(format!("so it is \\boxed{{{said}}}")),
            ..Sample::new(id)
        });
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
        Control::planted(
            "gold copied into three rows of four",
            some_copied(true),
            Outcome::Flag,
            "gold in 3 of 4 rows, and the texts of 3 of these say otherwise",
        ),
        Control::clean(
            "three right rows of four",
            some_copied(false),
            "gold in 3 of 4 rows, and the texts of 0",
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

/// Loops, and nothing.
pub(super) static DEGENERATE: Audit = Audit {
    number: 53,
    slug: "degenerate-text",
    title: "a text is a loop, or empty: it is no measure of quality, nor of speed",
    compares: "the share of distinct tokens in every window of 512 with 0.05, stretches that repeat, and texts without a character",
    needs: "`generated_ids` or text of samples of at least 512 units, or an empty text",
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
    let (mut judged, mut short, mut bad, mut empty) = (0, 0, Vec::new(), Vec::new());
    for sample in subject.samples.iter().flatten() {
        if sample.text.as_deref().is_some_and(|text| text.trim().is_empty()) {
            let counted = sample.generated_tokens.filter(|count| *count > 0);
            let tokens = counted.map_or_else(String::new, |count| format!(" ({count} tokens)"));
            empty.push(format!("{}{tokens}", sample.id));
            continue;
        }
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
    let mut notes = Vec::new();
    if !empty.is_empty() {
        let all = subject.samples.as_ref().map_or(0, Vec::len);
        notes.push(
            Note::flag(format!("{} of {all} texts are empty", empty.len()))
                .at(empty.join(", "))
                .remedy("find out whether nothing was generated, or the text was lost"),
        );
    }
    notes.extend(loops(judged, short, &bad));
    notes
}

fn loops(judged: usize, short: usize, bad: &[String]) -> Option<Note> {
    Some(match (judged, bad.len()) {
        (0, _) if short > 0 => {
            Note::no_evidence(format!("{short} texts are shorter than 512 units: none was judged"))
        }
        (0, _) => return None,
        (_, 0) => Note::pass(format!(
            "none of {judged} texts is a loop; {short} are too short to be judged"
        )),
        (_, count) => Note::flag(format!("{count} of {judged} texts are degenerate"))
            .at(bad.join(", "))
            .remedy("leave them out of scores, and mark their speed \"on degenerate text\""),
    })
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
        Control::planted(
            "a row without text",
            rows(&[("a", "1", "so it is 1"), ("b", "2", " \n")], true),
            Outcome::Flag,
            "1 of 2 texts are empty",
        ),
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
