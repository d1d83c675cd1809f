//! What a row of logits tells, for importers whose source gives whole rows.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::StepRow;
use crate::foreign::UNKNOWN_TOKEN;
use crate::hash::{DEFAULT_SEEDS, logits_hash};

/// The `k` largest keys, falling. One pass; `k` keys are in memory.
pub(crate) fn largest<K: Ord + Copy>(k: usize, keys: impl Iterator<Item = K>) -> Vec<K> {
    let mut kept: BinaryHeap<Reverse<K>> = BinaryHeap::new();
    for key in keys {
        if kept.len() < k {
            kept.push(Reverse(key));
        } else if let Some(mut least) = kept.peek_mut()
            && key > least.0
        {
            *least = Reverse(key);
        }
    }
    kept.into_sorted_vec().into_iter().map(|Reverse(key)| key).collect()
}

/// Fills in argmax and top-k (the lower id first on equal logits; +0 and -0 are equal, NaN is in no list), margin, finiteness,
/// log-sum-exp and hash of a row of logits in order of ids.
pub(crate) fn summarise(row: &mut StepRow, logits: &[f32], top_k: usize) {
    let key = |(id, value): (u32, &f32)| {
        // Rises with the value; adding +0 makes one zero of the two.
        let bits = (value + 0.0).to_bits().cast_signed();
        let rank = if bits < 0 { bits ^ i32::MAX } else { bits };
        (!value.is_nan()).then_some((rank, Reverse(id)))
    };
    let value = |id: u32| usize::try_from(id).ok().and_then(|id| logits.get(id)).copied();
    let mut ids: Vec<u32> = largest(top_k.max(2), (0..).zip(logits).filter_map(key))
        .into_iter()
        .map(|(_, Reverse(id))| id)
        .collect();
    row.argmax = ids.first().copied().unwrap_or(UNKNOWN_TOKEN);
    row.top2_margin = match ids.as_slice() {
        [first, second, ..] => value(*first).zip(value(*second)).map(|(a, b)| a - b),
        _ => None,
    };
    ids.truncate(top_k);
    row.top_logits = ids.iter().copied().filter_map(value).collect();
    row.top_ids = ids;
    row.finite = logits.iter().all(|value| value.is_finite());
    row.logsumexp = log_sum_exp(logits);
    row.logits_hash = Some(logits_hash(logits, DEFAULT_SEEDS));
}

/// ln(sum(exp(logit))) in f64, shifted by the largest; `None` where a logit is NaN or +inf, -inf where all are.
fn log_sum_exp(logits: &[f32]) -> Option<f64> {
    let most = logits.iter().copied().map(f64::from).fold(f64::NEG_INFINITY, f64::max);
    if most == f64::INFINITY || logits.iter().any(|value| value.is_nan()) {
        return None;
    }
    if most == f64::NEG_INFINITY {
        return Some(most);
    }
    Some(most + logits.iter().map(|value| (f64::from(*value) - most).exp()).sum::<f64>().ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(logits: &[f32], top_k: usize) -> StepRow {
        let mut row = StepRow::bare("s", 0, 1);
        summarise(&mut row, logits, top_k);
        row
    }

    #[test]
    fn a_row_says_what_its_logits_say() {
        let row = of(&[1.0, 3.0, -0.0, 3.0, 0.0], 4);
        assert_eq!((row.argmax, row.top_ids.as_slice()), (1, &[1, 3, 0, 2][..]));
        assert_eq!(
            (row.top_logits[3].to_bits(), row.top2_margin),
            ((-0.0_f32).to_bits(), Some(0.0))
        );
        // e^1 + 2 e^3 + 2 = 44.889...
        let expected = (1f64.exp() + 2.0 * 3f64.exp() + 2.0).ln();
        assert!((row.logsumexp.unwrap() - expected).abs() < 1e-14);
        // The margin is that of the row, however short the list.
        let short = of(&[-1.0, 0.5, -2.0], 1);
        assert_eq!((short.top_ids, short.top2_margin), (vec![1], Some(1.5)));
    }

    #[test]
    fn values_that_are_not_finite_have_their_places() {
        let nan = of(&[f32::NAN, 1.0], 8);
        assert_eq!(
            (nan.argmax, nan.finite, nan.top_ids.len(), nan.top2_margin),
            (1, false, 1, None)
        );
        assert_eq!((nan.logsumexp, of(&[f32::INFINITY, 1.0], 1).logsumexp), (None, None));
        let none = of(&[f32::NEG_INFINITY; 3], 2);
        assert_eq!((none.top_ids, none.logsumexp), (vec![0, 1], Some(f64::NEG_INFINITY)));
        assert_eq!(of(&[], 2).argmax, UNKNOWN_TOKEN);
    }

    #[test]
    fn the_largest_of_many_are_those_of_a_sort() {
        let keys: Vec<u64> = (0..500_u64).map(|at| at.wrapping_mul(0x9e37_79b9) % 97).collect();
        let mut sorted: Vec<_> = keys.iter().copied().zip(0_u32..).collect();
        let pairs = sorted.clone();
        sorted.sort_unstable_by(|left, right| right.cmp(left));
        for k in [0, 1, 7, 499, 500, 900] {
            let wanted: Vec<_> = sorted.iter().copied().take(k).collect();
            assert_eq!(largest(k, pairs.iter().copied()), wanted, "{k}");
        }
    }
}
