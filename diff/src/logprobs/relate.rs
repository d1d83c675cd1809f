//! Two files of log-probabilities: do their values mean the same, and how far do they agree.

use lockstep_traces::Verdict;
use lockstep_traces::logprobs::{LogprobFile, Part, TokenName};
use serde::Serialize;

use super::pairing::{Tally, measured, pair, paired};
use super::relation::{exact, largest, log_odds, printed_unit, relation};

/// How two files are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CompareOptions {
    /// Temperature that the right side's values are known to stand after.
    pub temperature: Option<f64>,
    /// Largest difference that counts as noise; one unit of the last printed digit without it.
    pub tolerance: Option<f64>,
}

/// What the right values are to the left ones, from candidates that both list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RelationKind {
    /// The same quantity.
    Same,
    /// Multiplied and shifted: the right stands after another temperature, normalised.
    Temperature,
    /// Multiplied and not shifted: log-probabilities divided by a temperature, no distribution.
    Scaled,
    /// Shifted by an amount of its own at each entry: one side is normalised over a kept set.
    Renormalised,
    /// Too few common candidates to say; the same quantity is taken.
    Unknown,
}

/// The relation with the figures that show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Relation {
    /// What it is.
    pub kind: RelationKind,
    /// Entries with at least two common candidates of different value.
    pub entries: usize,
    /// Median over entries of the right's spread over the left's.
    pub slope: Option<f64>,
    /// Largest shift that is left over, in nats.
    pub shift: Option<f64>,
    /// Temperature of the right side relative to the left: `1 / slope`.
    pub temperature: Option<f64>,
    /// Candidates measured on one side that the other says cannot come.
    pub lost: usize,
    /// One line for people.
    pub words: String,
}

/// Where the largest difference lies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogprobMax {
    /// Sequence, counted over the pairs.
    pub sequence: usize,
    /// Entry.
    pub entry: usize,
    /// Token.
    pub token: TokenName,
    /// Left.
    pub left: f64,
    /// Right.
    pub right: f64,
    /// `|left - right|`.
    pub delta: f64,
}

/// Differences of candidates after both sides were set to the left's temperature and taken relative to the entry's best
/// common candidate: what remains comparable where normalisers are not.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogOdds {
    /// Differences.
    pub compared: usize,
    /// Largest.
    pub max_delta: f64,
    /// Temperature by which the right was multiplied.
    pub temperature: f64,
    /// True where the temperature was given, false where it was read off the values themselves.
    pub given: bool,
}

/// One pair of sequences.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairView {
    /// Record.
    pub record: usize,
    /// Choice.
    pub choice: u64,
    /// Part.
    pub part: Part,
    /// Name of the left and of the right list, where they have one.
    pub names: (Option<String>, Option<String>),
    /// Entries on the left and on the right.
    pub entries: (usize, usize),
    /// First entry whose token differs.
    pub first_token: Option<usize>,
    /// Texts put together from the entries are equal; `null` where a side has none.
    pub text_equal: Option<bool>,
    /// The same text in other tokens: totals are comparable, entries are not.
    pub other_tokens: bool,
    /// Sums of the measured log-probabilities of the tokens.
    pub totals: (f64, f64),
    /// The sums are over the same text, fully measured on both sides.
    pub totals_comparable: bool,
}

/// Answer of a comparison of two files of log-probabilities.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogprobDiff {
    /// Left file.
    pub left: String,
    /// Right file.
    pub right: String,
    /// Pairs of sequences.
    pub pairs: Vec<PairView>,
    /// Sequences without a partner.
    pub unpaired: usize,
    /// What the right values are to the left ones.
    pub relation: Relation,
    /// Entries whose context is equal, and whose values were held against each other.
    pub compared: usize,
    /// Entries behind the first different token: not compared.
    pub dependent: usize,
    /// Log-probabilities measured on both sides.
    pub values: usize,
    /// Largest difference, where the values mean the same.
    pub max_delta: Option<LogprobMax>,
    /// Values impossible on both sides: equal in that, and no difference is taken.
    pub both_impossible: usize,
    /// Values that one side measured and the other says cannot come.
    pub one_impossible: usize,
    /// Candidates that only one side lists: known to be smaller than the least listed, no more.
    pub one_sided: usize,
    /// Candidates whose name stands twice on a side, and which cannot be paired.
    pub ambiguous: usize,
    /// Differences that survive another temperature or normaliser.
    pub log_odds: Option<LogOdds>,
    /// What this does not show, one line each.
    pub limits: Vec<String>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line for people.
    pub summary: String,
}

