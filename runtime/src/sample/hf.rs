//! The filters of Hugging Face transformers: temperature, top-k, top-p, min-p as its logits processors have them.
//!
//! Scores are `l / temperature` in f32, before anything else. top-k keeps every id whose score is not below the k-th. top-p sorts ascending,
//! sums the softmax of what is left from the least probable on (in f64, each sum rounded to f32, as torch sums on a CPU) and removes while the
//! sum is at most `1 - top_p`; the most probable id stays. min-p removes `p < min_p * p_max`; one id stays. The probabilities are the softmax
//! of what is left. torch's sort is not stable: which of equal scores goes first at the cut of top-p is not defined there, and here the higher
//! id goes. A logit of -inf never survives.

use super::filter::{Filters, Survivors, TOP_P_OFF, Ties};

impl Filters {
    /// Filters `logits`, which hold neither NaN nor +inf and at least one finite value, into `out`.
    pub fn apply_hf(&self, logits: &[f32], out: &mut Survivors) {
        self.apply_hf_with(logits, Ties::Keep, out);
    }

    /// The same with another rule for ties at rank k.
    pub(super) fn apply_hf_with(&self, logits: &[f32], ties: Ties, out: &mut Survivors) {
        let mut scores = std::mem::take(&mut out.scores);
        scores.clear();
        scores.extend(logits.iter().map(|logit| logit / self.temperature));
        let plain = Self { temperature: 1.0, ..*self };
        plain.rank(&scores, ties, out);
        softmax(&scores, out);
        if self.top_p < TOP_P_OFF {
            let kept = self.nucleus(out);
            out.ids.truncate(kept);
            softmax(&scores, out);
        }
        if self.min_p > 0.0 {
            let kept = self.min_p_prefix(out);
            out.ids.truncate(kept);
            softmax(&scores, out);
        }
        out.scores = scores;
    }

    /// How many of the most probable top-p keeps, summing from the least probable on.
    fn nucleus(&self, out: &mut Survivors) -> usize {
        let limit = narrow(1.0 - shortest(self.top_p));
        let mut sum = 0.0_f64;
        let mut removed = 0;
        let mut nearest = f32::INFINITY;
        for &probability in out.probabilities.iter().rev() {
            sum += f64::from(probability);
            let so_far = narrow(sum);
            nearest = nearest.min((so_far - limit).abs());
            if so_far > limit {
                break;
            }
            removed += 1;
        }
        out.margins.top_p = Some(nearest);
        (out.probabilities.len() - removed).max(1)
    }
}

/// Softmax of the scores of the ids that are left. torch sums in lanes, whose error stays below that of one long f32 sum: the sum is f64 here.
fn softmax(scores: &[f32], out: &mut Survivors) {
    let score = |id: u32| scores.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let largest = out.ids.first().map_or(0.0, |&id| score(id));
    out.probabilities.clear();
    out.probabilities.extend(out.ids.iter().map(|&id| (score(id) - largest).exp()));
    let sum = narrow(out.probabilities.iter().copied().map(f64::from).sum());
    for probability in &mut out.probabilities {
        *probability /= sum;
    }
}

/// The f64 that the f32's shortest decimal names: 0.95 for the f32 nearest to it, as a Python number would have come in.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is wanted")]
const fn narrow(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use std::f32::consts::LN_2;

    use super::*;

    const OFF: Filters = Filters { temperature: 1.0, top_k: usize::MAX, top_p: 1.0, min_p: 0.0 };

    fn survivors(filters: Filters, logits: &[f32]) -> Survivors {
        let mut out = Survivors::default();
        filters.apply_hf(logits, &mut out);
        out
    }

    #[test]
    fn every_id_tied_at_rank_k_is_kept() {
        let logits = [3.0, 2.0, 2.0, 2.0, 1.0];
        let kept = survivors(Filters { top_k: 2, ..OFF }, &logits);
        assert_eq!(kept.ids, [0, 1, 2, 3]);
        let mut native = Survivors::default();
        Filters { top_k: 2, ..OFF }.apply(&logits, &mut native);
        assert_eq!(native.ids, [0, 1]);
    }

    #[test]
    fn logits_that_the_division_makes_equal_tie() {
        // Neighbours in f32 whose quotients by 1.5 lie two thirds of a place apart and round to the same.
        let lower = 1.75 + 2.0 * f32::EPSILON;
        let logits = [lower + f32::EPSILON, lower, 0.0];
        assert_eq!((logits[0] / 1.5).to_bits(), (logits[1] / 1.5).to_bits());
        let kept = survivors(Filters { top_k: 1, temperature: 1.5, ..OFF }, &logits);
        assert_eq!(kept.ids, [0, 1]);
    }

    #[test]
    fn top_p_removes_while_the_tail_is_at_most_the_rest() {
        // Softmax 0.5, 0.25, 0.125, 0.125: the tail sums are 0.125, 0.25, 0.5, 1.
        let logits = [-LN_2, -2.0 * LN_2, -3.0 * LN_2, -3.0 * LN_2];
        let at = |top_p| survivors(Filters { top_p, ..OFF }, &logits).ids.len();
        assert_eq!((at(0.0), at(0.4), at(0.6), at(0.8), at(0.9), at(1.0)), (1, 1, 2, 3, 4, 4));
        let kept = survivors(Filters { top_p: 0.6, ..OFF }, &logits);
        assert!((kept.probabilities[0] - 2.0 / 3.0).abs() < 1e-6);
    }

    #[test]
    fn min_p_keeps_at_least_the_most_probable() {
        let logits = [-LN_2, -2.0 * LN_2, -3.0 * LN_2];
        let at = |min_p| survivors(Filters { min_p, ..OFF }, &logits).ids.len();
        assert_eq!((at(0.0), at(0.3), at(0.6), at(1.0)), (3, 2, 1, 1));
    }

    #[test]
    fn the_shortest_decimal_is_the_number_that_was_typed() {
        assert_eq!(shortest(0.95).to_bits(), 0.95_f64.to_bits());
        assert_eq!(narrow(1.0 - shortest(0.9)).to_bits(), 0.1_f32.to_bits());
    }
}
