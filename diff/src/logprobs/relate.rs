//! Two files of log-probabilities: do their values mean the same, and how far do they agree.

use std::collections::BTreeMap;

use lockstep_traces::Verdict;
use lockstep_traces::logprobs::{Entry, Logprob, LogprobFile, Part, Sequence, State, TokenName};
use serde::Serialize;

use super::text::rebuilt;

/// Entries of both sides from which a relation of values is told.
const LEAST_ENTRIES: usize = 1;
/// Relative width in which a slope counts as 1, and absolute one in which a shift counts as 0.
const SLOPE_SLACK: f64 = 0.02;
const SHIFT_SLACK: f64 = 0.02;
/// Digits behind the point from which equal text shows equal f32 values of ordinary size.
const EXACT_DECIMALS: u8 = 8;

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

/// One candidate of both sides.
struct Both<'a> {
    token: &'a TokenName,
    left: Logprob,
    right: Logprob,
}

/// Compared entries with their common candidates.
struct Row<'a> {
    sequence: usize,
    entry: usize,
    both: Vec<Both<'a>>,
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
    let relation = relation(&rows, &tally);
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

#[derive(Default)]
struct Tally {
    dependent: usize,
    both_impossible: usize,
    one_impossible: usize,
    one_sided: usize,
    ambiguous: usize,
}

fn paired<'a>(left: &'a [Sequence], right: &'a [Sequence]) -> Vec<(&'a Sequence, &'a Sequence)> {
    let lists = |side: &[Sequence]| side.len() == 1 && side.iter().all(|s| s.part == Part::List);
    if let ([l], [r]) = (left, right)
        && lists(left)
        && lists(right)
    {
        return vec![(l, r)];
    }
    left.iter()
        .filter_map(|l| {
            let same = |r: &&Sequence| {
                (r.record, r.choice, r.part) == (l.record, l.choice, l.part) && r.name == l.name
            };
            right.iter().find(same).map(|r| (l, r))
        })
        .collect()
}

/// Equal by id where both have one, else by bytes or text.
fn same_token(left: &TokenName, right: &TokenName) -> bool {
    match (left.id, right.id) {
        (Some(l), Some(r)) => l == r,
        _ => left.text.is_some() && left.text == right.text,
    }
}

fn pair<'a>(
    index: usize,
    left: &'a Sequence,
    right: &'a Sequence,
    rows: &mut Vec<Row<'a>>,
    tally: &mut Tally,
) -> PairView {
    let list = left.part == Part::List;
    let head = left
        .entries
        .iter()
        .zip(&right.entries)
        .take_while(|(l, r)| list || same_token(&l.token, &r.token))
        .count();
    let longest = left.entries.len().max(right.entries.len());
    let differs = head < longest;
    // The entry at which the tokens part still has the same context: its candidates are comparable, its token is not.
    for at in 0..(head + 1).min(left.entries.len().min(right.entries.len())) {
        if let (Some(l), Some(r)) = (left.entries.get(at), right.entries.get(at)) {
            let both = common(l, r, at < head && !list, tally);
            rows.push(Row { sequence: index, entry: at, both });
        }
    }
    tally.dependent += longest.saturating_sub(head + 1);
    let texts = (rebuilt(&left.entries), rebuilt(&right.entries));
    let text_equal = texts.0.as_ref().zip(texts.1.as_ref()).map(|(l, r)| l == r);
    let total =
        |side: &Sequence| -> f64 { side.entries.iter().filter_map(|e| e.logprob.value()).sum() };
    let full = |side: &Sequence| {
        side.entries
            .iter()
            .skip(usize::from(side.part == Part::Prompt))
            .all(|e| e.logprob.value().is_some())
    };
    PairView {
        record: left.record,
        choice: left.choice,
        part: left.part,
        names: (left.name.clone(), right.name.clone()),
        entries: (left.entries.len(), right.entries.len()),
        first_token: differs.then_some(head),
        text_equal,
        other_tokens: differs && text_equal == Some(true),
        totals: (total(left), total(right)),
        totals_comparable: text_equal == Some(true) && full(left) && full(right) && !list,
    }
}

