//! What the values of one file are to those of another, and how far they agree on a common scale.

use lockstep_traces::logprobs::Logprob;

use super::pairing::{Row, Tally, measured};
use super::relate::{LogOdds, LogprobMax, Relation, RelationKind};

/// Entries of both sides from which a relation of values is told.
const LEAST_ENTRIES: usize = 1;
/// Relative width in which a slope counts as 1, and absolute one in which a shift counts as 0.
const SLOPE_SLACK: f64 = 0.02;
const SHIFT_SLACK: f64 = 0.02;
/// Digits behind the point from which equal text shows equal f32 values of ordinary size.
const EXACT_DECIMALS: u8 = 8;

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

pub(super) fn relation(rows: &[Row<'_>], tally: &Tally) -> Relation {
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

pub(super) fn largest(rows: &[Row<'_>]) -> Option<LogprobMax> {
    let all = rows.iter().flat_map(|row| row.both.iter().map(move |both| (row, both)));
    let deltas = all.filter_map(|(row, both)| {
        let (left, right) = measured(both)?;
        let delta = (left - right).abs();
        let token = both.token.clone();
        Some(LogprobMax { sequence: row.sequence, entry: row.entry, token, left, right, delta })
    });
    deltas.max_by(|a, b| a.delta.total_cmp(&b.delta))
}

pub(super) fn log_odds(
    rows: &[Row<'_>],
    relation: &Relation,
    given: Option<f64>,
) -> Option<LogOdds> {
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
pub(super) fn printed_unit(rows: &[Row<'_>]) -> f64 {
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
pub(super) fn exact(rows: &[Row<'_>]) -> bool {
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
