//! Kullback-Leibler divergence from full logits and from stored top-k logits. All in f64 and in nats.

use std::collections::BTreeMap;

/// ln(sum(exp(logit))), shifted by the maximum. `None` for an empty row and where a logit is NaN or +inf;
/// -inf has probability 0.
#[must_use]
pub fn softmax_logsumexp(logits: &[f32]) -> Option<f64> {
    let mut largest = f64::NEG_INFINITY;
    for logit in logits {
        let logit = f64::from(*logit);
        if logit.is_nan() || logit == f64::INFINITY {
            return None;
        }
        largest = largest.max(logit);
    }
    if largest == f64::NEG_INFINITY {
        return None;
    }
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    Some(largest + sum.ln())
}

/// KL(P||Q) = sum p ln(p/q) over the whole vocabulary. `None` where the lengths differ or a side has no softmax;
/// infinite where q is 0 and p is not.
#[must_use]
pub fn exact_kl(left: &[f32], right: &[f32]) -> Option<f64> {
    if left.len() != right.len() {
        return None;
    }
    let (left_sum, right_sum) = (softmax_logsumexp(left)?, softmax_logsumexp(right)?);
    let mut total = 0.0;
    for (p, q) in left.iter().zip(right) {
        let (log_p, log_q) = (f64::from(*p) - left_sum, f64::from(*q) - right_sum);
        if log_p > f64::NEG_INFINITY {
            total += log_p.exp() * (log_p - log_q);
        }
    }
    Some(total.max(0.0))
}

/// Stored logits of one row, with the normaliser of the whole vocabulary.
#[derive(Debug, Clone, Copy)]
pub struct TopLogits<'a> {
    /// Ids, distinct.
    pub ids: &'a [u32],
    /// Their logits.
    pub logits: &'a [f32],
    /// ln(sum(exp(logit))) over the vocabulary.
    pub logsumexp: f64,
}

/// What top-k rows say about KL(P||Q).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlRow {
    /// Lower bound.
    pub lower: f64,
    /// Upper bound; `None` where mass lies outside the common ids, since q may vanish there.
    pub upper: Option<f64>,
    /// Probability outside the common ids under P.
    pub tail_left: f64,
    /// Same under Q.
    pub tail_right: f64,
}

/// Mass outside the common ids that is taken as the rounding of f64 and not as a tail.
const NO_TAIL: f64 = 1e-12;

/// Bounds of KL(P||Q) from top-k rows; see [`topk_kl_both`].
#[must_use]
pub fn topk_kl(left: &TopLogits<'_>, right: &TopLogits<'_>) -> Option<KlRow> {
    topk_kl_both(left, right).map(|both| both.0)
}

/// Bounds of KL(P||Q) and of KL(Q||P) from top-k rows.
///
/// Ids on both sides enter exactly. All others form one bin with mass P' and Q'; by the log-sum inequality they add at
/// least P' ln(P'/Q'). There is no upper bound while P' is not 0. `None` without a common id or a finite normaliser.
#[must_use]
pub fn topk_kl_both(left: &TopLogits<'_>, right: &TopLogits<'_>) -> Option<(KlRow, KlRow)> {
    if !(left.logsumexp.is_finite() && right.logsumexp.is_finite()) {
        return None;
    }
    let (mut forward, mut back, mut mass_p, mut mass_q, mut common) = (0.0, 0.0, 0.0, 0.0, 0_usize);
    for_common(left, right, |p, q| {
        let (log_p, log_q) = (f64::from(p) - left.logsumexp, f64::from(q) - right.logsumexp);
        let (p, q) = (log_p.exp(), log_q.exp());
        forward += p * (log_p - log_q);
        back += q * (log_q - log_p);
        mass_p += p;
        mass_q += q;
        common += 1;
    });
    if common == 0 || !(forward.is_finite() && back.is_finite()) {
        return None;
    }
    let (tail_p, tail_q) = ((1.0 - mass_p).max(0.0), (1.0 - mass_q).max(0.0));
    Some((bounds(forward, tail_p, tail_q), bounds(back, tail_q, tail_p)))
}

fn bounds(sum: f64, own: f64, other: f64) -> KlRow {
    let tail = if own <= NO_TAIL || other <= 0.0 { 0.0 } else { own * (own / other).ln() };
    let lower = (sum + tail).max(0.0);
    KlRow { lower, upper: (own <= NO_TAIL).then_some(lower), tail_left: own, tail_right: other }
}

