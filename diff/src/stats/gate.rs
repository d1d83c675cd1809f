//! One-sided gate of a score against a reference, as TensorRT-LLM's accuracy tests set it.

use serde::{Deserialize, Serialize};

use super::normal::{normal_quantile, wide};

/// How a gate is set. Points run from 0 to 100; `sigma` is the standard deviation of one sample's score.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GateRule {
    /// Chance that a run as good as the reference fails.
    pub alpha: f64,
    /// Chance that a run worse by `theta` passes.
    pub beta: f64,
    /// Points; 50 is the most that right-or-wrong scores can have.
    pub sigma: f64,
}

/// alpha 0.05, beta 0.2, sigma 50: what TensorRT-LLM sets for GSM8K and MMLU.
impl Default for GateRule {
    fn default() -> Self {
        Self { alpha: 0.05, beta: 0.2, sigma: 50.0 }
    }
}

impl GateRule {
    /// sqrt(2 sigma^2 / n), points: the standard error of the difference of two means of n samples each.
    fn error(&self, n: u64) -> Option<f64> {
        let sound = self.sigma.is_finite() && self.sigma > 0.0;
        (n > 0 && sound).then(|| (2.0 * self.sigma * self.sigma / wide(n)).sqrt())
    }

    /// Smallest loss that n samples tell apart, points: -(z_alpha + z_beta) sqrt(2 sigma^2 / n). `None` for n = 0 and for
    /// alpha, beta or sigma out of range.
    #[must_use]
    pub fn theta(&self, n: u64) -> Option<f64> {
        Some(-(normal_quantile(self.alpha)? + normal_quantile(self.beta)?) * self.error(n)?)
    }

    /// Lowest score that passes against `reference`, points: reference + z_alpha sqrt(2 sigma^2 / n).
    #[must_use]
    pub fn threshold(&self, reference: f64, n: u64) -> Option<f64> {
        Some(reference + normal_quantile(self.alpha)? * self.error(n)?)
    }

    /// Holds a score (points) of n samples against `reference` (points). `None` as for [`GateRule::theta`] and where a score
    /// is not within 0 to 100.
    #[must_use]
    pub fn hold(&self, score: f64, reference: f64, n: u64) -> Option<Gate> {
        let points = 0.0..=100.0;
        if !(points.contains(&score) && points.contains(&reference)) {
            return None;
        }
        let (theta, threshold) = (self.theta(n)?, self.threshold(reference, n)?);
        Some(Gate {
            rule: *self,
            n,
            score,
            reference,
            theta,
            threshold,
            passed: score >= threshold,
        })
    }
}

/// A score held against a reference; all scores in points, 0 to 100.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// How it is set.
    pub rule: GateRule,
    /// Samples.
    pub n: u64,
    /// Score.
    pub score: f64,
    /// Score of the reference.
    pub reference: f64,
    /// Smallest loss that n samples tell apart.
    pub theta: f64,
    /// Lowest score that passes.
    pub threshold: f64,
    /// `score >= threshold`.
    pub passed: bool,
}

/// One line with the formula: `gate passed: 94.77 >= 93.30 = 96.50 - 1.6449 sqrt(2 50^2 / 1319) (alpha 0.05); ...`.
impl std::fmt::Display for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rule, n, score, reference, theta, threshold, passed } = self;
        let (word, sign) = if *passed { ("passed", ">=") } else { ("failed", "<") };
        let z = normal_quantile(rule.alpha).unwrap_or(f64::NAN);
        write!(
            f,
            "gate {word}: {score:.2} {sign} {threshold:.2} = {reference:.2} - {:.4} sqrt(2 {}^2 / {n}) (alpha {}); a loss under \
             {theta:.1} points passes too often to be told apart (beta {})",
            -z, rule.sigma, rule.alpha, rule.beta
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table that TensorRT-LLM's accuracy test suite publishes for sigma 50, alpha 0.05, beta 0.2.
    #[test]
    fn theta_and_threshold_are_those_of_the_published_table() {
        let rule = GateRule::default();
        for (n, theta, below) in [
            (32, 31.080_936, -20.560_670),
            (64, 21.977_540, -14.538_589),
            (512, 7.770_234, -5.140_168),
            (1024, 5.494_385, -3.634_647),
            (4096, 2.747_193, -1.817_324),
            (14042, 1.483_729, -0.981_517),
        ] {
            assert!((rule.theta(n).unwrap() - theta).abs() < 5.1e-7, "{n}");
            assert!((rule.threshold(0.0, n).unwrap() - below).abs() < 5.1e-7, "{n}");
        }
    }

    /// sqrt(2 50^2 / 30) = 12.9099; times 1.6449 + 0.8416 and times 1.6449.
    #[test]
    fn thirty_problems_tell_apart_thirty_two_points() {
        let rule = GateRule::default();
        assert!((rule.theta(30).unwrap() - 32.1).abs() < 0.05);
        assert!((rule.threshold(0.0, 30).unwrap() + 21.2).abs() < 0.05);
        assert!((rule.theta(200).unwrap() - 12.4).abs() < 0.05);
        assert!((rule.threshold(0.0, 200).unwrap() + 8.2).abs() < 0.05);
    }

    /// GSM8K against 96.5: 96.5 - 1.6449 * 1.9470 = 93.2975.
    #[test]
    fn the_gsm8k_gate_is_the_published_one_and_says_its_formula() {
        let rule = GateRule::default();
        let gate = rule.hold(94.77, 96.5, 1319).unwrap();
        assert!(gate.passed && (gate.threshold - 93.2975).abs() < 5e-4, "{gate:?}");
        assert!((gate.theta - 4.84).abs() < 5e-3);
        let text = gate.to_string();
        assert!(
            text.starts_with("gate passed: 94.77 >= 93.30 = 96.50 - 1.6449 sqrt(2 50^2 / 1319)"),
            "{text}"
        );
        assert!(!rule.hold(93.29, 96.5, 1319).unwrap().passed);
    }

    #[test]
    fn what_cannot_be_a_gate_is_none() {
        let rule = GateRule::default();
        assert!(rule.hold(50.0, 50.0, 0).is_none());
        assert!(rule.hold(101.0, 50.0, 10).is_none() && rule.hold(50.0, f64::NAN, 10).is_none());
        assert!(GateRule { alpha: 0.0, ..rule }.theta(10).is_none());
        assert!(GateRule { sigma: f64::INFINITY, ..rule }.theta(10).is_none());
    }
}