/// Compares two files. Sequences are paired by record, choice and part; lists by their place.
#[must_use]
pub fn compare(
    (left_name, left): (&str, &LogprobFile),
    (right_name, right): (&str, &LogprobFile),
    options: CompareOptions,
) -> LogprobDiff {
    let mut tally = Tally::default();
    let mut rows = Vec::new();
    let mut pairs = Vec::new();
    let partners = paired(&left.sequences, &right.sequences);
    for (index, (l, r)) in partners.iter().enumerate() {
        pairs.push(pair(index, l, r, &mut rows, &mut tally));
    }
    let relation = relation(&rows, &tally, options.temperature);
    let unpaired = left.sequences.len() + right.sequences.len() - 2 * pairs.len();
    let mut answer = LogprobDiff {
        left: left_name.to_owned(),
        right: right_name.to_owned(),
        unpaired,
        compared: rows.len(),
        dependent: tally.dependent,
        values: rows
            .iter()
            .flat_map(|row| &row.both)
            .filter(|both| measured(both).is_some())
            .count(),
        max_delta: None,
        both_impossible: tally.both_impossible,
        one_impossible: tally.one_impossible,
        one_sided: tally.one_sided,
        ambiguous: tally.ambiguous,
        log_odds: None,
        limits: limits(left, right, &tally),
        verdict: Verdict::Identical,
        summary: String::new(),
        pairs,
        relation,
    };
    let plain = matches!(answer.relation.kind, RelationKind::Same | RelationKind::Unknown);
    if plain {
        answer.max_delta = largest(&rows);
    } else {
        answer.log_odds = log_odds(&rows, &answer.relation, options.temperature);
    }
    let tolerance = options.tolerance.unwrap_or_else(|| printed_unit(&rows));
    (answer.verdict, answer.summary) = judge(&answer, tolerance, exact(&rows));
    answer
}

fn limits(left: &LogprobFile, right: &LogprobFile, tally: &Tally) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (side, file) in [("left", left), ("right", right)] {
        lines.extend(file.cannot().into_iter().map(|line| format!("{side}: {line}")));
    }
    if tally.one_sided > 0 {
        lines.push(format!(
            "{} candidates stand on one side only: they are below the other side's least, and no difference is known",
            tally.one_sided
        ));
    }
    if tally.both_impossible > 0 {
        lines.push(format!(
            "{} values are impossible on both sides, in whatever spelling: no difference is taken between them",
            tally.both_impossible
        ));
    }
    lines
}

/// From what was found to a verdict.
fn judge(answer: &LogprobDiff, tolerance: f64, exact: bool) -> (Verdict, String) {
    let incomparable = |why: String| (Verdict::Incomparable { why: why.clone() }, why);
    if let Some(pair) = answer.pairs.iter().find(|pair| pair.other_tokens) {
        return incomparable(format!(
            "the same text in other tokens ({} against {}): per-token values are not comparable, the total log-likelihood is ({:.6} against {:.6})",
            pair.entries.0, pair.entries.1, pair.totals.0, pair.totals.1
        ));
    }
    if answer.values == 0 {
        return incomparable("no value is measured on both sides: nothing was compared".to_owned());
    }
    if !matches!(answer.relation.kind, RelationKind::Same | RelationKind::Unknown) {
        let odds = answer.log_odds.as_ref().map_or_else(String::new, |odds| {
            format!(
                "; on one scale {} log-odds differ by at most {:.6}",
                odds.compared, odds.max_delta
            )
        });
        let lost = if answer.relation.lost > 0 {
            format!(
                "; {} ids are lost on one side, so that it cannot be brought to the other's convention",
                answer.relation.lost
            )
        } else {
            String::new()
        };
        return incomparable(format!("{}{odds}{lost}", answer.relation.words));
    }
    if let Some(at) = answer.pairs.iter().find_map(|pair| pair.first_token) {
        return (Verdict::Diverged, format!("the tokens part at entry {at}"));
    }
    let delta = answer.max_delta.as_ref().map_or(0.0, |max| max.delta);
    if delta > tolerance {
        return (
            Verdict::Diverged,
            format!("values differ by up to {delta:.6}, more than {tolerance:.2e}"),
        );
    }
    if answer.one_impossible > 0 {
        let what = format!("{} values are impossible on one side only", answer.one_impossible);
        return (Verdict::Diverged, what);
    }
    if answer.unpaired > 0 {
        return incomparable(format!("{} sequences have no partner", answer.unpaired));
    }
    if exact {
        return (Verdict::Identical, format!("{} values are equal", answer.values));
    }
    (
        Verdict::WithinNoise,
        format!("{} values are equal as printed, or within {tolerance:.2e}", answer.values),
    )
}
