//! The operations between the matmuls, each over whole rows and on all threads.
//!
//! Arithmetic is in the element type of the tensor (f32 or f64); where a [`Rounding`] is given, values are rounded at
//! the points at which a model cast to that dtype rounds them. Sums run in eight lanes in a fixed order, so that a
//! result does not depend on the number of threads.

use std::ops::{Add, Div, Mul, Neg, Sub};

use candle_core::{
    CpuStorage, CustomOp2, CustomOp3, InplaceOp1, InplaceOp2, Layout, Shape, Tensor,
};

use super::Rounding;
use super::parallel::for_blocks;

type Result<T> = candle_core::Result<T>;

/// The two element types of the reference.
trait Real:
    Copy
    + Default
    + Send
    + Sync
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    const ONE: Self;
    const LOWEST: Self;
    fn of(value: f64) -> Self;
    fn exp(self) -> Self;
    fn sqrt(self) -> Self;
    fn rounded(self, rounding: Rounding) -> Self;
}

impl Real for f32 {
    const ONE: Self = 1.0;
    const LOWEST: Self = Self::NEG_INFINITY;
    fn of(value: f64) -> Self {
        value as Self
    }
    fn exp(self) -> Self {
        self.exp()
    }
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    #[inline]
    fn rounded(self, rounding: Rounding) -> Self {
        rounding.f32(self)
    }
}

impl Real for f64 {
    const ONE: Self = 1.0;
    const LOWEST: Self = Self::NEG_INFINITY;
    fn of(value: f64) -> Self {
        value
    }
    fn exp(self) -> Self {
        self.exp()
    }
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    fn rounded(self, _: Rounding) -> Self {
        self
    }
}

/// Elements of a block handed to a thread, rounded up to whole rows.
fn block_of(width: usize) -> usize {
    (1usize << 15).div_ceil(width.max(1)) * width.max(1)
}

