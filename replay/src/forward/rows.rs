//! What a step row says about one vector of logits.

use std::cmp::Ordering;

use lockstep_traces::hash::logits_hash;

/// Figures of one logits vector.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figures {
    pub(super) argmax: u32,
    pub(super) top_ids: Vec<u32>,
    pub(super) top_logits: Vec<f32>,
    pub(super) logsumexp: f64,
    pub(super) margin: Option<f32>,
    pub(super) finite: bool,
    pub(super) hash: [u64; 2],
}

/// Larger first, NaN last, lower id first among equals.
fn order(logits: &[f32], a: u32, b: u32) -> Ordering {
    let value = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NAN);
    let (left, right) = (value(a), value(b));
    match (left.is_nan(), right.is_nan()) {
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        _ => right.partial_cmp(&left).unwrap_or(Ordering::Equal).then(a.cmp(&b)),
    }
}

/// Evaluates a row of logits; `top` ids are kept.
pub(super) fn figures(logits: &[f32], top: usize, seeds: [u64; 2]) -> Figures {
    let mut ids: Vec<u32> = (0..).take(logits.len()).collect();
    // Two at least, for the margin.
    let wanted = top.max(2).min(ids.len());
    if wanted < ids.len() {
        ids.select_nth_unstable_by(wanted, |a, b| order(logits, *a, *b));
        ids.truncate(wanted);
    }
    ids.sort_unstable_by(|a, b| order(logits, *a, *b));
    let best: Vec<f32> = ids.iter().filter_map(|id| logits.get(*id as usize).copied()).collect();
    let highest = f64::from(best.first().copied().unwrap_or(f32::NAN));
    let logsumexp = if highest.is_infinite() {
        highest
    } else {
        highest + logits.iter().map(|v| (f64::from(*v) - highest).exp()).sum::<f64>().ln()
    };
    Figures {
        argmax: ids.first().copied().unwrap_or(0),
        margin: best.get(1).map(|second| best[0] - second),
        logsumexp,
        finite: logits.iter().all(|v| v.is_finite()),
        hash: logits_hash(logits, seeds),
        top_ids: ids.into_iter().take(top).collect(),
        top_logits: best.into_iter().take(top).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_traces::hash::DEFAULT_SEEDS;

    #[test]
    fn the_lowest_id_wins_among_equal_logits() {
        let figures = figures(&[1.0, 3.0, 2.0, 3.0], 3, DEFAULT_SEEDS);
        assert_eq!((figures.argmax, figures.top_ids), (1, vec![1, 3, 2]));
        assert_eq!(figures.margin, Some(0.0));
    }

    #[test]
    fn logsumexp_of_equal_logits_is_their_value_plus_ln_n() {
        let figures = figures(&[1000.0; 4], 1, DEFAULT_SEEDS);
        assert!((figures.logsumexp - 1000.0 - 4f64.ln()).abs() < 1e-12);
        assert_eq!(figures.top_ids.len(), 1);
    }

    #[test]
    fn nan_ranks_last_and_makes_the_row_not_finite() {
        let figures = figures(&[f32::NAN, -1.0, 0.5], 3, DEFAULT_SEEDS);
        assert_eq!((figures.finite, figures.top_ids), (false, vec![2, 1, 0]));
        assert!(figures.logsumexp.is_nan());
    }
}
