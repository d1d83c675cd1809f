//! Outcome of each row, and two configurations over the same rows.

use std::collections::BTreeMap;

use lockstep_diff::answers::{Completion, Outcome, degenerate_text, extract, judge};
use lockstep_diff::stats::{Bootstrap, Case, Names, PairedScores, Share};
use lockstep_traces::{FinishReason, SampleRow};
use serde::Serialize;

use crate::cli::ScoringArgs;

/// One completion, scored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scored {
    pub(super) answer: Option<String>,
    pub(super) outcome: Outcome,
    pub(super) note: Option<String>,
}

/// Outcomes of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Scores {
    /// Rule that read the answers.
    pub(super) rule: String,
    /// What made two answers equal.
    pub(super) normalise: String,
    /// Rows by outcome; every outcome is listed.
    pub(super) outcomes: BTreeMap<&'static str, u64>,
    /// Correct rows of all that have a gold answer, with their 95 % interval; a row without an answer is not correct.
    pub(super) correct: Share,
}

/// Scores one completion by the declared rules.
pub(super) fn score(row: &SampleRow, how: &ScoringArgs) -> Scored {
    let text = row.text.as_deref().unwrap_or_default();
    let extracted = extract(text, how.answer_rule);
    let degeneracy = degenerate_text(Some(&row.generated_ids), row.text.as_deref());
    let judged = judge(
        Completion {
            gold: row.gold.as_deref(),
            extracted: &extracted,
            degeneracy: degeneracy.as_ref(),
            stopped: matches!(row.finish, FinishReason::Length | FinishReason::CacheFull),
        },
        how.normalise,
    );
    Scored { answer: extracted.answer, outcome: judged.outcome, note: judged.note }
}

impl Scores {
    pub(super) fn of(scored: &[Scored], how: &ScoringArgs) -> Self {
        let count =
            |outcome: Outcome| scored.iter().filter(|one| one.outcome == outcome).count() as u64;
        let asked = scored.len() as u64 - count(Outcome::Unscored);
        Self {
            rule: how.answer_rule.slug().to_owned(),
            normalise: how.normalise.to_string(),
            outcomes: Outcome::ALL
                .map(|outcome| (outcome.word(), count(outcome)))
                .into_iter()
                .collect(),
            correct: Share::of(count(Outcome::Correct), asked),
        }
    }
}

/// One side of a pairing: name, and each sample that was scored, correct or not.
pub(super) type Side<'a> = (&'a str, BTreeMap<&'a str, bool>);

/// Pairs two configurations over the samples that both have.
pub(super) fn paired(left: &Side<'_>, right: &Side<'_>) -> PairedScores {
    let names = Names { what: "answers", left: left.0, right: right.0 };
    let cases: Vec<Case<'_>> = left
        .1
        .iter()
        .filter_map(|(id, left)| Some(Case { prompt: id, left: *left, right: *right.1.get(id)? }))
        .collect();
    let alone = |one: &Side<'_>, other: &Side<'_>| {
        one.1.keys().filter(|id| !other.1.contains_key(*id)).count() as u64
    };
    let (left_only, right_only) = (alone(left, right), alone(right, left));
    PairedScores::of(names, &cases, Bootstrap::default()).unpaired(left_only, right_only)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_diff::answers::{Normalise, Rule};

    const HOW: ScoringArgs =
        ScoringArgs { answer_rule: Rule::StrictBoxed, normalise: Normalise::Number };

    fn row(text: &str, gold: Option<&str>, finish: FinishReason) -> SampleRow {
        SampleRow {
            text: Some(text.to_owned()),
            gold: gold.map(str::to_owned),
            generated_ids: vec![1, 2, 3],
            finish,
            ..SampleRow::bare("x")
        }
    }

    #[test]
    fn outcomes_are_counted_and_rows_without_gold_are_in_no_share() {
        let rows = [
            row(r"\boxed{07}", Some("7"), FinishReason::Eos),
            row(r"\boxed{8}", Some("7"), FinishReason::Eos),
            row("no box", Some("7"), FinishReason::Eos),
            row("no box", Some("7"), FinishReason::Length),
            row(r"\boxed{7}", None, FinishReason::Eos),
        ];
        let scored: Vec<Scored> = rows.iter().map(|row| score(row, &HOW)).collect();
        assert_eq!(scored[0].answer.as_deref(), Some("07"));
        let scores = Scores::of(&scored, &HOW);
        let counts = ["correct", "wrong", "no-answer", "cut-off", "unscored"]
            .map(|word| scores.outcomes[word]);
        assert_eq!(counts, [1, 1, 1, 1, 1]);
        assert_eq!((scores.correct.hits, scores.correct.n), (1, 4));
    }

    #[test]
    fn only_samples_of_both_sides_are_paired() {
        let left: Side<'_> =
            ("dense", [("a", true), ("b", true), ("c", false), ("d", true)].into());
        let right: Side<'_> =
            ("trt", [("a", true), ("b", false), ("c", false), ("e", true)].into());
        let pair = paired(&left, &right);
        assert_eq!(
            (pair.n, pair.both, pair.left_only, pair.right_only, pair.neither),
            (3, 1, 1, 0, 1)
        );
        assert_eq!((pair.left_unpaired, pair.right_unpaired), (1, 1));
    }
}
