//! First pass over a pair: what is equal, what is not finite, and the figures that verdicts rest on.

use lockstep_traces::tensor_files::Element;
use rayon::prelude::*;

use super::decode::{non_finite, ranks, values};
use super::report::Figures;
use super::view::View;
use crate::tensors::block::{Sums, compare_block, square_sum};

/// Elements of a block at least: its bytes stay in the second-level cache.
const BLOCK: usize = 1 << 16;
/// Blocks of a pair at most, so that what is kept of each does not grow with the tensor.
const BLOCKS: usize = 1 << 16;

/// Elements of each block of a tensor of `elements`.
pub(super) fn block_of(elements: usize) -> usize {
    elements.div_ceil(BLOCKS).max(BLOCK).next_multiple_of(1 << 10)
}

/// What one block gave.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    /// None where both sides have the same bytes in one element type.
    sums: Option<Sums>,
    left: (u64, u64),
    right: (u64, u64),
}

/// Buffers of one thread.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    pub(super) left: Vec<u8>,
    pub(super) right: Vec<u8>,
    pub(super) left_values: Vec<f64>,
    pub(super) right_values: Vec<f64>,
    pub(super) left_ranks: Vec<i64>,
    pub(super) right_ranks: Vec<i64>,
}

/// Measures two views of one shape. `true` with it where no element differs.
pub(super) fn measure(left: &View<'_>, right: &View<'_>) -> Figures {
    let elements = left.elements();
    let size = block_of(elements);
    let bounds = |at: usize| (at * size, size.min(elements - at * size));
    let count = elements.div_ceil(size);
    let same = left.element == right.element;
    let blocks: Vec<Block> = (0..count)
        .into_par_iter()
        .map_init(Buffers::default, |buffers, at| {
            let (start, length) = bounds(at);
            let (l, r) = (
                left.block(start, length, &mut buffers.left),
                right.block(start, length, &mut buffers.right),
            );
            if same && l == r {
                let found = non_finite(left.element, l);
                return Block { sums: None, left: found, right: found };
            }
            let sums = match (same, left.element.dtype()) {
                (true, Some(dtype)) => compare_block(dtype, l, r),
                _ => {
                    values(left.element, l, &mut buffers.left_values);
                    values(right.element, r, &mut buffers.right_values);
                    let ranked = same.then(|| {
                        ranks(left.element, l, &mut buffers.left_ranks);
                        ranks(right.element, r, &mut buffers.right_ranks);
                        (buffers.left_ranks.as_slice(), buffers.right_ranks.as_slice())
                    });
                    plain(&buffers.left_values, &buffers.right_values, ranked)
                }
            };
            Block {
                sums: Some(sums),
                left: non_finite(left.element, l),
                right: non_finite(right.element, r),
            }
        })
        .collect();
    let different: u64 =
        blocks.iter().filter_map(|block| block.sums).map(|sums| sums.different).sum();
    // Norms of equal blocks are wanted only where another block differs.
    let squares: Vec<f64> = if different == 0 {
        Vec::new()
    } else {
        let square = |buffers: &mut Buffers, at: usize| {
            if blocks.get(at).is_none_or(|block| block.sums.is_some()) {
                return 0.0;
            }
            let (start, length) = bounds(at);
            square_of(
                left.element,
                left.block(start, length, &mut buffers.left),
                &mut buffers.left_values,
            )
        };
        (0..count).into_par_iter().map_init(Buffers::default, square).collect()
    };
    let (mut total, mut figures) =
        (Sums::default(), Figures { elements: elements as u64, ..Figures::default() });
    for (at, block) in blocks.iter().enumerate() {
        figures.nan_left += block.left.0;
        figures.inf_left += block.left.1;
        figures.nan_right += block.right.0;
        figures.inf_right += block.right.1;
        let square = squares.get(at).copied().unwrap_or(0.0);
        let equal = Sums { square_left: square, square_right: square, ..Sums::default() };
        total.join(&block.sums.unwrap_or(equal), (at * size) as u64);
    }
    finish(&mut figures, &total, same, left);
    figures
}

fn square_of(element: Element, bytes: &[u8], buffer: &mut Vec<f64>) -> f64 {
    if let Some(dtype) = element.dtype() {
        return square_sum(dtype, bytes);
    }
    values(element, bytes, buffer);
    buffer.iter().filter(|value| value.is_finite()).map(|value| value * value).sum()
}

/// Figures of decoded blocks; ranks where both sides have one element type.
fn plain(left: &[f64], right: &[f64], ranked: Option<(&[i64], &[i64])>) -> Sums {
    let mut sums = Sums::default();
    for (at, (&a, &b)) in left.iter().zip(right).enumerate() {
        if a.is_finite() {
            sums.square_left += a * a;
        }
        if b.is_finite() {
            sums.square_right += b * b;
        }
        let rank = ranked.and_then(|(l, r)| Some((*l.get(at)?, *r.get(at)?)));
        let equal = a.to_bits() == b.to_bits()
            || (a.is_nan() && b.is_nan())
            || (rank.is_none() && a - b == 0.0);
        if equal && rank.is_none_or(|(l, r)| l == r) {
            continue;
        }
        sums.different += 1;
        sums.first = sums.first.or(Some(at as u64));
        if !(a.is_finite() && b.is_finite()) {
            sums.non_finite += 1;
            continue;
        }
        sums.finite += 1;
        let abs = (a - b).abs();
        sums.max_abs = sums.max_abs.max(abs);
        sums.sum_abs += abs;
        sums.square_diff += abs * abs;
        if a.abs() > 0.0 {
            sums.max_rel = sums.max_rel.max(abs / a.abs());
        }
        sums.max_ulp = sums.max_ulp.max(rank.map_or(0, |(l, r)| l.abs_diff(r)));
    }
    sums
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn finish(figures: &mut Figures, sums: &Sums, same: bool, left: &View<'_>) {
    figures.equal = figures.elements - sums.different;
    figures.non_finite = sums.non_finite;
    let infinite = |value: f64| value.is_infinite();
    if sums.different > 0 {
        let at = sums.first.and_then(|first| usize::try_from(first).ok()).unwrap_or(0);
        figures.first =
            Some(super::view::unravel(at, &left.axes).into_iter().map(|at| at as u64).collect());
    }
    if figures.elements == 0 || (sums.different > 0 && sums.finite == 0) {
        return;
    }
    let finite_pairs = (figures.elements - sums.non_finite) as f64;
    figures.max_abs = Some(sums.max_abs);
    figures.mean_abs = Some(sums.sum_abs / finite_pairs);
    figures.rmse = Some((sums.square_diff / finite_pairs).sqrt());
    figures.max_rel = Some(sums.max_rel).filter(|max| max.is_finite());
    figures.max_ulp = same.then_some(sums.max_ulp);
    let (l, r, d) = (sums.square_left, sums.square_right, sums.square_diff);
    if sums.different == 0 {
        (figures.relative_l2, figures.deepgemm) = (Some(0.0), Some(0.0));
        return;
    }
    if sums.non_finite > 0 || infinite(l) || infinite(r) || infinite(d) {
        return;
    }
    figures.relative_l2 = (l > 0.0).then(|| (d / l).sqrt());
    figures.deepgemm = (l + r > 0.0).then(|| d / (l + r));
    figures.cosine = (l > 0.0 && r > 0.0).then(|| (l + r - d) / (2.0 * l.sqrt() * r.sqrt()));
}
