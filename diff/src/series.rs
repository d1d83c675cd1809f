//! Curves over positions, thinned so that extremes stay.

use std::collections::BTreeSet;

use lockstep_traces::EventRow;

use crate::report::{CompactionMark, Series, SeriesPoint};

/// Most points of a curve.
pub(crate) const MOST_POINTS: usize = 2000;

/// Thins `points` to at most [`MOST_POINTS`]: of every stretch the row of the largest difference and the rows of the
/// smallest margins stay, and so do the first and the last row and those in `keep` (up to 20).
pub(crate) fn thin(points: Vec<SeriesPoint>, keep: &[u32]) -> Series {
    let rows = points.len() as u64;
    if points.len() <= MOST_POINTS {
        return Series { rows, points, ..Series::default() };
    }
    const KEPT: usize = 20;
    let stretches = (MOST_POINTS - KEPT - 2) / 3;
    let length = points.len().div_ceil(stretches);
    let mut chosen: BTreeSet<usize> = BTreeSet::from([0, points.len() - 1]);
    for (stretch, part) in points.chunks(length).enumerate() {
        let picks = [
            extreme(part, |point| point.max_diff),
            extreme(part, |point| point.left_margin.map(|margin| -margin)),
            extreme(part, |point| point.right_margin.map(|margin| -margin)),
        ];
        chosen.extend(picks.into_iter().flatten().map(|at| stretch * length + at));
    }
    for position in keep.iter().take(KEPT) {
        if let Ok(at) = points.binary_search_by_key(position, |point| point.position) {
            chosen.insert(at);
        }
    }
    let points = chosen.into_iter().filter_map(|at| points.get(at).cloned()).collect();
    Series { rows, points, ..Series::default() }
}

/// Compactions as marks, from the event table.
pub(crate) fn marks<'a>(events: impl Iterator<Item = &'a EventRow>) -> Vec<CompactionMark> {
    events
        .take(MOST_POINTS)
        .map(|event| CompactionMark {
            position: event.absolute_position.saturating_sub(1),
            ordinal: event.ordinal,
            rows_before: event.rows_before,
            rows_after: event.rows_after,
        })
        .collect()
}

fn extreme(points: &[SeriesPoint], value: impl Fn(&SeriesPoint) -> Option<f64>) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (at, point) in points.iter().enumerate() {
        if let Some(value) = value(point)
            && best.is_none_or(|(_, largest)| value > largest)
        {
            best = Some((at, value));
        }
    }
    best.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(position: u32, diff: f64) -> SeriesPoint {
        SeriesPoint {
            position,
            left_margin: Some(f64::from(position % 97) + 1.0),
            right_margin: Some(2.0),
            max_diff: Some(diff),
            left_rows: Some(position),
            right_rows: Some(position),
            dependent: false,
        }
    }

    #[test]
    fn a_long_curve_keeps_its_largest_difference_its_ends_and_the_rows_asked_for() {
        let mut points: Vec<SeriesPoint> = (0..40_000).map(|at| point(at, 0.25)).collect();
        points[31_234] = point(31_234, 7.5);
        let series = thin(points, &[12_345]);
        assert!(series.points.len() <= MOST_POINTS, "{}", series.points.len());
        assert_eq!(series.rows, 40_000);
        let at = |position| series.points.iter().find(|point| point.position == position);
        assert_eq!(at(31_234).unwrap().max_diff, Some(7.5));
        assert!(at(0).is_some() && at(39_999).is_some() && at(12_345).is_some());
        assert!(series.points.windows(2).all(|two| two[0].position < two[1].position));
    }

    #[test]
    fn a_short_curve_is_left_as_it_is() {
        let series = thin((0..10).map(|at| point(at, 0.0)).collect(), &[]);
        assert_eq!(series.points.len(), 10);
    }
}