/// Candidates of both sides, the token itself among them; those that cannot be paired are counted.
fn common<'a>(left: &'a Entry, right: &'a Entry, own: bool, tally: &mut Tally) -> Vec<Both<'a>> {
    let ids = |entry: &Entry| entry.candidates.iter().all(|candidate| candidate.token.id.is_some());
    let by_id = ids(left) && ids(right);
    let (l, r) = (index(left, by_id), index(right, by_id));
    let mut both = Vec::new();
    let take = |token: &'a TokenName, left: Logprob, right: Logprob, tally: &mut Tally| {
        match (left.state, right.state) {
            (State::Measured, State::Measured) => {}
            (State::Impossible, State::Impossible) => tally.both_impossible += 1,
            (State::Measured, State::Impossible) | (State::Impossible, State::Measured) => {
                tally.one_impossible += 1
            }
            _ => {}
        }
        Both { token, left, right }
    };
    for (key, places) in &l {
        match (places.as_slice(), r.get(key).map(Vec::as_slice)) {
            ([l], Some([r])) => {
                if let (Some(l), Some(r)) = (left.candidates.get(*l), right.candidates.get(*r)) {
                    both.push(take(&l.token, l.logprob, r.logprob, tally));
                }
            }
            (_, None) => tally.one_sided += places.len(),
            (many, Some(others)) => tally.ambiguous += many.len().max(others.len()),
        }
    }
    tally.one_sided += r
        .iter()
        .filter(|(key, _)| !l.contains_key(*key))
        .map(|(_, places)| places.len())
        .sum::<usize>();
    let listed = both.iter().any(|both| same_token(both.token, &left.token));
    if own && !listed {
        both.push(take(&left.token, left.logprob, right.logprob, tally));
    }
    both
}

type Key<'a> = (Option<u32>, Option<&'a str>);

fn index(entry: &Entry, by_id: bool) -> BTreeMap<Key<'_>, Vec<usize>> {
    let mut map: BTreeMap<Key<'_>, Vec<usize>> = BTreeMap::new();
    for (place, candidate) in entry.candidates.iter().enumerate() {
        let key = if by_id {
            (candidate.token.id, None)
        } else {
            (None, candidate.token.text.as_deref())
        };
        map.entry(key).or_default().push(place);
    }
    if by_id {
        // The same id given twice is one candidate.
        map.values_mut().for_each(|places| places.truncate(1));
    }
    map
}

fn measured(both: &Both<'_>) -> Option<(f64, f64)> {
    both.left.value().zip(both.right.value())
}

/// Slope and shift of one entry from its largest and smallest common candidates; `None` where they do not differ.
fn line(row: &Row<'_>) -> Option<(f64, f64)> {
    let values: Vec<(f64, f64)> = row.both.iter().filter_map(measured).collect();
    let top = values.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let low = values.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let spread = top.0 - low.0;
    if spread <= 1e-3 {
        return None;
    }
    let slope = (top.1 - low.1) / spread;
    Some((slope, top.1 - slope * top.0))
}

