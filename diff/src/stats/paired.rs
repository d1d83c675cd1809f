//! Paired tests: exact McNemar, bootstrap by prompt, perplexity ratio with covariance.

use serde::{Deserialize, Serialize};

use super::normal::wide;
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// Resamples; below 40 there is no 95 % interval.
    pub resamples: usize,
    /// Seed of the generator (splitmix64 of a counter, so that a draw depends on seed, resample and place alone).
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { resamples: 2000, seed: 0x10c5_7e9d }
    }
}

/// What one prompt adds to a mean.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cluster {
    /// Sum of its values.
    pub sum: f64,
    /// Number of its values.
    pub count: f64,
}

/// 95 % percentile interval of the mean of `by_prompt`, resampled prompt by prompt with replacement. `None` for fewer
/// than two prompts and for fewer than 40 resamples.
#[must_use]
pub fn bootstrap_interval(by_prompt: &[f64], how: Bootstrap) -> Option<(f64, f64)> {
    let clusters: Vec<Cluster> =
        by_prompt.iter().map(|sum| Cluster { sum: *sum, count: 1.0 }).collect();
    bootstrap_clusters(&clusters, how)
}

/// As [`bootstrap_interval`] for prompts with several values each: a prompt is drawn with all of them.
#[must_use]
pub fn bootstrap_clusters(prompts: &[Cluster], how: Bootstrap) -> Option<(f64, f64)> {
    if prompts.len() < 2 || how.resamples < 40 {
        return None;
    }
    let mut means: Vec<f64> = Vec::new();
    for resample in 0..how.resamples {
        let (mut sum, mut values) = (0.0, 0.0);
        for place in 0..prompts.len() {
            let prompt = prompts.get(draw(how.seed, (resample, place), prompts.len()))?;
            sum += prompt.sum;
            values += prompt.count;
        }
        means.push(sum / values);
    }
    means.sort_by(f64::total_cmp);
    let cut = how.resamples / 40;
    Some((*means.get(cut)?, *means.get(how.resamples - 1 - cut)?))
}

/// Index below `length`: multiply-shift of splitmix64 at the counter `resample * length + place`.
fn draw(seed: u64, (resample, place): (usize, usize), length: usize) -> usize {
    let counter = (resample as u64).wrapping_mul(length as u64).wrapping_add(place as u64);
    let mut z = seed.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
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

    /// Two prompts, 0 and 1: a resample is (0, 0), (0, 1), (1, 0) or (1, 1), so a quarter of the means each is 0 and 1. Over
    /// 4000 resamples the count of either is 1000 within six standard deviations of sqrt(4000 3/16) = 27.4.
    #[test]
    fn draws_are_fair_and_depend_on_their_place_alone() {
        let zeros = (0..4000).filter(|r| (0..2).all(|place| draw(7, (*r, place), 2) == 0)).count();
        assert!(zeros.abs_diff(1000) < 165, "{zeros}");
        assert_eq!(draw(7, (3, 1), 10), draw(7, (3, 1), 10));
        // First outputs of splitmix64 with seed 1234567, as its author's code prints them.
        for (place, top) in [(0, 6_457_827_717_110_365_317_u64), (1, 3_203_168_211_198_807_973)] {
            let wanted = usize::try_from((u128::from(top) * 1000) >> 64).unwrap();
            assert_eq!(draw(1_234_567, (0, place), 1000), wanted);
        }
    }

    #[test]
    fn a_prompt_is_drawn_with_all_its_values() {
        let heavy = [Cluster { sum: 9.0, count: 9.0 }, Cluster { sum: 0.0, count: 1.0 }];
        // Means are 1, 9/10 or 0.
        assert_eq!(bootstrap_clusters(&heavy, Bootstrap::default()), Some((0.0, 1.0)));
        let few = Bootstrap { resamples: 39, ..Bootstrap::default() };
        assert_eq!(bootstrap_clusters(&heavy, few), None);
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
