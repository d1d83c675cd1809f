//! What the values of one file are to those of another, and how far they agree on a common scale.

use lockstep_traces::logprobs::Logprob;

use super::pairing::{Row, Tally, measured};
use super::relate::{LogOdds, LogprobMax, Relation, RelationKind};

/// Relative width in which a slope counts as 1, and absolute one in which a shift counts as 0.
const SLOPE_SLACK: f64 = 0.02;
const SHIFT_SLACK: f64 = 0.02;
/// Digits behind the point from which equal text shows equal f32 values of ordinary size.
const EXACT_DECIMALS: u8 = 8;

/// The common candidate that is largest on the left.
fn best(row: &Row<'_>) -> Option<(f64, f64)> {
    row.both.iter().filter_map(measured).max_by(|a, b| a.0.total_cmp(&b.0))
}

/// Slope of one entry from its largest and smallest common candidates; `None` where they do not differ.
fn slope(row: &Row<'_>) -> Option<f64> {
    let top = best(row)?;
    let low = row.both.iter().filter_map(measured).min_by(|a, b| a.0.total_cmp(&b.0))?;
    let spread = top.0 - low.0;
    (spread > 1e-3).then(|| (top.1 - low.1) / spread)
}

/// Tells what the right values are to the left ones; `given` is the temperature that the caller knows.
pub(super) fn relation(rows: &[Row<'_>], tally: &Tally, given: Option<f64>) -> Relation {
    let mut slopes: Vec<f64> = rows.iter().filter_map(slope).collect();
    slopes.sort_by(f64::total_cmp);
    let lost = tally.one_impossible;
    let unknown = |words: &str| Relation {
        kind: RelationKind::Unknown,
        entries: slopes.len(),
        slope: None,
        shift: None,
        temperature: None,
        lost,
        words: words.to_owned(),
    };
    let Some(slope) = slopes.get(slopes.len() / 2).copied() else {
        return unknown(
            "too few common candidates to tell whether both sides write the same quantity",
        );
    };
    // What a shift is, is measured under the slope of all entries.
    let mut shifts: Vec<f64> =
        rows.iter().filter_map(|row| best(row).map(|top| top.1 - slope * top.0)).collect();
    shifts.sort_by(|a, b| a.abs().total_cmp(&b.abs()));
    let shift = shifts.get(shifts.len() / 2).copied().unwrap_or(0.0);
    let level = (slope - 1.0).abs() <= SLOPE_SLACK;
    let same = level && shift.abs() <= SHIFT_SLACK;
    if !same && !follows(rows, slope, given) {
        return unknown("the values follow no common transform, and are compared as they are");
    }
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
        entries: slopes.len(),
        slope: Some(slope),
        shift: shifts.last().copied(),
        temperature: Some(temperature),
        lost,
        words,
    }
}

/// One slope for all entries, each with a shift of its own, explains what is there: in nine entries of ten every candidate
/// lies on its line, and there are more candidates than the slope and the shifts can take up.
fn follows(rows: &[Row<'_>], slope: f64, given: Option<f64>) -> bool {
    let known = given.is_some_and(|t| (t * slope - 1.0).abs() <= SLOPE_SLACK);
    let (mut entries, mut on_line, mut spare) = (0_usize, 0_usize, 0_usize);
    for row in rows {
        let Some(top) = best(row) else { continue };
        let values: Vec<(f64, f64)> = row.both.iter().filter_map(measured).collect();
        spare += values.len() - 1;
        entries += 1;
        let near = |value: &&(f64, f64)| {
            let expected = slope * (value.0 - top.0);
            (value.1 - top.1 - expected).abs() <= SLOPE_SLACK * expected.abs() + 1e-3
        };
        on_line += usize::from(values.iter().filter(near).count() == values.len());
    }
    let enough = spare >= if known { 1 } else { 2 };
    slope > 0.0 && enough && on_line * 10 >= entries * 9
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

/// One unit of the last digit to which both sides print their longest numbers; trailing zeros may be left out of others.
pub(super) fn printed_unit(rows: &[Row<'_>]) -> f64 {
    let both = rows.iter().flat_map(|row| &row.both).filter(|both| measured(both).is_some());
    let longest = both.map(|both| most_digits(both.left, both.right)).max();
    longest.map_or(0.0, |digits| 10_f64.powi(-i32::from(digits)) + 1e-9)
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
