//! One completion against its gold answer.

use serde::{Deserialize, Serialize};

use super::degenerate::{Degeneracy, State};
use super::normalise::{Comparison, Normalise, compare};
use super::rule::{Extracted, Found};

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The answer is the gold answer, by the declared rules.
    Correct,
    /// Another answer.
    Wrong,
    /// No answer: no box, and nothing that a fallback of the rule read is the gold answer.
    NoAnswer,
    /// A box with nothing in it.
    Empty,
    /// The text was cut off: inside a box, or at its length limit before any answer.
    CutOff,
    /// The text is degenerate; whatever it answers is no measure of quality.
    Degenerate,
    /// Not scored: there is no gold answer, or it is not what the rule asks for.
    Unscored,
}

impl Outcome {
    /// Every outcome, in the order in which they are printed.
    pub const ALL: [Self; 7] = [
        Self::Correct,
        Self::Wrong,
        Self::NoAnswer,
        Self::Empty,
        Self::CutOff,
        Self::Degenerate,
        Self::Unscored,
    ];

    /// `correct`, `wrong`, `no-answer`, `empty`, `cut-off`, `degenerate`, `unscored`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Correct => "correct",
            Self::Wrong => "wrong",
            Self::NoAnswer => "no-answer",
            Self::Empty => "empty",
            Self::CutOff => "cut-off",
            Self::Degenerate => "degenerate",
            Self::Unscored => "unscored",
        }
    }
}

/// What the judgement of one completion rests on.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a> {
    /// Gold answer.
    pub gold: Option<&'a str>,
    /// What the rule read.
    pub extracted: &'a Extracted,
    /// Whether the text is degenerate, where that was tested.
    pub degeneracy: Option<&'a Degeneracy>,
    /// The run stopped it: length limit or full cache.
    pub stopped: bool,
}

/// An outcome with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Outcome.
    pub outcome: Outcome,
    /// Answer and gold answer as compared; `null` where one is missing.
    pub comparison: Option<Comparison>,
    /// The answer is the gold answer, though the outcome is another one (degenerate text).
    pub would_be_correct: bool,
    /// One line, where the outcome needs one.
    pub note: Option<String>,
}

/// Judges one completion by `how`.
#[must_use]
pub fn judge(completion: Completion<'_>, how: Normalise) -> Judged {
    let Completion { gold, extracted, degeneracy, stopped } = completion;
    let comparison =
        gold.zip(extracted.answer.as_deref()).map(|(gold, answer)| compare(gold, answer, how));
    let equal = comparison.as_ref().and_then(|one| one.equal);
    let (mut outcome, mut note) = match (gold, extracted.found) {
        (None, _) => (Outcome::Unscored, Some("no gold answer".to_owned())),
        (Some(_), Found::Answer) => answered(extracted, comparison.as_ref(), stopped),
        (Some(gold), found) => match super::normalise(gold, how).key {
            None => (Outcome::Unscored, Some(format!("gold `{gold}` is no {how} answer"))),
            Some(_) => missing(extracted, found, stopped),
        },
    };
    let mut would_be_correct = false;
    if let Some(found) = degeneracy.filter(|one| one.state == State::Degenerate)
        && outcome != Outcome::Unscored
    {
        would_be_correct = equal == Some(true);
        outcome = Outcome::Degenerate;
        note = Some(format!(
            "degenerate from {} {} of {} on{}",
            unit(found),
            found.start.unwrap_or_default(),
            found.units,
            found
                .repeats
                .map_or_else(String::new, |one| format!(", repeating every {}", one.period))
        ));
    }
    Judged { outcome, comparison, would_be_correct, note }
}

const fn unit(found: &Degeneracy) -> &'static str {
    match found.unit {
        super::Unit::Token => "token",
        super::Unit::Word => "word",
    }
}

fn answered(
    extracted: &Extracted,
    comparison: Option<&Comparison>,
    stopped: bool,
) -> (Outcome, Option<String>) {
    let note = comparison.and_then(|one| one.note.clone());
    let step = extracted.step.unwrap_or_default();
    let answer = extracted.answer.as_deref().unwrap_or_default();
    match comparison.and_then(|one| one.equal) {
        None => (Outcome::Unscored, note),
        Some(true) if extracted.fallback => {
            (Outcome::Correct, Some(format!("by a fallback: step {step} read `{answer}`")))
        }
        Some(true) => (Outcome::Correct, note),
        Some(false) if extracted.fallback => {
            let outcome = if stopped { Outcome::CutOff } else { Outcome::NoAnswer };
            (outcome, Some(format!("no boxed answer; the fallback of step {step} read `{answer}`")))
        }
        Some(false) => (Outcome::Wrong, note),
    }
}

