//! Attention of new rows over the cache, one softmax per row and head.

use std::ops::Range;

use rayon::prelude::*;

use super::kernels::{Element, Isa, dots, weighted_sum};
use super::matmul::Plan;
use super::ops;
use crate::cache::KvCache;
use crate::weights::Elements;
use lockstep_traces::DType;

/// Multiply-adds below which attention is not worth a second thread.
const PARALLEL_FROM: usize = 1 << 18;

/// Rows of one segment in one layer.
#[derive(Clone, Copy)]
pub(super) struct AttentionInput<'a> {
    pub(super) cache: &'a KvCache,
    pub(super) layer: usize,
    /// Queries by row, KV head and place in the group, `[n, kv_heads, group, head_dim]`.
    pub(super) queries: &'a [f32],
    /// Cache rows that row `i` sees, `[n]`.
    pub(super) visible: &'a [Range<usize>],
}

/// `out[n, kv_heads, group, head_dim] = softmax(round(round(q k^T) * scale)) v`, each rounded.
pub(super) fn attend(plan: Plan, input: &AttentionInput<'_>, out: &mut [f32]) {
    let shape = input.cache.shape();
    let rows = input.visible.len();
    if rows == 0 {
        return;
    }
    // Query heads of one KV head, in elements.
    let width = out.len() / rows / shape.kv_heads;
    let one = |(unit, out): (usize, &mut [f32])| {
        let (row, head) = (unit / shape.kv_heads, unit % shape.kv_heads);
        let queries = &input.queries[unit * width..(unit + 1) * width];
        let visible = input.visible[row].clone();
        let (k, v) = (input.cache.k(input.layer, head), input.cache.v(input.layer, head));
        let heads = Heads { isa: plan.isa, dtype: plan.dtype, dim: shape.head_dim, visible };
        match (k, v) {
            (Elements::F32(k), Elements::F32(v)) => heads.attend(k, v, queries, out),
            (Elements::F16(k), Elements::F16(v)) => heads.attend(k, v, queries, out),
            (Elements::Bf16(k), Elements::Bf16(v)) => heads.attend(k, v, queries, out),
            _ => unreachable!("K and V of one cache have one element type"),
        }
    };
    let seen: usize = input.visible.iter().map(ExactSizeIterator::len).sum();
    let work = seen * width * shape.kv_heads;
    if plan.parallel && work >= PARALLEL_FROM {
        out.par_chunks_mut(width).enumerate().for_each(one);
    } else {
        out.chunks_mut(width).enumerate().for_each(one);
    }
}

/// The query heads that share one KV head, for one row.
struct Heads {
    isa: Isa,
    dtype: DType,
    dim: usize,
    /// Cache rows that are seen.
    visible: Range<usize>,
}

impl Heads {
    fn attend<T: Element>(&self, k: &[T], v: &[T], queries: &[f32], out: &mut [f32]) {
        let Self { isa, dtype, dim, ref visible } = *self;
        let (seen, part) = (visible.len(), visible.start * dim..visible.end * dim);
        let group = queries.len() / dim;
        let scale = 1.0 / (dim as f64).sqrt();
        let scale = scale as f32;
        // Scores come out by cache row with the group innermost.
        let mut by_row = vec![0.0; seen * group];
        dots(isa, &k[part.clone()], queries, dim, &mut by_row);
        let mut scores = vec![0.0; seen];
        for (place, out) in out.chunks_exact_mut(dim).enumerate() {
            for (score, row) in scores.iter_mut().zip(by_row.chunks_exact(group)) {
                *score = ops::rounded(dtype, ops::rounded(dtype, row[place]) * scale);
            }
            ops::softmax(dtype, &mut scores);
            weighted_sum(isa, &v[part.clone()], &scores, out);
            ops::round(dtype, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CacheShape;

    #[test]
    fn a_row_mixes_the_values_that_it_sees_by_its_scores() {
        let shape =
            CacheShape { layers: 1, kv_heads: 1, head_dim: 2, dtype: DType::F32, capacity: 4 };
        let mut cache = KvCache::new(shape);
        // Scores of the query (sqrt 2, 0) after scaling are the first elements of K.
        let ln = |x: f32| x.ln();
        let k = [ln(1.0), 9.0, ln(3.0), -9.0, ln(100.0), 0.0];
        cache.append(0, &k, &[1.0, 0.0, 0.0, 1.0, 5.0, 5.0]);
        cache.commit(0..3);
        let queries = [2_f32.sqrt(), 0.0, 0.0, 0.0];
        let input = AttentionInput {
            cache: &cache,
            layer: 0,
            queries: &queries,
            visible: std::slice::from_ref(&(0..2)),
        };
        for isa in Isa::available() {
            let plan = Plan { isa: *isa, dtype: DType::F32, parallel: false };
            let mut out = [f32::NAN; 4];
            attend(plan, &input, &mut out);
            let wanted = [0.25, 0.75, 0.5, 0.5];
            assert!(out.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{out:?}");
            // A window of one row copies that row's V.
            let window = AttentionInput { visible: std::slice::from_ref(&(1..2)), ..input };
            attend(plan, &window, &mut out);
            assert_eq!(out.map(f32::to_bits), [0.0, 1.0, 0.0, 1.0].map(f32::to_bits));
        }
    }
}