fn lanes<T: Real>(values: impl Iterator<Item = T>) -> T {
    let mut sums = [T::default(); 8];
    for (index, value) in values.enumerate() {
        sums[index % 8] = sums[index % 8] + value;
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

fn plain<'a, T>(values: &'a [T], layout: &Layout, op: &'static str) -> Result<&'a [T]> {
    let (start, end) = layout
        .contiguous_offsets()
        .ok_or_else(|| candle_core::Error::RequiresContiguous { op }.bt())?;
    Ok(&values[start..end])
}

/// Runs a generic body on whichever of the two element types all storages share.
macro_rules! on_reals {
    ($op:expr, ($($storage:expr, $layout:expr => $name:ident),+), $body:expr) => {
        match ($($storage),+) {
            ($(CpuStorage::F32($name)),+) => {
                $(let $name = plain($name, $layout, $op)?;)+
                CpuStorage::F32($body)
            }
            ($(CpuStorage::F64($name)),+) => {
                $(let $name = plain($name, $layout, $op)?;)+
                CpuStorage::F64($body)
            }
            _ => candle_core::bail!("{} needs f32 or f64 operands of one type", $op),
        }
    };
}

struct RmsNorm {
    eps: f64,
    rounding: Rounding,
}

impl RmsNorm {
    fn rows<T: Real>(&self, x: &[T], weight: &[T]) -> Vec<T> {
        let width = weight.len();
        let mut out = x.to_vec();
        for_blocks(&mut out, block_of(width), |_, block| {
            for row in block.chunks_exact_mut(width) {
                let square = lanes(row.iter().map(|v| *v * *v)) / T::of(width as f64);
                let scale = T::ONE / (square + T::of(self.eps)).sqrt();
                for (value, weight) in row.iter_mut().zip(weight) {
                    let normed = (*value * scale).rounded(self.rounding);
                    *value = (*weight * normed).rounded(self.rounding);
                }
            }
        });
        out
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "reference-rms-norm"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let out = on_reals!(self.name(), (x, x_layout => a, w, w_layout => b), self.rows(a, b));
        Ok((out, x_layout.shape().clone()))
    }
}

/// `weight * x / sqrt(mean(x^2) + eps)` over the last axis; rounded after the normalisation and after the weight.
pub(super) fn rms_norm(
    x: &Tensor,
    weight: &Tensor,
    eps: f64,
    rounding: Rounding,
) -> Result<Tensor> {
    if x.dim(candle_core::D::Minus1)? != weight.dim(0)? {
        candle_core::bail!("norm weight {:?} does not fit {:?}", weight.shape(), x.shape());
    }
    x.contiguous()?.apply_op2_no_bwd(weight, &RmsNorm { eps, rounding })
}

struct Rotate {
    heads: usize,
    head_dim: usize,
    rounding: Rounding,
}

impl Rotate {
    /// `x` is `[rows, heads, head_dim]`, the tables `[rows, head_dim / 2]`; the result is `[heads, rows, head_dim]`.
    fn rows<T: Real>(&self, x: &[T], cos: &[T], sin: &[T]) -> Vec<T> {
        let half = self.head_dim / 2;
        let rows = cos.len() / half;
        let r = self.rounding;
        let mut out = vec![T::default(); x.len()];
        for_blocks(&mut out, rows * self.head_dim, |start, block| {
            let head = start / (rows * self.head_dim);
            for (row, out) in block.chunks_exact_mut(self.head_dim).enumerate() {
                let from = (row * self.heads + head) * self.head_dim;
                let (low, high) = x[from..from + self.head_dim].split_at(half);
                let (out_low, out_high) = out.split_at_mut(half);
                for index in 0..half {
                    let cos = cos[row * half + index].rounded(r);
                    let sin = sin[row * half + index].rounded(r);
                    let turn =
                        |a: T, b: T| ((a * cos).rounded(r) + (b * sin).rounded(r)).rounded(r);
                    out_low[index] = turn(low[index], -high[index]);
                    out_high[index] = turn(high[index], low[index]);
                }
            }
        });
        out
    }
}

impl CustomOp3 for Rotate {
    fn name(&self) -> &'static str {
        "reference-rotate"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        cos: &CpuStorage,
        cos_layout: &Layout,
        sin: &CpuStorage,
        sin_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let rows = x_layout.dims().first().copied().unwrap_or(0);
        let out = on_reals!(
            self.name(),
            (x, x_layout => a, cos, cos_layout => b, sin, sin_layout => c),
            self.rows(a, b, c)
        );
        Ok((out, Shape::from((self.heads, rows, self.head_dim))))
    }
}

/// RoPE over halves. `x` `[rows, heads, head_dim]`, `cos` and `sin` `[rows, head_dim / 2]`; returns `[heads, rows, head_dim]`.
/// Tables, both products and their sum are rounded.
pub(super) fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor, rounding: Rounding) -> Result<Tensor> {
    let (rows, heads, head_dim) = x.dims3()?;
    if cos.dims2()? != (rows, head_dim / 2) || sin.dims2()? != (rows, head_dim / 2) {
        candle_core::bail!("rotary table {:?} does not fit {:?}", cos.shape(), x.shape());
    }
    x.contiguous()?.apply_op3_no_bwd(cos, sin, &Rotate { heads, head_dim, rounding })
}

struct CausalSoftmax {
    queries: usize,
    visible: usize,
    scale: f64,
    rounding: Rounding,
}

impl CausalSoftmax {
    fn rows<T: Real>(&self, scores: &mut [T], keys: usize) {
        let scale = T::of(self.scale);
        let r = self.rounding;
        for_blocks(scores, block_of(keys), |start, block| {
            for (offset, row) in block.chunks_exact_mut(keys).enumerate() {
                let query = (start / keys + offset) % self.queries;
                let (live, masked) = row.split_at_mut((self.visible + query).min(keys));
                masked.fill(T::default());
                let mut highest = T::LOWEST;
                for value in live.iter_mut() {
                    *value = (value.rounded(r) * scale).rounded(r);
                    highest = if *value > highest { *value } else { highest };
                }
                for value in live.iter_mut() {
                    *value = (*value - highest).exp();
                }
                let total = lanes(live.iter().copied());
                for value in live.iter_mut() {
                    *value = (*value / total).rounded(r);
                }
            }
        });
    }
}

