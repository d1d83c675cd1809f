//! The standard normal distribution, and Wilson's interval of a share.

use serde::{Deserialize, Serialize};

/// z of a two-sided 95 % interval.
pub const Z95: f64 = 1.959_963_984_540_054;

/// Distribution function by the series 1/2 + phi(z) (z + z^3/3 + z^5/(3 5) + ...) (Marsaglia, J. Stat. Softw. 11 (4),
/// 2004). Absolute error of a few 1e-16; outside of |z| = 8 it is 0 or 1.
#[must_use]
pub fn normal_cdf(z: f64) -> f64 {
    if z.is_nan() {
        return f64::NAN;
    }
    if z.abs() > 8.0 {
        return f64::from(u8::from(z > 0.0));
    }
    let (mut term, mut sum, mut odd) = (z, z, 1.0);
    // Terms grow until odd passes z^2 = 64 and then fall at least geometrically.
    while term.abs() > 1e-18 && odd < 1000.0 {
        odd += 2.0;
        term *= z * z / odd;
        sum += term;
    }
    0.5 + sum * (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// Quantile of the standard normal distribution by bisection of [`normal_cdf`]. `None` for a share not between 1e-9 and
/// 1 - 1e-9, where the series above has too few digits left.
#[must_use]
pub fn normal_quantile(share: f64) -> Option<f64> {
    if !(1e-9..=1.0 - 1e-9).contains(&share) {
        return None;
    }
    let (mut low, mut high) = (-8.0_f64, 8.0_f64);
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if normal_cdf(middle) < share { low = middle } else { high = middle }
    }
    Some(f64::midpoint(low, high))
}

/// A share of counted cases with its interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Cases that count.
    pub hits: u64,
    /// All cases.
    pub n: u64,
    /// 95 % interval (Wilson), 0 to 1; `null` for n = 0.
    pub interval: Option<(f64, f64)>,
}

impl Share {
    /// `hits` of `n`; more hits than cases are taken as all of them.
    #[must_use]
    pub fn of(hits: u64, n: u64) -> Self {
        let hits = hits.min(n);
        Self { hits, n, interval: wilson(hits, n, Z95) }
    }

    /// `hits / n`; `None` for n = 0.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        (self.n > 0).then(|| wide(self.hits) / wide(self.n))
    }
}

/// `20/30 = 66.7 % [48.8, 80.8]`; `0/0` where there is no case.
impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.hits, self.n)?;
        if let (Some(value), Some((low, high))) = (self.value(), self.interval) {
            write!(f, " = {:.1} % [{:.1}, {:.1}]", 100.0 * value, 100.0 * low, 100.0 * high)?;
        }
        Ok(())
    }
}

/// Wilson's score interval (J. Am. Stat. Assoc. 22, 1927) without continuity correction, clipped to 0..1. `None` for n = 0.
#[must_use]
pub fn wilson(hits: u64, n: u64, z: f64) -> Option<(f64, f64)> {
    if n == 0 || hits > n {
        return None;
    }
    let (n, share) = (wide(n), wide(hits) / wide(n));
    let scale = 1.0 + z * z / n;
    let centre = (share + z * z / (2.0 * n)) / scale;
    let half = z * (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt() / scale;
    // At the ends the bound is the share itself; the sum would leave it by a rounding.
    let low = if hits == 0 { 0.0 } else { (centre - half).max(0.0) };
    let high = if share >= 1.0 { 1.0 } else { (centre + half).min(1.0) };
    Some((low, high))
}

/// A count as f64: exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(super) fn wide(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantiles as printed in tables of the normal distribution.
    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (share, z) in [
            (0.05, -1.644_853_626_951_472_2),
            (0.2, -0.841_621_233_572_914_3),
            (0.975, 1.959_963_984_540_054),
            (0.995, 2.575_829_303_548_901),
            (0.001, -3.090_232_306_167_813_5),
            (0.5, 0.0),
        ] {
            let found = normal_quantile(share).unwrap();
            assert!((found - z).abs() < 1e-12, "{share}: {found} against {z}");
        }
        for outside in [0.0, 1.0, -1.0, f64::NAN] {
            assert!(normal_quantile(outside).is_none());
        }
        assert!(normal_cdf(-9.0) < 1e-15 && (normal_cdf(9.0) - 1.0).abs() < 1e-15);
        assert!(normal_cdf(f64::NAN).is_nan());
    }

    /// Table I of Newcombe (Stat. Med. 17, 1998, 857-872), method 3.
    #[test]
    fn wilson_intervals_are_those_of_newcombes_table() {
        for (hits, n, low, high) in [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ] {
            let found = wilson(hits, n, Z95).unwrap();
            assert!((found.0 - low).abs() < 5.1e-5, "{hits}/{n}: {found:?}");
            assert!((found.1 - high).abs() < 5.1e-5, "{hits}/{n}: {found:?}");
        }
        assert_eq!(wilson(0, 0, Z95), None);
        assert_eq!(wilson(5, 5, Z95).unwrap().1.to_bits(), 1.0_f64.to_bits());
    }

    /// With z = 1 and 1 of 2: centre 1/2, half sqrt(1/8 + 1/16) / (3/2) = sqrt(3)/6.
    #[test]
    fn a_wilson_interval_worked_by_hand() {
        let (low, high) = wilson(1, 2, 1.0).unwrap();
        assert!((low - (0.5 - 3f64.sqrt() / 6.0)).abs() < 1e-15);
        assert!((high - (0.5 + 3f64.sqrt() / 6.0)).abs() < 1e-15);
    }

    #[test]
    fn a_share_prints_its_counts_and_its_interval() {
        assert_eq!(Share::of(81, 263).to_string(), "81/263 = 30.8 % [25.5, 36.6]");
        assert_eq!(Share::of(0, 0).to_string(), "0/0");
        assert_eq!(Share::of(9, 3).hits, 3);
    }
}
