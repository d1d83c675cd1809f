//! Choosing rows: a full stable sort (`TRIATTENTION.md` 5.1, 5.2).

use std::cmp::Ordering;

use super::recipe::TieBreak;

/// Indices of the `k` largest scores, best first. NaN counts as largest, as in PyTorch; -0.0 equals 0.0; equal scores
/// go by row.
#[must_use]
pub fn best(scores: &[f64], k: usize, ties: TieBreak) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    if ties == TieBreak::HigherRow {
        order.reverse();
    }
    order.sort_by(|a, b| descending(scores[*a], scores[*b]));
    order.truncate(k);
    order
}

/// Larger first, NaN before all.
fn descending(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
        (false, false) => b.partial_cmp(&a).unwrap_or(Ordering::Equal),
    }
}

/// The k-th largest score; `None` where `k` is 0 or larger than the number of scores.
#[must_use]
pub fn kth(scores: &[f64], k: usize) -> Option<f64> {
    let last = *best(scores, k, TieBreak::LowerRow).last()?;
    if k > scores.len() { None } else { scores.get(last).copied() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_go_by_row() {
        let scores = [1.0, 2.0, 2.0, 2.0];
        assert_eq!(best(&scores, 2, TieBreak::LowerRow), vec![1, 2]);
        assert_eq!(best(&scores, 2, TieBreak::HigherRow), vec![3, 2]);
        assert_eq!(best(&[-0.0, 0.0], 1, TieBreak::LowerRow), vec![0]);
    }

    #[test]
    fn infinity_and_nan_come_first() {
        let scores = [0.0, f64::INFINITY, f64::NAN, f64::NEG_INFINITY];
        assert_eq!(best(&scores, 4, TieBreak::LowerRow), vec![2, 1, 0, 3]);
    }

    #[test]
    fn the_kth_score_is_the_smallest_kept() {
        assert_eq!(kth(&[3.0, 1.0, 2.0], 2), Some(2.0));
        assert_eq!(kth(&[3.0], 0), None);
        assert_eq!(kth(&[3.0], 2), None);
    }
}