impl InplaceOp1 for CausalSoftmax {
    fn name(&self) -> &'static str {
        "reference-causal-softmax"
    }
    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let keys = layout.dims().last().copied().unwrap_or(0);
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(candle_core::Error::RequiresContiguous { op: self.name() }.bt());
        };
        match storage {
            CpuStorage::F32(values) => self.rows(&mut values[start..end], keys),
            CpuStorage::F64(values) => self.rows(&mut values[start..end], keys),
            _ => candle_core::bail!("{} needs f32 or f64", self.name()),
        }
        Ok(())
    }
}

/// Turns raw scores `[groups * queries, keys]` into probabilities, in place. Query `q` of each group sees the first
/// `visible + q` keys; the rest become 0. Rounded: the score, the scaled score, the probability.
pub(super) fn causal_softmax(
    scores: &Tensor,
    queries: usize,
    visible: usize,
    scale: f64,
    rounding: Rounding,
) -> Result<()> {
    scores.inplace_op1(&CausalSoftmax { queries, visible, scale, rounding })
}

struct SiluMul {
    rounding: Rounding,
}

impl SiluMul {
    fn rows<T: Real>(&self, gate: &mut [T], up: &[T]) {
        let r = self.rounding;
        for_blocks(gate, block_of(1), |start, block| {
            for (gate, up) in block.iter_mut().zip(&up[start..]) {
                let silu = (*gate / (T::ONE + (-*gate).exp())).rounded(r);
                *gate = (silu * *up).rounded(r);
            }
        });
    }
}

impl InplaceOp2 for SiluMul {
    fn name(&self) -> &'static str {
        "reference-silu-mul"
    }
    fn cpu_fwd(
        &self,
        gate: &mut CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> Result<()> {
        let Some((start, end)) = gate_layout.contiguous_offsets() else {
            return Err(candle_core::Error::RequiresContiguous { op: self.name() }.bt());
        };
        match (gate, up) {
            (CpuStorage::F32(gate), CpuStorage::F32(up)) => {
                self.rows(&mut gate[start..end], plain(up, up_layout, self.name())?);
            }
            (CpuStorage::F64(gate), CpuStorage::F64(up)) => {
                self.rows(&mut gate[start..end], plain(up, up_layout, self.name())?);
            }
            _ => candle_core::bail!("{} needs f32 or f64 operands of one type", self.name()),
        }
        Ok(())
    }
}

/// `silu(gate) * up`, written over `gate`; rounded after the activation and after the product.
pub(super) fn silu_mul(gate: &Tensor, up: &Tensor, rounding: Rounding) -> Result<()> {
    if gate.dims() != up.dims() {
        candle_core::bail!("gate {:?} and up {:?} differ in shape", gate.shape(), up.shape());
    }
    gate.inplace_op2(up, &SiluMul { rounding })
}

struct Round(Rounding);

impl InplaceOp1 for Round {
    fn name(&self) -> &'static str {
        "reference-round"
    }
    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(candle_core::Error::RequiresContiguous { op: self.name() }.bt());
        };
        if let CpuStorage::F32(values) = storage {
            for_blocks(&mut values[start..end], block_of(1), |_, block| {
                for value in block {
                    *value = self.0.f32(*value);
                }
            });
        }
        Ok(())
    }
}

/// `x * weight^T + bias`, weight `[out, in]`; the product accumulates in the element type and is rounded once.
pub(super) fn linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    rounding: Rounding,
) -> Result<Tensor> {
    let product = x.matmul(&weight.t()?)?;
    match bias {
        Some(bias) => rounded(product.broadcast_add(bias)?, rounding),
        None => rounded(product, rounding),
    }
}

