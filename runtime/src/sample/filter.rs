//! Temperature, top-k, top-p, min-p, in this order, on one row of logits: the rules named `native`. Those of transformers are beside this file.
//!
//! Logits are ranked descending, lower id first on equal logits, so that exactly `k` ids survive top-k (transformers
//! keeps every id tied at rank `k`). Probabilities are `exp((l - l_max) / temperature)` in f32, normalised over the `k` survivors in that order.
//! min-p keeps the prefix with `p >= min_p * p_0`; top-p the shortest prefix whose running sum reaches it, the
//! crossing token included. Where one of the two cuts, what is left is normalised again. A logit of -inf never survives.

/// top-p from here on is off.
pub(crate) const TOP_P_OFF: f32 = 1.0 - 1e-6;

/// Effective filter settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filters {
    /// Above 0.
    pub temperature: f32,
    /// Survivors by rank, at least 1.
    pub top_k: usize,
    /// 1 or more: off; 0 keeps one token.
    pub top_p: f32,
    /// 0: off.
    pub min_p: f32,
}

/// How near each cut was; `None` where a filter is off or cut nothing and could not have.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FilterMargins {
    /// Logit of the last survivor minus that of the first one cut, over the temperature.
    pub top_k: Option<f32>,
    /// Distance of top-p from the nearer of the running sums before and at the crossing token.
    pub top_p: Option<f32>,
    /// Distance of ln(min_p) from the nearest ln(p / p_0) on either side of the cut.
    pub min_p: Option<f32>,
}

/// Ids that may be drawn and their probabilities, most probable first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Survivors {
    /// Ids by rank.
    pub ids: Vec<u32>,
    /// Probabilities, summing to 1 within rounding.
    pub probabilities: Vec<f32>,
    /// How near the cuts were.
    pub margins: FilterMargins,
    pub(super) order: Vec<u64>,
    /// Scores by id, where a rule divides by the temperature before it ranks.
    pub(super) scores: Vec<f32>,
}

impl Survivors {
    /// Keeps the `kept` most probable and normalises what is left, where that cuts.
    pub(super) fn cut(&mut self, kept: usize) {
        if kept < self.ids.len() {
            self.ids.truncate(kept);
            self.probabilities.truncate(kept);
            let sum: f32 = self.probabilities.iter().sum();
            for probability in &mut self.probabilities {
                *probability /= sum;
            }
        }
    }
}

/// What becomes of ids that tie with the one at rank k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ties {
    /// Exactly k survive, lower ids first.
    Drop,
    /// All of them survive.
    Keep,
}

impl Filters {
    /// Filters `logits`, which hold neither NaN nor +inf and at least one finite value, into `out`.
    pub fn apply(&self, logits: &[f32], out: &mut Survivors) {
        self.apply_with(logits, Ties::Drop, out);
    }

    /// The same with another rule for ties at rank k.
    pub(super) fn apply_with(&self, logits: &[f32], ties: Ties, out: &mut Survivors) {
        self.rank(logits, ties, out);
        self.soften(logits, out);
        let min_p = self.min_p_prefix(out);
        let top_p = self.top_p_prefix(out);
        out.cut(min_p.min(top_p));
    }

    /// Ids of the `top_k` largest of `logits` by rank, and how near the cut was, in units of `logits` over the temperature.
    pub(super) fn rank(&self, logits: &[f32], ties: Ties, out: &mut Survivors) {
        let k = self.top_k.clamp(1, logits.len().max(1));
        out.order.clear();
        out.order.extend(logits.iter().zip(0_u64..).map(|(&logit, id)| rank_key(logit) << 32 | id));
        out.margins = FilterMargins::default();
        if k < out.order.len() {
            let (head, cut, _) = out.order.select_nth_unstable(k);
            let (last, cut) = (head.iter().max().copied().unwrap_or(0), *cut);
            let cut = logit_of(logits, cut);
            let gap = logit_of(logits, last) - cut;
            out.margins.top_k = (cut > f32::NEG_INFINITY).then_some(gap / self.temperature);
            let at_k = last >> 32;
            match ties {
                Ties::Drop => out.order.truncate(k),
                Ties::Keep => out.order.retain(|key| key >> 32 <= at_k),
            }
        }
        out.order.sort_unstable();
        let possible = out.order.partition_point(|&key| logit_of(logits, key) > f32::NEG_INFINITY);
        out.order.truncate(possible);
        out.ids.clear();
        out.ids.extend(out.order.iter().map(|&key| super::philox::low(key)));
    }

    /// Probabilities of the ids that are left.
    pub(super) fn soften(&self, logits: &[f32], out: &mut Survivors) {
        let logit = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let largest = out.ids.first().map_or(0.0, |&id| logit(id));
        out.probabilities.clear();
        out.probabilities
            .extend(out.ids.iter().map(|&id| ((logit(id) - largest) / self.temperature).exp()));
        let sum: f32 = out.probabilities.iter().sum();
        for probability in &mut out.probabilities {
            *probability /= sum;
        }
    }

