//! Tolerances of the comparison and the tie rule for keep-sets.
//!
//! Raw scores agree relative to the largest of the tensor; ranked scores agree absolutely, more closely near the cut, where they decide; keep-sets
//! agree as sets, but for rows whose expected score lies at the cut within that closer tolerance.

use super::error::{CaseError, differs};

/// Distance to the cut within which the closer tolerance holds.
const NEAR: f64 = 0.2;

/// Limits of one case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    /// Raw scores, relative: f32 sums in another order, and for `hf` other sines at phases up to 7e4.
    pub(super) raw: f64,
    /// Ranked scores far from the cut: one- or two-pass deviations.
    pub(super) far: f64,
    /// Ranked scores near the cut, and the width of a tie.
    pub(super) near: f64,
}

/// Figures of one case.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) raw: Option<f64>,
    pub(super) ranked: Option<f64>,
    pub(super) keep_rows: usize,
    pub(super) keep_equal: usize,
    /// Rows accepted as ties.
    pub(super) ties: usize,
}

fn larger(seen: Option<f64>, value: f64) -> Option<f64> {
    Some(seen.map_or(value, |seen| seen.max(value)))
}

impl Tally {
    /// Compares raw scores.
    pub(super) fn raw(
        &mut self,
        ours: &[f32],
        expected: &[f32],
        limit: f64,
    ) -> Result<(), CaseError> {
        if ours.len() != expected.len() {
            return Err(differs(format!("{} raw scores, expected {}", ours.len(), expected.len())));
        }
        let scale = expected.iter().fold(0.0_f64, |most, &value| most.max(f64::from(value).abs()));
        let mut error = 0.0_f64;
        for (ours, expected) in ours.iter().zip(expected) {
            let off =
                (f64::from(*ours) - f64::from(*expected)).abs() / scale.max(f64::MIN_POSITIVE);
            if off.is_nan() {
                return Err(differs("a raw score is not a number"));
            }
            error = error.max(off);
        }
        self.raw = larger(self.raw, error);
        if error > limit {
            return Err(differs(format!(
                "raw scores differ by {error:.2e} of the largest, allowed {limit:.0e}"
            )));
        }
        Ok(())
    }

    /// Compares one ranked row; `count` columns are taken from it.
    pub(super) fn ranked(
        &mut self,
        ours: &[f32],
        expected: &[f32],
        count: usize,
        limits: Limits,
    ) -> Result<(), CaseError> {
        if ours.len() != expected.len() {
            return Err(differs(format!(
                "{} ranked scores, expected {}",
                ours.len(),
                expected.len()
            )));
        }
        let cut = f64::from(cut(expected, count));
        for (column, (ours, expected)) in ours.iter().zip(expected).enumerate() {
            let (ours, expected) = (f64::from(*ours), f64::from(*expected));
            if ours.is_infinite() || expected.is_infinite() {
                if ours.total_cmp(&expected).is_ne() {
                    return Err(differs(format!(
                        "ranked score of column {column} is {ours}, expected {expected}"
                    )));
                }
                continue;
            }
            let off = (ours - expected).abs();
            self.ranked = larger(self.ranked, off);
            let near = (expected - cut).abs() <= NEAR;
            let limit = if near { limits.near } else { limits.far };
            if off.is_nan() || off > limit {
                let place = if near { "near" } else { "far from" };
                return Err(differs(format!(
                    "ranked score of column {column}, {place} the cut, differs by {off:.2e}, allowed {limit:.0e}"
                )));
            }
        }
        Ok(())
    }

