//! Quantiles by nearest rank.

use crate::report::Quantiles;

/// Mean, nearest-rank quantiles and maximum of the finite `values`; `None` where there is none.
///
/// The q-quantile of n sorted values is the value of rank ceil(q n), so every figure printed is one that occurred.
#[must_use]
pub fn quantiles(values: &[f64]) -> Option<Quantiles> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let max = *sorted.last()?;
    let rank = |per_mille: usize| {
        let rank = (sorted.len() * per_mille).div_ceil(1000).max(1);
        sorted.get(rank - 1).copied().unwrap_or(max)
    };
    let mean = sorted.iter().sum::<f64>() / count(sorted.len());
    Some(Quantiles {
        n: sorted.len() as u64,
        mean,
        p50: rank(500),
        p90: rank(900),
        p95: rank(950),
        p99: rank(990),
        p999: rank(999),
        max,
    })
}

/// A length as f64: exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
pub(crate) fn count(length: usize) -> f64 {
    length as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        let found = quantiles(&values).unwrap();
        assert_eq!((found.n, found.p50, found.p90, found.p95), (10, 5.0, 9.0, 10.0));
        assert_eq!((found.mean, found.max), (5.5, 10.0));
    }

    #[test]
    fn values_that_are_not_finite_are_left_out_and_nothing_gives_nothing() {
        assert_eq!(quantiles(&[f64::NAN, 2.0, f64::INFINITY]).unwrap().n, 1);
        assert!(quantiles(&[f64::NAN]).is_none());
    }
}
