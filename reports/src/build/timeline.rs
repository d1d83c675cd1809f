//! Rows held over positions: the bends of the line, and nothing between them.

use lockstep_diff::report::{CompactionMark, SampleDiff};
use lockstep_traces::EventRow;
use lockstep_traces::store::StepColumns;

use super::curve::firsts;
use super::split::Labels;
use crate::model::{CompactionPoint, Timeline, TimelineRun};

/// One run of a time line; `steps` needs the columns position and rows after.
#[derive(Debug, Clone, Copy)]
pub struct TimelineInput<'a> {
    /// Name in the report.
    pub label: &'a str,
    /// Step rows; those of other samples are passed over.
    pub steps: &'a StepColumns,
    /// Compactions; those of other samples are passed over.
    pub events: &'a [EventRow],
}

/// Time line of one sample over several runs, baseline first. The firsts are those of `compared`, where given.
#[must_use]
pub fn timeline(
    sample_id: &str,
    runs: &[TimelineInput<'_>],
    compared: Option<(&SampleDiff, Labels<'_>)>,
) -> Timeline {
    let lines = runs.iter().map(|run| line(sample_id, run)).collect();
    let (sample, labels) = compared.unzip();
    Timeline {
        sample_id: sample_id.to_owned(),
        prompt_len: sample.and_then(|sample| sample.prompt_len),
        runs: lines,
        firsts_of: labels
            .map_or_else(String::new, |labels| format!("{} against {}", labels.left, labels.right)),
        firsts: sample.map(|sample| firsts(&sample.splits)).unwrap_or_default(),
        dependent_from: sample.and_then(|sample| sample.dependent_from),
    }
}

/// Time line of the two sides of a comparison, without the traces: bends at the points of its curves.
#[must_use]
pub fn timeline_of_diff(sample: &SampleDiff, labels: Labels<'_>) -> Timeline {
    let series = &sample.series;
    let rows = |left: bool| {
        series
            .points
            .iter()
            .filter_map(|point| {
                let rows = if left { point.left_rows } else { point.right_rows };
                Some((point.position, rows?))
            })
            .collect::<Vec<_>>()
    };
    let run = |label: &str, points: &[(u32, u32)], marks: &[CompactionMark]| {
        let compactions: Vec<CompactionPoint> = marks
            .iter()
            .map(|mark| CompactionPoint {
                ordinal: mark.ordinal,
                position: mark.position,
                rows_before: mark.rows_before,
                rows_after: mark.rows_after,
            })
            .collect();
        TimelineRun { label: label.to_owned(), points: bends(points, &compactions), compactions }
    };
    Timeline {
        sample_id: sample.sample_id.clone(),
        prompt_len: sample.prompt_len,
        // A side whose source does not count its rows has no line.
        runs: [
            run(labels.left, &rows(true), &series.left_compactions),
            run(labels.right, &rows(false), &series.right_compactions),
        ]
        .into_iter()
        .filter(|run| !run.points.is_empty())
        .collect(),
        firsts_of: format!("{} against {}", labels.left, labels.right),
        firsts: firsts(&sample.splits),
        dependent_from: sample.dependent_from,
    }
}

fn line(sample_id: &str, run: &TimelineInput<'_>) -> TimelineRun {
    let steps = run.steps;
    let points: Vec<(u32, u32)> = (0..steps.len)
        .filter(|index| steps.sample_id(*index) == Some(sample_id))
        .filter_map(|index| Some((*steps.position.get(index)?, *steps.rows_after.get(index)?)))
        .collect();
    let compactions: Vec<CompactionPoint> = run
        .events
        .iter()
        .filter(|event| event.sample_id == sample_id)
        .map(|event| CompactionPoint {
            ordinal: event.ordinal,
            position: event.absolute_position.saturating_sub(1),
            rows_before: event.rows_before,
            rows_after: event.rows_after,
        })
        .collect();
    TimelineRun { label: run.label.to_owned(), points: bends(&points, &compactions), compactions }
}

/// Adds the upper end of each compaction's drop and leaves out points on a straight line between their neighbours.
fn bends(points: &[(u32, u32)], compactions: &[CompactionPoint]) -> Vec<(u32, u32)> {
    let mut all: Vec<(u32, u8, u32)> =
        points.iter().map(|(position, rows)| (*position, 2, *rows)).collect();
    for compaction in compactions {
        all.push((compaction.position, 0, compaction.rows_before));
        all.push((compaction.position, 1, compaction.rows_after));
    }
    all.sort_unstable();
    let mut out: Vec<(u32, u32)> = Vec::new();
    for (position, _, rows) in all {
        let next = (position, rows);
        if out.last() == Some(&next) {
            continue;
        }
        if let [.., before, last] = out.as_slice()
            && straight(*before, *last, next)
        {
            out.pop();
        }
        out.push(next);
    }
    out
}

fn straight(a: (u32, u32), b: (u32, u32), c: (u32, u32)) -> bool {
    let [a, b, c] = [a, b, c].map(|(x, y)| (i64::from(x), i64::from(y)));
    let rising = a.0 < b.0 && b.0 < c.0;
    rising && (b.1 - a.1) * (c.0 - b.0) == (c.1 - b.1) * (b.0 - a.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bends_are_kept_and_a_compaction_drops_straight_down() {
        let points: Vec<(u32, u32)> =
            (0..10).map(|p| (p, if p < 6 { p + 1 } else { p - 2 })).collect();
        // Row 6 holds 7 rows before the compaction and 4 after it.
        let compaction = CompactionPoint { ordinal: 1, position: 6, rows_before: 7, rows_after: 4 };
        assert_eq!(bends(&points, &[compaction]), [(0, 1), (6, 7), (6, 4), (9, 7)]);
        assert_eq!(bends(&[], &[]), []);
    }
}