    /// Compares one list of kept rows as a set. `scores` are the expected ranked scores by cache row from `first_row` on, `count` of
    /// which are taken; `None`: nothing was ranked and no row may differ.
    pub(super) fn kept(
        &mut self,
        ours: &[u32],
        expected: &[u32],
        scores: Option<Scores<'_>>,
    ) -> Result<(), CaseError> {
        let (ours, expected) = (sorted(ours)?, sorted(expected)?);
        self.keep_rows += 1;
        if ours == expected {
            self.keep_equal += 1;
            return Ok(());
        }
        if ours.len() != expected.len() {
            return Err(differs(format!("{} rows kept, expected {}", ours.len(), expected.len())));
        }
        let lacks = |list: &[u32], row: u32| list.binary_search(&row).is_err();
        let extra: Vec<u32> = ours.iter().copied().filter(|&row| lacks(&expected, row)).collect();
        let missing: Vec<u32> = expected.iter().copied().filter(|&row| lacks(&ours, row)).collect();
        let tied = |row: &u32| scores.is_some_and(|scores| scores.tied(*row));
        if !extra.iter().chain(&missing).all(tied) {
            return Err(differs(format!(
                "rows {extra:?} are kept here only and {missing:?} there only, and not all of them score at the cut"
            )));
        }
        self.ties += extra.len();
        Ok(())
    }
}

/// Expected ranked scores for the tie rule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scores<'a> {
    pub(super) values: &'a [f32],
    pub(super) first_row: usize,
    pub(super) count: usize,
    pub(super) near: f64,
}

impl Scores<'_> {
    fn tied(&self, row: u32) -> bool {
        let cut = cut(self.values, self.count);
        let column = (row as usize).checked_sub(self.first_row);
        let Some(&score) = column.and_then(|column| self.values.get(column)) else { return false };
        score.total_cmp(&cut).is_eq() || (f64::from(score) - f64::from(cut)).abs() <= self.near
    }
}

/// The `count`-th largest score.
fn cut(scores: &[f32], count: usize) -> f32 {
    let mut sorted = scores.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    sorted.get(count.saturating_sub(1)).copied().unwrap_or(f32::NAN)
}

fn sorted(rows: &[u32]) -> Result<Vec<u32>, CaseError> {
    let mut sorted = rows.to_vec();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(differs(format!("row {} is kept twice", pair[0])));
    }
    Ok(sorted)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { raw: 1e-6, far: 1e-4, near: 2e-5 };

    #[test]
    fn a_row_in_another_set_passes_only_at_the_cut() {
        let values = [9.0, 1.0, 1.000_01, 0.5];
        let scores = Some(Scores { values: &values, first_row: 10, count: 2, near: 2e-5 });
        let mut tally = Tally::default();
        tally.kept(&[10, 11], &[12, 10], scores).unwrap();
        assert_eq!((tally.keep_rows, tally.keep_equal, tally.ties), (1, 0, 1));
        assert!(tally.kept(&[10, 13], &[10, 12], scores).is_err());
        assert!(tally.kept(&[10, 11], &[10, 12], None).is_err());
        assert!(tally.kept(&[10, 10], &[10, 12], scores).is_err());
        assert!(tally.kept(&[10], &[10, 12], scores).is_err());
    }

    #[test]
    fn scores_near_the_cut_are_held_closer() {
        let expected = [3.0, 1.0, f32::INFINITY, 0.95];
        let mut tally = Tally::default();
        tally.ranked(&[3.000_09, 1.0, f32::INFINITY, 0.95], &expected, 3, LIMITS).unwrap();
        assert!(tally.ranked(&[3.0, 1.0, f32::INFINITY, 0.950_05], &expected, 3, LIMITS).is_err());
        assert!(tally.ranked(&[3.0, 1.0, 5.0, 0.95], &expected, 3, LIMITS).is_err());
        assert!(tally.ranked(&[f32::NAN, 1.0, f32::INFINITY, 0.95], &expected, 3, LIMITS).is_err());
    }

    #[test]
    fn raw_scores_are_relative_to_the_largest() {
        let mut tally = Tally::default();
        tally.raw(&[100.0, 1.000_05], &[100.0, 1.0], 1e-6).unwrap();
        assert!(tally.raw(&[100.0, 1.000_5], &[100.0, 1.0], 1e-6).is_err());
        assert!(tally.raw(&[100.0, f32::NAN], &[100.0, 1.0], 1e-6).is_err());
        assert!(tally.raw(&[100.0], &[100.0, 1.0], 1e-6).is_err());
    }
}
