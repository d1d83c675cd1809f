//! One constant factor between the margins of two sides: what a temperature leaves.

use lockstep_traces::UNKNOWN_TOKEN;

use crate::precision::softmax_rounding;
use crate::side::Row;
use crate::splits::LogitRule;

/// Rows and margins below which a factor is not named: a few margins fit many factors.
const LEAST_ROWS: u64 = 3;
const LEAST_MARGINS: usize = 6;

#[derive(Debug, Clone, Copy)]
struct Margin {
    left: f64,
    right: f64,
    /// What the two may be off by together.
    error: f64,
}

/// Margins of all rows: each listed value less the row's largest that both sides list.
#[derive(Debug, Default)]
pub(crate) struct Factor {
    margins: Vec<Margin>,
    rows: u64,
}

/// A factor that holds over all rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Found {
    /// Right margin over left margin.
    pub(crate) factor: f64,
    pub(crate) rows: u64,
    pub(crate) margins: usize,
}

impl Factor {
    pub(crate) fn push(&mut self, left: &Row<'_>, right: &Row<'_>, rule: LogitRule) {
        let pairs = left.ids.iter().zip(left.logits).filter_map(|(id, l)| {
            let at = right.ids.iter().position(|other| other == id)?;
            let r = *right.logits.get(at)?;
            (*id != UNKNOWN_TOKEN && l.is_finite() && r.is_finite()).then_some((*l, r))
        });
        let mut pairs: Vec<(f32, f32)> = pairs.collect();
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
        let Some((first, rest)) = pairs.split_first() else { return };
        self.rows += u64::from(!rest.is_empty());
        for (l, r) in rest {
            let largest = [first.0, first.1, *l, *r].into_iter().map(f32::abs).fold(0.0, f32::max);
            self.margins.push(Margin {
                left: f64::from(first.0) - f64::from(*l),
                right: f64::from(first.1) - f64::from(*r),
                error: rule.allowed(first.0, first.1)
                    + rule.allowed(*l, *r)
                    + 2.0 * softmax_rounding(f64::from(largest)),
            });
        }
    }

    /// The factor, where one other than 1 explains every margin within its error.
    pub(crate) fn find(&self) -> Option<Found> {
        let widest = self.margins.iter().max_by(|a, b| a.left.total_cmp(&b.left))?;
        if widest.left <= 0.0 || self.rows < LEAST_ROWS || self.margins.len() < LEAST_MARGINS {
            return None;
        }
        let factor = widest.right / widest.left;
        let weight = 1.0 + factor.abs();
        // The factor itself is known to the error of the widest margin, and no other margin is wider.
        let holds = self.margins.iter().all(|margin| {
            (margin.right - factor * margin.left).abs() <= weight * (margin.error + widest.error)
        });
        let other = (factor - 1.0).abs() * widest.left > 2.0 * weight * widest.error;
        (holds && other && factor > 0.0).then_some(Found {
            factor,
            rows: self.rows,
            margins: self.margins.len(),
        })
    }
}
