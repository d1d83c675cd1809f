//! What a step row says about a vector of logits.

use std::cmp::Ordering;

use lockstep_traces::hash::{DEFAULT_SEEDS, canonical_bits, splitmix64};
use rayon::prelude::*;

/// Elements summed together; fixed, so that sums do not depend on threads.
const BLOCK: usize = 8192;

/// Summary of one row of logits.
#[derive(Debug, Clone, PartialEq)]
pub struct RowSummary {
    /// Largest logit's id, lowest id on ties; NaN ranks last.
    pub argmax: u32,
    /// Ids of the largest logits, logit descending, lower id first.
    pub top_ids: Vec<u32>,
    /// Their logits.
    pub top_logits: Vec<f32>,
    /// ln(sum(exp)), f64; `None` where it is not a number.
    pub logsumexp: Option<f64>,
    /// Largest minus second largest; `None` where it is not a number.
    pub top2_margin: Option<f32>,
    /// No NaN or infinity.
    pub finite: bool,
    /// Order-free hash under the default seeds.
    pub hash: [u64; 2],
}

struct Block {
    /// Best first.
    top: Vec<(u32, f32)>,
    largest: f64,
    /// Sum of exp(logit - largest).
    sum: f64,
    finite: bool,
    hash: [u64; 2],
}

/// Summarises `logits`, `[vocab]`, with `top_k` ids.
#[must_use]
pub fn summarize(logits: &[f32], top_k: usize) -> RowSummary {
    // Two at least: the margin needs the second.
    let wanted = top_k.max(2);
    let one = |(number, part): (usize, &[f32])| block(part, number * BLOCK, wanted);
    let blocks: Vec<Block> = if logits.len() > 2 * BLOCK {
        logits.par_chunks(BLOCK).enumerate().map(one).collect()
    } else {
        logits.chunks(BLOCK).enumerate().map(one).collect()
    };
    let mut top: Vec<(u32, f32)> = blocks.iter().flat_map(|block| &block.top).copied().collect();
    top.sort_by(rank);
    top.truncate(wanted);
    let largest = blocks.iter().map(|block| block.largest).fold(f64::NEG_INFINITY, f64::max);
    let scaled = |block: &Block| match largest - block.largest {
        // Both -inf: the block's sum is 0, or NaN.
        gap if gap.is_nan() => block.sum,
        gap => block.sum * (-gap).exp(),
    };
    let sum: f64 = blocks.iter().map(scaled).sum();
    let logsumexp = Some(largest + sum.ln()).filter(|value| !value.is_nan());
    let margin = match top.as_slice() {
        [(_, first), (_, second), ..] => Some(first - second).filter(|margin| !margin.is_nan()),
        _ => None,
    };
    let hash = blocks.iter().fold([0_u64; 2], |sums, block| {
        [sums[0].wrapping_add(block.hash[0]), sums[1].wrapping_add(block.hash[1])]
    });
    let argmax = top.first().map_or(0, |(id, _)| *id);
    top.truncate(top_k);
    RowSummary {
        argmax,
        top_ids: top.iter().map(|(id, _)| *id).collect(),
        top_logits: top.iter().map(|(_, logit)| *logit).collect(),
        logsumexp,
        top2_margin: margin,
        finite: blocks.iter().all(|block| block.finite),
        hash,
    }
}

/// Larger logit first, then lower id; NaN after everything.
fn rank(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    let by_logit = match (a.1.is_nan(), b.1.is_nan()) {
        (false, false) => b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal),
        (left, right) => left.cmp(&right),
    };
    by_logit.then(a.0.cmp(&b.0))
}

fn block(part: &[f32], start: usize, wanted: usize) -> Block {
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(wanted.min(part.len()) + 1);
    let mut hash = [0_u64; 2];
    let mut finite = true;
    for (id, logit) in (start as u64..).zip(part) {
        finite &= logit.is_finite();
        let word = (id << 32) | u64::from(canonical_bits(*logit));
        for (sum, seed) in hash.iter_mut().zip(DEFAULT_SEEDS) {
            *sum = sum.wrapping_add(splitmix64(seed ^ word));
        }
        let entry = (id as u32, *logit);
        let full = top.len() == wanted;
        if !full || top.last().is_some_and(|last| rank(&entry, last) == Ordering::Less) {
            let place = top.partition_point(|other| rank(other, &entry) == Ordering::Less);
            top.insert(place, entry);
            top.truncate(wanted);
        }
    }
    let largest = part.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let largest = f64::from(largest);
    let sum = if largest == f64::NEG_INFINITY {
        // exp(-inf - -inf) is not a number; such a block adds nothing, unless it holds NaN.
        if part.iter().any(|logit| logit.is_nan()) { f64::NAN } else { 0.0 }
    } else {
        part.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum()
    };
    Block { top, largest, sum, finite, hash }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_traces::hash::logits_hash;

    #[test]
    fn ties_fall_to_the_lower_id() {
        let row = summarize(&[1.0, 3.0, 2.0, 3.0], 3);
        assert_eq!(row.argmax, 1);
        assert_eq!(row.top_ids, [1, 3, 2]);
        assert_eq!(row.top_logits, [3.0, 3.0, 2.0]);
        assert_eq!(row.top2_margin, Some(0.0));
        let wanted = (1_f64.exp() + 2.0 * 3_f64.exp() + 2_f64.exp()).ln();
        assert!((row.logsumexp.unwrap() - wanted).abs() < 1e-12);
        assert!(row.finite);
    }

    #[test]
    fn one_id_may_be_wanted_and_the_margin_is_there_all_the_same() {
        let row = summarize(&[1.0, 3.0], 1);
        assert_eq!((row.top_ids, row.top2_margin), (vec![1], Some(2.0)));
    }

    #[test]
    fn a_long_row_is_summed_in_blocks_and_agrees_with_the_plain_sums() {
        let logits: Vec<f32> = (0..100_003_u32)
            .map(|id| (id.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e6 - 8.0)
            .collect();
        let row = summarize(&logits, 8);
        assert_eq!(row.hash, logits_hash(&logits, DEFAULT_SEEDS));
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        assert!((row.logsumexp.unwrap() - sum.ln()).abs() < 1e-9);
        let mut order: Vec<u32> = (0..100_003).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        assert_eq!(row.top_ids, order[..8]);
    }

    #[test]
    fn values_that_are_no_numbers_rank_last_and_are_reported() {
        let row = summarize(&[f32::NAN, -1.0, f32::NEG_INFINITY], 3);
        assert_eq!(row.top_ids, [1, 2, 0]);
        assert!(!row.finite && row.logsumexp.is_none());
        let masked = summarize(&[f32::NEG_INFINITY, 0.0], 2);
        assert_eq!(masked.logsumexp, Some(0.0));
        assert_eq!(masked.top2_margin, Some(f32::INFINITY));
        assert!(!masked.finite);
        assert_eq!(summarize(&[f32::NEG_INFINITY; 3], 1).logsumexp, Some(f64::NEG_INFINITY));
    }
}