    /// How many of the most probable min-p keeps.
    pub(super) fn min_p_prefix(&self, out: &mut Survivors) -> usize {
        let first = out.probabilities.first().copied().unwrap_or(1.0);
        if self.min_p <= 0.0 {
            return out.ids.len();
        }
        let floor = self.min_p * first;
        let kept = out.probabilities.partition_point(|&p| p >= floor).max(1);
        let distance = |p: &f32| ((p / first).ln() - self.min_p.ln()).abs();
        let near = [out.probabilities.get(kept - 1), out.probabilities.get(kept)];
        out.margins.min_p = near.into_iter().flatten().map(distance).reduce(f32::min);
        kept
    }

    /// How many of the most probable top-p keeps.
    pub(super) fn top_p_prefix(&self, out: &mut Survivors) -> usize {
        if self.top_p >= TOP_P_OFF {
            return out.ids.len();
        }
        let mut sum = 0.0_f32;
        for (place, &probability) in out.probabilities.iter().enumerate() {
            let before = sum;
            sum += probability;
            if sum >= self.top_p {
                let below = if place == 0 { f32::INFINITY } else { self.top_p - before };
                out.margins.top_p = Some(below.min(sum - self.top_p));
                return place + 1;
            }
        }
        out.margins.top_p = Some(self.top_p - sum);
        out.ids.len()
    }
}

/// Smaller for larger logits; equal for +0 and -0.
fn rank_key(logit: f32) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending)
}

fn logit_of(logits: &[f32], key: u64) -> f32 {
    logits.get(super::philox::low(key) as usize).copied().unwrap_or(f32::NEG_INFINITY)
}

#[cfg(test)]
mod tests {
    use std::f32::consts::LN_2;

    use super::*;

    const OFF: Filters = Filters { temperature: 1.0, top_k: usize::MAX, top_p: 1.0, min_p: 0.0 };

    fn survivors(filters: Filters, logits: &[f32]) -> Survivors {
        let mut out = Survivors::default();
        filters.apply(logits, &mut out);
        out
    }

    /// Logits whose softmax is 0.5, 0.25, 0.125, 0.125 in the order 2, 0, 1, 3.
    const HALVES: [f32; 4] = [-2.0 * LN_2, -3.0 * LN_2, -LN_2, -3.0 * LN_2];

    #[test]
    fn ranking_is_by_logit_and_then_by_lower_id() {
        assert_eq!(survivors(OFF, &HALVES).ids, [2, 0, 1, 3]);
        assert_eq!(survivors(Filters { top_k: 3, ..OFF }, &HALVES).ids, [2, 0, 1]);
        assert_eq!(survivors(OFF, &[-0.0, 0.0, -1.0]).ids, [0, 1, 2]);
    }

    #[test]
    fn minus_infinity_never_survives() {
        let logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
        for top_k in [1, 2, 4, usize::MAX] {
            let kept = survivors(Filters { top_k, ..OFF }, &logits);
            assert_eq!(kept.ids, [1, 3][..top_k.min(2)]);
            assert_eq!(kept.margins.top_k, (top_k == 1).then_some(0.0));
        }
    }

    #[test]
    fn the_crossing_token_of_top_p_is_kept() {
        let at = |top_p| survivors(Filters { top_p, ..OFF }, &HALVES).ids.len();
        assert_eq!((at(0.0), at(0.4), at(0.6), at(0.74), at(0.8), at(1.0)), (1, 1, 2, 2, 3, 4));
        let kept = survivors(Filters { top_p: 0.6, ..OFF }, &HALVES);
        assert!((kept.probabilities[0] - 2.0 / 3.0).abs() < 1e-6);
        assert!((kept.margins.top_p.unwrap() - 0.1).abs() < 1e-6);
    }

    #[test]
    fn min_p_is_relative_to_the_largest() {
        let at = |min_p| survivors(Filters { min_p, ..OFF }, &HALVES).ids.len();
        assert_eq!((at(0.0), at(0.2), at(0.3), at(0.6), at(1.0)), (4, 4, 2, 1, 1));
    }

    #[test]
    fn top_p_sums_probabilities_over_the_k_survivors() {
        // Over the first two, 0.5 and 0.25 become 2/3 and 1/3.
        let kept = survivors(Filters { top_k: 2, top_p: 0.65, ..OFF }, &HALVES);
        assert_eq!(kept.ids, [2]);
        assert!((kept.margins.top_k.unwrap() - LN_2).abs() < 1e-6);
    }

    #[test]
    fn temperature_divides_logits() {
        let cold = survivors(Filters { temperature: 0.5, ..OFF }, &[1.0, 0.0]);
        let expected = 1.0 / (1.0 + (-2.0_f32).exp());
        assert!((cold.probabilities[0] - expected).abs() < 1e-6);
    }
}
