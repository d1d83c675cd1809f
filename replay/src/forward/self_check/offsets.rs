//! Rows against positions: is every token fed once, and in its place?

use lockstep_traces::{Cause, Location, StepRow};
use serde_json::json;

use super::{Replayed, Tally, figure};
use crate::forward::recording::Recording;

/// How a count of rows departs from what positions and compactions ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Exact,
    Constant(i64),
    /// Zero before this position, the same amount from it on.
    From(u32, i64),
    /// First position that departs, and by how much.
    Irregular(u32, i64),
}

fn shape(shifts: &[(u32, i64)]) -> Shape {
    let Some(start) = shifts.iter().position(|(_, shift)| *shift != 0) else {
        return Shape::Exact;
    };
    let (position, by) = shifts[start];
    if shifts[start..].iter().any(|(_, shift)| *shift != by) {
        Shape::Irregular(position, by)
    } else if start == 0 {
        Shape::Constant(by)
    } else {
        Shape::From(position, by)
    }
}

/// The mistake that a shape is known to come from. `first` is the first position looked at.
fn cause(shape: Shape, prompt_len: usize, first: u32) -> Option<Cause> {
    let prompt = i64::try_from(prompt_len).unwrap_or(i64::MAX);
    match shape {
        Shape::Constant(by) if by == prompt => Some(Cause::PromptFedTwice),
        Shape::Constant(1) if i64::from(first) == prompt => Some(Cause::LastPromptRowFedAgain),
        Shape::From(position, 1) if i64::from(position) == prompt => {
            Some(Cause::LastPromptRowFedAgain)
        }
        _ => None,
    }
}

fn describe(shape: Shape, whose: &str) -> String {
    match shape {
        Shape::Exact => format!("{whose} rows stand where they should"),
        Shape::Constant(by) => format!("{whose} rows_before is ahead of its position: offset {by}"),
        Shape::From(position, by) => {
            format!("{whose} rows_before is off by {by} from position {position} on")
        }
        Shape::Irregular(position, by) => {
            format!(
                "{whose} rows_before departs from its position irregularly, first at {position} by {by}"
            )
        }
    }
}

/// Checks the replay's own accounting, then the recording's, then one against the other.
///
/// Only rows before the first compaction decide: a compaction keeps a fixed number of rows and so hides an offset.
pub(super) fn check(
    recording: &Recording,
    replayed: &Replayed,
    rows: &[StepRow],
    exact: bool,
    tally: &mut Tally,
) {
    let sample = recording.sample_id.as_str();
    let own_end = replayed.first_event(sample).unwrap_or(u32::MAX);
    let own: Vec<(u32, i64)> = rows
        .iter()
        .map(|row| {
            let expected = replayed.expected_rows(row);
            (row.position, i64::from(row.rows_before) - expected)
        })
        .collect();
    report(recording, "the replay's", &own, own_end, tally);
    tally.compared += rows.len() as u64;
    tally.different += own.iter().filter(|(_, shift)| *shift != 0).count() as u64;
    if tally.findings.is_empty() {
        rotary(recording, rows, tally);
    }
    if !exact {
        tally.limits.push(
            "the recording's row counts are rounded or not its own and prove nothing".to_owned(),
        );
        return;
    }
    let traced: Vec<(u32, i64)> = (0..)
        .zip(&recording.rows)
        .filter_map(|(position, row)| {
            let found = i64::from(row.trace?.rows_before);
            let expected = recording.expected_rows(position);
            // Programs differ in whether a step that compacts first reports its rows before or after that.
            let before = recording
                .events
                .iter()
                .find(|event| event.before_forward && event.absolute_position == position);
            let accepted = before.is_some_and(|event| found == i64::from(event.rows_before));
            Some((position, if accepted { 0 } else { found - expected }))
        })
        .collect();
    let end = recording.events.first().map_or(u32::MAX, |event| event.absolute_position);
    report(recording, "the recording's", &traced, end, tally);
}

fn report(recording: &Recording, whose: &str, shifts: &[(u32, i64)], end: u32, tally: &mut Tally) {
    let early: Vec<(u32, i64)> =
        shifts.iter().copied().filter(|(position, _)| *position < end).collect();
    let (looked_at, shape_found) = match shape(&early) {
        Shape::Exact => (shifts, shape(shifts)),
        found => (&early[..], found),
    };
    let (Shape::Constant(by) | Shape::From(_, by) | Shape::Irregular(_, by)) = shape_found else {
        return;
    };
    let first = looked_at.first().map_or(0, |(position, _)| *position);
    let position = match shape_found {
        Shape::From(position, _) | Shape::Irregular(position, _) => position,
        _ => first,
    };
    let cause = cause(shape_found, recording.prompt_len, first);
    let title = match cause {
        Some(cause) => format!("{} ({})", cause.title(), describe(shape_found, whose)),
        None => describe(shape_found, whose),
    };
    let location = Location {
        sample_id: Some(recording.sample_id.clone()),
        position: Some(position),
        stage: Some("rows_before".to_owned()),
        ..Location::default()
    };
    let evidence = vec![
        figure("offset", by),
        figure("prompt_len", recording.prompt_len),
        figure("rows_looked_at", looked_at.len()),
        figure("rows_off", json!(looked_at.iter().filter(|(_, shift)| *shift != 0).count())),
    ];
    tally.finding(cause, title, location, evidence);
}

/// The rotary index of each replayed row must be its position.
fn rotary(recording: &Recording, rows: &[StepRow], tally: &mut Tally) {
    let shifts: Vec<(u32, i64)> = rows
        .iter()
        .filter_map(|row| {
            Some((row.position, i64::from(row.rope_index?) - i64::from(row.position)))
        })
        .collect();
    let found = shape(&shifts);
    let (Shape::Constant(by) | Shape::From(_, by) | Shape::Irregular(_, by)) = found else {
        return;
    };
    let first = shifts.iter().find(|(_, shift)| *shift != 0).map(|(position, _)| *position);
    let location = Location {
        sample_id: Some(recording.sample_id.clone()),
        position: first,
        stage: Some("rope_index".to_owned()),
        ..Location::default()
    };
    let title = format!("the replay's rotary index is not the position: offset {by}");
    tally.finding(None, title, location, vec![figure("offset", by)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shifts(values: &[i64]) -> Vec<(u32, i64)> {
        (0..).zip(values.iter().copied()).collect()
    }

    #[test]
    fn shifts_are_told_apart() {
        assert_eq!(shape(&shifts(&[0, 0])), Shape::Exact);
        assert_eq!(shape(&shifts(&[7, 7])), Shape::Constant(7));
        assert_eq!(shape(&shifts(&[0, 0, 1, 1])), Shape::From(2, 1));
        assert_eq!(shape(&shifts(&[0, 1, 2])), Shape::Irregular(1, 1));
    }

    #[test]
    fn only_the_known_shapes_are_named() {
        assert_eq!(cause(Shape::Constant(7), 7, 0), Some(Cause::PromptFedTwice));
        assert_eq!(cause(Shape::Constant(6), 7, 0), None);
        assert_eq!(cause(Shape::From(7, 1), 7, 0), Some(Cause::LastPromptRowFedAgain));
        assert_eq!(cause(Shape::From(6, 1), 7, 0), None);
        assert_eq!(cause(Shape::Constant(1), 7, 7), Some(Cause::LastPromptRowFedAgain));
        assert!(describe(Shape::Constant(6), "the replay's").contains("offset 6"));
    }
}