/// Floating-point operations a second of one f32 product `[rows, inner] x [cols, inner]^T`, the best of `tries`: what this
/// machine's matmul gives without anything around it.
///
/// # Errors
/// Memory.
pub fn gemm_flops(
    [rows, inner, cols]: [usize; 3],
    tries: usize,
) -> std::result::Result<f64, crate::ReferenceError> {
    let filled = |rows: usize| {
        let values = (0..rows * inner).map(|index| ((index % 17) as f32 - 8.0) / 8.0).collect();
        Tensor::from_vec::<_, f32>(values, (rows, inner), &candle_core::Device::Cpu)
    };
    let (x, weight) = (filled(rows)?, filled(cols)?);
    let mut best = f64::INFINITY;
    for _ in 0..tries.max(1) {
        let started = std::time::Instant::now();
        linear(&x, &weight, None, Rounding::None)?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(2.0 * rows as f64 * inner as f64 * cols as f64 / best)
}

/// Sum of two tensors, rounded.
pub(super) fn add(left: &Tensor, right: &Tensor, rounding: Rounding) -> Result<Tensor> {
    rounded((left + right)?, rounding)
}

/// Rounds a freshly computed tensor in place.
pub(super) fn rounded(x: Tensor, rounding: Rounding) -> Result<Tensor> {
    if rounding != Rounding::None {
        x.inplace_op1(&Round(rounding))?;
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn tensor(values: &[f64], shape: impl Into<Shape>) -> Tensor {
        Tensor::from_vec(values.to_vec(), shape, &Device::Cpu).unwrap()
    }

    fn values(tensor: &Tensor) -> Vec<f64> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn near(left: &[f64], right: &[f64]) {
        assert_eq!(left.len(), right.len());
        for (a, b) in left.iter().zip(right) {
            assert!((a - b).abs() < 1e-12, "{left:?} against {right:?}");
        }
    }

    #[test]
    fn norm_divides_by_the_root_mean_square() {
        let x = tensor(&[3.0, 4.0, 0.0, 0.0], (2, 2));
        let out = rms_norm(&x, &tensor(&[1.0, 2.0], 2), 0.5, Rounding::None).unwrap();
        let scale = 1.0 / (12.5f64 + 0.5).sqrt();
        near(&values(&out), &[3.0 * scale, 8.0 * scale, 0.0, 0.0]);
    }

    #[test]
    fn rotation_pairs_halves_and_moves_heads_outward() {
        // Two rows, two heads of width 2: one frequency; row 1 turns by a quarter.
        let x = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], (2, 2, 2));
        let (cos, sin) = (tensor(&[1.0, 0.0], (2, 1)), tensor(&[0.0, 1.0], (2, 1)));
        let out = rotate(&x, &cos, &sin, Rounding::None).unwrap();
        assert_eq!(out.dims(), [2, 2, 2]);
        near(&values(&out), &[1.0, 2.0, -6.0, 5.0, 3.0, 4.0, -8.0, 7.0]);
    }

    #[test]
    fn softmax_sees_the_past_and_nothing_else() {
        let scores = tensor(&[0.0, 9.0, 9.0, 0.0, 2f64.ln(), 9.0], (2, 3));
        causal_softmax(&scores, 2, 1, 1.0, Rounding::None).unwrap();
        near(&values(&scores), &[1.0, 0.0, 0.0, 1.0 / 3.0, 2.0 / 3.0, 0.0]);
    }

    #[test]
    fn gate_is_silu_times_up() {
        let gate = tensor(&[0.0, 1.0], 2);
        silu_mul(&gate, &tensor(&[5.0, 3.0], 2), Rounding::None).unwrap();
        near(&values(&gate), &[0.0, 3.0 / (1.0 + (-1f64).exp())]);
    }

    #[test]
    fn rounded_results_lie_on_the_grid() {
        let x = Tensor::from_vec(vec![1.0f32, 0.3], (1, 2), &Device::Cpu).unwrap();
        let w = Tensor::from_vec(vec![0.1f32, 0.7], (1, 2), &Device::Cpu).unwrap();
        let out = linear(&x, &w, None, Rounding::Bf16).unwrap().flatten_all().unwrap();
        let got = out.to_vec1::<f32>().unwrap()[0];
        assert_eq!(got.to_bits(), half::bf16::from_f32(0.1 + 0.3 * 0.7).to_f32().to_bits());
    }
}
