//! Scores of one file or run, as data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Degeneracy, Normalise, Outcome, Rule};
use crate::stats::Share;

/// One judged row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Question.
    pub id: String,
    /// Which of several runs of the question, where the row says so.
    pub repeat: Option<u64>,
    /// Filter or pass.
    pub filter: String,
    /// Line of the file, or place in the run (from 1).
    pub line: u64,
    /// Gold answer as recorded.
    pub gold: Option<String>,
    /// Answer as read by the rule.
    pub answer: Option<String>,
    /// Step of the rule that read it.
    pub step: Option<u8>,
    /// The step guesses.
    pub fallback: bool,
    /// Outcome.
    pub outcome: Outcome,
    /// Equal to the gold answer, though the text is degenerate.
    pub would_be_correct: bool,
    /// Equal to the gold answer as plain text too.
    pub same_text: bool,
    /// One line, where the outcome needs one.
    pub note: Option<String>,
    /// Right or wrong as the file itself says: its metric, or its own prediction against gold.
    pub recorded: Option<bool>,
    /// Where the text is degenerate: how.
    pub degenerate: Option<Degeneracy>,
    /// Hashes of the prompt and of the document, where recorded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub hashes: BTreeMap<String, String>,
}

/// What the file itself says about right and wrong, beside the recount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedScore {
    /// Name of the metric; `prediction` where a recorded prediction was held against gold.
    pub by: String,
    /// Right ones of the rows that have it.
    pub score: Share,
    /// Ids on which the recount says otherwise.
    pub changes: Vec<String>,
}

/// Score of one filter, or of all rows where there are no filters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FilterScore {
    /// Filter; `pass 1`, ... where a file holds several rows for each document and does not name their filter.
    pub filter: String,
    /// Correct rows of all that could be scored; missing answers, cut-off and degenerate text are not correct.
    pub score: Share,
    /// The same without degenerate rows.
    pub without_degenerate: Share,
    /// Rows by outcome; every outcome is a key.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Correct rows that a fallback of the rule read.
    pub by_fallback: u64,
    /// Correct rows whose answer is the gold answer as plain text: what a comparison without normalisation would count.
    pub same_text: u64,
    /// Answers by the step of the rule that read them.
    pub steps: BTreeMap<u8, u64>,
    /// What the file itself says.
    pub recorded: Option<RecordedScore>,
}

/// Rows of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeated {
    /// Question.
    pub id: String,
    /// Filter, where rows name one.
    pub filter: Option<String>,
    /// Lines: the one that counts, then the others.
    pub lines: Vec<u64>,
}

/// A field of predictions that holds the gold answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoldEcho {
    /// Rows, each with its prediction equal to its gold answer.
    pub rows: u64,
    /// Ids from whose text no rule reads that answer.
    pub contradicted: Vec<String>,
}

/// Scores of one file or run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScoreReport {
    /// Path or name as given.
    pub label: String,
    /// Whose rows: `lm-eval`, `trtmc`, `plain`, `run`, ...
    pub schema: String,
    /// Rows in the file.
    pub rows: u64,
    /// Distinct questions.
    pub documents: u64,
    /// The file or run is whole.
    pub complete: bool,
    /// Rule that read the answers.
    pub rule: Rule,
    /// `declared`, or `default for SCHEMA`.
    pub rule_source: String,
    /// What made two answers equal.
    pub normalise: Normalise,
    /// Scores, filters in order of their first row.
    pub filters: Vec<FilterScore>,
    /// True duplicates: equal rows of one (question, filter); counted once.
    pub duplicates: Vec<Repeated>,
    /// Rows of one (question, filter) that say different things; the first one counts.
    pub conflicts: Vec<Repeated>,
    /// Rows of each document where the filter of a row is unknown.
    pub passes: Option<u64>,
    /// The predictions are the gold answers.
    pub gold_echo: Option<GoldEcho>,
    /// What was read around or assumed, one line each.
    pub remarks: Vec<String>,
    /// Judged rows, in order.
    pub entries: Vec<Entry>,
}

impl ScoreReport {
    /// Rows that could be scored.
    #[must_use]
    pub fn scored(&self) -> u64 {
        self.filters.iter().map(|filter| filter.score.n).sum()
    }
}

impl FilterScore {
    /// Sums up the rows of one filter; `metric` names what `recorded` was read from.
    pub(super) fn of(filter: &str, entries: &[&Entry], metric: Option<&str>) -> Self {
        let mut outcomes: BTreeMap<Outcome, u64> =
            Outcome::ALL.into_iter().map(|one| (one, 0)).collect();
        let mut steps = BTreeMap::new();
        for entry in entries {
            *outcomes.entry(entry.outcome).or_default() += 1;
            if let Some(step) = entry.step {
                *steps.entry(step).or_default() += 1;
            }
        }
        let tally = |outcome: Outcome| outcomes.get(&outcome).copied().unwrap_or_default();
        let n = entries.len() as u64 - tally(Outcome::Unscored);
        let correct: Vec<&&Entry> =
            entries.iter().filter(|one| one.outcome == Outcome::Correct).collect();
        let said: Vec<(&&Entry, bool)> =
            entries.iter().filter_map(|one| Some((one, one.recorded?))).collect();
        let recorded = metric.filter(|_| !said.is_empty()).map(|by| RecordedScore {
            by: by.to_owned(),
            score: Share::of(
                said.iter().filter(|(_, right)| *right).count() as u64,
                said.len() as u64,
            ),
            changes: said
                .iter()
                .filter(|(one, right)| {
                    one.outcome != Outcome::Unscored && *right != (one.outcome == Outcome::Correct)
                })
                .map(|(one, _)| one.id.clone())
                .collect(),
        });
        Self {
            filter: filter.to_owned(),
            score: Share::of(tally(Outcome::Correct), n),
            without_degenerate: Share::of(tally(Outcome::Correct), n - tally(Outcome::Degenerate)),
            by_fallback: correct.iter().filter(|one| one.fallback).count() as u64,
            same_text: correct.iter().filter(|one| one.same_text).count() as u64,
            outcomes,
            steps,
            recorded,
        }
    }
}
