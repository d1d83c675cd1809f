//! z-score of one row of scores (`TRIATTENTION.md` 4.1).

use super::Real;
use super::real::count;
use super::recipe::{Degenerate, Deviation};

/// Normalises `scores` by the mean and deviation over the entries where `counted` holds, in two passes. Fewer than two
/// counted entries have deviation 0. Entries that are not counted are normalised too.
#[must_use]
pub fn zscore<R: Real>(
    scores: &[R],
    counted: &[bool],
    deviation: Deviation,
    degenerate: Degenerate,
) -> Vec<R> {
    let chosen =
        || scores.iter().zip(counted).filter(|(_, counted)| **counted).map(|(score, _)| *score);
    let n = chosen().count();
    let mean = chosen().sum::<R>() / R::of(count(n.max(1)));
    let squares = chosen().map(|score| (score - mean) * (score - mean)).sum::<R>();
    let divisor = match deviation {
        Deviation::Sample => n.saturating_sub(1),
        Deviation::Population => n,
    };
    let std = if divisor == 0 { R::ZERO } else { (squares / R::of(count(divisor))).sqrt() };
    let std = match degenerate {
        Degenerate::OneBelow(bound) if std < R::of(bound) => R::of(1.0),
        Degenerate::OneBelow(_) => std,
        Degenerate::AtLeast(bound) => std.larger(R::of(bound)),
    };
    scores.iter().map(|score| (*score - mean) / std).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Degenerate = Degenerate::OneBelow(1e-6);

    #[test]
    fn sample_and_population_differ_by_the_root_of_n_over_n_minus_one() {
        // 1, 3: mean 2, squares 2; n - 1 = 1 gives sqrt(2), n = 2 gives 1.
        let sample = zscore(&[1.0, 3.0], &[true; 2], Deviation::Sample, ONE);
        let population = zscore(&[1.0, 3.0], &[true; 2], Deviation::Population, ONE);
        assert_eq!(population, vec![-1.0, 1.0]);
        assert!((sample[1] - 1.0 / 2f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn rows_that_are_not_counted_are_normalised_by_the_others() {
        let z = zscore(&[9.0, 1.0, 3.0], &[false, true, true], Deviation::Population, ONE);
        assert_eq!(z, vec![7.0, -1.0, 1.0]);
    }

    #[test]
    fn a_constant_row_follows_the_degenerate_rule() {
        let z = |rule| zscore(&[2.0, 2.0, 3.0], &[true, true, false], Deviation::Population, rule);
        assert_eq!(z(ONE), vec![0.0, 0.0, 1.0]);
        assert_eq!(z(Degenerate::AtLeast(0.5)), vec![0.0, 0.0, 2.0]);
    }

    #[test]
    fn a_single_row_is_divided_by_one() {
        assert_eq!(zscore(&[5.0], &[true], Deviation::Sample, ONE), vec![0.0]);
    }
}