fn for_common(left: &TopLogits<'_>, right: &TopLogits<'_>, mut visit: impl FnMut(f32, f32)) {
    const SCAN: usize = 32;
    if right.ids.len() <= SCAN {
        for (id, p) in left.ids.iter().zip(left.logits) {
            if let Some(at) = right.ids.iter().position(|other| other == id)
                && let Some(q) = right.logits.get(at)
            {
                visit(*p, *q);
            }
        }
    } else {
        let map: BTreeMap<u32, f32> =
            right.ids.iter().copied().zip(right.logits.iter().copied()).collect();
        for (id, p) in left.ids.iter().zip(left.logits) {
            if let Some(q) = map.get(id) {
                visit(*p, *q);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-12, "{left} against {right}");
    }

    #[test]
    fn the_normaliser_of_equal_logits_is_the_logit_plus_ln_of_their_number() {
        close(softmax_logsumexp(&[1000.0, 1000.0]).unwrap(), 1000.0 + 2f64.ln());
        close(softmax_logsumexp(&[3.0, f32::NEG_INFINITY]).unwrap(), 3.0);
        assert!(softmax_logsumexp(&[1.0, f32::NAN]).is_none());
        assert!(softmax_logsumexp(&[]).is_none());
    }

    /// P = (2/3, 1/3), Q = (1/3, 2/3): KL = 2/3 ln 2 - 1/3 ln 2 = ln(2)/3.
    #[test]
    fn kl_of_two_thirds_against_one_third_is_a_third_of_ln_two() {
        let (p, q) = ([2f32.ln(), 0.0], [0.0, 2f32.ln()]);
        assert!((exact_kl(&p, &q).unwrap() - 2f64.ln() / 3.0).abs() < 1e-7);
    }

    #[test]
    fn kl_has_a_direction() {
        let (p, q) = ([3f32, 0.0, 0.0], [0f32, 0.0, 0.0]);
        let (forward, back) = (exact_kl(&p, &q).unwrap(), exact_kl(&q, &p).unwrap());
        assert!((forward - back).abs() > 0.1, "{forward} {back}");
        assert!(exact_kl(&[1.0], &[1.0, 2.0]).is_none());
    }

    /// P = (1/2, 1/4, 1/4), Q = (1/4, 1/2, 1/4); ids 0 and 1 stored. Exact: 1/2 ln 2 - 1/4 ln 2 = ln(2)/4. The tails are
    /// equal, so the lower bound is the exact value.
    #[test]
    fn equal_tails_make_the_lower_bound_exact_and_leave_no_upper_bound() {
        let ln = |x: f32| x.ln();
        let left = [ln(0.5), ln(0.25)];
        let right = [ln(0.25), ln(0.5)];
        let p = TopLogits { ids: &[0, 1], logits: &left, logsumexp: 0.0 };
        let q = TopLogits { ids: &[1, 0], logits: &[right[1], right[0]], logsumexp: 0.0 };
        let row = topk_kl(&p, &q).unwrap();
        assert!((row.lower - 2f64.ln() / 4.0).abs() < 1e-7, "{row:?}");
        assert!((row.tail_left - 0.25).abs() < 1e-7 && row.upper.is_none());
    }

    #[test]
    fn the_bound_never_exceeds_the_exact_value() {
        let left: Vec<f32> = (0..50u8).map(|i| f32::from(i % 7) * 0.7).collect();
        let right: Vec<f32> = (0..50u8).map(|i| f32::from(i % 5) * 0.9).collect();
        let exact = exact_kl(&left, &right).unwrap();
        for k in [1_usize, 4, 20, 40] {
            let ids: Vec<u32> = (0..k as u32).collect();
            let p = TopLogits {
                ids: &ids,
                logits: &left[..k],
                logsumexp: softmax_logsumexp(&left).unwrap(),
            };
            let q = TopLogits {
                ids: &ids,
                logits: &right[..k],
                logsumexp: softmax_logsumexp(&right).unwrap(),
            };
            let row = topk_kl(&p, &q).unwrap();
            assert!(row.lower <= exact + 1e-9 && row.upper.is_none(), "{k}: {row:?} {exact}");
            let back = exact_kl(&right, &left).unwrap();
            assert!(topk_kl_both(&p, &q).unwrap().1.lower <= back + 1e-9);
            assert_eq!(topk_kl_both(&p, &q).unwrap().1, topk_kl(&q, &p).unwrap());
        }
    }

    #[test]
    fn with_the_whole_vocabulary_stored_both_bounds_are_the_exact_value() {
        let (left, right) = ([1f32, 2.0, 0.5], [0.5f32, 2.5, 0.0]);
        let row = topk_kl(
            &TopLogits {
                ids: &[0, 1, 2],
                logits: &left,
                logsumexp: softmax_logsumexp(&left).unwrap(),
            },
            &TopLogits {
                ids: &[0, 1, 2],
                logits: &right,
                logsumexp: softmax_logsumexp(&right).unwrap(),
            },
        )
        .unwrap();
        let exact = exact_kl(&left, &right).unwrap();
        assert!((row.lower - exact).abs() < 1e-9);
        assert_eq!(row.upper, Some(row.lower));
    }

    #[test]
    fn rows_without_a_common_id_have_no_bound() {
        let p = TopLogits { ids: &[1], logits: &[0.0], logsumexp: 1.0 };
        let q = TopLogits { ids: &[2], logits: &[0.0], logsumexp: 1.0 };
        assert!(topk_kl(&p, &q).is_none());
    }
}
