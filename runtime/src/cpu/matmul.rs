//! Projections: `y = x W^T + b`, weights read once from where they lie.

use rayon::prelude::*;

use super::kernels::{Element, Isa, dots};
use super::ops;
use crate::weights::{Elements, Linear, Tensor};
use lockstep_traces::DType;

/// Multiply-adds below which a projection is not worth a second thread.
const PARALLEL_FROM: usize = 1 << 19;

/// How a projection is computed; none of it changes a bit of the result.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) isa: Isa,
    pub(super) dtype: DType,
    /// Run on the pool where the work is worth it.
    pub(super) parallel: bool,
}

/// `out[n, rows] = round(x[n, cols] W^T + b)`.
pub(super) fn linear(plan: Plan, weights: &Linear, x: &[f32], out: &mut [f32]) {
    matmul(plan, &weights.weight, x, out);
    if let Some(bias) = &weights.bias {
        for row in out.chunks_exact_mut(bias.len()) {
            for (out, bias) in row.iter_mut().zip(bias) {
                *out += bias;
            }
        }
    }
    ops::round(plan.dtype, out);
}

/// `out[n, rows] = x[n, cols] W^T`, not rounded.
pub(super) fn matmul(plan: Plan, weight: &Tensor, x: &[f32], out: &mut [f32]) {
    let &[rows, cols] = weight.shape() else {
        unreachable!("projections are matrices by the checks at load");
    };
    let shape = Shape { rows, cols };
    match weight.elements() {
        Elements::F32(w) => typed(plan, w, shape, x, out),
        Elements::F16(w) => typed(plan, w, shape, x, out),
        Elements::Bf16(w) => typed(plan, w, shape, x, out),
    }
}

#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    cols: usize,
}

fn typed<T: Element>(plan: Plan, w: &[T], shape: Shape, x: &[f32], out: &mut [f32]) {
    let Shape { rows, cols } = shape;
    let inputs = x.len() / cols;
    if inputs == 0 {
        return;
    }
    if inputs == 1 {
        blocks(plan, w, shape, x, out);
        return;
    }
    // Row-block results come out with the inputs innermost; turn them afterwards.
    let mut turned = vec![0.0; rows * inputs];
    blocks(plan, w, shape, x, &mut turned);
    for (row, sums) in turned.chunks_exact(inputs).enumerate() {
        for (input, sum) in sums.iter().enumerate() {
            out[input * rows + row] = *sum;
        }
    }
}

/// `out[rows, inputs]`, split by blocks of weight rows that fit a core's cache.
fn blocks<T: Element>(plan: Plan, w: &[T], shape: Shape, x: &[f32], out: &mut [f32]) {
    let Shape { rows, cols } = shape;
    let inputs = x.len() / cols;
    if !plan.parallel || rows * cols * inputs < PARALLEL_FROM {
        dots(plan.isa, w, x, cols, out);
        return;
    }
    let tasks = 4 * rayon::current_num_threads();
    let even = rows.div_ceil(tasks).next_multiple_of(8);
    // With several inputs a block of weights is read again for each strip of them; 64 rows stay in the L2 cache.
    let block = if inputs == 1 { even } else { even.min(64) };
    out.par_chunks_mut(block * inputs).zip(w.par_chunks(block * cols)).for_each(|(out, w)| {
        dots(plan.isa, w, x, cols, out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_out_by_in_and_the_bias_is_added() {
        let weight = Tensor::from_f32(vec![2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let linear_weights = Linear { weight, bias: Some(vec![0.5, -0.5]) };
        let plan = Plan { isa: Isa::detect(), dtype: DType::F32, parallel: false };
        let mut out = [0.0; 4];
        linear(plan, &linear_weights, &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], &mut out);
        assert_eq!(out.map(f32::to_bits), [1.5, 3.5, 6.5, 14.5].map(f32::to_bits));
    }

    #[test]
    fn a_row_has_the_same_bits_alone_in_a_batch_and_on_any_number_of_threads() {
        let (rows, cols, inputs) = (700, 130, 11);
        let value = |i: usize| ((i * 7919 % 1009) as f32 - 504.0) / 333.0;
        let weight = Tensor::from_f32(vec![rows, cols], (0..rows * cols).map(value).collect());
        let x: Vec<f32> = (0..inputs * cols).map(|i| value(i + 5)).collect();
        let plan = Plan { isa: Isa::detect(), dtype: DType::F32, parallel: false };
        let mut wanted = vec![0.0; rows * inputs];
        for (x, out) in x.chunks_exact(cols).zip(wanted.chunks_exact_mut(rows)) {
            matmul(plan, &weight, x, out);
        }
        for threads in [1, 2, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = vec![0.0; rows * inputs];
            let plan = Plan { parallel: true, ..plan };
            pool.install(|| matmul(plan, &weight, &x, &mut out));
            assert!(out.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits()), "{threads}");
        }
    }
}
