//! Paired tests: exact McNemar, bootstrap by prompt, perplexity ratio with covariance.

use super::quantile::count;

/// Outcome of one pair: left right, right right.
pub type Pair = (bool, bool);

/// Exact two-sided McNemar test: with b and c discordant pairs, twice the binomial(b + c, 1/2) tail at min(b, c),
/// at most 1. Without discordant pairs 1.
#[must_use]
pub fn mcnemar_exact(left_only: u64, right_only: u64) -> f64 {
    let n = left_only + right_only;
    let least = left_only.min(right_only);
    if n == 0 {
        return 1.0;
    }
    let ln_half = -(2f64.ln());
    let (mut ln_choose, mut tail) = (0.0_f64, 0.0_f64);
    for i in 0..=least {
        if i > 0 {
            ln_choose += (wide(n - i + 1) / wide(i)).ln();
        }
        tail += (ln_choose + wide(n) * ln_half).exp();
    }
    (2.0 * tail).min(1.0)
}

/// Smallest difference of two shares that n pairs can show at two-sided p < 0.05 by the exact McNemar test, all
/// discordant pairs one way: six pairs of n (2 / 2^6 = 0.03125; five give 0.0625). `None` for n below six.
#[must_use]
pub fn smallest_effect(n: u64) -> Option<f64> {
    const NEEDED: u64 = 6;
    (n >= NEEDED).then(|| wide(NEEDED) / wide(n))
}

/// How to resample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bootstrap {
    /// Resamples.
    pub resamples: usize,
    /// Seed of the generator (splitmix64).
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { resamples: 2000, seed: 0x10c5_7e9d }
    }
}

/// 95 % percentile interval of the mean of `by_prompt`, resampled prompt by prompt with replacement. `None` for fewer
/// than two prompts.
#[must_use]
pub fn bootstrap_interval(by_prompt: &[f64], how: Bootstrap) -> Option<(f64, f64)> {
    if by_prompt.len() < 2 || how.resamples < 40 {
        return None;
    }
    let mut state = how.seed;
    let mut means: Vec<f64> = Vec::with_capacity(how.resamples);
    for _ in 0..how.resamples {
        let sum: f64 = (0..by_prompt.len())
            .filter_map(|_| by_prompt.get(draw(&mut state, by_prompt.len())))
            .sum();
        means.push(sum / count(by_prompt.len()));
    }
    means.sort_by(f64::total_cmp);
    let cut = how.resamples / 40;
    Some((*means.get(cut)?, *means.get(how.resamples - 1 - cut)?))
}

/// Index below `length` by the multiply-shift of a splitmix64 draw.
fn draw(state: &mut u64, length: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    let scaled = (u128::from(z) * length as u128) >> 64;
    usize::try_from(scaled).unwrap_or(0)
}

/// Perplexities of the same tokens under two models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Perplexities {
    /// exp of the mean negative log-probability, left.
    pub left: f64,
    /// Same, right.
    pub right: f64,
    /// Right over left.
    pub ratio: f64,
    /// Standard error of ln(ratio): sqrt((var L + var R - 2 cov) / (n - 1)), variances with n.
    pub ln_ratio_se: f64,
}

/// Perplexity ratio of `(left, right)` log-probabilities. The covariance of the two enters its error, which is what makes
/// a small ratio visible. `None` for fewer than two tokens.
#[must_use]
pub fn perplexity(log_probs: &[(f64, f64)]) -> Option<Perplexities> {
    if log_probs.len() < 2 {
        return None;
    }
    let n = count(log_probs.len());
    let (sum_l, sum_r) = log_probs.iter().fold((0.0, 0.0), |(l, r), (a, b)| (l - a, r - b));
    let (mean_l, mean_r) = (sum_l / n, sum_r / n);
    let (mut var_l, mut var_r, mut cov) = (0.0, 0.0, 0.0);
    for (a, b) in log_probs {
        let (l, r) = (-a - mean_l, -b - mean_r);
        var_l += l * l / n;
        var_r += r * r / n;
        cov += l * r / n;
    }
    let variance = ((var_l + var_r - 2.0 * cov) / (n - 1.0)).max(0.0);
    Some(Perplexities {
        left: mean_l.exp(),
        right: mean_r.exp(),
        ratio: (mean_r - mean_l).exp(),
        ln_ratio_se: variance.sqrt(),
    })
}

#[expect(clippy::cast_precision_loss, reason = "counts of pairs are far below 2^53")]
fn wide(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_pairs_one_way_are_the_first_that_show_anything() {
        assert!((mcnemar_exact(6, 0) - 0.03125).abs() < 1e-12);
        assert!((mcnemar_exact(0, 5) - 0.0625).abs() < 1e-12);
        assert!((mcnemar_exact(0, 0) - 1.0).abs() < 1e-12);
    }

    /// binomial(10, 1/2): P(X <= 2) = (1 + 10 + 45) / 1024, twice that 0.109375.
    #[test]
    fn two_against_eight_is_the_hand_worked_tail() {
        assert!((mcnemar_exact(2, 8) - 0.109_375).abs() < 1e-12);
        assert!((mcnemar_exact(8, 2) - 0.109_375).abs() < 1e-12);
        assert!((mcnemar_exact(3, 3) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn large_counts_neither_overflow_nor_vanish() {
        let p = mcnemar_exact(5000, 5000);
        assert!((p - 1.0).abs() < 1e-9, "{p}");
        assert!(mcnemar_exact(100, 400) < 1e-30);
    }

    #[test]
    fn thirty_problems_cannot_show_less_than_a_fifth() {
        assert_eq!(smallest_effect(30), Some(0.2));
        assert_eq!(smallest_effect(5), None);
    }

    #[test]
    fn the_bootstrap_is_seeded_and_brackets_the_mean() {
        let values: Vec<f64> = (0..40).map(|i| f64::from(i % 4)).collect();
        let how = Bootstrap::default();
        let (low, high) = bootstrap_interval(&values, how).unwrap();
        assert_eq!(bootstrap_interval(&values, how), Some((low, high)));
        assert!(low < 1.5 && 1.5 < high && high - low < 1.0, "{low} {high}");
        assert_eq!(bootstrap_interval(&[2.0, 2.0], how), Some((2.0, 2.0)));
        assert_eq!(bootstrap_interval(&[1.0], how), None);
    }

    /// Log-probabilities -1, -3 against -2, -4: mean 2 against 3, ratio e; the difference is constant, so its error is 0.
    #[test]
    fn a_constant_difference_has_no_error_because_of_the_covariance() {
        let found = perplexity(&[(-1.0, -2.0), (-3.0, -4.0)]).unwrap();
        assert!((found.left - 2f64.exp()).abs() < 1e-12);
        assert!((found.ratio - 1f64.exp()).abs() < 1e-12);
        assert!(found.ln_ratio_se < 1e-9);
    }

    /// Differences 0 and 2: var L 0, var R 1, so the error of the mean is sqrt(1 / 1) = 1.
    #[test]
    fn an_unsteady_difference_has_the_error_of_its_mean() {
        let found = perplexity(&[(-1.0, -1.0), (-1.0, -3.0)]).unwrap();
        assert!((found.ln_ratio_se - 1.0).abs() < 1e-12);
    }
}