fn relation(rows: &[Row<'_>], tally: &Tally) -> Relation {
    let mut lines: Vec<(f64, f64)> = rows.iter().filter_map(line).collect();
    lines.sort_by(|a, b| a.0.total_cmp(&b.0));
    let lost = tally.one_impossible;
    let unknown = |words: &str| Relation {
        kind: RelationKind::Unknown,
        entries: lines.len(),
        slope: None,
        shift: None,
        temperature: None,
        lost,
        words: words.to_owned(),
    };
    if lines.len() < LEAST_ENTRIES {
        return unknown(
            "too few common candidates to tell whether both sides write the same quantity",
        );
    }
    let Some((slope, _)) = lines.get(lines.len() / 2).copied() else {
        return unknown("no common candidate");
    };
    // What a shift is, is measured under the slope of all entries.
    let shifts = rows.iter().filter_map(|row| {
        let values = row.both.iter().filter_map(measured);
        let top = values.max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(top.1 - slope * top.0)
    });
    let mut shifts: Vec<f64> = shifts.collect();
    shifts.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let shift = shifts.get(shifts.len() / 2).copied().unwrap_or(0.0);
    let level = (slope - 1.0).abs() <= SLOPE_SLACK;
    let temperature = 1.0 / slope;
    let (kind, words) = match (level, shift.abs() <= SHIFT_SLACK) {
        (true, true) => (RelationKind::Same, "both sides write the same quantity".to_owned()),
        (true, false) => (
            RelationKind::Renormalised,
            format!(
                "values are shifted by {shift:.4} nats: one side is normalised over a kept set"
            ),
        ),
        (false, true) => (
            RelationKind::Scaled,
            format!(
                "the right values are the left ones divided by {temperature:.4}: no distribution"
            ),
        ),
        (false, false) => (
            RelationKind::Temperature,
            format!(
                "the right values stand after a temperature of {temperature:.4} relative to the left"
            ),
        ),
    };
    Relation {
        kind,
        entries: lines.len(),
        slope: Some(slope),
        shift: shifts.last().copied(),
        temperature: Some(temperature),
        lost,
        words,
    }
}

fn largest(rows: &[Row<'_>]) -> Option<LogprobMax> {
    let all = rows.iter().flat_map(|row| row.both.iter().map(move |both| (row, both)));
    let deltas = all.filter_map(|(row, both)| {
        let (left, right) = measured(both)?;
        let delta = (left - right).abs();
        let token = both.token.clone();
        Some(LogprobMax { sequence: row.sequence, entry: row.entry, token, left, right, delta })
    });
    deltas.max_by(|a, b| a.delta.total_cmp(&b.delta))
}

fn log_odds(rows: &[Row<'_>], relation: &Relation, given: Option<f64>) -> Option<LogOdds> {
    let temperature = match relation.kind {
        RelationKind::Renormalised => 1.0,
        _ => given.or(relation.temperature)?,
    };
    let (mut compared, mut max_delta) = (0, 0.0_f64);
    for row in rows {
        let values: Vec<(f64, f64)> = row.both.iter().filter_map(measured).collect();
        let Some(top) = values.iter().max_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        for value in &values {
            let delta = ((value.0 - top.0) - (value.1 - top.1) * temperature).abs();
            max_delta = max_delta.max(delta);
            compared += 1;
        }
        compared -= 1;
    }
    let given = given.is_some() || relation.kind == RelationKind::Renormalised;
    (compared > 0).then_some(LogOdds { compared, max_delta, temperature, given })
}

/// One unit of the coarser side's last digit, at the value where that is largest.
fn printed_unit(rows: &[Row<'_>]) -> f64 {
    let both = rows.iter().flat_map(|row| &row.both).filter(|both| measured(both).is_some());
    let least = both.map(|both| most_digits(both.left, both.right)).min();
    // Trailing zeros may be left out of a number, so that the file's digits are those of its longest numbers.
    let longest = rows
        .iter()
        .flat_map(|row| &row.both)
        .filter(|both| measured(both).is_some())
        .map(|both| most_digits(both.left, both.right))
        .max();
    longest.or(least).map_or(0.0, |digits| 10_f64.powi(-i32::from(digits)) + 1e-9)
}

fn most_digits(left: Logprob, right: Logprob) -> u8 {
    left.decimals.min(right.decimals)
}

/// Every pair of values is equal as f64, and some were printed with digits enough to tell f32 values apart.
fn exact(rows: &[Row<'_>]) -> bool {
    let mut both =
        rows.iter().flat_map(|row| &row.both).filter(|both| measured(both).is_some()).peekable();
    let digits = rows
        .iter()
        .flat_map(|row| &row.both)
        .any(|both| most_digits(both.left, both.right) >= EXACT_DECIMALS);
    both.peek().is_some()
        && digits
        && both.all(|both| both.left.written.to_bits() == both.right.written.to_bits())
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
