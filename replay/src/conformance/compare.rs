//! Comparing stages and keep-sets with expected ones.

use std::collections::BTreeSet;

use lockstep_reference::select::kth;

use super::report::{CaseReport, larger};
use super::tolerance::{NEAR, Tolerance};

/// Raw scores: largest difference over the largest expected modulus.
pub(crate) fn raw(report: &mut CaseReport, ours: &[f64], expected: &[f64], limit: f64) {
    let Some(worst) = largest_difference(report, "raw_scores", ours, expected) else { return };
    let scale = expected.iter().fold(0.0f64, |held, value| held.max(value.abs()));
    let relative = if scale > 0.0 { worst / scale } else { worst };
    report.max_raw_rel = larger(report.max_raw_rel, Some(relative));
    if relative > limit {
        report
            .fail(format!("raw_scores differ by {relative:.2e} of the largest; limit {limit:.0e}"));
    }
}

/// Any array within an absolute limit.
pub(crate) fn absolute(
    report: &mut CaseReport,
    what: &str,
    ours: &[f64],
    expected: &[f64],
    limit: f64,
) {
    let Some(worst) = largest_difference(report, what, ours, expected) else { return };
    report.max_agg_abs = larger(report.max_agg_abs, Some(worst));
    if worst > limit {
        report.fail(format!("{what} differs by {worst:.2e}; limit {limit:.0e}"));
    }
}

/// Ranked scores of one keep-set: infinities in the same places, finite ones within the limit far from the threshold and
/// near it.
pub(crate) fn ranked(
    report: &mut CaseReport,
    what: &str,
    (ours, expected): (&[f64], &[f64]),
    k: usize,
    limit: Tolerance,
) {
    let Some(worst) = largest_difference(report, what, ours, expected) else { return };
    report.max_agg_abs = larger(report.max_agg_abs, Some(worst));
    if worst > limit.far {
        report.fail(format!("{what} differs by {worst:.2e}; limit {:.0e}", limit.far));
    }
    let Some(threshold) = kth(expected, k).filter(|value| value.is_finite()) else { return };
    let near = ours
        .iter()
        .zip(expected)
        .filter(|(_, expected)| expected.is_finite() && (*expected - threshold).abs() <= NEAR)
        .fold(0.0f64, |held, (ours, expected)| held.max((ours - expected).abs()));
    if near > limit.near {
        report.fail(format!(
            "{what} differs by {near:.2e} within {NEAR} of the threshold; limit {:.0e}",
            limit.near
        ));
    }
}

/// Largest difference of finite entries; fails on another length, another pattern of infinities or a NaN.
fn largest_difference(
    report: &mut CaseReport,
    what: &str,
    ours: &[f64],
    expected: &[f64],
) -> Option<f64> {
    if ours.len() != expected.len() {
        report.fail(format!("{what} has {} values, expected {}", ours.len(), expected.len()));
        return None;
    }
    let mut worst = 0.0f64;
    for (index, (ours, expected)) in ours.iter().zip(expected).enumerate() {
        if ours.is_nan() || expected.is_nan() {
            report.fail(format!("{what}[{index}] is {ours}, expected {expected}"));
            return None;
        }
        if ours.is_infinite() || expected.is_infinite() {
            if ours.total_cmp(expected).is_ne() {
                report.fail(format!("{what}[{index}] is {ours}, expected {expected}"));
                return None;
            }
            continue;
        }
        worst = worst.max((ours - expected).abs());
    }
    report.compared += u64::try_from(ours.len()).unwrap_or(u64::MAX);
    Some(worst)
}

/// How one keep-set relates to the expected one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeepMatch {
    /// The same rows.
    Equal,
    /// Rows that tie at the threshold were chosen otherwise.
    Tie {
        /// Rows in the symmetric difference.
        rows: u64,
    },
    /// Another set.
    Differs {
        /// A row in the symmetric difference that does not tie.
        row: usize,
    },
}

/// Compares sets. `scores` are the expected ranked scores from cache row `first` on: a row of the symmetric difference is
/// accepted only where its score equals the k-th one or lies within `near` of it. Without scores nothing is accepted.
pub(crate) fn keep_set(
    ours: &[usize],
    expected: &[usize],
    scores: &[f64],
    first: usize,
    near: f64,
) -> KeepMatch {
    let (a, b): (BTreeSet<usize>, BTreeSet<usize>) =
        (ours.iter().copied().collect(), expected.iter().copied().collect());
    let differing: Vec<usize> = a.symmetric_difference(&b).copied().collect();
    let Some(some) = differing.first() else {
        let as_long = ours.len() == expected.len() && a.len() == ours.len();
        return if as_long { KeepMatch::Equal } else { KeepMatch::Differs { row: 0 } };
    };
    if a.len() != b.len() || ours.len() != a.len() {
        return KeepMatch::Differs { row: *some };
    }
    let threshold = kth(scores, expected.len().saturating_sub(first));
    let ties = |row: &usize| {
        let score = row.checked_sub(first).and_then(|column| scores.get(column)).copied();
        let (Some(threshold), Some(score)) = (threshold, score) else { return false };
        score.total_cmp(&threshold).is_eq() || (score - threshold).abs() <= near
    };
    match differing.iter().find(|row| !ties(row)) {
        Some(row) => KeepMatch::Differs { row: *row },
        None => KeepMatch::Tie { rows: u64::try_from(differing.len()).unwrap_or(u64::MAX) },
    }
}