fn missing(extracted: &Extracted, found: Found, stopped: bool) -> (Outcome, Option<String>) {
    let earlier = extracted.earlier.as_ref().map_or_else(String::new, |box_| {
        format!("; an earlier box holds `{box_}` and does not count")
    });
    match found {
        Found::Empty => (Outcome::Empty, Some(format!("the last box is empty{earlier}"))),
        Found::CutOff => (Outcome::CutOff, Some(format!("the last box is never closed{earlier}"))),
        _ if stopped => (Outcome::CutOff, Some("stopped by a limit before any answer".to_owned())),
        _ => (Outcome::NoAnswer, None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Normalise, Rule, Stream, degenerate, extract};
    use super::*;

    fn by(text: &str, gold: Option<&str>, rule: Rule, stopped: bool) -> Judged {
        let extracted = extract(text, rule);
        let completion = Completion { gold, extracted: &extracted, degeneracy: None, stopped };
        judge(completion, Normalise::Integer { range: Some((0, 999)) })
    }

    fn strict(text: &str, gold: &str) -> Outcome {
        by(text, Some(gold), Rule::StrictBoxed, false).outcome
    }

    #[test]
    fn an_answer_that_is_not_there_is_not_wrong() {
        assert_eq!(strict(r"\boxed{62}", "62"), Outcome::Correct);
        assert_eq!(strict(r"\boxed{63}", "62"), Outcome::Wrong);
        assert_eq!(strict("it is 62", "62"), Outcome::NoAnswer);
        assert_eq!(strict(r"\boxed{}", "62"), Outcome::Empty);
        assert_eq!(strict(r"\boxed{62", "62"), Outcome::CutOff);
        assert_eq!(by("it is 62", Some("62"), Rule::StrictBoxed, true).outcome, Outcome::CutOff);
        assert_eq!(by(r"\boxed{62}", None, Rule::StrictBoxed, false).outcome, Outcome::Unscored);
        assert_eq!(strict("nothing", "1/2"), Outcome::Unscored);
        assert_eq!(strict(r"\boxed{1}", "1/2"), Outcome::Unscored);
    }

    #[test]
    fn a_fallback_says_so_and_its_misses_are_no_wrong_answers() {
        let found = by("so we get 62", Some("62"), Rule::TrtmcCpp, false);
        assert_eq!(found.outcome, Outcome::Correct);
        assert_eq!(found.note.as_deref(), Some("by a fallback: step 4 read `62`"));
        let found = by("so we get -3", Some("62"), Rule::TrtmcCpp, false);
        assert_eq!(found.outcome, Outcome::NoAnswer);
        assert_eq!(
            found.note.as_deref(),
            Some("no boxed answer; the fallback of step 4 read `-3`")
        );
        assert_eq!(by("so we get -3", Some("62"), Rule::TrtmcCpp, true).outcome, Outcome::CutOff);
        assert_eq!(
            by("Final answer: 3", Some("62"), Rule::TrtmcCpp, false).outcome,
            Outcome::Wrong
        );
    }

    #[test]
    fn degenerate_text_is_no_right_answer_and_says_where_it_starts() {
        let text = format!("{}{}", "w ".repeat(10), r"\boxed{62} ".repeat(600));
        let extracted = extract(&text, Rule::StrictBoxed);
        let found = degenerate(Stream::Words(&text));
        let completion = Completion {
            gold: Some("62"),
            extracted: &extracted,
            degeneracy: Some(&found),
            stopped: false,
        };
        let judged = judge(completion, Normalise::Number);
        assert_eq!((judged.outcome, judged.would_be_correct), (Outcome::Degenerate, true));
        assert_eq!(
            judged.note.as_deref(),
            Some("degenerate from word 10 of 610 on, repeating every 1")
        );
        let clean = Degeneracy { state: State::Clean, ..found };
        let judged =
            judge(Completion { degeneracy: Some(&clean), ..completion }, Normalise::Number);
        assert_eq!(judged.outcome, Outcome::Correct);
    }

    #[test]
    fn an_earlier_box_is_named_and_not_taken() {
        let found = by(r"\boxed {4} and \boxed{}", Some("4"), Rule::StrictBoxed, false);
        assert_eq!(
            found.note.as_deref(),
            Some("the last box is empty; an earlier box holds `4` and does not count")
        );
    }

    #[test]
    fn words_are_those_of_json() {
        for outcome in Outcome::ALL {
            assert_eq!(serde_json::to_string(&outcome).unwrap(), format!("\"{}\"", outcome.word()));
        }
    }
}
