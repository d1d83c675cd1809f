//! llama-perplexity's sums and the statistics that it prints of them.

use serde::{Deserialize, Serialize};

use super::row::RowFigures;
use crate::stats::count;

/// A value with one sigma as llama-perplexity takes it: sqrt(var / (n - 1)), tokens as if independent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PlusMinus {
    /// The value.
    pub value: f64,
    /// Its error.
    pub sigma: f64,
}

/// Percentiles by linear interpolation in f32, as llama-perplexity takes them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Percentiles {
    pub maximum: f32,
    pub p99_9: f32,
    pub p99: f32,
    pub p95: f32,
    pub p90: f32,
    pub p75: f32,
    pub median: f32,
    pub p25: f32,
    pub p10: f32,
    pub p5: f32,
    pub p1: f32,
    pub p0_1: f32,
    pub minimum: f32,
}

/// Perplexities of the tokens that follow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PerplexityFigures {
    /// PPL(Q), the target's.
    pub ppl: PlusMinus,
    /// PPL(base).
    pub ppl_base: PlusMinus,
    /// Cor(ln PPL(Q), ln PPL(base)), 1 at most.
    pub correlation: f64,
    /// ln(PPL(Q)/PPL(base)), its error with the covariance.
    pub ln_ratio: PlusMinus,
    /// PPL(Q)/PPL(base).
    pub ratio: PlusMinus,
    /// PPL(Q)-PPL(base).
    pub difference: PlusMinus,
    /// Δp, a share of 1: probability of the token that follows, target minus base.
    pub delta_p: PlusMinus,
    /// Its percentiles.
    pub delta_p_percentiles: Percentiles,
    /// Its root mean square.
    pub delta_p_rms: PlusMinus,
}

/// Everything that llama-perplexity prints.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KldFigures {
    /// Scored tokens.
    pub tokens: u64,
    /// Perplexities; absent where the tokens are not known.
    pub perplexity: Option<PerplexityFigures>,
    /// KL(base || target), nats.
    pub kld: PlusMinus,
    /// Its percentiles.
    pub kld_percentiles: Percentiles,
    /// Share of rows with one highest id.
    pub same_top: PlusMinus,
}

/// Sums over rows, f64 as in llama-perplexity, of terms in the widths that it has.
#[derive(Debug, Clone, Default)]
pub(super) struct Sums {
    n: usize,
    tokens: bool,
    nll: [f64; 2],
    nll_base: [f64; 2],
    nll_both: f64,
    kld: [f64; 2],
    p_diff: [f64; 2],
    p_diff4: f64,
    same_top: usize,
    klds: Vec<f32>,
    p_diffs: Vec<f32>,
}

impl Sums {
    pub(super) fn new(tokens: bool) -> Self {
        Self { tokens, ..Self::default() }
    }

    pub(super) fn add(&mut self, row: &RowFigures) {
        self.n += 1;
        let (nll, base, diff) = (row.nll, row.nll_base, row.p_diff);
        self.nll[0] += f64::from(nll);
        self.nll[1] += f64::from(nll * nll);
        self.nll_base[0] += f64::from(base);
        self.nll_base[1] += f64::from(base * base);
        self.nll_both += f64::from(nll * base);
        self.kld[0] += row.kld;
        self.kld[1] += row.kld * row.kld;
        let square = f64::from(diff * diff);
        self.p_diff[0] += f64::from(diff);
        self.p_diff[1] += square;
        self.p_diff4 += square * square;
        self.same_top += usize::from(row.same_top);
        self.klds.push(narrow(row.kld));
        self.p_diffs.push(diff);
    }

    /// Mean with its error; no error for ten values and fewer.
    fn mean(&self, sum: f64, squares: f64) -> PlusMinus {
        let n = count(self.n);
        let value = sum / n;
        let var = squares / n - value * value;
        let sigma = if var > 0.0 && self.n > 10 { (var / (n - 1.0)).sqrt() } else { 0.0 };
        PlusMinus { value, sigma }
    }

    /// `None` without a row.
    pub(super) fn figures(&self) -> Option<KldFigures> {
        let same = count(self.same_top) / count(self.n);
        Some(KldFigures {
            tokens: self.n as u64,
            perplexity: if self.tokens { self.perplexity() } else { None },
            kld: self.mean(self.kld[0], self.kld[1]),
            kld_percentiles: percentiles(&self.klds)?,
            same_top: PlusMinus {
                value: same,
                sigma: (same * (1.0 - same) / (count(self.n) - 1.0)).sqrt(),
            },
        })
    }

    fn perplexity(&self) -> Option<PerplexityFigures> {
        let n = count(self.n);
        let (log, log_base) =
            (self.mean(self.nll[0], self.nll[1]), self.mean(self.nll_base[0], self.nll_base[1]));
        let covariance = if self.n < 10 {
            0.0
        } else {
            (self.nll_both / n - (self.nll[0] / n) * (self.nll_base[0] / n)) / (n - 1.0)
        };
        let of_log = |log: PlusMinus| PlusMinus {
            value: log.value.exp(),
            sigma: log.value.exp() * log.sigma,
        };
        let (ppl, ppl_base) = (of_log(log), of_log(log_base));
        let apart = |a: f64, b: f64, covariance: f64| (a * a + b * b - 2.0 * covariance).sqrt();
        let ln_ratio = PlusMinus {
            value: log.value - log_base.value,
            sigma: apart(log.sigma, log_base.sigma, covariance),
        };
        let square = self.mean(self.p_diff[1], self.p_diff4);
        let rms = square.value.sqrt();
        Some(PerplexityFigures {
            ppl,
            ppl_base,
            correlation: covariance / (log.sigma * log_base.sigma),
            ln_ratio,
            ratio: of_log(ln_ratio),
            difference: PlusMinus {
                value: ppl.value - ppl_base.value,
                sigma: apart(ppl.sigma, ppl_base.sigma, ppl.value * ppl_base.value * covariance),
            },
            delta_p: self.mean(self.p_diff[0], self.p_diff[1]),
            delta_p_percentiles: percentiles(&self.p_diffs)?,
            delta_p_rms: PlusMinus { value: rms, sigma: 0.5 / rms * square.sigma },
        })
    }
}

fn percentiles(values: &[f32]) -> Option<Percentiles> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f32::total_cmp);
    let (first, last) = (*sorted.first()?, *sorted.last()?);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(last);
    let part = |fraction: f32| {
        let place = fraction * short(sorted.len() - 1);
        let whole = floor(place);
        let rest = place - short(whole);
        (1.0 - rest) * at(whole) + rest * at((whole + 1).min(sorted.len() - 1))
    };
    let half = sorted.len() / 2;
    let median =
        if sorted.len().is_multiple_of(2) { 0.5 * (at(half) + at(half - 1)) } else { at(half) };
    Some(Percentiles {
        maximum: last,
        p99_9: part(0.999),
        p99: part(0.99),
        p95: part(0.95),
        p90: part(0.9),
        p75: part(0.75),
        median,
        p25: part(0.25),
        p10: part(0.1),
        p5: part(0.05),
        p1: part(0.01),
        p0_1: part(0.001),
        minimum: first,
    })
}

#[expect(clippy::cast_precision_loss, reason = "llama-perplexity counts in float here")]
fn short(value: usize) -> f32 {
    value as f32
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place among the rows, at least 0"
)]
fn floor(value: f32) -> usize {
    value as usize
}

#[expect(clippy::cast_possible_truncation, reason = "llama-perplexity keeps these values as float")]
fn narrow(value: f64) -> f32 {
    value as f32
}