/// Is the order of the rows that of the rule: the prefix ascending, then expected scores descending up to `slack`
/// (`by_score`), or all ascending?
pub(crate) fn ordered(
    rows: &[usize],
    by_score: bool,
    scores: &[f64],
    first: usize,
    slack: f64,
) -> bool {
    let (prefix, ranked) = rows.split_at(first.min(rows.len()));
    if !by_score {
        return rows.is_sorted();
    }
    let score = |row: &usize| row.checked_sub(first).and_then(|c| scores.get(c)).copied();
    let falls = |pair: &[usize]| match pair {
        [a, b] => match (score(a), score(b)) {
            (Some(a), Some(b)) => a + slack >= b,
            _ => false,
        },
        _ => true,
    };
    prefix.iter().copied().eq(0..prefix.len()) && ranked.windows(2).all(falls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::report::CaseStatus;

    const LIMIT: Tolerance = Tolerance { raw: 1e-6, far: 1e-4, near: 2e-5, tie: 2e-5 };

    #[test]
    fn a_row_away_from_the_threshold_is_no_tie() {
        let scores = [5.0, 4.0, 3.0, 3.0, 1.0];
        let near = |ours: &[usize]| keep_set(ours, &[0, 1, 2], &scores, 0, 2e-5);
        assert_eq!(near(&[2, 1, 0]), KeepMatch::Equal);
        assert_eq!(near(&[0, 1, 3]), KeepMatch::Tie { rows: 2 });
        assert_eq!(near(&[0, 2, 3]), KeepMatch::Differs { row: 1 });
        assert_eq!(near(&[0, 1, 4]), KeepMatch::Differs { row: 4 });
        assert_eq!(near(&[0, 1]), KeepMatch::Differs { row: 2 });
        assert_eq!(near(&[0, 1, 2, 2]), KeepMatch::Differs { row: 0 });
    }

    #[test]
    fn the_prefix_is_never_a_tie() {
        // Rows 0 and 1 are the prefix; scores begin at row 2.
        assert_eq!(
            keep_set(&[0, 2, 3], &[0, 1, 2], &[3.0, 3.0], 2, 1.0),
            KeepMatch::Differs { row: 1 }
        );
        assert_eq!(
            keep_set(&[0, 1, 3], &[0, 1, 2], &[3.0, 3.0], 2, 0.0),
            KeepMatch::Tie { rows: 2 }
        );
    }

    #[test]
    fn guards_tie_with_guards() {
        let inf = f64::INFINITY;
        assert_eq!(keep_set(&[0], &[1], &[inf, inf, 1.0], 0, 2e-5), KeepMatch::Tie { rows: 2 });
        assert_eq!(keep_set(&[2], &[1], &[inf, inf, 1.0], 0, 2e-5), KeepMatch::Differs { row: 2 });
    }

    #[test]
    fn differences_near_the_threshold_are_judged_harder() {
        let judge = |ours: &[f64]| {
            let mut report = CaseReport::new("case", "group");
            ranked(&mut report, "agg_scores", (ours, &[9.0, 2.0, 1.0]), 2, LIMIT);
            report.status
        };
        assert_eq!(judge(&[9.0 + 5e-5, 2.0, 1.0]), CaseStatus::Pass);
        assert!(matches!(judge(&[9.0, 2.0 + 5e-5, 1.0]), CaseStatus::Fail { .. }));
        assert!(matches!(judge(&[9.0 + 2e-4, 2.0, 1.0]), CaseStatus::Fail { .. }));
        assert!(matches!(judge(&[f64::INFINITY, 2.0, 1.0]), CaseStatus::Fail { .. }));
        assert!(matches!(judge(&[f64::NAN, 2.0, 1.0]), CaseStatus::Fail { .. }));
    }

    #[test]
    fn a_raw_score_off_by_two_millionths_fails() {
        let mut report = CaseReport::new("case", "group");
        raw(&mut report, &[10.0 + 2e-5], &[10.0], LIMIT.raw);
        assert!(matches!(report.status, CaseStatus::Fail { .. }));
        assert!(report.max_raw_rel.is_some_and(|worst| (worst - 2e-6).abs() < 1e-12));
    }

    #[test]
    fn order_is_by_score_or_ascending() {
        let scores = [1.0, 3.0, 2.0];
        assert!(ordered(&[0, 2, 3], true, &scores, 1, 0.0));
        assert!(!ordered(&[0, 3, 2], true, &scores, 1, 0.5));
        assert!(ordered(&[0, 3, 2], true, &scores, 1, 1.5));
        assert!(!ordered(&[1, 0], false, &scores, 0, 0.0));
    }
}
