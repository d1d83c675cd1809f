//! Rows in, scores out: one row at a time, so that texts need not stay in memory.

use std::collections::BTreeMap;

use lockstep_traces::answers::{AnswerRow, AnswerSource, Schema};

use super::repeats::{self, Held};
use super::score::{Entry, FilterScore, GoldEcho, ScoreReport};
use super::{
    Completion, Extracted, Found, Normalise, Outcome, Rule, State, compare, degenerate_text,
    extract, judge,
};

/// How to score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScoreOptions {
    /// Rule; without one `recorded` for lm-eval's rows and for rows without a text, else `strict-boxed`.
    pub rule: Option<Rule>,
    /// What makes two answers equal.
    pub normalise: Normalise,
}

/// Name of the one filter of rows that have none.
pub(super) const ALL_ROWS: &str = "all rows";

/// Longest answer that is kept, characters.
const KEPT: usize = 2000;

/// An answer as it is kept: a longer one is cut and ends in the hash of the whole, so that unequal ones stay unequal.
fn bounded(answer: String) -> String {
    match answer.char_indices().nth(KEPT) {
        None => answer,
        Some((at, _)) => {
            let hash = lockstep_traces::hash::sha256_hex(answer.as_bytes());
            format!("{}... (sha256 {hash})", answer.get(..at).unwrap_or_default())
        }
    }
}

/// A row of log-probabilities has no answer to read: its metric says what it is.
fn by_metric(right: Option<bool>) -> (Outcome, Option<String>) {
    let outcome = match right {
        Some(true) => Outcome::Correct,
        Some(false) => Outcome::Wrong,
        None => Outcome::Unscored,
    };
    (
        outcome,
        (outcome == Outcome::Unscored).then(|| "the recorded metric is neither 0 nor 1".to_owned()),
    )
}

/// Judges rows as they come.
#[derive(Debug)]
pub struct Scorer {
    options: ScoreOptions,
    rule: Option<Rule>,
    held: Vec<Held>,
    metric: Option<String>,
    rules: BTreeMap<String, u64>,
    /// Rows whose prediction is the gold answer, and those of them whose text says otherwise.
    echoes: (u64, Vec<String>),
    fractions: u64,
}

impl Scorer {
    /// Nothing scored yet.
    #[must_use]
    pub fn new(options: ScoreOptions) -> Self {
        Self {
            options,
            rule: None,
            held: Vec::new(),
            metric: None,
            rules: BTreeMap::new(),
            echoes: (0, Vec::new()),
            fractions: 0,
        }
    }

    /// Judges one row.
    pub fn push(&mut self, row: AnswerRow) {
        let rule = *self.rule.get_or_insert_with(|| {
            let recorded = row.schema.is_lm_eval() || row.text.is_none();
            self.options.rule.unwrap_or(if recorded { Rule::Recorded } else { Rule::StrictBoxed })
        });
        if let Some(name) = &row.answer_rule {
            *self.rules.entry(name.clone()).or_default() += 1;
        }
        let source = if rule == Rule::Recorded { row.answer.as_ref() } else { row.text.as_ref() };
        let missing = Extracted { found: Found::None, ..extract("", rule) };
        let extracted = source.map_or(missing, |text| extract(text, rule));
        let degeneracy = degenerate_text(row.tokens.as_deref(), row.text.as_deref());
        let completion = Completion {
            gold: row.gold.as_deref(),
            extracted: &extracted,
            degeneracy: degeneracy.as_ref(),
            stopped: row.stopped,
        };
        let mut judged = judge(completion, self.options.normalise);
        let recorded = self.recorded(&row, rule);
        if source.is_none() && rule != Rule::Recorded && judged.outcome != Outcome::Unscored {
            judged.outcome = Outcome::Unscored;
            judged.note = Some("the row has no text to read".to_owned());
        }
        if rule == Rule::Recorded && row.answer.is_none() && row.metric.is_some() {
            (judged.outcome, judged.note) = by_metric(recorded);
        }
        self.echo(&row);
        let comparison = judged.comparison.as_ref();
        let entry = Entry {
            id: row.id,
            repeat: row.repeat,
            filter: row.filter.clone().unwrap_or_else(|| ALL_ROWS.to_owned()),
            line: row.line as u64,
            gold: row.gold.map(bounded),
            answer: extracted.answer.map(bounded),
            step: extracted.step,
            fallback: extracted.fallback,
            outcome: judged.outcome,
            would_be_correct: judged.would_be_correct,
            same_text: comparison.is_some_and(|one| one.same_text),
            note: judged.note,
            recorded,
            degenerate: degeneracy.filter(|found| found.state == State::Degenerate),
            hashes: row.hashes,
        };
        self.held.push(Held { entry, filter: row.filter, content: row.content });
    }

