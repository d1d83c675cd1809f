//! Rows of a trace by sample.

use std::collections::BTreeMap;
use std::ops::Range;

use lockstep_traces::StepColumns;

/// Index ranges of the rows of each sample; rows are ordered by sample and position.
#[derive(Debug)]
pub struct RowsBySample<'s> {
    steps: &'s StepColumns,
    ranges: BTreeMap<&'s str, Range<usize>>,
}

impl<'s> RowsBySample<'s> {
    /// Finds the ranges in one pass.
    #[must_use]
    pub fn of(steps: &'s StepColumns) -> Self {
        let mut ranges: BTreeMap<&str, Range<usize>> = BTreeMap::new();
        for row in 0..steps.len {
            if let Some(id) = steps.sample_id(row) {
                ranges.entry(id).or_insert(row..row).end = row + 1;
            }
        }
        Self { steps, ranges }
    }

    /// Rows of a sample; empty where there is none.
    #[must_use]
    pub fn rows(&self, id: &str) -> Range<usize> {
        self.ranges.get(id).cloned().unwrap_or_default()
    }

    /// The row of a sample at this position.
    #[must_use]
    pub fn at(&self, id: &str, position: u32) -> Option<usize> {
        let rows = self.rows(id);
        let at = self.steps.position.get(rows.clone())?.binary_search(&position).ok()?;
        Some(rows.start + at)
    }

    /// The largest position of a sample.
    #[must_use]
    pub fn last_position(&self, id: &str) -> Option<u32> {
        self.steps.position.get(self.rows(id))?.last().copied()
    }
}
