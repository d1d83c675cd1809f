//! The drift map from the drift answer.

use lockstep_diff::report::DriftReport;

use super::split::Labels;
use crate::model::DriftMap;
use crate::num::Num;

/// Most columns of a map; neighbouring positions are merged beyond it, the largest value stands.
const MOST_COLUMNS: usize = 1000;

/// A map of the relative L2 in a drift answer.
#[must_use]
pub fn drift(report: &DriftReport, labels: Labels<'_>) -> DriftMap {
    let merged = report.positions.len().div_ceil(MOST_COLUMNS).max(1);
    let values = report
        .rows
        .iter()
        .map(|row| {
            row.cells
                .chunks(merged)
                .map(|cells| {
                    cells.iter().filter_map(|cell| cell.relative_l2).max_by(f64::total_cmp).map(Num)
                })
                .collect()
        })
        .collect();
    let control = report
        .rows
        .iter()
        .flat_map(|row| &row.cells)
        .filter_map(|cell| cell.control)
        .max_by(f64::total_cmp);
    DriftMap {
        sample_id: report.sample_id.clone(),
        left_label: labels.left.to_owned(),
        right_label: labels.right.to_owned(),
        rows: report.rows.iter().map(|row| row.tensor.clone()).collect(),
        columns: report.positions.iter().copied().step_by(merged).collect(),
        merged: u32::try_from(merged).unwrap_or(u32::MAX),
        values,
        control: control.map(Num),
        first_beyond: report.first_beyond.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_diff::report::{DriftCell, DriftRow};
    use lockstep_traces::Verdict;

    #[test]
    fn merged_columns_keep_the_largest_value() {
        let cell = |value: f64| DriftCell {
            relative_l2: (value >= 0.0).then_some(value),
            max_abs: None,
            control: Some(0.5),
            missing: None,
        };
        let mut cells: Vec<DriftCell> = (0..1500).map(|_| cell(0.0)).collect();
        cells[7] = cell(0.25);
        (cells[10], cells[11]) = (cell(-1.0), cell(-1.0));
        let report = DriftReport {
            sample_id: "s".into(),
            positions: (0..1500).collect(),
            rows: vec![DriftRow {
                tensor: "embed".into(),
                layer: None,
                stage: "embed".into(),
                cells,
            }],
            first_beyond: None,
            compared: 1498,
            skipped: 2,
            verdict: Verdict::WithinNoise,
            summary: String::new(),
        };
        let map = drift(&report, Labels { left: "a", right: "b" });
        assert_eq!((map.merged, map.columns.len(), map.values[0].len()), (2, 750, 750));
        assert_eq!(map.values[0][3], Some(Num(0.25)));
        assert_eq!(map.values[0][5], None);
        assert_eq!(map.control, Some(Num(0.5)));
    }
}