    /// Right or wrong as the row says: its metric, or its prediction where that was not what was judged.
    fn recorded(&mut self, row: &AnswerRow, rule: Rule) -> Option<bool> {
        if let Some((name, value)) = &row.metric {
            self.metric.get_or_insert_with(|| name.clone());
            let right = value.total_cmp(&1.0).is_eq();
            if !right && !value.total_cmp(&0.0).is_eq() {
                self.fractions += 1;
                return None;
            }
            return Some(right);
        }
        if rule == Rule::Recorded {
            return None;
        }
        let gold = row.gold.as_ref()?;
        let equal = match &row.answer {
            Some(answer) => compare(gold, answer, self.options.normalise).equal?,
            None if row.schema.has_predictions() => false,
            None => return None,
        };
        self.metric.get_or_insert_with(|| "prediction".to_owned());
        Some(equal)
    }

    /// A prediction equal to gold is an echo if nothing that could be read from the text is that answer.
    fn echo(&mut self, row: &AnswerRow) {
        let (Some(gold), Some(answer), Some(text)) = (&row.gold, &row.answer, &row.text) else {
            return;
        };
        if gold.trim() != answer.trim() {
            return;
        }
        self.echoes.0 += 1;
        let strict = extract(text, Rule::StrictBoxedFbox);
        let read = [strict.answer, strict.earlier, extract(text, Rule::TrtmcCpp).answer];
        let agrees = |one: &String| compare(gold, one, Normalise::Number).equal == Some(true);
        if !read.iter().flatten().any(agrees) {
            self.echoes.1.push(row.id.clone());
        }
    }

    /// Scores what was pushed.
    #[must_use]
    pub fn finish(self, label: impl Into<String>, source: &AnswerSource) -> ScoreReport {
        let mut remarks = source.remarks.clone();
        if source.schema == Schema::TrtmcGoldEcho {
            remarks.push(
                "`answer` in these rows is the gold answer; they hold no prediction".to_owned(),
            );
        }
        for (name, count) in &self.rules {
            remarks.push(format!("{count} recorded answers were read by `{name}`"));
        }
        if self.fractions > 0 {
            remarks.push(format!(
                "the recorded metric of {} rows is neither 0 nor 1 and is left out",
                self.fractions
            ));
        }
        let rows = self.held.len() as u64;
        let whole =
            self.echoes.0 == rows && !self.echoes.1.is_empty() && !source.schema.is_lm_eval();
        let gold_echo = whole.then_some(GoldEcho { rows, contradicted: self.echoes.1 });
        let sorted = if source.schema == Schema::LmEvalNoFilter {
            repeats::by_pass(self.held)
        } else {
            repeats::by_key(self.held)
        };
        remarks.extend(sorted.remarks);
        let mut order: Vec<&str> = Vec::new();
        let mut groups: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in &sorted.entries {
            if !order.contains(&entry.filter.as_str()) {
                order.push(&entry.filter);
            }
            groups.entry(&entry.filter).or_default().push(entry);
        }
        let filters = order
            .iter()
            .filter_map(|name| {
                Some(FilterScore::of(name, groups.get(name)?, self.metric.as_deref()))
            })
            .collect();
        let mut ids: Vec<&str> = sorted.entries.iter().map(|entry| entry.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        ScoreReport {
            label: label.into(),
            schema: source.schema.slug().to_owned(),
            rows,
            documents: ids.len() as u64,
            complete: !source.cut,
            rule: self.rule.or(self.options.rule).unwrap_or(Rule::Recorded),
            rule_source: match self.options.rule {
                Some(_) => "declared".to_owned(),
                None => format!("default for {}", source.schema.slug()),
            },
            normalise: self.options.normalise,
            filters,
            duplicates: sorted.duplicates,
            conflicts: sorted.conflicts,
            passes: sorted.passes,
            gold_echo,
            remarks,
            entries: sorted.entries,
        }
    }
}
